"""Bodies and enums of the rollout protocol, and the requests and results that a server and its backend exchange."""

from __future__ import annotations

from enum import Enum
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, Field, model_validator

from .sample import MessageDict, Messages, RolloutSample


class RolloutStatus(str, Enum):
    """Status of a rollout.

    Only agent loops report ``COMPLETED`` and ``ERROR``; a rollout's server never does.
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
    """Status of a rollout's grading."""

    PENDING = "pending"
    SUCCESS = "success"
    FAILURE = "failure"


class RolloutErrorCategory(str, Enum):
    """Kind of failure of a workflow or a grader."""

    TIMEOUT = "timeout"
    VALIDATION_ERROR = "validation_error"
    HTTP_ERROR = "http_error"
    AGENT_ERROR = "agent_error"


def _check_status(status: RolloutStatus) -> RolloutStatus:
    if status in (RolloutStatus.COMPLETED, RolloutStatus.ERROR):
        raise ValueError(f"{status.value} is how an agent loop ends, no status of this protocol")
    return status


ServerStatus = Annotated[RolloutStatus, AfterValidator(_check_status)]
"""A status of this protocol, without those that only agent loops report."""


def is_single_path_segment(value: str) -> bool:
    """Return whether an id is safe as a directory name and a URL segment."""
    return value not in ("", ".", "..") and not any(character in value for character in "/\\\0")


def _check_segment(value: str) -> str:
    if not is_single_path_segment(value):
        raise ValueError("must be a single path segment: not empty, not `.` or `..`, without `/` and `\\`")
    return value


RolloutId = Annotated[str, AfterValidator(_check_segment)]
"""An id that is one path segment."""

BudgetS = Annotated[float, Field(allow_inf_nan=False)]
"""Seconds; zero or less means already expired."""


class RolloutInitRequest(BaseModel):
    """``POST /rollout``: start one rollout.

    Attributes:
        chat_completions_url: An OpenAI base URL; clients append ``/chat/completions``.
        controller_api_key: Bearer token for callbacks.
        llm_api_key: Bearer token for the model; None uses the controller's key.
        agent_timeout_sec: Time budget of the workflow in seconds, including time in the server's queue.
        grader_timeout_sec: Time budget of the grader in seconds.
        extra_fields: Data from the controller for the archived trajectory.
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
    """Reply to an admitted rollout: an empty object."""


class RolloutCompleteRequest(BaseModel):
    """The workflow's callback: it completed or failed. The path names the rollout, and the body may too."""

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
    """Reply to a grading request: an empty object."""


class GraderCompleteRequest(BaseModel):
    """The grader's callback, which is terminal: the sample and its reward, or why the reward is missing."""

    status: GraderStatus
    rollout_id: RolloutId | None = None
    sample: RolloutSample | None = None
    err_message: str | None = None
    err_category: RolloutErrorCategory | None = None


class RolloutStatusResponse(BaseModel):
    """Reply to ``GET /rollout/{rollout_id}/status``."""

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
    """Outcome per rollout: ``cancelled_queued``, ``cancelled_running`` or ``not_found``."""

    dispositions: dict[str, str] = Field(default_factory=dict)


class ExecutionRequest(BaseModel):
    """One rollout to execute, with the fields of :class:`RolloutInitRequest`."""

    id: RolloutId
    prompt: Messages
    label: str | None = None
    metadata: dict[str, Any] | None = None
    agent_timeout_sec: BudgetS | None = None
    grader_timeout_sec: BudgetS | None = None
    extra_fields: dict[str, Any] | None = None


class ExecutionResult(BaseModel):
    """Result of a workflow or a grader.

    ``extra_fields`` are the backend's diagnostics; they are archived but never sent.
    """

    status: ServerStatus
    sample: RolloutSample | None = None
    err_message: str | None = None
    err_category: RolloutErrorCategory | None = None
    extra_fields: dict[str, Any] | None = None
