"""Agent-loop tests (0.2 import paths), resolved on first use."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from osmosis_ai.evaluation.agent_loop.inputs import (
        ProviderError,
    )
    from osmosis_ai.evaluation.agent_loop.interactive import (
        InteractiveLLMClient,
        InteractiveRunner,
        InteractiveStep,
    )
    from osmosis_ai.evaluation.agent_loop.llm_client import (
        ExternalLLMClient,
    )
    from osmosis_ai.evaluation.agent_loop.runner import (
        LocalTestBatchResult,
        LocalTestRunner,
        LocalTestRunResult,
    )

__all__ = [
    "ExternalLLMClient",
    "InteractiveLLMClient",
    "InteractiveRunner",
    "InteractiveStep",
    "LocalTestBatchResult",
    "LocalTestRunResult",
    "LocalTestRunner",
    "ProviderError",
]

_HOMES = {
    "ExternalLLMClient": "osmosis_ai.evaluation.agent_loop.llm_client",
    "InteractiveLLMClient": "osmosis_ai.evaluation.agent_loop.interactive",
    "InteractiveRunner": "osmosis_ai.evaluation.agent_loop.interactive",
    "InteractiveStep": "osmosis_ai.evaluation.agent_loop.interactive",
    "LocalTestBatchResult": "osmosis_ai.evaluation.agent_loop.runner",
    "LocalTestRunResult": "osmosis_ai.evaluation.agent_loop.runner",
    "LocalTestRunner": "osmosis_ai.evaluation.agent_loop.runner",
    "ProviderError": "osmosis_ai.evaluation.agent_loop.inputs",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
