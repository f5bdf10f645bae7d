"""Shared code of agent-loop tests and evaluations (0.2 import paths)."""

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
