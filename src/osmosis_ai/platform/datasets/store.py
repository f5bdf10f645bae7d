"""The datasets of a workspace: requests, uploads, their check in the background, and the rows of a dataset for a run.

A name belongs to one dataset of its workspace. A dataset is ``uploaded`` once it has checked bytes, and an overwriting
upload changes nothing until it has been checked as well. Sending bytes has three repeatable steps: announce them, send
them to the blob store, and complete the upload. A run that starts while its dataset is overwritten gets either the old
or the new bytes completely.
"""

from __future__ import annotations

import logging
import threading
import unicodedata
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from secrets import token_hex
from typing import Any, BinaryIO

from pydantic import TypeAdapter
from sqlalchemy import delete, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session, defer

from osmosis_ai.api.models.datasets import (
    CompletedPart,
    DatasetCreateRequest,
    DatasetDownload,
    UploadInstructions,
    UploadIntent,
)
from osmosis_ai.datasets import SUPPORTED_EXTENSIONS
from osmosis_ai.datasets.validation import MAX_FILE_BYTES
from osmosis_ai.errors import ConflictError, NotFoundError, OsmosisError
from osmosis_ai.platform.blobs.store import (
    BlobInfo,
    BlobStore,
    BlobStoreError,
    BlobUpload,
    PartsMismatch,
    UploadNotFound,
)
from osmosis_ai.platform.blobs.upload_session import (
    MULTIPART_FROM_BYTES,
    PART_BYTES,
    UPLOAD_TTL,
    UnexpectedBytesError,
    UploadSession,
    new_upload,
    old_uploads,
)
from osmosis_ai.platform.clock import Clock
from osmosis_ai.platform.datasets.check import Check, CheckCancelled, check_dataset
from osmosis_ai.platform.db.engine import Database
from osmosis_ai.platform.db.keyset import PagedRows
from osmosis_ai.platform.db.tables import DbDataset, DbLogLine, DbRun, new_id
from osmosis_ai.platform.log_lines import LogLine
from osmosis_ai.platform.logs import LogStore
from osmosis_ai.platform.refusals import ApiError
from osmosis_ai.platform.runs.lifecycle import COMMAND_GROUPS, KIND_NAMES, OPEN
from osmosis_ai.platform.workspaces import no_such_name
from osmosis_ai.viewer.source import ItemPage

logger = logging.getLogger("osmosis_ai.platform.datasets")

DOWNLOAD_TTL = timedelta(hours=1)
"""How long the URL of a download works."""
MAX_NAME_CHARS = 255
_BLOB_PREFIX = "datasets"
_MOST_ISSUES = 20
_CHECKS_AT_ONCE = 2
# Characters that no file name contains, and those that make a name look like another one (UAX #9).
_UNPRINTABLE = frozenset({"Cc", "Cs", "Zl", "Zp"})
_DIRECTION_MARKS = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
# The wire has milliseconds, and clients recognise a new version of a dataset by them.
_TICK = timedelta(milliseconds=1)
_NEWEST_FIRST: PagedRows[DbDataset] = PagedRows.newest(DbDataset, defer(DbDataset.preview, raiseload=True))


def _rejected(issues: list[tuple[str, str]]) -> ApiError:
    """Return the error for an invalid upload, with every problem and the field that has it."""
    field, problem = issues[0]
    if len(issues) == 1:
        return ApiError(400, "INVALID_DATASET", f"{problem}.", field)
    listed = [{"key": key, "message": problem} for key, problem in issues]
    return ApiError(400, "INVALID_DATASET", f"the dataset has {len(issues)} problems.", field, listed)


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingUpload(UploadSession):
    """An upload in progress, as stored in the dataset's row until its bytes have been checked.

    A later upload of the same dataset replaces it, and work on the earlier one stops when it finds another id in the row.
    """

    extension: str
    creator_id: str | None
    expires_at: datetime
    etags: tuple[str, ...] | None = None

    @classmethod
    def of(cls, row: DbDataset | None) -> PendingUpload | None:
        """Return the upload that a dataset waits for, or None."""
        if row is None or row.pending_upload is None:
            return None
        return _PENDING.validate_python(row.pending_upload)

    def to_json(self) -> dict[str, Any]:
        stored: dict[str, Any] = _PENDING.dump_python(self, mode="json")
        return stored

    def is_of(self, creator_id: str, request: DatasetCreateRequest, intent: UploadIntent) -> bool:
        """Return whether the same user is still sending the same file."""
        if self.etags is not None:
            return False
        same_file = (self.extension, self.size) == (request.extension, request.file_size)
        return same_file and self.creator_id == creator_id and self.sha256 == intent.sha256


_PENDING = TypeAdapter(PendingUpload)


class DatasetStore:
    def __init__(self, db: Database, blobs: BlobStore, clock: Clock, logs: LogStore) -> None:
        self._db = db
        self._blobs = blobs
        self._clock = clock
        self._logs = logs
        self.max_bytes = MAX_FILE_BYTES
        self.multipart_from_bytes, self.part_bytes = MULTIPART_FROM_BYTES, PART_BYTES
        self.ingest = Ingest(db, blobs, clock, logs)

    def create(
        self,
        workspace_id: str,
        creator_id: str,
        announced: DatasetCreateRequest,
        intent: UploadIntent | None = None,
    ) -> tuple[DbDataset, UploadInstructions]:
        """Announce bytes; return the dataset and where to send them."""
        request = _checked(announced, self.max_bytes)
        resumed = self._resume_upload(workspace_id, creator_id, request, intent)
        if resumed is not None:
            return resumed
        with self._db.session() as session:
            self._replaceable(session, workspace_id, request)
        in_parts = request.file_size >= self.multipart_from_bytes
        with new_upload(self._blobs, f"{_BLOB_PREFIX}/{token_hex(16)}.{request.extension}") as upload:
            pending = PendingUpload(
                upload=upload,
                extension=request.extension,
                size=request.file_size,
                sha256=intent.sha256 if intent is not None else None,
                part_size=self.part_bytes if in_parts else request.file_size,
                creator_id=creator_id,
                expires_at=self._clock.now() + UPLOAD_TTL,
            )
            row, former = self._register(workspace_id, request, pending)
        if former is not None:
            self._blobs.abort_upload(former)
        return self.get(workspace_id, row.id), pending.instructions(self._blobs)

    def complete(
        self, workspace_id: str, name_or_id: str, extension: str, parts: Sequence[CompletedPart] | None = None
    ) -> DbDataset:
        """Complete an upload: all bytes have been sent, and can be checked."""
        row = self.get(workspace_id, name_or_id)
        pending = PendingUpload.of(row)
        if pending is not None and pending.etags is None:
            if _normal_extension(extension) != pending.extension:
                raise _rejected(
                    [("file_extension", f"the upload was announced as {pending.extension}, not {extension}")]
                )
            self._record_complete(row.id, pending, self._received(row, pending, parts))
        elif pending is None:
            _require_no_abort(row)
        self.ingest.submit(row.id)
        return self.get(workspace_id, row.id)

    def store(
        self, workspace_id: str, creator_id: str, announced: DatasetCreateRequest, stream: BinaryIO
    ) -> DbDataset:
        """Store a file that the platform itself has received, and check it."""
        row, _ = self.create(workspace_id, creator_id, announced)
        pending = PendingUpload.of(row)
        if pending is None:
            raise ConflictError("another upload of this dataset has begun meanwhile.")
        try:
            info = self._blobs.put(pending.upload.key, stream)
        except BaseException:
            # It could not be resumed, and its name would be taken until it expires.
            self.ingest.end_upload(row.id, pending, "the upload failed")
            raise
        # A completed upload that has ended is the blob itself.
        self._blobs.abort_upload(pending.upload)
        self._record_complete(row.id, pending, [info.sha256])
        self.ingest.submit(row.id)
        return self.get(workspace_id, row.id)

    def abort(self, workspace_id: str, name_or_id: str) -> DbDataset:
        """Abort an upload; a dataset keeps its former bytes."""
        row = self.get(workspace_id, name_or_id)
        pending = PendingUpload.of(row)
        if pending is not None:
            self.ingest.end_upload(row.id, pending, "the upload was aborted")
        return self.get(workspace_id, row.id)

    def get(self, workspace_id: str, name_or_id: str) -> DbDataset:
        with self._db.session() as session:
            row = find_dataset(session, workspace_id, name_or_id)
            if row is None:
                raise _unknown(session, workspace_id, name_or_id)
        return row

    def delete(self, dataset: DbDataset) -> None:
        """Delete a dataset; runs that used it keep its name and their results.

        The bytes go after the row; a crash in between leaves them to :meth:`Ingest.recover`.
        """
        with self._db.transaction() as session:
            row = session.get(DbDataset, dataset.id, with_for_update=True)
            if row is None:
                return
            open_runs = select(DbRun).where(DbRun.dataset_id == row.id, DbRun.status.in_(OPEN))
            run = session.scalars(open_runs.order_by(DbRun.created_at)).first()
            if run is not None:
                raise ConflictError(
                    f"the dataset '{row.name}' cannot be deleted: the {KIND_NAMES[run.kind]} run '{run.name}', which is "
                    f"{run.status}, uses it.",
                    hint=f"wait for the run, or stop it with `{COMMAND_GROUPS[run.kind]} stop {run.name}`",
                )
            key, pending = row.blob_key, PendingUpload.of(row)
            session.execute(delete(DbLogLine).where(DbLogLine.subject_id == row.id))
            session.delete(row)
        if key is not None:
            self._blobs.delete(key)
        if pending is not None:
            self._blobs.abort_upload(pending.upload)

    def page(
        self, workspace_id: str, *, limit: int, offset: int | None = None, cursor: str | None = None
    ) -> ItemPage[DbDataset]:
        """Return a page of datasets, newest first and without their previews."""
        mine = {"workspace_id": workspace_id}
        with self._db.session() as session:
            return _NEWEST_FIRST.page(session, mine, limit=limit, offset=offset, cursor=cursor)

    def download(self, workspace_id: str, name_or_id: str) -> DatasetDownload:
        row = self.get(workspace_id, name_or_id)
        if row.status != "uploaded" or row.blob_key is None:
            raise ConflictError(_why_not_ready(row), details={"status": row.status})
        filename = f"{row.name}.{row.extension}"
        url = self._blobs.signed_get_url(row.blob_key, filename=filename, ttl=DOWNLOAD_TTL)
        return DatasetDownload(
            presigned_url=url, expires_in=int(DOWNLOAD_TTL.total_seconds()), file_name=filename
        )

    def _resume_upload(
        self, workspace_id: str, creator_id: str, request: DatasetCreateRequest, intent: UploadIntent | None
    ) -> tuple[DbDataset, UploadInstructions] | None:
        """Return the open upload of the same user and bytes with fresh URLs, or None."""
        if intent is None:
            return None
        with self._db.session() as session:
            row = find_dataset(session, workspace_id, request.overwrite_dataset_id or request.file_name)
        pending = PendingUpload.of(row)
        if row is None or pending is None or row.name != request.file_name:
            return None
        # A request that would replace bytes must say so each time.
        may_replace = request.overwrite_dataset_id is not None or row.blob_key is None
        if (
            not (may_replace and pending.is_of(creator_id, request, intent))
            or pending.expires_at <= self._clock.now()
        ):
            return None
        received = pending.received(self._blobs)
        if received is None:
            return None
        pending = replace(pending, expires_at=self._clock.now() + UPLOAD_TTL)
        with self._db.transaction() as session:
            current = session.get_one(DbDataset, row.id, with_for_update=True)
            open_still = PendingUpload.of(current)
            if open_still is None or open_still.upload != pending.upload or open_still.etags is not None:
                return None
            current.pending_upload = pending.to_json()
            message = f"the upload resumes: {len(received)} of {len(pending.part_sizes())} parts are stored"
            self._logs.add(session, row.id, [LogLine(message, "info", "upload")])
        return self.get(workspace_id, row.id), pending.instructions(self._blobs, received)

    def _register(
        self, workspace_id: str, request: DatasetCreateRequest, pending: PendingUpload
    ) -> tuple[DbDataset, BlobUpload | None]:
        """Make the row wait for an upload; return it and its former upload."""
        now = self._clock.now()
        try:
            with self._db.transaction() as session:
                row = self._replaceable(session, workspace_id, request, lock=True)
                former = PendingUpload.of(row)
                if row is None:
                    row = DbDataset(id=new_id("ds"), workspace_id=workspace_id, name=request.file_name)
                    row.created_at = now
                    session.add(row)
                if row.blob_key is None:
                    row.status = "pending"
                    row.extension, row.file_size = request.extension, request.file_size
                    row.row_count = row.sha256 = row.preview = None
                    row.creator_id = pending.creator_id
                    row.created_at = row.updated_at = now
                else:
                    row.status = "uploaded"
                row.pending_upload = pending.to_json()
                row.error = None
                message = f"upload started: {request.file_size:,} bytes ({request.extension})"
                session.flush()
                self._logs.add(session, row.id, [LogLine(message, "info", "upload")])
        except IntegrityError:
            # Two concurrent requests on a database that lets both read first.
            with self._db.session() as session:
                existing = find_dataset(session, workspace_id, request.file_name)
            raise _name_taken(existing, request) from None
        return row, former.upload if former is not None else None

    def _replaceable(
        self, session: Session, workspace_id: str, request: DatasetCreateRequest, *, lock: bool = False
    ) -> DbDataset | None:
        """Return the row that the announced bytes are for, or None for a new name."""
        if request.overwrite_dataset_id is not None:
            row = find_dataset(session, workspace_id, request.overwrite_dataset_id, lock=lock)
            if row is None:
                raise _unknown(session, workspace_id, request.overwrite_dataset_id)
            if row.name != request.file_name:
                problem = f"the dataset to overwrite is called '{row.name}', not '{request.file_name}'"
                raise _rejected([("overwrite_dataset_id", problem)])
            return row
        named = select(DbDataset).where(
            DbDataset.workspace_id == workspace_id, DbDataset.name == request.file_name
        )
        row = session.scalar(named.with_for_update() if lock else named)
        if row is not None and not self._is_empty(row):
            raise _name_taken(row, request)
        return row

    def _is_empty(self, row: DbDataset) -> bool:
        """Return whether a dataset has neither bytes nor an open upload."""
        pending = PendingUpload.of(row)
        if row.blob_key is not None or row.status == "processing":
            return False
        return pending is None or pending.expires_at <= self._clock.now()

    def _received(
        self, row: DbDataset, pending: PendingUpload, parts: Sequence[CompletedPart] | None
    ) -> Sequence[str]:
        """Return the ETags of the received parts; empty if the upload has ended meanwhile."""
        received = pending.received(self._blobs)
        if received is None:
            return []
        problems = pending.problems_with(received, parts)
        if not problems:
            return list(received.values())
        # A concurrent request may have completed it: a running check consumes the parts.
        if self.get(row.workspace_id, row.id).pending_upload != row.pending_upload:
            return []
        if (more := len(problems) - _MOST_ISSUES) > 0:
            problems[_MOST_ISSUES:] = [f"and {more} more"]
        raise _rejected([("parts", problem) for problem in problems])

    def _record_complete(self, dataset_id: str, pending: PendingUpload, etags: Sequence[str]) -> None:
        with self._db.transaction() as session:
            row = session.get(DbDataset, dataset_id, with_for_update=True)
            current = PendingUpload.of(row)
            if row is not None and current is None:
                # A concurrent request completed it, and the bytes have been checked since.
                _require_no_abort(row)
                return
            if row is None or current is None or current.upload != pending.upload:
                raise ConflictError("another upload of this dataset has begun meanwhile.")
            if current.etags is not None:
                return
            if not etags:
                raise ConflictError("the bytes of this upload are gone; upload the file again.")
            row.pending_upload = replace(pending, etags=tuple(etags)).to_json()
            row.status = "processing"
            line = LogLine("upload complete; checking the file", "info", "upload")
            self._logs.add(session, dataset_id, [line])


class Ingest:
    """Checks datasets in the background."""

    def __init__(self, db: Database, blobs: BlobStore, clock: Clock, logs: LogStore) -> None:
        self._db = db
        self._blobs = blobs
        self._clock = clock
        self._logs = logs
        self._pool: ThreadPoolExecutor | None = None
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        self._running: dict[str, Future[None]] = {}
        # Completed again while the former upload is still being worked on.
        self._again: set[str] = set()

    def start(self) -> None:
        """Accept work; :meth:`recover` finds that of an earlier process."""
        self._stopping.clear()
        self._pool = ThreadPoolExecutor(_CHECKS_AT_ONCE, thread_name_prefix="osmosis-dataset-check")

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
        for dataset_id in self._db.scalars(select(DbDataset.id).where(DbDataset.status == "processing")):
            self.submit(dataset_id)
        for row in self._db.scalars(select(DbDataset).where(DbDataset.pending_upload.is_not(None))):
            pending = PendingUpload.of(row)
            if pending is not None and pending.etags is None and pending.expires_at <= self._clock.now():
                self.end_upload(row.id, pending, "the upload was not completed in time")
        self._remove_orphans()

    def end_upload(self, dataset_id: str, pending: PendingUpload, reason: str) -> None:
        """End an upload that will not become a dataset, if the row still waits for it."""
        with self._db.transaction() as session:
            if (row := _still_waiting(session, dataset_id, pending)) is not None:
                row.pending_upload = None
                row.status = "uploaded" if row.blob_key is not None else "cancelled"
                if row.blob_key is None:
                    row.updated_at = _later_than(row, self._clock)
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
        row = self._db.get(DbDataset, dataset_id)
        pending = PendingUpload.of(row)
        if row is None or pending is None or pending.etags is None:
            return
        try:
            info: BlobInfo | None = pending.complete(self._blobs, pending.etags)
            with self._blobs.local_copy(pending.upload.key) as path:
                check = check_dataset(path, stopping=self._stopping)
        except UnexpectedBytesError as error:
            info, check = None, Check(errors=[error.message])
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
        with self._db.transaction() as session:
            if (row := _still_waiting(session, dataset_id, pending)) is not None:
                current, row.pending_upload = PendingUpload.of(row), None
                if current is not None and info is not None and not check.errors:
                    unneeded, row.blob_key = row.blob_key, pending.upload.key
                    row.status, row.error = "uploaded", None
                    row.sha256, row.file_size, row.extension = info.sha256, info.size, pending.extension
                    row.row_count, row.preview = check.row_count, list(check.preview)
                    row.creator_id, row.updated_at = current.creator_id, _later_than(row, self._clock)
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
        keys = set(self._blobs.keys(_BLOB_PREFIX))
        uploads = old_uploads(self._blobs, _BLOB_PREFIX, now=self._clock.now())
        if not keys and not uploads:
            return
        with self._db.session() as session:
            rows = session.scalars(select(DbDataset).where(DbDataset.pending_upload.is_not(None)))
            pending = {found.upload for row in rows if (found := PendingUpload.of(row)) is not None}
            used = set(session.scalars(select(DbDataset.blob_key).where(DbDataset.blob_key.is_not(None))))
        for key in keys - used - {upload.key for upload in pending}:
            self._blobs.delete(key)
        for upload in uploads:
            if upload not in pending:
                self._blobs.abort_upload(upload)


def find_dataset(
    session: Session, workspace_id: str, name_or_id: str, *, lock: bool = False
) -> DbDataset | None:
    """Return a dataset of a workspace by its id, or else its name."""
    for column, value in ((DbDataset.id, name_or_id), (DbDataset.name, _normal_name(name_or_id))):
        query = select(DbDataset).where(DbDataset.workspace_id == workspace_id, column == value)
        row = session.scalar(query.with_for_update() if lock else query)
        if row is not None:
            return row
    return None


def _require_no_abort(row: DbDataset) -> None:
    if row.status == "cancelled":
        raise ConflictError(f"the upload of '{row.name}' was aborted or has expired; upload it again.")


def _unknown(session: Session, workspace_id: str, name_or_id: str) -> NotFoundError:
    names = select(DbDataset.name).where(DbDataset.workspace_id == workspace_id)
    newest = names.order_by(DbDataset.created_at.desc())
    return no_such_name(session, "dataset", name_or_id, newest, "see `osmosis dataset list`")


def _name_taken(existing: DbDataset | None, request: DatasetCreateRequest) -> ConflictError:
    details = {} if existing is None else {"existing_dataset_id": existing.id}
    if existing is not None and existing.blob_key is None:
        message = f"an upload of '{request.file_name}' has begun and not ended; overwrite it to start again."
    else:
        message = f"this workspace already has a dataset called '{request.file_name}'."
    return ConflictError(message, details=details)


def _why_not_ready(row: DbDataset) -> str:
    if row.status in ("pending", "uploading"):
        return f"the dataset '{row.name}' is still being uploaded."
    if row.status == "processing":
        return f"the dataset '{row.name}' is still being checked; try again in a moment."
    if row.status == "error":
        return f"the dataset '{row.name}' was refused: {row.error}."
    return f"the upload of the dataset '{row.name}' was abandoned; upload it again."


def _later_than(row: DbDataset, clock: Clock) -> datetime:
    """Return the time of a change to ``row``: later than the previous one, even if the clock was set back."""
    return max(clock.now(), row.updated_at + _TICK)


def _still_waiting(session: Session, dataset_id: str, pending: PendingUpload) -> DbDataset | None:
    """Lock and return the dataset, if it still waits for this upload."""
    row = session.get(DbDataset, dataset_id, with_for_update=True)
    current = PendingUpload.of(row)
    return row if current is not None and current.upload == pending.upload else None


def _lines(row: DbDataset, check: Check) -> list[LogLine]:
    lines = [LogLine(problem, "error", "validate") for problem in check.errors]
    lines += [LogLine(warning, "warning", "validate") for warning in check.warnings]
    if not check.errors:
        details = {"row_count": check.row_count, "mode": check.mode, "sha256": row.sha256}
        ready = f"the dataset is ready: {check.row_count:,} rows"
        return [*lines, LogLine(ready, "info", "validate", details)]
    keeps = "; the dataset keeps its previous rows" if row.blob_key is not None else ""
    return [*lines, LogLine(f"the file was refused{keeps}", "error", "validate")]


def _normal_name(name: str) -> str:
    """Return a name in Unicode normal form C, since systems differ."""
    return unicodedata.normalize("NFC", name)


def _normal_extension(extension: str) -> str:
    return extension.strip().lower().removeprefix(".")


def _checked(request: DatasetCreateRequest, max_bytes: int) -> DatasetCreateRequest:
    """Return a request with a normal name and extension, if the file may be sent."""
    name, extension = _normal_name(request.file_name), _normal_extension(request.extension)
    issues = [("file_name", problem) for problem in [_problem_of_name(name)] if problem]
    if extension not in SUPPORTED_EXTENSIONS:
        issues.append(("extension", f"`extension` must be one of {', '.join(SUPPORTED_EXTENSIONS)}"))
    if request.file_size < 1:
        issues.append(("file_size", "the file is empty"))
    elif request.file_size > max_bytes:
        most = f"the maximum is {max_bytes:,}"
        issues.append(("file_size", f"the file has {request.file_size:,} bytes; {most}"))
    if issues:
        raise _rejected(issues)
    return request.model_copy(update={"file_name": name, "extension": extension})


def _problem_of_name(name: str) -> str | None:
    if not name.strip():
        return "a dataset needs a name"
    if len(name) > MAX_NAME_CHARS:
        return f"a dataset's name has at most {MAX_NAME_CHARS} characters, and this one {len(name)}"
    if name != name.strip():
        return "a dataset's name must not begin or end with white space"
    if "/" in name or "\\" in name or ".." in name or name == ".":
        return "a dataset's name is a file's name without its extension: no `/`, `\\` or `..`"
    if any(unicodedata.category(c) in _UNPRINTABLE or c in _DIRECTION_MARKS for c in name):
        return "a dataset's name must not hold control characters"
    return None
