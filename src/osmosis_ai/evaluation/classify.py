"""From what the rollout's server reported to one verdict: status, reason, and whose failure it was.

A failure is attributed to one boundary, the nearest party that could mend it, so that what failed
for reasons of infrastructure is never mistaken for what the policy got wrong. A reward counts
only with a success: a rollout whose workflow failed has nothing that a grader could have scored.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from osmosis_ai.evaluation.record import Boundary, Status

if TYPE_CHECKING:
    from osmosis_ai.controller.store import TerminalCallbackResult
    from osmosis_ai.llm.errors import ModelCallError
    from osmosis_ai.rollout.types import GraderCompleteRequest, RolloutCompleteRequest


@dataclass(frozen=True, slots=True)
class Verdict:
    """How an attempt ended; ``error_type``, ``boundary`` and ``error`` only when it failed."""

    status: Status
    reward: float | None = None
    error_type: str | None = None
    boundary: Boundary | None = None
    error: str | None = None


def classify(terminal: TerminalCallbackResult, model_error: ModelCallError | None = None) -> Verdict:
    """Return the verdict on a terminal result.

    Args:
        terminal: the callbacks of the rollout, or that they did not come in time.
        model_error: the failure that the rollout's last model call ended with, if it did.
    """
    if terminal.source == "timeout":
        return _failed(
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
        return _failed(
            "missing_grader_callback", "rollout_server", "the rollout's server sent no grader result"
        )
    if not graded:
        return _grader_failed(grader)
    reward = grader.sample.reward if grader.sample is not None else None
    return Verdict("success", reward=reward if reward is not None and math.isfinite(reward) else None)


def rejected(status_code: int, message: str) -> Verdict:
    """Return the verdict on an attempt that the rollout's server refused to take."""
    return _failed("rollout_protocol_error", "rollout_server", f"HTTP {status_code}: {message}")


def _workflow_failed(completion: RolloutCompleteRequest, model_error: ModelCallError | None) -> Verdict:
    category = completion.err_category.value if completion.err_category is not None else None
    message = completion.err_message or "the workflow failed without saying why"
    if model_error is not None:
        words = str(model_error)
        told = message if words in message else f"{message} (the model's last call failed: {words})"
        return _failed(category or "workflow_failed", "provider", told)
    # Without a category the failure is not the workflow's own: its server could not run it.
    return _failed(category or "workflow_failed", "agent" if category else "rollout_server", message)


def _grader_failed(grader: GraderCompleteRequest) -> Verdict:
    category = grader.err_category.value if grader.err_category is not None else None
    # A categorised failure without a sample: the agent left nothing to grade.
    boundary: Boundary = "agent" if category and grader.sample is None else "grader"
    return _failed(category or "grader_failed", boundary, grader.err_message or _ungraded(category, grader))


def _ungraded(category: str | None, grader: GraderCompleteRequest) -> str:
    if category is None and grader.sample is None:
        return "nothing was graded: the rollout has no grader, or the row has neither a label nor metadata"
    return "the grader failed without saying why"


def _failed(error_type: str, boundary: Boundary, error: str) -> Verdict:
    return Verdict("failed", error_type=error_type, boundary=boundary, error=error)
