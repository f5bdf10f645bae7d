"""Public path of the LiteLLM bridge; defined in :mod:`osmosis_ai.controller.bridge_litellm`."""

from osmosis_ai.controller.bridge_litellm import (
    LiteLLMBridge,
)

__all__ = [
    "LiteLLMBridge",
]
