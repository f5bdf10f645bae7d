"""Public path of the LiteLLM bridge; defined in :mod:`osmosis_ai.controller.model_proxy`."""

from osmosis_ai.controller.model_proxy import (
    LiteLLMBridge,
)

__all__ = [
    "LiteLLMBridge",
]
