"""Assemble and check received bytes, then publish them as the dataset.

The row is the to-do list: a dataset in ``processing`` is checked by this process, or by its successor after a crash.
Every step is repeatable. The row changes in one final transaction, and only if it still expects these bytes. Until
then, runs and downloads use the previous ones.
"""

from __future__ import annotations

import logging
import threading
from concurrent.futures import Future, ThreadPoolExecutor, wait
from datetime import datetime, timedelta

from sqlalchemy import select

from osmosis_ai.errors import OsmosisError
from osmosis_ai.platform.blobs.parted_upload import old_uploads
from osmosis_ai.platform.blobs.store import BlobInfo, BlobStore, BlobStoreError, PartsMismatch, UploadNotFound
from osmosis_ai.platform.clock import Clock
from osmosis_ai.platform.datasets.check import Check, CheckCancelled, check_dataset
from osmosis_ai.platform.datasets.uploads import PendingUpload
from osmosis_ai.platform.db.engine import Database
from osmosis_ai.platform.db.tables import DbDataset
from osmosis_ai.platform.log_lines import LogLine
from osmosis_ai.platform.logs import LogStore

logger = logging.getLogger("osmosis_ai.platform.datasets")

BLOB_PREFIX = "datasets"
# The wire has milliseconds, and clients recognise a new version of a dataset by them.
_TICK = timedelta(milliseconds=1)


class Ingest:
    """Checks datasets in the background."""

    def __init__(
        self, db: Database, blobs: BlobStore, clock: Clock, logs: LogStore, *, workers: int = 2
    ) -> None:
        self._db = db
        self._blobs = blobs
        self._clock = clock
        self._logs = logs
        self._workers = workers
        self._pool: ThreadPoolExecutor | None = None
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        self._running: dict[str, Future[None]] = {}
        # Completed again while the former upload is still being worked on.
        self._again: set[str] = set()

    def start(self) -> None:
        """Accept work; :meth:`recover` finds that of an earlier process."""
        self._stopping.clear()
        self._pool = ThreadPoolExecutor(self._workers, thread_name_prefix="osmosis-dataset-check")

    def close(self) -> None:
        """Stop; the next start continues."""
        self._stopping.set()
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)
            self._pool = None
        # Cancelled work that had not begun has not removed itself.
        self._running.clear()
        self._again.clear()

    def submit(self, dataset_id: str) -> None:
        """Check a dataset that is ``processing``, each dataset once at a time."""
        with self._lock:
            if self._pool is None or self._stopping.is_set():
                return
            if dataset_id in self._running:
                self._again.add(dataset_id)
            else:
                self._running[dataset_id] = self._pool.submit(self._run, dataset_id)

    def wait_idle(self, timeout_s: float) -> bool:
        """Wait until no check is running; return whether that was in time."""
        while True:
            with self._lock:
                running = list(self._running.values())
            if not running:
                return True
            if wait(running, timeout=timeout_s).not_done:
                return False

    def recover(self) -> None:
        """Check datasets in ``processing``, end expired uploads, and remove unreferenced uploads and blobs."""
        with self._db.session() as session:
            waiting = list(session.scalars(select(DbDataset.id).where(DbDataset.status == "processing")))
            uploading = list(session.scalars(select(DbDataset).where(DbDataset.upload.is_not(None))))
        for dataset_id in waiting:
            self.submit(dataset_id)
        for row in uploading:
            pending = PendingUpload.of(row)
            if pending is not None and pending.etags is None and pending.expires_at <= self._clock.now():
                self.end_upload(row.id, pending, "the upload was not completed in time")
        self._remove_orphans()

    def end_upload(self, dataset_id: str, pending: PendingUpload, reason: str) -> None:
        """End an upload that will not become a dataset, if the row still waits for it."""
        with self._db.transaction() as session:
            row = session.get(DbDataset, dataset_id, with_for_update=True)
            current = PendingUpload.of(row)
            if row is not None and current is not None and current.upload == pending.upload:
                row.upload = None
                row.status = "uploaded" if row.blob_key is not None else "cancelled"
                row.updated_at = later_than(row, self._clock) if row.blob_key is None else row.updated_at
                self._logs.add(session, dataset_id, [LogLine(reason, "warning", "upload")])
        self._blobs.abort_upload(pending.upload)

    def _run(self, dataset_id: str) -> None:
        try:
            self._work_on(dataset_id)
        except CheckCancelled:
            pass
        except BlobStoreError as error:
            logger.error("dataset %s could not be checked now: %s", dataset_id, error)
        except Exception:
            # The edge of this thread. The row stays `processing` and is tried again.
            logger.exception("dataset %s could not be checked now", dataset_id)
        finally:
            with self._lock:
                del self._running[dataset_id]
                again = dataset_id in self._again
                self._again.discard(dataset_id)
                if again and self._pool is not None and not self._stopping.is_set():
                    self._running[dataset_id] = self._pool.submit(self._run, dataset_id)

    def _work_on(self, dataset_id: str) -> None:
        with self._db.session() as session:
            row = session.get(DbDataset, dataset_id)
        pending = PendingUpload.of(row)
        if row is None or pending is None or pending.etags is None:
            return
        try:
            info: BlobInfo | None = self._blobs.complete_upload(pending.upload, pending.etags)
            with self._blobs.local_copy(pending.upload.key) as path:
                check = check_dataset(path, stopping=self._stopping)
            if info is not None and info.size != pending.size:
                check = Check(errors=[f"{info.size} bytes were stored instead of {pending.size}"])
            elif info is not None and pending.intent is not None and info.sha256 != pending.intent.sha256:
                check = Check(
                    errors=["the bytes received are not those that were announced; upload the file again"]
                )
        except (UploadNotFound, PartsMismatch):
            info, check = None, Check(errors=["the bytes received are gone; upload the file again"])
        except BlobStoreError:
            # The bytes are unchanged, and are checked when the store is available again.
            raise
        except (OSError, OsmosisError) as error:
            logger.exception("dataset %s could not be checked", dataset_id)
            reason = error.strerror if isinstance(error, OSError) else error.message
            info, check = None, Check(errors=[f"the platform could not check the file: {reason}"])
        self._finish(dataset_id, pending, info, check)

    def _finish(self, dataset_id: str, pending: PendingUpload, info: BlobInfo | None, check: Check) -> None:
        """Record the result, unless a later upload has replaced this one."""
        unneeded: str | None = pending.upload.key
        good = info is not None and not check.errors
        with self._db.transaction() as session:
            row = session.get(DbDataset, dataset_id, with_for_update=True)
            current = PendingUpload.of(row)
            if row is not None and current is not None and current.upload == pending.upload:
                row.upload = None
                if info is not None and good:
                    unneeded = row.blob_key
                    _accept(row, current, info, check)
                    row.updated_at = later_than(row, self._clock)
                else:
                    row.error = "; ".join(check.errors)
                    row.status = "error" if row.blob_key is None else "uploaded"
                self._logs.add(session, dataset_id, _lines(row, check))
        if unneeded is not None:
            self._blobs.delete(unneeded)
        self._blobs.abort_upload(pending.upload)

    def _remove_orphans(self) -> None:
        """Remove uploads and blobs that no row refers to, because their request or process ended too early."""
        # Listed before the rows are read, so that new uploads are not taken for orphans.
        keys = set(self._blobs.keys(BLOB_PREFIX))
        uploads = old_uploads(self._blobs, BLOB_PREFIX, now=self._clock.now())
        if not keys and not uploads:
            return
        with self._db.session() as session:
            rows = session.scalars(select(DbDataset).where(DbDataset.upload.is_not(None)))
            pending = {found.upload for row in rows if (found := PendingUpload.of(row)) is not None}
            used = set(session.scalars(select(DbDataset.blob_key).where(DbDataset.blob_key.is_not(None))))
        for key in keys - used - {upload.key for upload in pending}:
            self._blobs.delete(key)
        for upload in uploads:
            if upload not in pending:
                self._blobs.abort_upload(upload)


def later_than(row: DbDataset, clock: Clock) -> datetime:
    """Return the time of a change to ``row``: later than the previous one, even if the clock was set back."""
    return max(clock.now(), row.updated_at + _TICK)


def _accept(row: DbDataset, pending: PendingUpload, info: BlobInfo, check: Check) -> None:
    row.status = "uploaded"
    row.error = None
    row.blob_key = pending.upload.key
    row.sha256 = info.sha256
    row.file_size = info.size
    row.extension = pending.extension
    row.row_count = check.row_count
    row.preview = list(check.preview)
    row.creator_id = pending.creator_id


def _lines(row: DbDataset, check: Check) -> list[LogLine]:
    lines = [LogLine(problem, "error", "validate") for problem in check.errors]
    lines += [LogLine(warning, "warning", "validate") for warning in check.warnings]
    if not check.errors:
        details = {"row_count": check.row_count, "mode": check.mode, "sha256": row.sha256}
        return [
            *lines,
            LogLine(f"the dataset is ready: {check.row_count:,} rows", "info", "validate", details),
        ]
    keeps = "; the dataset keeps its previous rows" if row.blob_key is not None else ""
    return [*lines, LogLine(f"the file was refused{keeps}", "error", "validate")]
