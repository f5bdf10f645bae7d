"""Errors of agent loops."""

from __future__ import annotations

from osmosis_ai.errors import ErrorCode, OsmosisError


class OsmosisRolloutError(OsmosisError):
    """Base class of rollout errors."""


class OsmosisTransportError(OsmosisRolloutError):
    """The controller is unreachable."""

    default_code: ErrorCode = "NETWORK"
    is_infrastructure = True


class OsmosisTimeoutError(OsmosisRolloutError):
    """The controller did not answer in time."""

    default_code: ErrorCode = "NETWORK"
    is_infrastructure = True


class _ReplyError(OsmosisRolloutError):
    """An unsuccessful reply; ``status_code`` is its HTTP status."""

    def __init__(self, message: str, status_code: int) -> None:
        super().__init__(message)
        self.status_code = status_code


class OsmosisServerError(_ReplyError):
    """The controller failed (5xx), or answered 200 with an invalid body."""

    default_code: ErrorCode = "PLATFORM_ERROR"
    is_infrastructure = True


class OsmosisValidationError(_ReplyError):
    """The controller refused the request (4xx). A retry would be refused too."""


class AgentLoopNotFoundError(OsmosisRolloutError):
    """No agent loop of this name is registered."""

    default_code: ErrorCode = "NOT_FOUND"

    def __init__(self, name: str, available: list[str]) -> None:
        super().__init__(f"agent loop '{name}' is not registered; available: {available}")
        self.name = name
        self.available = available


class AgentLoopLoadError(OsmosisRolloutError):
    """The object named by ``module:attribute`` cannot be loaded or has the wrong type."""


class ToolExecutionError(OsmosisRolloutError):
    """A tool failed. ``tool_call_id`` and ``tool_name`` identify the call."""

    def __init__(self, message: str, tool_call_id: str = "", tool_name: str = "") -> None:
        super().__init__(message)
        self.tool_call_id = tool_call_id
        self.tool_name = tool_name


class ToolArgumentError(ToolExecutionError):
    """The arguments of a tool call are invalid."""
