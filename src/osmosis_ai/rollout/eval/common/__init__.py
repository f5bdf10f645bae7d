"""Shared code of agent-loop tests and evaluations (0.2 import paths), resolved on first use."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from osmosis_ai.evaluation.agent_loop.inputs import (
        REQUIRED_COLUMNS,
        DatasetParseError,
        DatasetReader,
        DatasetRow,
        DatasetValidationError,
        LocalExecutionError,
        ProviderError,
        ToolValidationError,
        build_completion_params,
        dataset_row_to_request,
        load_agent,
        load_dataset_rows,
    )
    from osmosis_ai.evaluation.agent_loop.llm_client import ExternalLLMClient, create_llm_client
    from osmosis_ai.evaluation.agent_loop.runner import (
        LocalBatchResult,
        LocalLLMClientProtocol,
        LocalRolloutRunner,
        LocalRunResult,
        format_duration,
        format_tokens,
        validate_tools,
    )

__all__ = [
    "REQUIRED_COLUMNS",
    "DatasetParseError",
    "DatasetReader",
    "DatasetRow",
    "DatasetValidationError",
    "ExternalLLMClient",
    "LocalBatchResult",
    "LocalExecutionError",
    "LocalLLMClientProtocol",
    "LocalRolloutRunner",
    "LocalRunResult",
    "ProviderError",
    "ToolValidationError",
    "build_completion_params",
    "create_llm_client",
    "dataset_row_to_request",
    "format_duration",
    "format_tokens",
    "load_agent",
    "load_dataset_rows",
    "validate_tools",
]

_HOMES = {
    "DatasetParseError": "osmosis_ai.evaluation.agent_loop.inputs",
    "DatasetReader": "osmosis_ai.evaluation.agent_loop.inputs",
    "DatasetRow": "osmosis_ai.evaluation.agent_loop.inputs",
    "DatasetValidationError": "osmosis_ai.evaluation.agent_loop.inputs",
    "ExternalLLMClient": "osmosis_ai.evaluation.agent_loop.llm_client",
    "LocalBatchResult": "osmosis_ai.evaluation.agent_loop.runner",
    "LocalExecutionError": "osmosis_ai.evaluation.agent_loop.inputs",
    "LocalLLMClientProtocol": "osmosis_ai.evaluation.agent_loop.runner",
    "LocalRolloutRunner": "osmosis_ai.evaluation.agent_loop.runner",
    "LocalRunResult": "osmosis_ai.evaluation.agent_loop.runner",
    "ProviderError": "osmosis_ai.evaluation.agent_loop.inputs",
    "REQUIRED_COLUMNS": "osmosis_ai.evaluation.agent_loop.inputs",
    "ToolValidationError": "osmosis_ai.evaluation.agent_loop.inputs",
    "build_completion_params": "osmosis_ai.evaluation.agent_loop.inputs",
    "create_llm_client": "osmosis_ai.evaluation.agent_loop.llm_client",
    "dataset_row_to_request": "osmosis_ai.evaluation.agent_loop.inputs",
    "format_duration": "osmosis_ai.evaluation.agent_loop.runner",
    "format_tokens": "osmosis_ai.evaluation.agent_loop.runner",
    "load_agent": "osmosis_ai.evaluation.agent_loop.inputs",
    "load_dataset_rows": "osmosis_ai.evaluation.agent_loop.inputs",
    "validate_tools": "osmosis_ai.evaluation.agent_loop.runner",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
