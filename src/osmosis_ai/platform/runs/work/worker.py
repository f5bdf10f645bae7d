"""The process that executes one run: ``python -m osmosis_ai.platform.runs.work.worker RUN_ID``.

It owns the run while it holds its lease, and writes nothing without it. However it ends, the run is either
terminal, with one sentence on why, or open and ready for the next worker, which continues from the journal.
Nothing is printed unless something went wrong before there was a log to write it to.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from osmosis_ai import event_loop
from osmosis_ai.errors import OsmosisError
from osmosis_ai.evaluation.journal import JournalCorruptionError
from osmosis_ai.platform.clock import Clock, SystemClock
from osmosis_ai.platform.config import PlatformConfig, from_environment
from osmosis_ai.platform.db.engine import Database
from osmosis_ai.platform.db.tables import DbRun
from osmosis_ai.platform.log_lines import LogLine
from osmosis_ai.platform.logs import LogStore
from osmosis_ai.platform.runs.execute.worker_process import (
    ENDED,
    LEASE_LOST,
    NOT_MINE,
    SET_BACK,
    TOKEN_VARIABLE,
)
from osmosis_ai.platform.runs.leases import HEARTBEAT_S, Lease, Leases
from osmosis_ai.platform.runs.lifecycle import LeaseLostError
from osmosis_ai.platform.runs.work.eval_work import EvalWork
from osmosis_ai.platform.runs.work.publisher import Publisher
from osmosis_ai.platform.runs.work.run_work import Interrupt, PreparedRun, RunWork, WorkResult, one_sentence
from osmosis_ai.platform.runs.work.training_work import TrainingWork
from osmosis_ai.platform.runs.working_directory import WorkingDirectory
from osmosis_ai.process_environment import chosen
from osmosis_ai.redaction import Redactor
from osmosis_ai.supervision import keep_to_itself, lower_priority, take_handed, watch_parent

# The worker before this one is being ended together with its platform.
_LOCK_WAIT_S = 10.0
_LISTEN_S = 0.5
# Of a column of a run's row.
_LONGEST_WORDS = 255


@dataclass(frozen=True)
class Worker:
    """One worker: what it works on, and with what."""

    config: PlatformConfig
    db: Database
    leases: Leases
    clock: Clock
    logs: LogStore
    directory: WorkingDirectory
    lease: Lease

    def run(self) -> int:
        """Work on the run until it has ended or is to be left; return the exit status."""
        interrupt = Interrupt()
        signal.signal(signal.SIGTERM, lambda *_: interrupt.set())
        heartbeat = _Heartbeat(self.leases, self.lease, on_stop=interrupt.set)
        heartbeat.start()
        work = self._work()
        redactor = Redactor(())
        publisher = Publisher(self.lease, self.leases, self.logs, self.clock, redactor)
        prepared: PreparedRun | None = None
        try:
            try:
                prepared = work.prepare()
                redactor = prepared.redactor
                publisher = Publisher(self.lease, self.leases, self.logs, self.clock, redactor)
                publisher.start()
                publisher.log(
                    LogLine(f"attempt {self.lease.attempt} on commit {prepared.commit_sha[:12]}", step="run")
                )
                if prepared.containment is not None:
                    publisher.log(prepared.containment.line)
                    publisher.know(isolation=prepared.containment.words[:_LONGEST_WORDS])
                result = event_loop.run(work.execute(prepared, publisher, interrupt))
            except Exception as caught:  # the edge of this process: every end of a run is said on the run
                error = _DamagedRunError(caught) if isinstance(caught, JournalCorruptionError) else caught
                result = _failed(error)
                if proof := _log_details(error):
                    publisher.log(LogLine(proof, level="error", step="run"))
            if prepared is not None and self._ends(result):
                self._keep(work, prepared, publisher)
            publisher.finish()
            if publisher.damage is not None:
                result = _failed(_DamagedRunError(publisher.damage))
            # A beat after the end would find no lease, and end this worker while it clears away.
            heartbeat.stop()
            return self._conclude(result, work if prepared is not None else None, redactor)
        finally:
            heartbeat.stop()

    def _work(self) -> RunWork[Any]:
        with self.db.session() as session:
            kind = session.get_one(DbRun, self.lease.run_id).kind
        does = TrainingWork if kind == "training" else EvalWork
        return does(self.config, self.db, self.directory, self.lease)

    def _ends(self, result: WorkResult) -> bool:
        """Tell whether no worker will go on with the run."""
        over = result.outcome is not None and not result.is_infrastructure
        return over or self.leases.is_to_stop(self.lease)

    def _keep(self, work: RunWork[Any], prepared: PreparedRun, publisher: Publisher) -> None:
        try:
            work.keep(prepared)
        except (OSError, OsmosisError) as error:
            # Its samples are published: the run has ended as it has.
            publisher.log(LogLine(f"the journal could not be kept: {error}", level="warning", step="run"))

    def _conclude(self, result: WorkResult, work: RunWork[Any] | None, redactor: Redactor) -> int:
        """Write how it ended, and return the exit status; a run that was asked to stop is stopped, whatever else
        happened to it. What our own infrastructure failed at is left to the executor, which tries it again.
        """
        with self.leases.writing(self.lease) as (session, run):
            outcome = "stopped" if run.stop_requested_at is not None else result.outcome
            set_back = outcome == "failed" and result.is_infrastructure and result.error is not None
            if work is not None:
                work.record(run)
            if set_back:
                self.directory.note_setback(redactor.text(result.error or ""))
            elif outcome is None:
                line = LogLine(
                    "the worker was asked to end; the run goes on when the platform does", step="run"
                )
                self.logs.add(session, run.id, [line], redactor=redactor)
            else:
                sentence = redactor.text(result.error) if result.error and outcome == "failed" else None
                if sentence and (advice := self.directory.resume_advice(run.name)):
                    sentence = f"{sentence} {advice}"
                line = LogLine(sentence or outcome, level="error" if sentence else "info", step="run")
                self.logs.add(session, run.id, [line], redactor=redactor)
                self.leases.end(run, outcome, sentence)
        if set_back or outcome is None:
            self.leases.release(self.lease.run_id, self.lease.token)
        elif outcome == "finished":
            self.directory.remove()
        elif not result.keeps_files:
            self.directory.keep_what_resumes()
        return SET_BACK if set_back else ENDED


class _Heartbeat:
    """Renews the lease in a thread of its own, and hears whether the run is to stop.

    A worker that has lost its lease ends at once: its children follow, and its successor waits for nothing else.
    """

    def __init__(self, leases: Leases, lease: Lease, *, on_stop: Callable[[], None]) -> None:
        self._leases = leases
        self._lease = lease
        self._on_stop = on_stop
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._work, name="heartbeat", daemon=True)

    def start(self) -> None:
        self._listen()
        self._thread.start()

    def stop(self) -> None:
        self._ended.set()

    def _work(self) -> None:
        beat_at = time.monotonic()
        while not self._ended.wait(_LISTEN_S):
            try:
                self._listen()
                if time.monotonic() >= beat_at:
                    self._leases.renew(self._lease)
                    beat_at = time.monotonic() + HEARTBEAT_S
            except LeaseLostError:
                if not self._ended.is_set():
                    os._exit(LEASE_LOST)
            except OsmosisError:
                continue  # busy or full: the token still decides, so trying again is safe

    def _listen(self) -> None:
        if self._leases.is_to_stop(self._lease):
            self._on_stop()


class _DamagedRunError(OsmosisError):
    """A journal on the platform's machine is damaged; what the engine advises is for commands on one's own."""

    def __init__(self, damage: JournalCorruptionError) -> None:
        super().__init__(
            damage.message,
            hint="submit the run again: it begins anew, and what this one has published stays. The file is kept on "
            "the platform's machine: whoever runs it should check that disk",
        )


def _failed(error: Exception) -> WorkResult:
    if isinstance(error, OsmosisError):
        damaged = isinstance(error, _DamagedRunError)
        return WorkResult("failed", one_sentence(error), error.is_infrastructure, keeps_files=damaged)
    return WorkResult(
        "failed",
        f"the worker met an unexpected error ({type(error).__name__}); the run's log has the details.",
    )


def _log_details(error: Exception) -> str | None:
    """Return what the log is to say before the run's one sentence; None when that leaves nothing out."""
    if not isinstance(error, OsmosisError):
        return "".join(traceback.format_exception(type(error), error, error.__traceback__))
    if error.message.rstrip(".") in one_sentence(error):
        return None
    return error.message if error.hint is None else f"{error.message}\n{error.hint}"


def main(arguments: list[str] | None = None) -> int:
    """Run a worker; return its exit status."""
    keep_to_itself(os.environ)
    watch_parent()
    lower_priority()
    (run_id,) = sys.argv[1:] if arguments is None else arguments
    handed = take_handed()
    token = handed.pop(TOKEN_VARIABLE)
    config = from_environment({**os.environ, **handed})
    # Here boto3 finds them, and the store takes them out again.
    os.environ.update(chosen(handed, (), ("AWS_",)))
    directory = WorkingDirectory(config.runs_dir, run_id)
    # On one machine the lock tells more surely than any clock that the worker before is gone.
    if not directory.lock(timeout_s=_LOCK_WAIT_S):
        return NOT_MINE
    db, clock = Database(config.database_url), SystemClock()
    leases = Leases(db, clock)
    lease = leases.claim(run_id, token)
    if lease is None:
        return NOT_MINE
    worker = Worker(config, db, leases, clock, LogStore(db, clock), directory, lease)
    try:
        return worker.run()
    except LeaseLostError:
        return LEASE_LOST


if __name__ == "__main__":
    sys.exit(main())
