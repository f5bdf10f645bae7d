"""Data types of the SDK and the rollout protocol."""

from __future__ import annotations

import copy
import logging
import math
import numbers
import sys
from enum import Enum
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

logger = logging.getLogger(__name__)

MessageDict = dict[str, Any]
"""One message in the format of the agent's framework."""

Messages = list[MessageDict]
"""A conversation, oldest message first."""

_ATOMS = frozenset({str, int, float, bool, type(None)})
_DROPPED: Any = object()


class RolloutSample(BaseModel):
    """Result of a rollout.

    Attributes:
        messages: The conversation in the framework's format; graders read it.
        trajectory_messages: The conversation to archive. Defaults to a copy of ``messages``;
            an explicit None archives no trajectory. Never sent on the wire.
        label: The ground truth.
        reward: A finite number, or None while ungraded. Checked at construction and assignment.
        remove_sample: Exclude this sample from scores and training.
        metrics: Named numbers of the workflow or grader.
        extra_fields: Any other data.
    """

    model_config = ConfigDict(validate_assignment=True, allow_inf_nan=False)

    messages: Messages = Field(default_factory=list)
    trajectory_messages: Messages | None = Field(
        default_factory=lambda fields: _snapshot_messages(fields.get("messages")), exclude=True, repr=False
    )
    label: str | None = None
    reward: float | None = None
    remove_sample: bool = False
    metrics: dict[str, Any] = Field(default_factory=dict)
    extra_fields: dict[str, Any] = Field(default_factory=dict)

    def json_safe_copy(self) -> RolloutSample:
        """Return this sample with ``metrics`` and ``extra_fields`` that JSON can hold.

        NumPy scalars become plain numbers, and numeric keys become strings. Non-finite numbers and values that JSON
        cannot hold are dropped with one warning. A clean sample is returned itself. Messages are not checked.
        """
        dropped: list[str] = []
        metrics = _json_safe(self.metrics, "metrics", dropped)
        extra_fields = _json_safe(self.extra_fields, "extra_fields", dropped)
        if dropped:
            logger.warning("dropped %d value(s) JSON cannot hold: %s", len(dropped), ", ".join(dropped[:10]))
        if metrics is self.metrics and extra_fields is self.extra_fields:
            return self
        return self.model_copy(update={"metrics": metrics, "extra_fields": extra_fields})


def _snapshot_messages(messages: Messages | None) -> Messages | None:
    """Copy a conversation, so that a grader's later changes do not reach the archive."""
    try:
        return None if messages is None else [snapshot(message) for message in messages]
    except Exception:
        # The objects may come from any framework, and copying them can raise any error.
        logger.warning("the messages cannot be copied, so no trajectory is archived", exc_info=True)
        return None


def snapshot(value: Any) -> Any:
    """Copy a JSON-like tree like ``copy.deepcopy``, without its bookkeeping, which costs five times more."""
    kind = type(value)
    if kind in _ATOMS:
        return value
    if kind is dict:
        return {key: snapshot(item) for key, item in value.items()}
    if kind is list:
        return [snapshot(item) for item in value]
    return copy.deepcopy(value)


def json_safe(value: Any) -> Any:
    """Return ``value`` without everything JSON cannot hold; None if nothing is left."""
    result = _json_safe(value, "", [])
    return None if result is _DROPPED else result


def _json_safe(value: Any, path: str, dropped: list[str]) -> Any:
    """Return ``value`` itself if it is clean, or else a cleaned copy; ``_DROPPED`` if nothing is left."""
    kind = type(value)
    if kind in _ATOMS and (kind is not float or math.isfinite(value)):
        return value
    if isinstance(value, dict):
        return _safe_dict(value, path, dropped)
    if isinstance(value, (list, tuple)):
        items = [_json_safe(item, f"{path}[{index}]", dropped) for index, item in enumerate(value)]
        if kind is list and all(new is old for new, old in zip(items, value, strict=True)):
            return value
        return [item for item in items if item is not _DROPPED]
    safe = str(value) if isinstance(value, str) else _plain_number(value)
    if safe is None:
        dropped.append(path)
        return _DROPPED
    return safe


def _safe_dict(value: dict[Any, Any], path: str, dropped: list[str]) -> dict[str, Any]:
    clean = type(value) is dict
    safe: dict[str, Any] = {}
    for key, item in value.items():
        name = key if isinstance(key, str) else _plain_number(key)
        if name is None:
            dropped.append(f"{path}.{key!r:.40}")
            new = _DROPPED
        else:
            new = _json_safe(item, f"{path}.{name}", dropped)
        clean = clean and new is item and type(key) is str
        if new is not _DROPPED:
            safe[str(name)] = new
    return value if clean else safe


def _plain_number(value: Any) -> int | float | None:
    """Return a registered numeric scalar (such as NumPy's) as int or float, or None if it is not finite."""
    if isinstance(value, numbers.Integral):
        return int(value)
    number = float(value) if isinstance(value, numbers.Real) else math.nan
    return number if math.isfinite(number) else None


class ConcurrencyConfig(BaseModel):
    """Maximum number of concurrent rollouts; None means unlimited."""

    max_concurrent: int | None = Field(default=None, ge=1)


class BaseConfig(BaseModel):
    """Base of all configurations. Subclasses may add fields of any type, including tools and models."""

    model_config = ConfigDict(extra="allow", validate_assignment=True, arbitrary_types_allowed=True)

    name: str
    description: str | None = None


class AgentWorkflowConfig(BaseConfig):
    """Configuration of an agent workflow. Every rollout gets a deep copy."""

    concurrency: ConcurrencyConfig = Field(default_factory=ConcurrencyConfig)


class GraderConfig(BaseConfig):
    """Configuration of a grader, shared by all rollouts of a process."""

    concurrency: ConcurrencyConfig = Field(default_factory=ConcurrencyConfig)


class AgentWorkflowOutput(BaseModel):
    """An explicit result of a workflow.

    Attributes:
        messages: The conversation; None means that the rollout has no sample.
        metrics: Finite numbers that become the sample's metrics.
        info: Reserved and not read.
    """

    # Revalidation catches a metric that was set to NaN in place.
    model_config = ConfigDict(extra="forbid", allow_inf_nan=False, revalidate_instances="always")

    messages: Messages | None = None
    metrics: dict[str, float] = Field(default_factory=dict)
    info: dict[str, Any] = Field(default_factory=dict)


def coerce_output(value: Any) -> AgentWorkflowOutput | None:
    """Parse the return value of ``run``. None means that the rollout's sample source has the sample.

    Raises TypeError, or pydantic's ValidationError for an invalid message or metric.
    """
    if value is None:
        return None
    if isinstance(value, AgentWorkflowOutput):
        return AgentWorkflowOutput.model_validate(value)
    if isinstance(value, list):
        return AgentWorkflowOutput(messages=value)
    raise TypeError(
        "`run` must return a list of messages, an AgentWorkflowOutput or None, "
        f"but it returned {type(value).__name__}"
    )


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
        raise ValueError(f"{status.value} is a status of agent loops, not of this protocol")
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


# Import paths of the public SDKs that are this module.
for _path in ("config", "output", "protocol", "sample"):
    sys.modules[f"{__name__}.{_path}"] = sys.modules[__name__]
    globals()[_path.rpartition(".")[2]] = sys.modules[__name__]
