"""What can go wrong around an agent loop.

``OsmosisRolloutError``
├── ``OsmosisTransportError``    the controller could not be reached
├── ``OsmosisServerError``       it failed, or its reply cannot be read
├── ``OsmosisValidationError``   it refused what was sent
├── ``OsmosisTimeoutError``      it did not answer in time
├── ``AgentLoopNotFoundError``   no agent of that name is registered
├── ``AgentLoopLoadError``       ``module:attribute`` does not lead to what is asked for
└── ``ToolExecutionError``       a tool failed
    └── ``ToolArgumentError``    its arguments cannot be read
"""

from __future__ import annotations

from osmosis_ai.errors import ErrorCode, OsmosisError


class OsmosisRolloutError(OsmosisError):
    """Something around a rollout failed."""


class OsmosisTransportError(OsmosisRolloutError):
    """The controller could not be reached."""

    default_code: ErrorCode = "NETWORK"
    is_infrastructure = True


class OsmosisTimeoutError(OsmosisRolloutError):
    """The controller did not answer in time."""

    default_code: ErrorCode = "NETWORK"
    is_infrastructure = True


class _ReplyError(OsmosisRolloutError):
    """A reply that is no success; ``status_code`` is its HTTP status."""

    def __init__(self, message: str, status_code: int) -> None:
        super().__init__(message)
        self.status_code = status_code


class OsmosisServerError(_ReplyError):
    """The controller failed (5xx), or answered 200 with what cannot be read."""

    default_code: ErrorCode = "PLATFORM_ERROR"
    is_infrastructure = True


class OsmosisValidationError(_ReplyError):
    """The controller refused the request (4xx); the same request would be refused again."""


class AgentLoopNotFoundError(OsmosisRolloutError):
    """No agent loop of this name is registered."""

    default_code: ErrorCode = "NOT_FOUND"

    def __init__(self, name: str, available: list[str]) -> None:
        super().__init__(f"agent loop '{name}' is not registered; available: {available}")
        self.name = name
        self.available = available


class AgentLoopLoadError(OsmosisRolloutError):
    """What was named as ``module:attribute`` cannot be loaded, or is something else."""


class ToolExecutionError(OsmosisRolloutError):
    """A tool failed; which call it was stands in ``tool_call_id`` and ``tool_name``."""

    def __init__(self, message: str, tool_call_id: str = "", tool_name: str = "") -> None:
        super().__init__(message)
        self.tool_call_id = tool_call_id
        self.tool_name = tool_name


class ToolArgumentError(ToolExecutionError):
    """The arguments of a tool call cannot be read."""
