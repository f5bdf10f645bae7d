"""Attempts that have ended, without a rollout server."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from osmosis_ai.controller.attempt import Attempt, RunningAttempt
from osmosis_ai.controller.model_proxy import LastCall, RolloutUsage
from osmosis_ai.controller.outcomes import Verdict
from osmosis_ai.controller.record import TerminalRecord
from osmosis_ai.redaction import Redactor
from osmosis_ai.rollout import GraderCompleteRequest


def ended(
    attempt: Attempt,
    rollout_id: str,
    *,
    grader: GraderCompleteRequest | None = None,
    last_call: LastCall | None = None,
    usage: RolloutUsage | None = None,
) -> RunningAttempt:
    """Return an attempt whose model calls have ended."""
    unused: Any = None
    running = RunningAttempt(attempt, unused, unused, unused)
    running.rollout_id, running.grader = rollout_id, grader
    running._usage = replace(usage or RolloutUsage(), last_call=last_call)
    return running


def record_of_ended(
    running: RunningAttempt, verdict: Verdict, redact: Redactor | None = None
) -> TerminalRecord:
    """Return the record of such an attempt."""
    results: Any = SimpleNamespace(redact=redact or Redactor(), previews=False)
    running._results = results
    return running.record(verdict)
