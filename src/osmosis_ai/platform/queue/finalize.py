"""The platform's own shards: preparing a run before its workers begin, and finalizing it after they have ended.

``prepare`` packs the commit of a run for its workers. ``finalize`` packs the run's journal and small files, computes its
metrics and gives it its final status. Both run in threads of the platform under leases, so a killed platform continues
them. While a run is active, its numbers are computed here as well.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import wait
from dataclasses import asdict, dataclass, replace

from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from osmosis_ai.api.models.workers import FinishRequest, ReleaseRequest
from osmosis_ai.errors import OsmosisError
from osmosis_ai.evaluation.attempt_files import item_name
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
from osmosis_ai.platform.queue.queue import Lease, RunQueue, sentence_of
from osmosis_ai.platform.queue.reports import RunUploads
from osmosis_ai.platform.runs.files import RunFiles, pack_files
from osmosis_ai.platform.runs.journals import pack_journal, run_lines
from osmosis_ai.platform.runs.lifecycle import OPEN, RESUME, LeaseLostError
from osmosis_ai.platform.runs.passing_attempts import collect_conversations, source_of
from osmosis_ai.platform.runs.requests import RowSelection, runs_rollouts
from osmosis_ai.platform.runs.results import MetricsUpdater, write_numbers
from osmosis_ai.platform.runs.run_store import PACKING
from osmosis_ai.redaction import Redactor

logger = logging.getLogger("osmosis_ai.platform.queue")

_THREADS = 3
_EVERY_S = 1.0
_COUNTED_EVERY_S = 2.0
# The cost of counting grows with the samples and the active runs; it takes at most this share of the time.
_COUNTING_SHARE = 0.1
_BATCH = 5000
_FILES_AT_ONCE = 500


@dataclass
class PlatformShards:
    db: Database
    clock: Clock
    blobs: BlobStore
    queue: RunQueue
    uploads: RunUploads
    assignments: Assignments

    def __post_init__(self) -> None:
        self._numbers = MetricsUpdater(self.db)
        self._count_at = 0.0
        self._ending = threading.Event()
        self._threads: list[threading.Thread] = []
        self._reported: set[str] = set()

    def start(self) -> None:
        self._ending.clear()
        works = [self._keep_up, *[self.execute_next] * _THREADS]
        self._threads = [
            threading.Thread(target=self._loop, args=(work,), name=f"platform-shards-{number}", daemon=True)
            for number, work in enumerate(works)
        ]
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """End; a shard that is being executed is completed first."""
        self._ending.set()
        self.queue.changed.set()
        for thread in self._threads:
            thread.join()

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
            self.queue.changed.wait(_EVERY_S)
            self.queue.changed.clear()

    def _keep_up(self) -> bool:
        self.queue.close_stopped()
        if (began := time.monotonic()) >= self._count_at:
            self._numbers.update()
            now = time.monotonic()
            self._count_at = now + max(_COUNTED_EVERY_S, (now - began) / _COUNTING_SHARE)
        return False

    def execute_next(self) -> bool:
        """Execute the next shard of the platform; return whether there was one."""
        for kind, execute in (("prepare", self._prepare), ("finalize", self._finalize)):
            if (lease := self.queue.take(kind)) is not None:
                self._execute(lease, execute)
                return True
        return False

    def _execute(self, lease: Lease, execute: Callable[[Lease, DbRun], None]) -> None:
        with self.db.session() as session:
            run = session.get_one(DbRun, lease.run_id)
        try:
            execute(lease, run)
        except LeaseLostError:
            return
        except (OSError, OsmosisError) as error:
            if isinstance(error, OsmosisError) and not error.is_infrastructure:
                failed = FinishRequest(outcome="failed", error=sentence_of(error))
                self.queue.finish(lease.shard_id, lease.token, failed)
                return
            what = "the store" if isinstance(error, BlobError) else "the platform"
            reason = f"{what} is not ready: {error}"
            self.queue.release(lease.shard_id, lease.token, ReleaseRequest(reason=reason))
        except Exception as error:  # the edge of a shard: otherwise its run would never end
            logger.exception("the run %s met an unexpected error", run.name)
            reason = f"the platform met an unexpected error ({type(error).__name__}), which its log explains"
            self.queue.release(lease.shard_id, lease.token, ReleaseRequest(reason=reason, counts=True))

    def _prepare(self, lease: Lease, run: DbRun) -> None:
        if source_of(run) is not None and not RowSelection.read(run.selection).sha256:
            self._collect(lease, run)
        if runs_rollouts(run.request):
            repository = self.db.get(DbRepository, run.repository_id) if run.repository_id else None
            if repository is not None:
                packing = self.assignments.sources.prepare(repository, run.commit_sha or "")
                if not packing.done():
                    self.queue.log(run.id, PACKING)
                keep_lease = self._keeper(lease)
                while not wait([packing], timeout=1.0).done:
                    keep_lease()
                packing.result()
        self.queue.finish(lease.shard_id, lease.token, FinishRequest(outcome="finished"))

    def _collect(self, lease: Lease, run: DbRun) -> None:
        """Store the conversations that a training run learns from; a resumed run keeps its own."""
        files = RunFiles(self.db, self.blobs, self.assignments.signer)
        rows, message = collect_conversations(self.db, self.blobs, files, run, self._keeper(lease))
        with self.queue.writing(lease.shard_id, lease.token) as (_, current, _):
            validation = RowSelection.read(current.selection).validation
            current.selection = asdict(replace(rows, validation=validation))
        self.queue.log(run.id, message)

    def _finalize(self, lease: Lease, run: DbRun) -> None:
        """Pack what the run's workers reported, compute its results, and give it its final status."""
        keep_lease = self._keeper(lease)
        former, key = run.journal_blob, f"runs/{run.id}/journals/{run.revision}-events.jsonl.gz"
        secret_values = [value.get_secret_value() for value in self.assignments.secrets(run).values()]
        lines = run_lines(self.db, self.blobs, run.id, former if former != key else None)
        has_lines = pack_journal(_each(lines, keep_lease), key, self.blobs, Redactor(secret_values))
        pack_files(self.db, self.blobs, run.id, keep_lease)
        metrics = self._numbers.final(run)
        with self.queue.writing(lease.shard_id, lease.token) as (session, current, shard):
            if metrics is not None:
                write_numbers(current, metrics, current.accepted)
            current.journal_blob = key if has_lines else None
            if current.revision:
                _forget_replaced_files(session, current)
            shard.status, shard.lease_expires_at = "finished", None
            self.queue.end_run(session, current)
            packed = select(DbRunShard.id).where(DbRunShard.run_id == run.id)
            session.execute(delete(DbJournalChunk).where(DbJournalChunk.shard_id.in_(packed)))
        if former is not None and former != current.journal_blob:
            self.blobs.delete(former)
        if run.kind == "training" and current.status == "finished":
            self.blobs.delete_below(f"runs/{run.id}/{RESUME}")
        self.uploads.forget(run.id)

    def clear_ended(self) -> None:
        """Delete what a crash after the end of a run has left of its uploads."""
        with_uploads = DbRun.id.in_(select(DbRunUpload.run_id))
        for run_id in self.db.scalars(select(DbRun.id).where(DbRun.status.not_in(OPEN), with_uploads)):
            self.uploads.forget(run_id)

    def _keeper(self, lease: Lease) -> Callable[[], None]:
        """Return a function to be called often, which renews the lease in time."""
        renewed_at = self.clock.monotonic()

        def keep_lease() -> None:
            nonlocal renewed_at
            if self.clock.monotonic() - renewed_at > self.queue.term.total_seconds() / 3:
                with self.queue.writing(lease.shard_id, lease.token):
                    pass
                renewed_at = self.clock.monotonic()

        return keep_lease


def _forget_replaced_files(session: Session, run: DbRun) -> None:
    """Delete the files that repeated attempts left before the retry and did not replace."""
    again = (DbSample.run_id == run.id, DbSample.position > run.reopened_at)
    attempts = session.execute(select(DbSample.row_index, DbSample.run_index).where(*again))
    repeated = {item_name(row, number) for row, number in attempts}
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


def _each(lines: Iterable[bytes], keep_lease: Callable[[], None]) -> Iterator[bytes]:
    for number, line in enumerate(lines):
        if number % _BATCH == 0:
            keep_lease()
        yield line
