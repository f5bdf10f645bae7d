"""Public path of the LiteLLM bridge."""

from osmosis_ai.controller.model_proxy import LiteLLMBridge as LiteLLMBridge
