"""What agents are written against: a workflow, a grader, and the server that runs them.

Importing this package costs nothing: each name is loaded when it is first used, and none of them
pulls in a web framework or a model client.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .agent_workflow import AgentWorkflow
    from .backend import ExecutionBackend, LocalBackend
    from .context import (
        AgentWorkflowContext,
        GraderContext,
        RolloutContext,
        SampleSource,
        get_rollout_context,
    )
    from .grader import Grader
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

_HOMES = {
    "AgentWorkflow": ".agent_workflow",
    "AgentWorkflowContext": ".context",
    "ExecutionBackend": ".backend",
    "Grader": ".grader",
    "GraderContext": ".context",
    "LocalBackend": ".backend",
    "RolloutContext": ".context",
    "SampleSource": ".context",
    "get_rollout_context": ".context",
}

__all__ = [
    "AgentWorkflow",
    "AgentWorkflowConfig",
    "AgentWorkflowContext",
    "AgentWorkflowOutput",
    "BaseConfig",
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
    "LocalBackend",
    "MessageDict",
    "RolloutCompleteRequest",
    "RolloutContext",
    "RolloutErrorCategory",
    "RolloutInitRequest",
    "RolloutInitResponse",
    "RolloutSample",
    "RolloutStatus",
    "SampleSource",
    "get_rollout_context",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES.get(name, ".types"), __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
