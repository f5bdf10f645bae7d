"""The bodies and words of the rollout protocol, as both ends of the wire read them."""

from __future__ import annotations

from enum import Enum
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, Field, model_validator

from .sample import MessageDict, RolloutSample


class RolloutStatus(str, Enum):
    """Where a rollout stands.

    ``COMPLETED`` and ``ERROR`` are how an agent loop ends; a rollout's server never says them.
    """

    QUEUED = "queued"
    RUNNING = "running"
    GRADING = "grading"
    SUCCESS = "success"
    FAILURE = "failure"
    CANCELLED = "cancelled"
    UNKNOWN = "unknown"
    COMPLETED = "COMPLETED"
    ERROR = "ERROR"


class GraderStatus(str, Enum):
    """Where a rollout's grading stands."""

    PENDING = "pending"
    SUCCESS = "success"
    FAILURE = "failure"


class RolloutErrorCategory(str, Enum):
    """What kind of failure ended a workflow or a grader."""

    TIMEOUT = "timeout"
    VALIDATION_ERROR = "validation_error"
    HTTP_ERROR = "http_error"
    AGENT_ERROR = "agent_error"


def _check_status(status: RolloutStatus) -> RolloutStatus:
    if status in (RolloutStatus.COMPLETED, RolloutStatus.ERROR):
        raise ValueError(f"{status.value} is how an agent loop ends, no status of this protocol")
    return status


ServerStatus = Annotated[RolloutStatus, AfterValidator(_check_status)]
"""A status that this protocol has; those of an agent loop's end are refused."""


def is_single_path_segment(value: str) -> bool:
    """Tell whether an id can safely name a directory and a URL segment."""
    return value not in ("", ".", "..") and not any(character in value for character in "/\\\0")


def _check_segment(value: str) -> str:
    if not is_single_path_segment(value):
        raise ValueError("must be a single path segment: not empty, not `.` or `..`, without `/` and `\\`")
    return value


RolloutId = Annotated[str, AfterValidator(_check_segment)]
"""An id that is one path segment."""

BudgetS = Annotated[float, Field(allow_inf_nan=False)]
"""Seconds; zero and less mean already expired."""


class RolloutInitRequest(BaseModel):
    """``POST /rollout``: start one rollout.

    Attributes:
        chat_completions_url: an OpenAI base URL; clients append ``/chat/completions``.
        controller_api_key: bearer token of the callbacks.
        llm_api_key: bearer token of the model; the controller's key when it is None.
        agent_timeout_sec: budget of the workflow in seconds, time in the server's queue included.
        grader_timeout_sec: budget of the grader in seconds.
        extra_fields: facts the controller wants to find in the archived trajectory.
    """

    initial_messages: list[MessageDict]
    label: str | None = None
    metadata: dict[str, Any] | None = None
    rollout_id: RolloutId | None = None
    chat_completions_url: str
    controller_api_key: str | None = Field(default=None, repr=False)
    llm_api_key: str | None = Field(default=None, min_length=1, repr=False)
    completion_callback_url: str
    grader_callback_url: str | None = None
    agent_timeout_sec: BudgetS | None = None
    grader_timeout_sec: BudgetS | None = None
    extra_fields: dict[str, Any] | None = None


class RolloutInitResponse(BaseModel):
    """The reply to an admitted rollout: an empty object."""


class RolloutCompleteRequest(BaseModel):
    """The workflow's callback: it ended, well or not. Its path names the rollout; the body may as well."""

    status: ServerStatus
    rollout_id: RolloutId | None = None
    extra_fields: dict[str, Any] | None = None
    err_message: str | None = None
    err_category: RolloutErrorCategory | None = None


class GraderInitRequest(BaseModel):
    """A request to grade one sample."""

    sample: RolloutSample | None = None
    rollout_id: RolloutId
    completion_callback_url: str
    extra_fields: dict[str, Any] | None = None
    controller_api_key: str | None = Field(default=None, repr=False)


class GraderInitResponse(BaseModel):
    """The reply to a request to grade: an empty object."""


class GraderCompleteRequest(BaseModel):
    """The grader's callback, the terminal one: the sample and its reward, or why there is none."""

    status: GraderStatus
    rollout_id: RolloutId | None = None
    sample: RolloutSample | None = None
    err_message: str | None = None
    err_category: RolloutErrorCategory | None = None


class RolloutStatusResponse(BaseModel):
    """The reply to ``GET /rollout/{rollout_id}/status``."""

    rollout_id: str
    status: ServerStatus
    reward: float | None = None
    err_message: str | None = None


class CancelRolloutsRequest(BaseModel):
    """``POST /rollout/cancel``: exactly one of ``ids``, ``prefix`` and ``all``."""

    ids: list[str] | None = None
    prefix: str | None = None
    all: bool = False

    @model_validator(mode="after")
    def _one_selector(self) -> CancelRolloutsRequest:
        if (self.ids is not None) + (self.prefix is not None) + self.all != 1:
            raise ValueError("give exactly one of `ids`, `prefix` and `all`")
        return self


class CancelRolloutsResponse(BaseModel):
    """What became of each rollout: ``cancelled_queued``, ``cancelled_running`` or ``not_found``."""

    dispositions: dict[str, str] = Field(default_factory=dict)
