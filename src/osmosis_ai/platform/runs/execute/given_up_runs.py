"""Fail abandoned runs after storing what their last worker recorded, each under one lease.

An unavailable store delays only its own run: ending it is retried every second until the journal is stored. After a
stop request the run ends without it after half a lease. The lease is claimed once and kept, so it counts as one
attempt.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from pathlib import Path

from osmosis_ai.api.wire.workers import EndRequest
from osmosis_ai.platform.blobs.store import BlobStoreBusy
from osmosis_ai.platform.clock import Clock
from osmosis_ai.platform.db.engine import Database
from osmosis_ai.platform.db.tables import DbRun
from osmosis_ai.platform.log_lines import LogLine
from osmosis_ai.platform.logs import LogStore
from osmosis_ai.platform.runs.desk.run_desk import RunDesk
from osmosis_ai.platform.runs.execute.last_records import send_left_records
from osmosis_ai.platform.runs.leases import Lease, Leases
from osmosis_ai.platform.runs.lifecycle import OPEN, LeaseLostError
from osmosis_ai.platform.runs.working_directory import WorkingDirectory

_EVERY_S = 1.0


@dataclass
class _Ending:
    """The end of a run that the store has kept from being said."""

    lease: Lease
    verdict: str
    not_before: float = 0.0
    is_sent: bool = False


class GivenUpRuns:
    """Fails runs that nobody works on; every method blocks."""

    def __init__(
        self, db: Database, clock: Clock, logs: LogStore, desk: RunDesk, leases: Leases, runs_dir: Path
    ) -> None:
        self._db = db
        self._clock = clock
        self._logs = logs
        self._desk = desk
        self._leases = leases
        self._runs_dir = runs_dir
        self._endings: dict[str, _Ending] = {}

    def give_up(self, run_id: str, verdict: str) -> None:
        """Fail a run; harmless where it has an owner."""
        lease = self._leases.claim(run_id, secrets.token_urlsafe(24))
        if lease is not None:
            self._say(_Ending(lease, verdict))

    def say_again(self) -> None:
        """Say those ends again that the store has kept from being said."""
        now = self._clock.monotonic()
        for run_id, ending in list(self._endings.items()):
            if now >= ending.not_before:
                # What fails for another reason is not said again: it would end every round, for all other runs.
                del self._endings[run_id]
                self._say(ending)

    def _say(self, ending: _Ending) -> None:
        run_id = ending.lease.run_id
        said = {"lease": ending.lease.token, "outcome": "failed", "error": ending.verdict}
        lost: str | None = None
        try:
            run = self._kept(ending.lease)
            if run is not None and not ending.is_sent:
                lost = self._send_left(run, ending.lease)
                ending.is_sent = lost is None
            is_patient = run is not None and run.stop_requested_at is None
            request = EndRequest.model_validate(said)
            self._desk.end(run_id, request, keeps_journal=is_patient)
        except BlobStoreBusy as error:
            if not ending.not_before:
                self._tell(run_id, f"ends when what it has recorded can be kept: {error}")
            ending.not_before = self._clock.monotonic() + _EVERY_S
            self._endings[run_id] = ending
            return
        except LeaseLostError:
            return
        if lost is not None:
            self._tell(run_id, lost)

    def _kept(self, lease: Lease) -> DbRun | None:
        """Return the run, whose lease has a new term then; None of one that has ended."""
        with self._db.session() as session:
            run = session.get(DbRun, lease.run_id)
        if run is None or run.status not in OPEN:
            return None
        self._leases.renew(lease)
        return run

    def _send_left(self, run: DbRun, lease: Lease) -> str | None:
        directory = WorkingDirectory(self._runs_dir, run.id)
        return send_left_records(self._desk, run, lease, directory.evaluation(run.name))

    def _tell(self, run_id: str, message: str) -> None:
        self._logs.append(run_id, [LogLine(message, level="warning", step="executor")])
