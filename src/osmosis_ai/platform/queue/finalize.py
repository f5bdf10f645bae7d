"""The platform's own shards: preparing a run before its workers begin, and finalizing it after they have ended.

``prepare`` packs the commit of a run for its workers. ``finalize`` packs the run's journal and small files, computes its
metrics and gives it its final status. Both run in threads of the platform under leases, so a killed platform continues
them. While a run is active, its numbers are computed here as well.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as StillRunning
from dataclasses import dataclass
from typing import Any

from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from osmosis_ai.api.wire.workers import FinishRequest, ReleaseRequest
from osmosis_ai.config.sections import served_agent
from osmosis_ai.controller.outcomes import LimitedBy
from osmosis_ai.controller.record import TerminalRecord
from osmosis_ai.errors import OsmosisError
from osmosis_ai.evaluation.attempt_files import item_name
from osmosis_ai.evaluation.metrics import RunMetrics, compute_metrics
from osmosis_ai.evaluation.results import AttemptTable
from osmosis_ai.platform.blobs.store import BlobError, BlobStore
from osmosis_ai.platform.clock import Clock
from osmosis_ai.platform.db.engine import Database, DatabaseBusyError, StorageFullError
from osmosis_ai.platform.db.tables import (
    DbConversation,
    DbJournalChunk,
    DbRepository,
    DbRun,
    DbRunFile,
    DbRunShard,
    DbRunUpload,
    DbSample,
)
from osmosis_ai.platform.queue.assignment import Assignments
from osmosis_ai.platform.queue.queue import Lease, RunQueue
from osmosis_ai.platform.queue.uploads import RunUploads
from osmosis_ai.platform.queue.waiting import PACKING
from osmosis_ai.platform.runs.eval_results import summarised_results
from osmosis_ai.platform.runs.files import pack_files
from osmosis_ai.platform.runs.journals import pack_journal, run_lines
from osmosis_ai.platform.runs.lifecycle import OPEN, LeaseLostError
from osmosis_ai.platform.runs.source_archives import SourceArchives
from osmosis_ai.platform.runs.submit.eval_request import read_eval_request
from osmosis_ai.platform.runs.training_names import RESUME
from osmosis_ai.redaction import Redactor

logger = logging.getLogger("osmosis_ai.platform.queue")

_THREADS = 3
_EVERY_S = 1.0
_COUNTED_EVERY_S = 2.0
# The cost of counting grows with the samples and the active runs; it takes at most this share of the time.
_COUNTING_SHARE = 0.1
_MOST_ATTEMPTS = 2_000_000
"""Attempts in the tables of active runs; the samples of further runs are read again each time."""
_BATCH = 5000
_FILES_AT_ONCE = 500
_COLUMNS = (
    *("row_index", "run_index", "status", "reward", "tokens", "prompt_tokens", "completion_tokens"),
    *(
        "cost_usd",
        "duration_ms",
        "model_latency_ms",
        "model_calls",
        "boundary",
        "error_type",
        "lost_attempts",
    ),
    *("finish_reasons", "source_row_index", "judge_calls", "judge_tokens", "judge_cost_usd"),
    "judge_outside_scale",
)
_SAMPLES = tuple(getattr(DbSample, name) for name in ("row_digest", "position", *_COLUMNS))


@dataclass
class _Counted:
    """The samples of an active run that have been counted: up to a position, under a revision."""

    table: AttemptTable
    revision: int
    position: int = 0
    longest_ms: float = 0.0
    not_before: float = 0.0


class MetricsUpdater:
    """Computes the metrics of evaluations from their samples."""

    def __init__(self, db: Database, queue: RunQueue) -> None:
        self._db = db
        self._queue = queue
        self._tables: OrderedDict[str, _Counted] = OrderedDict()

    def update(self) -> None:
        """Write the numbers of active runs with new samples; of each at most every two seconds."""
        changed = (DbRun.status == "running", DbRun.kind == "eval", DbRun.accepted > DbRun.counted)
        with self._db.session() as session:
            runs = session.scalars(select(DbRun).where(*changed)).all()
        for run in runs:
            known = self._tables.get(run.id)
            if known is not None and time.monotonic() < known.not_before:
                continue
            try:
                counted, metrics = self._measure(run)
                self._write(run.id, counted, metrics)
            except (DatabaseBusyError, StorageFullError):
                raise
            except Exception:  # of one run: the others are counted all the same
                logger.exception("the metrics of the run %s cannot be computed", run.name)
                counted = self._tables.setdefault(run.id, _Counted(AttemptTable(0, 1), -1))
            counted.not_before = time.monotonic() + _COUNTED_EVERY_S

    def final(self, run: DbRun) -> dict[str, Any] | None:
        """Return the metrics of all samples of a run whose workers have ended; None if it never began to be counted."""
        if run.kind != "eval" or (run.results or {}).get("sampled_rows") is None:
            return None
        _, metrics = self._measure(run)
        self._tables.pop(run.id, None)
        return metrics

    def _measure(self, run: DbRun) -> tuple[_Counted, dict[str, Any]]:
        settings = read_eval_request(run.request).evaluation
        counted = self._tables.get(run.id)
        if counted is None or counted.revision != run.revision:
            rows = int((run.results or {}).get("sampled_rows") or 0)
            counted = _Counted(AttemptTable(rows, settings.n), run.revision)
            self._tables[run.id] = counted
            while len(self._tables) > 1 and sum(map(_attempts, [*self._tables.values()])) > _MOST_ATTEMPTS:
                self._tables.popitem(last=False)
        with self._db.session() as session:
            self._read_samples(session, run, counted)
            shards = session.scalars(
                select(DbRunShard).where(DbRunShard.run_id == run.id, DbRunShard.kind == "work")
            ).all()
        found = compute_metrics(counted.table, pass_threshold=settings.pass_threshold)
        earlier_ms = float(((run.metrics or {}).get("earlier_ms")) or 0.0)
        worked_ms = earlier_ms + 1000 * max((shard.worked_s for shard in shards), default=0.0)
        return counted, _record(found, max(worked_ms, counted.longest_ms), earlier_ms, _limited_by(shards))

    def _read_samples(self, session: Session, run: DbRun, counted: _Counted) -> None:
        table = counted.table
        new = (DbSample.run_id == run.id, DbSample.position > counted.position)
        samples = select(*_SAMPLES).where(*new).order_by(DbSample.position)
        if run.accepted - counted.position > _BATCH:
            # A cursor on the server would cost more than a few rows.
            samples = samples.execution_options(yield_per=_BATCH)
        for sample in session.execute(samples):
            counted.position = sample.position
            counted.longest_ms = max(counted.longest_ms, sample.duration_ms or 0.0)
            # An attempt without a score that a retry has not repeated yet is pending.
            is_scored = sample.status == "success" and sample.reward is not None
            is_old = run.revision and sample.position <= run.reopened_at
            if is_old and not is_scored and sample.status != "skipped":
                continue
            values = {name: getattr(sample, name) for name in _COLUMNS}
            table.set_result(TerminalRecord(rollout_id="", **values))
            if sample.row_digest:
                table.set_row_digest(sample.row_index, sample.row_digest)

    def _write(self, run_id: str, counted: _Counted, metrics: dict[str, Any]) -> None:
        with self._db.transaction() as session:
            run = session.get(DbRun, run_id, with_for_update=True)
            if run is not None and run.status == "running" and run.revision == counted.revision:
                write_numbers(run, metrics, counted.position)


class PlatformShards:
    """Executes ``prepare`` and ``finalize`` shards, and keeps the numbers of active runs up to date."""

    def __init__(
        self,
        db: Database,
        clock: Clock,
        blobs: BlobStore,
        queue: RunQueue,
        uploads: RunUploads,
        sources: SourceArchives,
        assignments: Assignments,
    ) -> None:
        self._db = db
        self._clock = clock
        self._blobs = blobs
        self._queue = queue
        self._uploads = uploads
        self._sources = sources
        self._assignments = assignments
        self._numbers = MetricsUpdater(db, queue)
        self._count_at = 0.0
        self._ending = threading.Event()
        self._threads: list[threading.Thread] = []
        self._reported: set[str] = set()

    def start(self) -> None:
        """Begin, in threads."""
        self._ending.clear()
        works = [self.execute_next] * _THREADS
        for number, work in enumerate([self._keep_up, *works]):
            thread = threading.Thread(
                target=self._loop, args=(work,), name=f"platform-shards-{number}", daemon=True
            )
            self._threads.append(thread)
            thread.start()

    def close(self) -> None:
        """End; a shard that is being executed is completed first."""
        self._ending.set()
        self._queue.changed.set()
        for thread in self._threads:
            thread.join()
        self._threads.clear()

    def _loop(self, work: Callable[[], bool]) -> None:
        while not self._ending.is_set():
            try:
                if work():
                    continue
                self._reported.clear()
            except (DatabaseBusyError, StorageFullError, BlobError) as error:
                if error.message not in self._reported:
                    self._reported.add(error.message)
                    logger.warning("the run queue waits: %s", error.message)
            except Exception:  # the edge of this thread, without which no run would begin or end
                logger.exception("the run queue had an unexpected error and continues")
            self._queue.changed.wait(_EVERY_S)
            self._queue.changed.clear()

    def _keep_up(self) -> bool:
        self._queue.close_stopped()
        if (began := time.monotonic()) >= self._count_at:
            self._numbers.update()
            now = time.monotonic()
            self._count_at = now + (now - began) / _COUNTING_SHARE
        return False

    def execute_next(self) -> bool:
        """Execute the next shard of the platform; return whether there was one."""
        for kind, execute in (("prepare", self._prepare), ("finalize", self._finalize)):
            if (lease := self._queue.take(kind)) is not None:
                self._execute(lease, execute)
                return True
        return False

    def _execute(self, lease: Lease, execute: Callable[[Lease, DbRun], None]) -> None:
        with self._db.session() as session:
            run = session.get_one(DbRun, lease.run_id)
        try:
            execute(lease, run)
        except LeaseLostError:
            return
        except (OSError, OsmosisError) as error:
            if isinstance(error, OsmosisError) and not error.is_infrastructure:
                hint = f"; {error.hint.rstrip('.')}" if error.hint else ""
                sentence = f"{error.message.rstrip('.')}{hint}."
                self._queue.finish(
                    lease.shard_id, lease.token, FinishRequest(outcome="failed", error=sentence)
                )
                return
            what = "the store" if isinstance(error, BlobError) else "the platform"
            reason = f"{what} is not ready: {error}"
            self._queue.release(lease.shard_id, lease.token, ReleaseRequest(reason=reason))
        except Exception as error:  # the edge of a shard: otherwise its run would never end
            logger.exception("the run %s met an unexpected error", run.name)
            reason = f"the platform met an unexpected error ({type(error).__name__}), which its log explains"
            self._queue.release(lease.shard_id, lease.token, ReleaseRequest(reason=reason, counts=True))

    def _prepare(self, lease: Lease, run: DbRun) -> None:
        """Pack the run's commit for its workers."""
        if served_agent(run.request["experiment_config"]["entrypoint"]) is None:
            with self._db.session() as session:
                repository = session.get(DbRepository, run.repository_id) if run.repository_id else None
            if repository is not None:
                packing = self._sources.prepare(repository, run.commit_sha or "")
                if not packing.done():
                    self._queue.log(run.id, PACKING)
                self._wait(lease, packing)
        self._queue.finish(lease.shard_id, lease.token, FinishRequest(outcome="finished"))

    def _wait(self, lease: Lease, packing: Future[Any]) -> None:
        while True:
            try:
                packing.result(timeout=self._queue.term.total_seconds() / 3)
                return
            except StillRunning:
                self._queue.renew(lease)

    def _finalize(self, lease: Lease, run: DbRun) -> None:
        """Pack what the run's workers reported, compute its results, and give it its final status."""
        keep_lease = self._keeper(lease)
        former, key = run.journal_blob, f"runs/{run.id}/journals/{run.revision}-events.jsonl.gz"
        secret_values = [value.get_secret_value() for value in self._assignments.secrets(run).values()]
        lines = run_lines(self._db, self._blobs, run.id, former if former != key else None)
        if not pack_journal(_each(lines, keep_lease), key, self._blobs, Redactor(secret_values)):
            key = ""
        pack_files(self._db, self._blobs, run.id, keep_lease)
        metrics = self._numbers.final(run)
        with self._queue.writing(lease) as (session, current):
            if metrics is not None:
                write_numbers(current, metrics, current.accepted)
            current.journal_blob = key or None
            if current.revision:
                _forget_replaced_files(session, current)
            shard = session.get_one(DbRunShard, lease.shard_id)
            shard.status, shard.lease_expires_at = "finished", None
            self._queue.end_run(session, current)
            packed = select(DbRunShard.id).where(DbRunShard.run_id == run.id)
            session.execute(delete(DbJournalChunk).where(DbJournalChunk.shard_id.in_(packed)))
        if former not in (None, key):
            self._blobs.delete(former or "")
        if run.kind == "training" and current.status == "finished":
            self._blobs.delete_below(f"runs/{run.id}/{RESUME}")
        self._uploads.forget(run.id)

    def clear_ended(self) -> None:
        """Delete what a crash after the end of a run has left of its uploads."""
        with_uploads = DbRun.id.in_(select(DbRunUpload.run_id))
        with self._db.session() as session:
            ended = list(session.scalars(select(DbRun.id).where(DbRun.status.not_in(OPEN), with_uploads)))
        for run_id in ended:
            self._uploads.forget(run_id)

    def _keeper(self, lease: Lease) -> Callable[[], None]:
        """Return a function to be called often, which renews the lease in time."""
        renewed_at = self._clock.monotonic()

        def keep_lease() -> None:
            nonlocal renewed_at
            if self._clock.monotonic() - renewed_at > self._queue.term.total_seconds() / 3:
                self._queue.renew(lease)
                renewed_at = self._clock.monotonic()

        return keep_lease


def write_numbers(run: DbRun, metrics: dict[str, Any], position: int) -> None:
    """Write the metrics of a run's samples up to a position into its row."""
    summary = metrics["summary"]
    run.metrics = metrics
    run.results = summarised_results(run.results or {}, metrics)
    planned = metrics["estimates"]["counts"]["planned"]
    run.progress = {"completed": summary["total_samples"], "total": planned}
    run.counted = max(run.counted, position)


def _attempts(counted: _Counted) -> int:
    return len(counted.table)


def _record(
    found: RunMetrics, worked_ms: float, earlier_ms: float, limited_by: LimitedBy | None
) -> dict[str, Any]:
    estimates = found.estimates.model_copy(update={"limited_by": limited_by})
    return {
        "duration_ms": round(worked_ms),
        **({"earlier_ms": earlier_ms} if earlier_ms else {}),
        "summary": found.summary,
        "estimates": estimates.model_dump(mode="json"),
    }


def _limited_by(shards: Any) -> LimitedBy | None:
    """Return what limited the worker that worked longest."""
    said = [shard for shard in shards if shard.limited_by]
    longest = max(said, key=lambda shard: shard.worked_s, default=None)
    if longest is None:
        return None
    try:
        return LimitedBy.model_validate(longest.limited_by)
    except ValueError:
        return None


def _forget_replaced_files(session: Session, run: DbRun) -> None:
    """Delete the files that repeated attempts left before the retry and did not replace."""
    again = (DbSample.run_id == run.id, DbSample.position > run.reopened_at)
    repeated = {
        item_name(*attempt)
        for attempt in session.execute(select(DbSample.row_index, DbSample.run_index).where(*again))
    }
    old = (DbRunFile.run_id == run.id, DbRunFile.revision < run.revision)
    paths = [
        path
        for path in session.scalars(select(DbRunFile.path).where(*old))
        if path.partition("/")[2].partition("/")[0].removesuffix(".json") in repeated
    ]
    for start in range(0, len(paths), _FILES_AT_ONCE):
        some = paths[start : start + _FILES_AT_ONCE]
        for table in (DbRunFile, DbConversation):
            session.execute(delete(table).where(table.run_id == run.id, table.path.in_(some)))


def _each(lines: Any, keep_lease: Callable[[], None]) -> Any:
    for number, line in enumerate(lines):
        if number % _BATCH == 0:
            keep_lease()
        yield line
