"""Public SDK for writing agents: workflows, graders, agent loops and the servers that run them.

Names are imported on first use, so importing this package loads no web framework or model client.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .agent_workflow import AgentWorkflow as AgentWorkflow
    from .backend import ExecutionBackend as ExecutionBackend
    from .backend import LocalBackend as LocalBackend
    from .client import OsmosisLLMClient as OsmosisLLMClient
    from .command_workflow import CommandWorkflow as CommandWorkflow
    from .config import *  # noqa: F403
    from .context import AgentWorkflowContext as AgentWorkflowContext
    from .context import GraderContext as GraderContext
    from .context import RolloutContext as RolloutContext
    from .context import SampleSource as SampleSource
    from .context import get_rollout_context as get_rollout_context
    from .core.base import CompletionsResult as CompletionsResult
    from .core.base import LLMClientProtocol as LLMClientProtocol
    from .core.base import RolloutAgentLoop as RolloutAgentLoop
    from .core.base import RolloutResult as RolloutResult
    from .core.exceptions import *  # noqa: F403
    from .core.schemas import *  # noqa: F403
    from .grader import Grader as Grader
    from .network import *  # noqa: F403
    from .registry import *  # noqa: F403
    from .server.agent_loop import create_app as create_app
    from .server.serve import DEFAULT_HOST as DEFAULT_HOST
    from .server.serve import DEFAULT_PORT as DEFAULT_PORT
    from .server.serve import ServeError as ServeError
    from .server.serve import serve_agent_loop as serve_agent_loop
    from .server.serve import validate_and_report as validate_and_report
    from .tools import create_tool_error_result as create_tool_error_result
    from .tools import create_tool_result as create_tool_result
    from .tools import execute_tool_calls as execute_tool_calls
    from .tools import get_tool_call_info as get_tool_call_info
    from .tools import parse_tool_arguments as parse_tool_arguments
    from .tools import serialize_tool_result as serialize_tool_result
    from .types import *  # noqa: F403
    from .utils import *  # noqa: F403
    from .validator import *  # noqa: F403

# Public names, by the module that defines them.
_MODULES = {
    ".agent_workflow": "AgentWorkflow",
    ".backend": "ExecutionBackend LocalBackend",
    ".client": "OsmosisLLMClient",
    ".command_workflow": "CommandWorkflow",
    ".config": """
        RolloutClientSettings RolloutServerSettings RolloutSettings configure get_settings reset_settings
    """,
    ".context": "AgentWorkflowContext GraderContext RolloutContext SampleSource get_rollout_context",
    ".core.base": "CompletionsResult LLMClientProtocol RolloutAgentLoop RolloutResult",
    ".core.exceptions": """
        AgentLoopNotFoundError OsmosisRolloutError OsmosisServerError OsmosisTimeoutError
        OsmosisTransportError OsmosisValidationError ToolArgumentError ToolExecutionError
    """,
    ".core.schemas": """
        CompletionUsage CompletionsChoice CompletionsRequest CompletionsResponse
        DEFAULT_MAX_METADATA_SIZE_BYTES InitResponse OpenAIFunctionCallSchema OpenAIFunctionParametersSchema
        OpenAIFunctionParsedSchema OpenAIFunctionPropertySchema OpenAIFunctionSchema OpenAIFunctionToolCall
        OpenAIFunctionToolSchema RolloutMetrics RolloutRequest RolloutResponse SamplingParamsDict
        ToolResponse get_max_metadata_size_bytes set_max_metadata_size_bytes
    """,
    ".grader": "Grader",
    ".network": """
        PublicIPDetectionError detect_public_ip is_private_ip is_valid_hostname_or_ip validate_ipv4
    """,
    ".registry": """
        AgentLoopRegistry get_agent_loop list_agent_loops register_agent_loop unregister_agent_loop
    """,
    ".server.agent_loop": "create_app",
    ".server.serve": "DEFAULT_HOST DEFAULT_PORT ServeError serve_agent_loop validate_and_report",
    ".tools": """
        create_tool_error_result create_tool_result execute_tool_calls get_tool_call_info
        parse_tool_arguments serialize_tool_result
    """,
    ".types": """
        AgentWorkflowConfig AgentWorkflowOutput BaseConfig ConcurrencyConfig ExecutionRequest
        ExecutionResult GraderCompleteRequest GraderConfig GraderInitRequest GraderInitResponse GraderStatus
        MessageDict RolloutCompleteRequest RolloutErrorCategory RolloutInitRequest RolloutInitResponse
        RolloutSample RolloutStatus
    """,
    ".utils": """
        count_messages_by_role get_message_content get_message_role is_assistant_message is_tool_message
        is_user_message normalize_stop parse_tool_calls
    """,
    ".validator": "AgentLoopValidationError ValidationError ValidationResult validate_agent_loop",
}
_HOMES = {name: module for module, names in _MODULES.items() for name in names.split()}
__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name], __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
