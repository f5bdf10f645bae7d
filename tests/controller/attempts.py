"""Attempts that have ended, without a rollout server."""

from __future__ import annotations

from typing import Any, cast

from osmosis_ai.controller.attempt import (
    Attempt,
    AttemptResults,
    AttemptServices,
    RunningAttempt,
    record_of,
)
from osmosis_ai.controller.model_proxy import LastCall, RolloutUsage
from osmosis_ai.controller.outcomes import Verdict
from osmosis_ai.controller.record import TerminalRecord
from osmosis_ai.redaction import Redactor
from osmosis_ai.rollout.types import GraderCompleteRequest


def ended(
    attempt: Attempt,
    rollout_id: str,
    *,
    grader: GraderCompleteRequest | None = None,
    last_call: LastCall | None = None,
    usage: RolloutUsage | None = None,
) -> RunningAttempt:
    """Return an attempt whose model calls have ended."""
    nothing: Any = lambda *_: None  # noqa: E731
    services, results = cast(AttemptServices, None), cast(AttemptResults, None)
    running = RunningAttempt(attempt, services, results, on_arrival=nothing, on_fault=nothing)
    running.rollout_id, running.grader = rollout_id, grader
    running._usage, running._last_call = usage or RolloutUsage(), last_call
    return running


def record_of_ended(
    running: RunningAttempt, verdict: Verdict, redact: Redactor | None = None
) -> TerminalRecord:
    """Return the record of such an attempt."""
    return record_of(running, verdict, duration_ms=1.0, redact=redact or Redactor())
