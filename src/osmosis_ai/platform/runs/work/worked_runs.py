"""A run that a machine has taken: on its way to a worker, at work, and how that worker ended."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

from osmosis_ai.api.wire.workers import AssignedLease, Assignment
from osmosis_ai.platform.runs.execute.worker_process import (
    ENDED,
    LEASE_LOST,
    NOT_MINE,
    REFUSED,
    SET_BACK,
    STORE_AWAY,
    WorkerProcess,
)

Ending = Literal["ended", "left", "refused", "not_mine", "lease_lost", "set_back", "store_away", "died"]
ENDINGS: dict[int, Ending] = {
    ENDED: "ended",
    NOT_MINE: "not_mine",
    LEASE_LOST: "lease_lost",
    SET_BACK: "set_back",
    STORE_AWAY: "store_away",
    REFUSED: "refused",
}
SENTENCES: dict[Ending, str] = {
    "ended": "is done with the run {}",
    "left": "released the run {}",
    "refused": "left the run {}: its token is not taken any more",
    "not_mine": "gave the run {} back: its worker did not begin with it",
    "lease_lost": "lost the run {}: another worker has it, or it has ended",
    "store_away": "left the run {} until the store is back",
}

_MOST_NAMED = 5


@dataclass
class WorkedRun:
    """A run that a worker of this machine was started for, and how the worker ended; None while it works."""

    id: str
    name: str
    attempt: int
    ending: Ending | None = None


@dataclass
class KeptClaim:
    """An answered claim, repeated until the run's worker has started so that the lease does not expire."""

    run_id: str
    claim_id: str
    lease: AssignedLease = field(repr=False)
    claimed_at: float
    has_begun: bool = False


@dataclass(eq=False)
class ComingRun:
    """A run whose place on this machine's disk is made; ``error``: why there is none."""

    assignment: Assignment
    claim: KeptClaim
    error: OSError | None = None


@dataclass
class HostedWorker:
    """The worker of a run, and the claim that it repeats."""

    run: WorkedRun
    claim: KeptClaim
    process: WorkerProcess
    began_at: float
    is_told: bool = False

    def ask_to_end(self) -> None:
        """Ask the worker to release its run; a second request ends it immediately."""
        if not self.is_told:
            self.is_told = True
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.process.pid, signal.SIGTERM)


def words_of_left(runs: Sequence[tuple[str, bool]]) -> Iterator[str]:
    """Yield what becomes of runs whose workers were ended at once: of each its name, and whether the platform has heard that."""
    again = "what was not sent is done again"
    if heard := [name for name, was_heard in runs if was_heard]:
        yield f"let go of {_named(heard)} for another worker; {again}"
    if unheard := [name for name, was_heard in runs if not was_heard]:
        ended = "its lease has" if len(unheard) == 1 else "their leases have"
        yield f"left {_named(unheard)} for another worker when {ended} ended; {again}"


def _named(runs: Sequence[str]) -> str:
    further = f" and {len(runs) - _MOST_NAMED} more" if len(runs) > _MOST_NAMED else ""
    return f"the run{'' if len(runs) == 1 else 's'} {', '.join(runs[:_MOST_NAMED])}{further}"
