"""What every executor is, wherever it has runs executed: a thread that goes round and round, and four things to do.

It *collects* what has ended of what it started, *stops* what is to stop, *ends* runs that are to end and that nobody works on,
and *starts* what waits; each looks at the database and at what runs now, so that a round that failed is made up for by the
next. The lease decides who owns a run, never an executor. The workspace with the fewest at work goes first.
"""

from __future__ import annotations

import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar, Protocol

from osmosis_ai.errors import OsmosisError
from osmosis_ai.platform.clock import Clock
from osmosis_ai.platform.config import PlatformConfig
from osmosis_ai.platform.db.engine import Database
from osmosis_ai.platform.db.tables import DbRun
from osmosis_ai.platform.log_lines import Level, LogLine
from osmosis_ai.platform.logs import LogStore
from osmosis_ai.platform.runs.desk.run_desk import RunDesk
from osmosis_ai.platform.runs.leases import Leases

logger = logging.getLogger(__name__)

STOP_GRACE_S = 30.0
"""How long a worker may take to stop before it is ended by force."""
LONGEST_PAUSE_S = 300.0


class Tickets(Protocol):
    """Makes and voids the tickets that runs are claimed with."""

    def issue_ticket(self, run_id: str) -> str: ...

    def note_running(self, run_id: str) -> None: ...

    def withdraw(self, run_id: str) -> None: ...


@dataclass
class FailureStreak:
    """Ends in a row without progress: deaths among them, what was nobody's fault, and when to try again.

    Attributes:
        first_pause_s: how long nothing is tried after the first.
        not_before: monotonic seconds.
        verdict: why the run is to fail.
    """

    first_pause_s: float
    deaths: int = 0
    setbacks: int = 0
    not_before: float = 0.0
    verdict: str | None = None

    def pause_s(self) -> float:
        """Return for how long nothing is tried now: twice as long each time, up to a bound."""
        before = max(0, self.deaths + self.setbacks - 1)
        return float(min(LONGEST_PAUSE_S, self.first_pause_s * 2**before))


@dataclass(frozen=True)
class ExecutorParts:
    """What every executor works with.

    Args:
        config: what runs are executed with, and how many at a time.
        db, clock, logs, desk: the platform's.
        tickets: makes the right to claim a run.
    """

    config: PlatformConfig
    db: Database
    clock: Clock
    logs: LogStore
    desk: RunDesk
    tickets: Tickets


class ExecutorRounds(ABC):
    """An executor; its thread does all of its work, but what :meth:`close` does.

    Args:
        parts: what it works with.
    """

    every_s: ClassVar[float]

    def __init__(self, parts: ExecutorParts) -> None:
        self._config = parts.config
        self._db = parts.db
        self._clock = parts.clock
        self._logs = parts.logs
        self._desk = parts.desk
        self._tickets = parts.tickets
        self._leases = Leases(parts.db, parts.clock, parts.config.lease_term)
        self._trouble: dict[str, FailureStreak] = {}
        self._ending = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Execute runs from now on, in a thread."""
        self._thread = threading.Thread(target=self._work, name="executor", daemon=True)
        self._thread.start()

    @abstractmethod
    def close(self) -> None:
        """End; runs stay open, for the next start."""

    def round(self) -> None:
        """Do once what there is to do. The thread does this again and again."""
        for step in (self._collect, self._stop_asked, self._end_abandoned, self._start_waiting):
            if self._ending.is_set():
                return
            step()

    @abstractmethod
    def _collect(self) -> None:
        """Take note of what has ended since the last round."""

    @abstractmethod
    def _stop_asked(self) -> None:
        """Stop what works on runs that are to stop, or have ended, and does not end by itself."""

    @abstractmethod
    def _end_abandoned(self) -> None:
        """Bring runs to their end that are to end, and that nobody works on."""

    @abstractmethod
    def _start_waiting(self) -> None:
        """Have runs executed that nobody works on, as many as there is room for."""

    def _work(self) -> None:
        waits_for: str | None = None
        while not self._ending.wait(self.every_s):
            try:
                self.round()
                waits_for = None
            except OsmosisError as error:
                # The database is busy or the disk full: the next round finds the same work to do. It is said
                # once, because a log that grows ten times a second does no good to a full disk.
                if error.message != waits_for:
                    logger.warning("the executor waits: %s", error.message)
                waits_for = error.message
            except Exception:  # the edge of this thread, without which no run would ever start or end
                logger.exception("the executor met an unexpected error and goes on")

    def _join(self, within_s: float | None = None) -> None:
        """Have the thread end, and wait for it."""
        self._ending.set()
        if self._thread is not None:
            self._thread.join(within_s)

    def _tell(self, run_id: str, message: str, level: Level = "info") -> None:
        self._logs.append(run_id, [LogLine(message, level=level, step="executor")])


def fairest(runs: Iterable[DbRun], at_work: Mapping[str, int]) -> DbRun | None:
    """Return the run to start next: the oldest of the workspace with the fewest ``at_work``; None of none."""
    return min(runs, key=lambda run: (at_work.get(run.workspace_id, 0), run.created_at, run.id), default=None)
