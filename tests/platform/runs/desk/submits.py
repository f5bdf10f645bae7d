"""Evaluations that are submitted for workers, and leases that end."""

from __future__ import annotations

from datetime import timedelta

from osmosis_ai.platform.runs.leases import LEASE
from tests.platform.conftest import ManualClock
from tests.platform.evaluations import Submits, submit_body

RUNS = "/api/cli/eval-runs"
HOUR = timedelta(hours=1)
submitted = Submits(RUNS, submit_body).taken


def has_expired(clock: ManualClock) -> None:
    clock.advance(LEASE.total_seconds() + 1)
