"""Public SDK for writing agents: workflows, graders, agent loops and the servers that run them.

Names are imported on first use, so importing this package loads no web framework or model client.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .agent_workflow import AgentWorkflow
    from .backend import ExecutionBackend, LocalBackend
    from .command_workflow import CommandWorkflow
    from .context import (
        AgentWorkflowContext,
        GraderContext,
        RolloutContext,
        SampleSource,
        get_rollout_context,
    )
    from .grader import Grader
    from .loop.agent import CompletionsResult, LLMClientProtocol, RolloutAgentLoop, RolloutResult
    from .loop.client import OsmosisLLMClient
    from .loop.exceptions import (
        AgentLoopNotFoundError,
        OsmosisRolloutError,
        OsmosisServerError,
        OsmosisTimeoutError,
        OsmosisTransportError,
        OsmosisValidationError,
        ToolArgumentError,
        ToolExecutionError,
    )
    from .loop.messages import (
        count_messages_by_role,
        get_message_content,
        get_message_role,
        is_assistant_message,
        is_tool_message,
        is_user_message,
        normalize_stop,
        parse_tool_calls,
    )
    from .loop.network import (
        PublicIPDetectionError,
        detect_public_ip,
        is_private_ip,
        is_valid_hostname_or_ip,
        validate_ipv4,
    )
    from .loop.registry import (
        AgentLoopRegistry,
        get_agent_loop,
        list_agent_loops,
        register_agent_loop,
        unregister_agent_loop,
    )
    from .loop.schemas import (
        DEFAULT_MAX_METADATA_SIZE_BYTES,
        CompletionsChoice,
        CompletionsRequest,
        CompletionsResponse,
        CompletionUsage,
        InitResponse,
        OpenAIFunctionCallSchema,
        OpenAIFunctionParametersSchema,
        OpenAIFunctionParsedSchema,
        OpenAIFunctionPropertySchema,
        OpenAIFunctionSchema,
        OpenAIFunctionToolCall,
        OpenAIFunctionToolSchema,
        RolloutMetrics,
        RolloutRequest,
        RolloutResponse,
        SamplingParamsDict,
        ToolResponse,
        get_max_metadata_size_bytes,
        set_max_metadata_size_bytes,
    )
    from .loop.server.app import create_app
    from .loop.server.serve import (
        DEFAULT_HOST,
        DEFAULT_PORT,
        ServeError,
        serve_agent_loop,
        validate_and_report,
    )
    from .loop.settings import (
        RolloutClientSettings,
        RolloutServerSettings,
        RolloutSettings,
        configure,
        get_settings,
        reset_settings,
    )
    from .loop.tools import (
        create_tool_error_result,
        create_tool_result,
        execute_tool_calls,
        get_tool_call_info,
        parse_tool_arguments,
        serialize_tool_result,
    )
    from .loop.validation import (
        AgentLoopValidationError,
        ValidationError,
        ValidationResult,
        validate_agent_loop,
    )
    from .types import (
        AgentWorkflowConfig,
        AgentWorkflowOutput,
        BaseConfig,
        ConcurrencyConfig,
        ExecutionRequest,
        ExecutionResult,
        GraderCompleteRequest,
        GraderConfig,
        GraderInitRequest,
        GraderInitResponse,
        GraderStatus,
        MessageDict,
        RolloutCompleteRequest,
        RolloutErrorCategory,
        RolloutInitRequest,
        RolloutInitResponse,
        RolloutSample,
        RolloutStatus,
    )

# Public names, by the module that defines them.
_MODULES = {
    ".agent_workflow": """
        AgentWorkflow
    """,
    ".backend": """
        ExecutionBackend LocalBackend
    """,
    ".command_workflow": """
        CommandWorkflow
    """,
    ".context": """
        AgentWorkflowContext GraderContext RolloutContext SampleSource get_rollout_context
    """,
    ".grader": """
        Grader
    """,
    ".loop.agent": """
        CompletionsResult LLMClientProtocol RolloutAgentLoop RolloutResult
    """,
    ".loop.client": """
        OsmosisLLMClient
    """,
    ".loop.exceptions": """
        AgentLoopNotFoundError OsmosisRolloutError OsmosisServerError OsmosisTimeoutError
        OsmosisTransportError OsmosisValidationError ToolArgumentError ToolExecutionError
    """,
    ".loop.messages": """
        count_messages_by_role get_message_content get_message_role is_assistant_message
        is_tool_message is_user_message normalize_stop parse_tool_calls
    """,
    ".loop.network": """
        PublicIPDetectionError detect_public_ip is_private_ip is_valid_hostname_or_ip validate_ipv4
    """,
    ".loop.registry": """
        AgentLoopRegistry get_agent_loop list_agent_loops register_agent_loop unregister_agent_loop
    """,
    ".loop.schemas": """
        CompletionUsage CompletionsChoice CompletionsRequest CompletionsResponse
        DEFAULT_MAX_METADATA_SIZE_BYTES InitResponse OpenAIFunctionCallSchema
        OpenAIFunctionParametersSchema OpenAIFunctionParsedSchema OpenAIFunctionPropertySchema
        OpenAIFunctionSchema OpenAIFunctionToolCall OpenAIFunctionToolSchema RolloutMetrics
        RolloutRequest RolloutResponse SamplingParamsDict ToolResponse get_max_metadata_size_bytes
        set_max_metadata_size_bytes
    """,
    ".loop.server.app": """
        create_app
    """,
    ".loop.server.serve": """
        DEFAULT_HOST DEFAULT_PORT ServeError serve_agent_loop validate_and_report
    """,
    ".loop.settings": """
        RolloutClientSettings RolloutServerSettings RolloutSettings configure get_settings
        reset_settings
    """,
    ".loop.tools": """
        create_tool_error_result create_tool_result execute_tool_calls get_tool_call_info
        parse_tool_arguments serialize_tool_result
    """,
    ".loop.validation": """
        AgentLoopValidationError ValidationError ValidationResult validate_agent_loop
    """,
    ".types": """
        AgentWorkflowConfig AgentWorkflowOutput BaseConfig ConcurrencyConfig ExecutionRequest
        ExecutionResult GraderCompleteRequest GraderConfig GraderInitRequest GraderInitResponse
        GraderStatus MessageDict RolloutCompleteRequest RolloutErrorCategory RolloutInitRequest
        RolloutInitResponse RolloutSample RolloutStatus
    """,
}
_HOMES = {name: module for module, names in _MODULES.items() for name in names.split()}

__all__ = [
    "DEFAULT_HOST",
    "DEFAULT_MAX_METADATA_SIZE_BYTES",
    "DEFAULT_PORT",
    "AgentLoopNotFoundError",
    "AgentLoopRegistry",
    "AgentLoopValidationError",
    "AgentWorkflow",
    "AgentWorkflowConfig",
    "AgentWorkflowContext",
    "AgentWorkflowOutput",
    "BaseConfig",
    "CommandWorkflow",
    "CompletionUsage",
    "CompletionsChoice",
    "CompletionsRequest",
    "CompletionsResponse",
    "CompletionsResult",
    "ConcurrencyConfig",
    "ExecutionBackend",
    "ExecutionRequest",
    "ExecutionResult",
    "Grader",
    "GraderCompleteRequest",
    "GraderConfig",
    "GraderContext",
    "GraderInitRequest",
    "GraderInitResponse",
    "GraderStatus",
    "InitResponse",
    "LLMClientProtocol",
    "LocalBackend",
    "MessageDict",
    "OpenAIFunctionCallSchema",
    "OpenAIFunctionParametersSchema",
    "OpenAIFunctionParsedSchema",
    "OpenAIFunctionPropertySchema",
    "OpenAIFunctionSchema",
    "OpenAIFunctionToolCall",
    "OpenAIFunctionToolSchema",
    "OsmosisLLMClient",
    "OsmosisRolloutError",
    "OsmosisServerError",
    "OsmosisTimeoutError",
    "OsmosisTransportError",
    "OsmosisValidationError",
    "PublicIPDetectionError",
    "RolloutAgentLoop",
    "RolloutClientSettings",
    "RolloutCompleteRequest",
    "RolloutContext",
    "RolloutErrorCategory",
    "RolloutInitRequest",
    "RolloutInitResponse",
    "RolloutMetrics",
    "RolloutRequest",
    "RolloutResponse",
    "RolloutResult",
    "RolloutSample",
    "RolloutServerSettings",
    "RolloutSettings",
    "RolloutStatus",
    "SampleSource",
    "SamplingParamsDict",
    "ServeError",
    "ToolArgumentError",
    "ToolExecutionError",
    "ToolResponse",
    "ValidationError",
    "ValidationResult",
    "configure",
    "count_messages_by_role",
    "create_app",
    "create_tool_error_result",
    "create_tool_result",
    "detect_public_ip",
    "execute_tool_calls",
    "get_agent_loop",
    "get_max_metadata_size_bytes",
    "get_message_content",
    "get_message_role",
    "get_rollout_context",
    "get_settings",
    "get_tool_call_info",
    "is_assistant_message",
    "is_private_ip",
    "is_tool_message",
    "is_user_message",
    "is_valid_hostname_or_ip",
    "list_agent_loops",
    "normalize_stop",
    "parse_tool_arguments",
    "parse_tool_calls",
    "register_agent_loop",
    "reset_settings",
    "serialize_tool_result",
    "serve_agent_loop",
    "set_max_metadata_size_bytes",
    "unregister_agent_loop",
    "validate_agent_loop",
    "validate_and_report",
    "validate_ipv4",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name], __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
