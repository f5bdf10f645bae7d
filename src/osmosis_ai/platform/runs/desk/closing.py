"""A run is closed: with an outcome, after its journal was folded, or let go for the worker after this one."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from weakref import WeakValueDictionary

from pydantic import SecretStr
from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from osmosis_ai.api.wire.workers import EndRequest, ReleaseRequest, RunClosed
from osmosis_ai.errors import OsmosisError
from osmosis_ai.evaluation.attempt_files import item_name
from osmosis_ai.platform.blobs.store import BlobError, BlobStore, BlobStoreBusy, BlobStoreSilent
from osmosis_ai.platform.db.engine import Database
from osmosis_ai.platform.db.tables import DbJournalSegment, DbRun, DbRunFile, DbRunUpload, DbSample
from osmosis_ai.platform.log_lines import LogLine, bounded, storable
from osmosis_ai.platform.logs import LogStore
from osmosis_ai.platform.runs.desk.accepted_numbers import AcceptedNumbers
from osmosis_ai.platform.runs.desk.journal_folding import JournalFolding
from osmosis_ai.platform.runs.desk.uploads import RunUploads
from osmosis_ai.platform.runs.eval_results import summarised_results
from osmosis_ai.platform.runs.journal_segments import SEGMENTS_FOLDER
from osmosis_ai.platform.runs.leases import LONGEST_PAUSE, Lease, Leases
from osmosis_ai.platform.runs.lifecycle import OPEN, LeaseLostError, Outcome
from osmosis_ai.platform.runs.resume_state import forget_resume, newest_step
from osmosis_ai.platform.runs.training_names import RESUME
from osmosis_ai.redaction import Redactor

FRUITLESS = {"eval": 3, "training": 12}
"""Workers in a row that died and got nothing done, after which a run fails, by its kind: whatever it is would go on. A
training run's many hours are worth 20 minutes of waiting for memory or a GPU that somebody else holds; what an
evaluation
has journalled is there for the next one."""
_FIRST_PAUSE = timedelta(seconds=0.5)
_LATER = timedelta(seconds=10)
_STORE_AWAY = timedelta(minutes=1)
"""How long nobody tries a run whose worker has waited for the store, a lease long."""
_FILES_AT_ONCE = 500
_TURN_WITHIN_S = 5.0
"""How long a thread waits for another that is ending the same run."""

Secrets = Callable[[DbRun], Mapping[str, SecretStr]]


class _OneAtATime:
    """A lock that is gone when nobody has it or waits for it."""

    def __init__(self) -> None:
        self.lock = threading.Lock()


class RunClosing:
    """Closes runs; every method blocks."""

    def __init__(
        self,
        db: Database,
        logs: LogStore,
        blobs: BlobStore,
        leases: Leases,
        folding: JournalFolding,
        uploads: RunUploads,
        accepted: AcceptedNumbers,
        secrets: Secrets,
        runs_dir: Path,
        *,
        monotonic: Callable[[], float] = time.monotonic,
        all_are_elsewhere: bool = False,
    ) -> None:
        self._monotonic = monotonic
        self._db = db
        self._logs = logs
        self._blobs = blobs
        self._leases = leases
        self._folding = folding
        self._uploads = uploads
        self._accepted = accepted
        self._secrets = secrets
        self._runs_dir = runs_dir
        self._all_are_elsewhere = all_are_elsewhere
        self._ending: WeakValueDictionary[str, _OneAtATime] = WeakValueDictionary()
        self._store_away_since: dict[str, tuple[str, float]] = {}

    def end(
        self,
        lease: Lease,
        request: EndRequest,
        *,
        is_said_again: bool = False,
        keeps_journal: bool = False,
    ) -> RunClosed:
        """Give a run its outcome; said again, it is what it was."""
        turn = self._ending.setdefault(lease.run_id, _OneAtATime())
        if not turn.lock.acquire(timeout=_TURN_WITHIN_S):
            raise BlobStoreBusy("the run is being ended, which takes long; ask again in a moment.")
        try:
            closed = self._end(lease, request, is_said_again, keeps_journal)
        except LeaseLostError:
            self._forget_outage(lease)
            raise
        finally:
            turn.lock.release()
        self._forget_outage(lease)
        return closed

    def _end(self, lease: Lease, request: EndRequest, is_said_again: bool, keeps_journal: bool) -> RunClosed:
        with self._db.session() as session:
            run = session.get(DbRun, lease.run_id)
        if run is not None and run.status not in OPEN and run.lease_token == lease.token:
            # Who hears no answer says it again: its first end may have been cut off behind the row.
            self._clear(run)
            return _closed(run)
        self._leases.require(lease)
        assert run is not None
        key = self._kept_journal(run, lease, is_said_again, keeps_journal)
        counted = self._accepted.counted(run, self._kept_mine(lease))
        with self._leases.writing(lease) as (session, run):
            outcome: Outcome = "stopped" if run.stop_requested_at is not None else request.outcome
            if key is not None:
                run.journal_blob = key
                session.execute(delete(DbJournalSegment).where(DbJournalSegment.run_id == run.id))
            if counted is not None:
                counted.write(run)
            self._number(run, request.ending)
            if run.revision:
                _forget_replaced_files(session, run)
            if run.kind == "training" and outcome == "finished":
                forget_resume(run)
            self._say_and_end(session, run, outcome, request.error)
            run.lease_token = lease.token  # expired: only identifies repeated requests
        self._clear(run)
        return _closed(run)

    def clear_ended(self) -> None:
        """Clean up after runs that were ended only in their row, because the store was unavailable or the platform was killed."""
        with_uploads = DbRun.id.in_(select(DbRunUpload.run_id))
        with self._db.session() as session:
            ended = session.scalars(select(DbRun).where(DbRun.status.not_in(OPEN), with_uploads)).all()
        failure: Exception | None = None
        for run in ended:
            try:
                self._clear(run)
            except BlobStoreSilent:
                raise
            except (OSError, BlobError) as error:
                failure = error  # what is wrong with one run's files is no matter of the others
        if failure is not None:
            raise failure

    def _clear(self, run: DbRun) -> None:
        """Delete an ended run's leftovers. Uploads go last and mark unfinished cleanup until then."""
        if run.journal_blob is not None:
            self._delete_segments(run)
        if run.kind == "training" and run.status == "finished":
            self._blobs.delete_below(f"runs/{run.id}/{RESUME}")
        with self._db.session() as session:
            is_open = session.scalar(select(DbRun.status).where(DbRun.id == run.id)) in OPEN
        if not is_open:
            self._uploads.forget(run.id)

    def _delete_segments(self, run: DbRun) -> None:
        """Delete the folded segments of an ended run that no row names; those of a later retry have a higher number."""
        with self._db.session() as session:
            mine = select(DbJournalSegment.blob_key).where(DbJournalSegment.run_id == run.id)
            named = {*session.scalars(mine)}
        for key in self._blobs.keys(f"runs/{run.id}/{SEGMENTS_FOLDER}"):
            generation = key.rpartition("/")[2].partition("-")[0]
            if key not in named and generation.isdigit() and int(generation) <= run.journal_generation:
                self._blobs.delete(key)

    def release(self, lease: Lease, request: ReleaseRequest) -> RunClosed:
        """Release a run unchanged. The desk counts failed attempts of remote runs; for local runs the executor does."""
        with self._db.session() as session:
            found = session.get(DbRun, lease.run_id)
        if found is not None and found.lease_token == lease.token and found.lease_expires_at is None:
            return _closed(found)  # said again
        with self._leases.writing(lease) as (session, run):
            self._number(run, request.ending)
            is_counted = request.setback is not None and (run.pool is not None or self._all_are_elsewhere)
            is_over = False
            if request.setback is not None and is_counted:
                # Waiting for an unavailable store has no limit.
                run.fruitless += 0 if request.store_away else 1
                is_over = not request.store_away and self._is_hopeless(run)
                if not is_over:
                    pause = min(LONGEST_PAUSE, _FIRST_PAUSE * 2 ** max(0, run.fruitless - 1))
                    self._put_off(session, run, request.setback, _STORE_AWAY if request.store_away else pause)
            run.lease_expires_at = None
        if is_over:
            return self._give_up(lease, request.setback or "")
        return _closed(run)

    def _put_off(self, session: Session, run: DbRun, setback: str, pause: timedelta) -> None:
        """Have nobody claim a run for a while, and say why."""
        run.claimable_at = self._leases.now(session) + pause
        words = f"{storable(setback).rstrip('.')} (trying again in {pause.total_seconds():g} s)"
        self._logs.add(session, run.id, [LogLine(words, level="warning", step="run")])

    def close_if_over(self, lease: Lease, *, counts_deaths: bool) -> bool:
        """End a claimed run that needs no work: a stop was requested, or no worker makes progress."""
        if not counts_deaths:
            return False
        with self._db.session() as session:
            run = session.get_one(DbRun, lease.run_id)
        if run.stop_requested_at is not None:
            self._end_claimed(lease, "stopped")
            return True
        if self._is_hopeless(run):
            self._end_claimed(lease, "failed", _hopeless(run))
            return True
        return False

    def close_unassigned(self, lease: Lease, error: OsmosisError) -> None:
        """End a run whose inputs cannot be provided to a worker."""
        hint = f"; {error.hint.rstrip('.')}" if error.hint else ""
        self._end_claimed(lease, "failed", f"{error.message.rstrip('.')}{hint}.")

    def let_go(self, lease: Lease, *, is_later: bool = False) -> None:
        """Let a run go whose claim was not answered: it may be made again; ``is_later``: not at once, others go first."""
        with self._leases.writing(lease) as (session, run):
            run.claim_id = run.lease_token = run.lease_expires_at = None
            run.attempt -= 1  # a ticket is for the next one, and nobody has begun it
            run.claimable_at = self._leases.now(session) + _LATER if is_later else None

    def _end_claimed(self, lease: Lease, outcome: Outcome, sentence: str | None = None) -> None:
        """End a run whose claim is reused for the next one."""
        with self._leases.writing(lease) as (_, run):
            run.claim_id = None
        self.end(lease, EndRequest.model_construct(outcome=outcome, error=sentence))

    def _give_up(self, lease: Lease, reason: str) -> RunClosed:
        with self._db.transaction() as session:
            run = session.get_one(DbRun, lease.run_id, with_for_update=True)
            if run.lease_token == lease.token and run.status in OPEN:
                self._leases.extend(session, run)
        return self.end(
            lease,
            EndRequest.model_construct(outcome="failed", error=f"{reason.rstrip('.')}; {_hopeless(run)}"),
        )

    def _is_hopeless(self, run: DbRun) -> bool:
        return run.fruitless >= FRUITLESS[run.kind]

    def _kept_journal(self, run: DbRun, lease: Lease, is_said_again: bool, keeps_journal: bool) -> str | None:
        """Store an ended run's journal; return None if it has none, or if storing failed, which is logged."""
        try:
            redactor = Redactor([value.get_secret_value() for value in self._secrets(run).values()])
            return self._folding.store(run, redactor, self._kept_mine(lease))
        except LeaseLostError:
            raise
        except (OSError, OsmosisError) as error:
            if (
                is_said_again
                and isinstance(error, BlobStoreBusy)
                and (keeps_journal or not self._was_store_away_for_long(lease))
            ):
                raise
            line = LogLine(f"the journal could not be kept: {error}", level="warning", step="run")
            self._logs.append(run.id, [line])
            return None

    def _kept_mine(self, lease: Lease) -> Callable[[], None]:
        """Return what, called again and again, renews a lease in time."""
        renewed_at = self._monotonic()

        def still_mine() -> None:
            nonlocal renewed_at
            if self._monotonic() - renewed_at > self._leases.term.total_seconds() / 3:
                self._leases.renew(lease)
                renewed_at = self._monotonic()

        return still_mine

    def _was_store_away_for_long(self, lease: Lease) -> bool:
        """Tell whether the store has been away since this owner first said how the run ends, an earlier one aside."""
        now = self._monotonic()
        token, since = self._store_away_since.get(lease.run_id, ("", now))
        if token != lease.token:
            since = now
        self._store_away_since[lease.run_id] = (lease.token, since)
        return now - since >= self._leases.term.total_seconds() / 2

    def _forget_outage(self, lease: Lease) -> None:
        token, _ = self._store_away_since.get(lease.run_id, ("", 0.0))
        if token == lease.token:
            del self._store_away_since[lease.run_id]

    def _number(self, run: DbRun, ending: str | None) -> None:
        if run.kind == "eval" and run.metrics is not None:
            run.results = summarised_results(run.results or {}, run.metrics)
        if ending is not None:
            run.results = {**(run.results or {}), "ending": bounded(storable(ending))}

    def _say_and_end(self, session: Session, run: DbRun, outcome: Outcome, error: str | None) -> None:
        sentence = bounded(storable(error)) if error and outcome == "failed" else None
        if sentence and run.kind == "training" and (step := newest_step(run, self._runs_dir)) is not None:
            sentence += (
                f" It can go on from the checkpoint of step {step}: `osmosis train resume {run.name}`."
            )
        line = LogLine(sentence or outcome, level="error" if sentence else "info", step="run")
        self._logs.add(session, run.id, [line])
        self._leases.end(run, outcome, sentence)


def _forget_replaced_files(session: Session, run: DbRun) -> None:
    """Delete the files that the repeated attempts of a retried run left before its retry, and not again after it."""
    again = (DbSample.run_id == run.id, DbSample.position > run.reopened_at)
    repeated = {
        item_name(*item)
        for item in session.execute(select(DbSample.row_index, DbSample.run_index).where(*again))
    }
    old = (DbRunFile.run_id == run.id, DbRunFile.revision < run.revision)
    paths = [
        path
        for path in session.scalars(select(DbRunFile.path).where(*old))
        if path.partition("/")[2].partition("/")[0].removesuffix(".json") in repeated
    ]
    for start in range(0, len(paths), _FILES_AT_ONCE):
        some = DbRunFile.path.in_(paths[start : start + _FILES_AT_ONCE])
        session.execute(delete(DbRunFile).where(DbRunFile.run_id == run.id, some))


def _closed(run: DbRun) -> RunClosed:
    return RunClosed.model_validate({"status": run.status})


def _hopeless(run: DbRun) -> str:
    return f"{run.fruitless} workers in a row ended without getting anything done; see the run's log, then submit again."
