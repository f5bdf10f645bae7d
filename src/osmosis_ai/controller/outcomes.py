"""Classifies how an attempt ended.

A failure has one source, the nearest party that can fix it, so that an infrastructure failure never counts as the
model's. Its code says what happened, and the protocol's `error_type` who noticed. Results store these names.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING, Literal, NamedTuple, get_args

from pydantic import BaseModel, ConfigDict

if TYPE_CHECKING:
    from typing_extensions import Self

    from osmosis_ai.controller.callbacks import TerminalCallbackResult
    from osmosis_ai.llm.errors import ModelCallError
    from osmosis_ai.rollout.types import GraderCompleteRequest, RolloutCompleteRequest

Status = Literal["success", "failed", "skipped"]
ErrorSource = Literal["provider", "agent", "tool", "grader", "rollout_server", "platform"]

STATUSES: tuple[Status, ...] = get_args(Status)
ERROR_SOURCES: tuple[ErrorSource, ...] = get_args(ErrorSource)

# Model errors without an entry have their category as the code.
_MODEL_ERROR_CODES = {"rate_limit": "rate_limited", "server": "server_error", "invalid_reply": "bad_reply"}
_ERROR_CODES = {
    "timeout": "timeout",
    "callback_timeout": "timeout",
    "validation_error": "invalid_value",
    "http_error": "connection",
    "agent_error": "exception",
    "workflow_failed": "server_error",
    "rollout_protocol_error": "refused",
    "missing_grader_callback": "no_result",
    "lost": "no_result",
}


def error_code_of(error_type: str | None, model_error: ModelCallError | None = None) -> str:
    """Return the code of a failure, which ``docs/concepts/failures.md`` lists; a final model error takes precedence."""
    if model_error is not None:
        return _MODEL_ERROR_CODES.get(model_error.category, model_error.category)
    return _ERROR_CODES.get(error_type or "", "unexplained")


class Verdict(NamedTuple):
    """How an attempt ended, by the names of its record; the error fields are set only when it failed."""

    status: Status
    reward: float | None = None
    error_type: str | None = None
    boundary: ErrorSource | None = None
    category: str | None = None
    error: str | None = None


def failed(error_type: str, source: ErrorSource, error: str, *, code: str | None = None) -> Verdict:
    """Return the verdict on a failure; by default its code follows from its type."""
    return Verdict("failed", None, error_type, source, code or error_code_of(error_type), error)


def classify(terminal: TerminalCallbackResult, model_error: ModelCallError | None = None) -> Verdict:
    """Return the verdict on a terminal result."""
    if terminal.source == "timeout":
        return failed("callback_timeout", "rollout_server", "the rollout server did not report back in time")
    completion, grader = terminal.completion, terminal.grader
    is_graded = grader is not None and grader.status.value == "success"
    sample = grader.sample if grader is not None else None
    if is_graded and sample is not None and sample.remove_sample:
        return Verdict("skipped")
    # A failed workflow has nothing to score, even if the grader reports a reward.
    if completion is not None and completion.status.value != "success":
        return _workflow_failed(completion, model_error)
    if grader is None:
        return failed("missing_grader_callback", "rollout_server", "the rollout server sent no grader result")
    if not is_graded:
        return _grader_failed(grader)
    reward = sample.reward if sample is not None else None
    return Verdict("success", reward=reward if reward is not None and math.isfinite(reward) else None)


def _workflow_failed(completion: RolloutCompleteRequest, model_error: ModelCallError | None) -> Verdict:
    category = completion.err_category.value if completion.err_category is not None else None
    error_type = category or "workflow_failed"
    message = completion.err_message or "the workflow failed without an error message"
    if model_error is None:
        # A failure without a category is not the workflow's own: the server could not run it.
        return failed(error_type, "agent" if category else "rollout_server", message)
    # Clients report the status and a long URL; lists that cut messages still show the provider's reason.
    if str(model_error) not in message:
        message = f"the last model call failed: {str(model_error).rstrip('.')} (agent: {message})"
    return failed(error_type, "provider", message, code=error_code_of(category, model_error))


def _grader_failed(grader: GraderCompleteRequest) -> Verdict:
    category = grader.err_category.value if grader.err_category is not None else None
    error_type = category or "grader_failed"
    message = grader.err_message or "the grader failed without an error message"
    if grader.sample is not None:
        return failed(error_type, "grader", message)
    if category is not None:
        return failed(error_type, "agent", message, code="nothing_to_grade")
    message = grader.err_message or "the rollout has no grader, or the row has neither a label nor metadata"
    return failed(error_type, "grader", message, code="nothing_to_grade")


LimitName = Literal["provider", "rate_limit", "this_machine"]


class LimitedBy(BaseModel):
    """The bottleneck of a session, as shares of the time with attempts in flight."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    most: LimitName
    provider: float
    rate_limit: float
    this_machine: float

    @classmethod
    def from_seconds(cls, seconds: Counter[LimitName]) -> Self | None:
        """Return the shares of the seconds counted for each limit, or None if there are none."""
        total, names = sum(seconds.values()), get_args(LimitName)
        if not total:
            return None
        shares = {name: round(seconds[name] / total, 4) for name in names}
        return cls(most=max(names, key=seconds.__getitem__), **shares)
