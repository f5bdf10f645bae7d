"""Explain what a started run without a worker waits for: its worker released it or is silent.

Its status stays ``running``, as scripts for the hosted service expect; this text is shown in addition.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Protocol

from osmosis_ai.platform.runs.leases import Leases

STOPPING = "it is stopping: a stop was asked for, and the run ends when its worker has sent the rest."
"""What is said beside the status of a run that was asked to stop and has not ended."""
_EXACT_S = 10
_STEP_S = 5


class BegunRun(Protocol):
    """What is read of a run to tell whether somebody works on it."""

    @property
    def id(self) -> str: ...
    @property
    def status(self) -> str: ...
    @property
    def heartbeat_at(self) -> datetime | None: ...
    @property
    def lease_expires_at(self) -> datetime | None: ...
    @property
    def stop_requested_at(self) -> datetime | None: ...
    @property
    def pool(self) -> str | None: ...


def waits_for(run: BegunRun, leases: Leases) -> str | None:
    """Return what a run waits for whose worker has let it go or is silent, in a sentence; None of any other."""
    if run.status != "running" or run.stop_requested_at is not None:
        return None
    another = "another one of the platform" if run.pool is None else f"another one of the pool '{run.pool}'"
    if run.lease_expires_at is None:
        return f"its worker has let it go: it waits for {another}."
    if (moment := leases.silent_at(run.heartbeat_at)) is None or run.heartbeat_at is None:
        return None
    silence, left = moment - run.heartbeat_at, run.lease_expires_at - moment
    unheard = f"its worker has not been heard for {_about(silence, math.floor)}"
    if left <= timedelta():
        return f"{unheard}: it waits for {another}."
    return f"{unheard}; in {_about(left, math.ceil)} {another} may take it."


def is_without_worker(run: BegunRun, leases: Leases) -> bool:
    """Tell whether a run is open, is not to stop, and has no worker: none has begun it, or the lease of the last has ended."""
    if run.status != "running":
        return run.status == "pending"
    if run.stop_requested_at is not None:
        return False
    moment = leases.silent_at(run.heartbeat_at)
    return run.lease_expires_at is None or (moment is not None and run.lease_expires_at <= moment)


def _about(time: timedelta, whole: Callable[[float], int]) -> str:
    """Format a duration coarsely, so that watching pages do not get an update every second."""
    seconds = time.total_seconds()
    if seconds < _EXACT_S:
        return f"{max(1, whole(seconds))} s"
    if seconds < 120:
        return f"{_STEP_S * whole(seconds / _STEP_S)} s"
    return f"{whole(seconds / 60)} min" if seconds < 7200 else f"{whole(seconds / 3600)} h"
