"""Agent-loop tests (0.2 import paths)."""

from osmosis_ai.evaluation.agent_loop.inputs import ProviderError
from osmosis_ai.evaluation.agent_loop.interactive import (
    InteractiveLLMClient,
    InteractiveRunner,
    InteractiveStep,
)
from osmosis_ai.evaluation.agent_loop.llm_client import ExternalLLMClient
from osmosis_ai.evaluation.agent_loop.runner import LocalTestBatchResult, LocalTestRunner, LocalTestRunResult

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
