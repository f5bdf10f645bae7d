"""The datasets of a workspace: requests, and the rows of a dataset for a run.

A name belongs to one dataset of its workspace. A dataset is ``uploaded`` once it has checked bytes, and an overwriting
upload changes nothing until it has been checked as well. Sending bytes has three repeatable steps: announce them, send
them to the blob store, and complete the upload. A run that starts while its dataset is overwritten gets either the old
or the new bytes completely.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from secrets import token_hex

from sqlalchemy import bindparam, delete, func, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session, defer

from osmosis_ai.api.models.datasets import CompletedPart, UploadInstructions
from osmosis_ai.datasets import file_digest
from osmosis_ai.datasets.validation import MAX_FILE_BYTES
from osmosis_ai.errors import ConflictError, NotFoundError, OsmosisError
from osmosis_ai.platform.accounts import display_name
from osmosis_ai.platform.blobs.local import BLOCK_BYTES, IncomingFile
from osmosis_ai.platform.blobs.parted_upload import MULTIPART_FROM_BYTES, PART_BYTES, UPLOAD_TTL
from osmosis_ai.platform.blobs.store import BlobNotFound, BlobStore, BlobUpload, UploadNotFound
from osmosis_ai.platform.clock import Clock
from osmosis_ai.platform.datasets.ingest import BLOB_PREFIX, Ingest
from osmosis_ai.platform.datasets.uploads import (
    DatasetRejected,
    PendingUpload,
    UploadRequest,
    normal_extension,
    normal_name,
)
from osmosis_ai.platform.db.engine import Database
from osmosis_ai.platform.db.keyset import newest_page
from osmosis_ai.platform.db.tables import DbDataset, DbLogLine, DbRun, DbUser, new_id
from osmosis_ai.platform.log_lines import LogLine
from osmosis_ai.platform.logs import LogStore
from osmosis_ai.platform.runs.lifecycle import COMMAND_GROUPS, KIND_NAMES, OPEN
from osmosis_ai.platform.workspaces import no_such_name
from osmosis_ai.viewer.source import ItemPage

DOWNLOAD_TTL = timedelta(hours=1)
"""How long the URL of a download works."""

# Clients ask for lists all the time; a statement that is built once is also compiled once.
_MINE = DbDataset.workspace_id == bindparam("workspace_id")
_COUNT = select(func.count()).select_from(DbDataset).where(_MINE)
_RECORDS = (
    select(DbDataset, DbUser)
    .outerjoin(DbUser, DbUser.id == DbDataset.creator_id)
    .options(defer(DbDataset.preview, raiseload=True))
)
_PAGE = (
    _RECORDS.where(_MINE)
    .order_by(DbDataset.created_at.desc(), DbDataset.id.desc())
    .limit(bindparam("limit"))
    .offset(bindparam("offset"))
)


@dataclass(frozen=True, slots=True)
class DatasetLimits:
    """Maximum size of a file, minimum size of a multipart upload, and size of its parts; in bytes."""

    max_bytes: int = MAX_FILE_BYTES
    multipart_from_bytes: int = MULTIPART_FROM_BYTES
    part_bytes: int = PART_BYTES


@dataclass(frozen=True, slots=True)
class DatasetRecord:
    """A dataset, and who uploaded it."""

    row: DbDataset
    creator_name: str | None


class DatasetStore:
    """The datasets of one platform."""

    def __init__(self, db: Database, blobs: BlobStore, clock: Clock, logs: LogStore) -> None:
        self._db = db
        self._blobs = blobs
        self._clock = clock
        self._logs = logs
        self.limits = DatasetLimits()
        self.ingest = Ingest(db, blobs, clock, logs)

    def create(
        self, workspace_id: str, creator_id: str, request: UploadRequest
    ) -> tuple[DatasetRecord, UploadInstructions]:
        """Announce bytes; return the dataset and where to send them."""
        resumed = self._resume_upload(workspace_id, creator_id, request)
        if resumed is not None:
            return resumed
        with self._db.session() as session:
            self._replaceable(session, workspace_id, request)
        in_parts = request.size >= self.limits.multipart_from_bytes
        pending = PendingUpload(
            upload=self._blobs.begin_upload(f"{BLOB_PREFIX}/{token_hex(16)}.{request.extension}"),
            extension=request.extension,
            size=request.size,
            part_size=self.limits.part_bytes if in_parts else request.size,
            creator_id=creator_id,
            expires_at=self._clock.now() + UPLOAD_TTL,
            intent=request.intent,
        )
        try:
            row, former = self._register(workspace_id, request, pending)
        except BaseException:
            self._blobs.abort_upload(pending.upload)
            raise
        if former is not None:
            self._blobs.abort_upload(former)
        return self.get(workspace_id, row.id), pending.instructions(self._blobs)

    def complete(
        self,
        workspace_id: str,
        name_or_id: str,
        extension: str,
        parts: Sequence[CompletedPart] | None = None,
    ) -> DatasetRecord:
        """Complete an upload: all bytes have been sent, and can be checked."""
        row = self._find(workspace_id, name_or_id)
        pending = PendingUpload.of(row)
        if pending is not None and pending.etags is None:
            if normal_extension(extension) != pending.extension:
                raise DatasetRejected(
                    [("file_extension", f"the upload was announced as {pending.extension}, not {extension}")]
                )
            self._record_complete(row.id, pending, self._received(row, pending, parts))
        elif pending is None:
            _require_no_abort(row)
        self.ingest.submit(row.id)
        return self.get(workspace_id, row.id)

    def abort(self, workspace_id: str, name_or_id: str) -> DatasetRecord:
        """Abort an upload; a dataset keeps its former bytes."""
        row = self._find(workspace_id, name_or_id)
        pending = PendingUpload.of(row)
        if pending is not None:
            self.ingest.end_upload(row.id, pending, "the upload was aborted")
        return self.get(workspace_id, row.id)

    def get(self, workspace_id: str, name_or_id: str) -> DatasetRecord:
        """Return a dataset."""
        with self._db.session() as session:
            row = find_dataset(session, workspace_id, name_or_id)
            if row is None:
                raise _unknown(session, workspace_id, name_or_id)
            creator = session.get(DbUser, row.creator_id) if row.creator_id else None
        return DatasetRecord(row, display_name(creator))

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

    def list(self, workspace_id: str, *, limit: int, offset: int) -> tuple[Sequence[DatasetRecord], int]:
        """Return a page of datasets by offset, newest first and without their previews, and their number."""
        asked = {"workspace_id": workspace_id, "limit": limit, "offset": offset}
        with self._db.session() as session:
            total = session.scalar(_COUNT, {"workspace_id": workspace_id}) or 0
            found = session.execute(_PAGE, asked)
            return [DatasetRecord(row, display_name(user)) for row, user in found], total

    def page(self, workspace_id: str, *, limit: int, cursor: str | None) -> ItemPage[DatasetRecord]:
        """Return a page of datasets, newest first and without their previews."""
        with self._db.session() as session:

            def entries(ids: Sequence[str]) -> dict[str, DatasetRecord]:
                rows = session.execute(_RECORDS.where(DbDataset.id.in_(ids)))
                return {row.id: DatasetRecord(row, display_name(user)) for row, user in rows}

            return newest_page(session, DbDataset, workspace_id, entries, limit=limit, cursor=cursor)

    def download_url(self, workspace_id: str, name_or_id: str) -> tuple[str, timedelta, str]:
        """Return a URL of the bytes, how long it works, and the name of the file."""
        row = self._find(workspace_id, name_or_id)
        if row.status != "uploaded" or row.blob_key is None:
            raise ConflictError(_why_not_ready(row), details={"status": row.status})
        filename = f"{row.name}.{row.extension}"
        url = self._blobs.signed_get_url(row.blob_key, filename=filename, ttl=DOWNLOAD_TTL)
        return url, DOWNLOAD_TTL, filename

    def _find(self, workspace_id: str, name_or_id: str) -> DbDataset:
        return self.get(workspace_id, name_or_id).row

    def _resume_upload(
        self, workspace_id: str, creator_id: str, request: UploadRequest
    ) -> tuple[DatasetRecord, UploadInstructions] | None:
        """Return the open upload of the same user and bytes with fresh URLs, or None."""
        if request.intent is None:
            return None
        with self._db.session() as session:
            row = find_dataset(session, workspace_id, request.overwrite_id or request.name)
        pending = PendingUpload.of(row)
        if row is None or pending is None or row.name != request.name:
            return None
        # A request that would replace bytes must say so each time.
        may_replace = request.overwrite_id is not None or row.blob_key is None
        if (
            not (may_replace and pending.is_of(creator_id, request))
            or pending.expires_at <= self._clock.now()
        ):
            return None
        try:
            received = self._blobs.parts(pending.upload)
        except UploadNotFound:
            return None
        pending = replace(pending, expires_at=self._clock.now() + UPLOAD_TTL)
        with self._db.transaction() as session:
            current = session.get_one(DbDataset, row.id, with_for_update=True)
            open_still = PendingUpload.of(current)
            if open_still is None or open_still.upload != pending.upload or open_still.etags is not None:
                return None
            current.upload = pending.to_json()
            message = f"the upload resumes: {len(received)} of {len(pending.part_sizes())} parts are stored"
            self._logs.add(session, row.id, [LogLine(message, "info", "upload")])
        return self.get(workspace_id, row.id), pending.instructions(self._blobs, received)

    def _register(
        self, workspace_id: str, request: UploadRequest, pending: PendingUpload
    ) -> tuple[DbDataset, BlobUpload | None]:
        """Make the row wait for an upload; return it and its former upload."""
        now = self._clock.now()
        try:
            with self._db.transaction() as session:
                row = self._replaceable(session, workspace_id, request, lock=True)
                former = PendingUpload.of(row)
                if row is None:
                    row = DbDataset(id=new_id("ds"), workspace_id=workspace_id, name=request.name)
                    row.created_at = now
                    session.add(row)
                if row.blob_key is None:
                    row.status = "pending"
                    row.extension, row.file_size = request.extension, request.size
                    row.row_count = row.sha256 = row.preview = None
                    row.creator_id = pending.creator_id
                    row.created_at = row.updated_at = now
                else:
                    row.status = "uploaded"
                row.upload = pending.to_json()
                row.error = None
                message = f"upload started: {request.size:,} bytes ({request.extension})"
                session.flush()
                self._logs.add(session, row.id, [LogLine(message, "info", "upload")])
        except IntegrityError:
            # Two concurrent requests on a database that lets both read first.
            with self._db.session() as session:
                existing = find_dataset(session, workspace_id, request.name)
            raise _name_taken(existing, request) from None
        return row, former.upload if former is not None else None

    def _replaceable(
        self, session: Session, workspace_id: str, request: UploadRequest, *, lock: bool = False
    ) -> DbDataset | None:
        """Return the row that the announced bytes are for, or None for a new name."""
        if request.overwrite_id is not None:
            row = find_dataset(session, workspace_id, request.overwrite_id, lock=lock)
            if row is None:
                raise _unknown(session, workspace_id, request.overwrite_id)
            if row.name != request.name:
                problem = f"the dataset to overwrite is called '{row.name}', not '{request.name}'"
                raise DatasetRejected([("overwrite_dataset_id", problem)])
            return row
        named = select(DbDataset).where(
            DbDataset.workspace_id == workspace_id, DbDataset.name == request.name
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
        try:
            return pending.match(self._blobs.parts(pending.upload), parts)
        except UploadNotFound:
            return []
        except DatasetRejected:
            # A concurrent request may have completed it: a running check consumes the parts.
            if self._find(row.workspace_id, row.id).upload == row.upload:
                raise
            return []

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
            row.upload = replace(pending, etags=tuple(etags)).to_json()
            row.status = "processing"
            line = LogLine("upload complete; checking the file", "info", "upload")
            self._logs.add(session, dataset_id, [line])


def find_dataset(
    session: Session, workspace_id: str, name_or_id: str, *, lock: bool = False
) -> DbDataset | None:
    """Return a dataset of a workspace by its id, or else its name."""
    for column, value in ((DbDataset.id, name_or_id), (DbDataset.name, normal_name(name_or_id))):
        query = select(DbDataset).where(DbDataset.workspace_id == workspace_id, column == value)
        row = session.scalar(query.with_for_update() if lock else query)
        if row is not None:
            return row
    return None


def open_dataset(db: Database, blobs: BlobStore, dataset_id: str, target: Path) -> DbDataset:
    """Copy a dataset's checked bytes to ``target`` and return the row they belong to."""
    row = _with_bytes(db, dataset_id)
    try:
        _copy(blobs, row, target)
    except BlobNotFound:
        # Overwritten since the row was read.
        row = _with_bytes(db, dataset_id)
        _copy(blobs, row, target)
    return row


def _require_no_abort(row: DbDataset) -> None:
    if row.status == "cancelled":
        raise ConflictError(f"the upload of '{row.name}' was aborted or has expired; upload it again.")


def _unknown(session: Session, workspace_id: str, name_or_id: str) -> NotFoundError:
    names = select(DbDataset.name).where(DbDataset.workspace_id == workspace_id)
    newest = names.order_by(DbDataset.created_at.desc())
    return no_such_name(session, "dataset", name_or_id, newest, "see `osmosis dataset list`")


def _name_taken(existing: DbDataset | None, request: UploadRequest) -> ConflictError:
    details = {} if existing is None else {"existing_dataset_id": existing.id}
    if existing is not None and existing.blob_key is None:
        message = f"an upload of '{request.name}' has begun and not ended; overwrite it to start again."
    else:
        message = f"this workspace already has a dataset called '{request.name}'."
    return ConflictError(message, details=details)


def _why_not_ready(row: DbDataset) -> str:
    if row.status in ("pending", "uploading"):
        return f"the dataset '{row.name}' is still being uploaded."
    if row.status == "processing":
        return f"the dataset '{row.name}' is still being checked; try again in a moment."
    if row.status == "error":
        return f"the dataset '{row.name}' was refused: {row.error}."
    return f"the upload of the dataset '{row.name}' was given up; upload it again."


def _with_bytes(db: Database, dataset_id: str) -> DbDataset:
    with db.session() as session:
        row = session.get(DbDataset, dataset_id)
    if row is None:
        raise NotFoundError("the dataset of this run has been removed.")
    if row.blob_key is None:
        raise NotFoundError(f"the dataset '{row.name}' has no checked rows (status `{row.status}`).")
    return row


def _copy(blobs: BlobStore, row: DbDataset, target: Path) -> None:
    if row.blob_key is None:
        raise BlobNotFound(f"the dataset '{row.name}' has no bytes.")
    if target.is_file() and target.stat().st_size == row.file_size and file_digest(target) == row.sha256:
        return
    with blobs.open(row.blob_key) as source, IncomingFile(target.parent) as copy:
        while block := source.read(BLOCK_BYTES):
            copy.write(block)
        if copy.seal().sha256 != row.sha256:
            raise OsmosisError(
                f"the stored bytes of the dataset '{row.name}' are damaged: their SHA-256 has changed.",
                code="PLATFORM_ERROR",
                hint=f"upload it again with `osmosis dataset upload {row.name}.{row.extension} --overwrite`",
            )
        copy.move_to(target)
