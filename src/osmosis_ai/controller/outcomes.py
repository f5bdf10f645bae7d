"""How an attempt ended: from the report of the rollout's server to one outcome.

A failure is attributed to one boundary, the nearest party that could fix it, so that a failure of the infrastructure is
never counted as the model's. A reward counts only with a success: a rollout whose workflow failed has nothing that a
grader could have scored. Beside the protocol's ``error_type``, which says who noticed the failure, a failure has one
category (:data:`CATEGORIES`), which says what happened. Results store these names, so they are never renamed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

from pydantic import BaseModel, ConfigDict

if TYPE_CHECKING:
    from osmosis_ai.controller.callbacks import TerminalCallbackResult
    from osmosis_ai.llm.errors import ModelCallError
    from osmosis_ai.rollout.types import GraderCompleteRequest, RolloutCompleteRequest

Status = Literal["success", "failed", "skipped"]
Boundary = Literal["provider", "agent", "tool", "grader", "rollout_server", "platform"]

STATUSES: tuple[Status, ...] = get_args(Status)
BOUNDARIES: tuple[Boundary, ...] = get_args(Boundary)

CATEGORIES: dict[str, str] = {
    "rate_limited": "the provider limits the rate of calls",
    "auth": "the provider refused the key or its account",
    "not_found": "the provider does not know the model or the address",
    "bad_request": "the provider refused the request",
    "context_length": "the conversation is longer than the model's context",
    "connection": "the other side could not be reached, or answered with an HTTP error",
    "server_error": "the provider, or the rollout's server, failed",
    "bad_reply": "what came back is not what was asked for",
    "timeout": "it took longer than it may",
    "exception": "the code raised an exception",
    "invalid_value": "the code gave a value that is not allowed",
    "nothing_to_grade": "the agent left nothing that could be graded",
    "refused": "the rollout's server refused to run the attempt",
    "no_result": "the rollout's server reported no result",
    "unexplained": "it failed without saying why",
}
"""Every category, and what it means."""

_OF_MODEL_CALLS = {"rate_limit": "rate_limited", "server": "server_error", "invalid_reply": "bad_reply"}
_OF_ERROR_TYPES = {
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


def category_of(error_type: str | None, model_error: ModelCallError | None = None) -> str:
    """Return the category of a failure: that of the model call it ended with, else that of its type."""
    if model_error is not None:
        return _OF_MODEL_CALLS.get(model_error.category, model_error.category)
    return _OF_ERROR_TYPES.get(error_type or "", "unexplained")


@dataclass(frozen=True, slots=True)
class Verdict:
    """How an attempt ended; ``error_type``, ``boundary``, ``category`` and ``error`` only when it failed."""

    status: Status
    reward: float | None = None
    error_type: str | None = None
    boundary: Boundary | None = None
    category: str | None = None
    error: str | None = None


def classify(terminal: TerminalCallbackResult, model_error: ModelCallError | None = None) -> Verdict:
    """Return the verdict on a terminal result."""
    if terminal.source == "timeout":
        return failed(
            "callback_timeout", "rollout_server", "the rollout's server did not report back in time"
        )
    completion, grader = terminal.completion, terminal.grader
    graded = grader is not None and grader.status.value == "success"
    removed = graded and grader is not None and grader.sample is not None and grader.sample.remove_sample
    if removed:
        return Verdict("skipped")
    if completion is not None and completion.status.value != "success":
        return _workflow_failed(completion, model_error)
    if grader is None:
        return failed(
            "missing_grader_callback", "rollout_server", "the rollout's server sent no grader result"
        )
    if not graded:
        return _grader_failed(grader)
    reward = grader.sample.reward if grader.sample is not None else None
    return Verdict("success", reward=reward if reward is not None and math.isfinite(reward) else None)


def rejected(status_code: int, message: str) -> Verdict:
    """Return the verdict on an attempt that the rollout's server refused to take."""
    return failed("rollout_protocol_error", "rollout_server", f"HTTP {status_code}: {message}")


def _workflow_failed(completion: RolloutCompleteRequest, model_error: ModelCallError | None) -> Verdict:
    category = completion.err_category.value if completion.err_category is not None else None
    message = completion.err_message or "the workflow failed without saying why"
    if model_error is not None:
        words = str(model_error)
        told = message if words in message else f"{message} (the model's last call failed: {words})"
        kind = category_of(category, model_error)
        return failed(category or "workflow_failed", "provider", told, category=kind)
    # Without a category the failure is not the workflow's own: its server could not run it.
    return failed(category or "workflow_failed", "agent" if category else "rollout_server", message)


def _grader_failed(grader: GraderCompleteRequest) -> Verdict:
    category = grader.err_category.value if grader.err_category is not None else None
    # A categorised failure without a sample: the agent left nothing to grade.
    nothing = category is not None and grader.sample is None
    boundary: Boundary = "agent" if nothing else "grader"
    kind = "nothing_to_grade" if nothing or _ungradable(category, grader) else category_of(category)
    message = grader.err_message or _ungraded(category, grader)
    return failed(category or "grader_failed", boundary, message, category=kind)


def _ungradable(category: str | None, grader: GraderCompleteRequest) -> bool:
    return category is None and grader.sample is None


def _ungraded(category: str | None, grader: GraderCompleteRequest) -> str:
    if _ungradable(category, grader):
        return "nothing was graded: the rollout has no grader, or the row has neither a label nor metadata"
    return "the grader failed without saying why"


def failed(error_type: str, boundary: Boundary, error: str, *, category: str | None = None) -> Verdict:
    """Return the verdict on a failure; its category follows from its type where none is given."""
    kind = category or category_of(error_type)
    return Verdict("failed", error_type=error_type, boundary=boundary, category=kind, error=error)


LimitName = Literal["provider", "rate_limit", "this_machine"]
LIMITS: tuple[LimitName, ...] = get_args(LimitName)


class LimitedBy(BaseModel):
    """What limited a session, as shares of the time in which attempts were in flight."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    most: LimitName
    provider: float
    rate_limit: float
    this_machine: float
