"""Public path of the controller's classes."""

from osmosis_ai.controller.callbacks import CallbackListener as CallbackListener
from osmosis_ai.controller.callbacks import CallbackStore as CallbackStore
from osmosis_ai.controller.callbacks import TerminalCallbackResult as TerminalCallbackResult
from osmosis_ai.controller.model_proxy import LiteLLMBridge as LiteLLMBridge
