"""Data types of the SDK and the rollout protocol."""

from .config import AgentWorkflowConfig, BaseConfig, ConcurrencyConfig, GraderConfig
from .output import AgentWorkflowOutput
from .protocol import (
    CancelRolloutsRequest,
    CancelRolloutsResponse,
    ExecutionRequest,
    ExecutionResult,
    GraderCompleteRequest,
    GraderInitRequest,
    GraderInitResponse,
    GraderStatus,
    RolloutCompleteRequest,
    RolloutErrorCategory,
    RolloutInitRequest,
    RolloutInitResponse,
    RolloutStatus,
    RolloutStatusResponse,
)
from .sample import MessageDict, Messages, RolloutSample

__all__ = [
    "AgentWorkflowConfig",
    "AgentWorkflowOutput",
    "BaseConfig",
    "CancelRolloutsRequest",
    "CancelRolloutsResponse",
    "ConcurrencyConfig",
    "ExecutionRequest",
    "ExecutionResult",
    "GraderCompleteRequest",
    "GraderConfig",
    "GraderInitRequest",
    "GraderInitResponse",
    "GraderStatus",
    "MessageDict",
    "Messages",
    "RolloutCompleteRequest",
    "RolloutErrorCategory",
    "RolloutInitRequest",
    "RolloutInitResponse",
    "RolloutSample",
    "RolloutStatus",
    "RolloutStatusResponse",
]
