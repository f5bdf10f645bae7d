"""Requests on the datasets of a workspace.

A name belongs to one dataset of its workspace. A dataset is ``uploaded`` once it has checked bytes, and an overwriting
upload changes nothing until it has been checked as well. Sending bytes has three repeatable steps: announce them, send
them to the blob store, and complete the upload.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from secrets import token_hex
from typing import Literal

from sqlalchemy import bindparam, func, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session, defer

from osmosis_ai.api.wire.base import LogPage
from osmosis_ai.api.wire.datasets import CompletedPart, UploadInstructions, UploadIntent
from osmosis_ai.datasets.validation import MAX_FILE_BYTES
from osmosis_ai.errors import ConflictError, NotFoundError
from osmosis_ai.platform.blobs.parted_upload import MULTIPART_FROM_BYTES, PART_BYTES, UPLOAD_TTL
from osmosis_ai.platform.blobs.store import BlobStore, BlobUpload, UploadNotFound
from osmosis_ai.platform.clock import Clock
from osmosis_ai.platform.datasets.ingest import BLOB_PREFIX, Ingest
from osmosis_ai.platform.datasets.lookup import find_dataset
from osmosis_ai.platform.datasets.pending_uploads import PendingUpload
from osmosis_ai.platform.datasets.upload_request import DatasetRejected, UploadRequest, normal_extension
from osmosis_ai.platform.db.engine import Database
from osmosis_ai.platform.db.keyed_lists import newest_page
from osmosis_ai.platform.db.tables import DbDataset, DbUser, new_id
from osmosis_ai.platform.log_lines import LogLine
from osmosis_ai.platform.logs import LogStore
from osmosis_ai.platform.name_lookup import no_such_name
from osmosis_ai.viewer.source import ItemPage

DOWNLOAD_TTL = timedelta(hours=1)
"""How long the URL of a download works."""

# Clients ask for lists all the time; a statement that is built once is also compiled once.
_MINE = DbDataset.workspace_id == bindparam("workspace_id")
_COUNT = select(func.count()).select_from(DbDataset).where(_MINE)
_RECORDS = (
    select(DbDataset, DbUser.name, DbUser.email)
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
    """How large a file may be, and from where on it is sent in parts; in bytes."""

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

    def __init__(
        self,
        db: Database,
        blobs: BlobStore,
        clock: Clock,
        logs: LogStore,
        *,
        limits: DatasetLimits | None = None,
    ) -> None:
        self._db = db
        self._blobs = blobs
        self._clock = clock
        self._logs = logs
        self.limits = limits or DatasetLimits()
        self.ingest = Ingest(db, blobs, clock, logs)

    def create(
        self,
        workspace_id: str,
        creator_id: str,
        request: UploadRequest,
        *,
        overwrite_id: str | None = None,
        intent: UploadIntent | None = None,
    ) -> tuple[DatasetRecord, UploadInstructions]:
        """Announce bytes; returns the dataset and where to send them."""
        if intent is not None:
            handed_back = self._resume_upload(workspace_id, creator_id, request, overwrite_id, intent)
            if handed_back is not None:
                return handed_back
        with self._db.session() as session:
            self._replaceable(session, workspace_id, request, overwrite_id)
        pending = self._begin(request, creator_id, intent)
        try:
            row, former = self._register(workspace_id, request, overwrite_id, pending)
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
        """Say that all bytes have been sent; they are checked from then on."""
        row = self._find(workspace_id, name_or_id)
        pending = PendingUpload.of(row)
        if pending is not None and pending.etags is None:
            if normal_extension(extension) != pending.extension:
                raise DatasetRejected(
                    [("file_extension", f"the upload was announced as {pending.extension}, not {extension}")]
                )
            self._note_complete(row.id, pending, self._received(row, pending, parts))
        elif pending is None:
            _require_no_abort(row)
        self.ingest.submit(row.id)
        return self.get(workspace_id, row.id)

    def abort(self, workspace_id: str, name_or_id: str) -> DatasetRecord:
        """Give an upload up; a dataset that had bytes before keeps them."""
        row = self._find(workspace_id, name_or_id)
        pending = PendingUpload.of(row)
        if pending is not None:
            self.ingest.give_up(row.id, pending, "the upload was aborted")
        return self.get(workspace_id, row.id)

    def get(self, workspace_id: str, name_or_id: str) -> DatasetRecord:
        """Return a dataset."""
        with self._db.session() as session:
            row = find_dataset(session, workspace_id, name_or_id)
            creator = session.get(DbUser, row.creator_id) if row is not None and row.creator_id else None
            if row is None:
                raise _unknown(session, workspace_id, name_or_id)
        return DatasetRecord(row, _display_name(creator))

    def list(self, workspace_id: str, *, limit: int, offset: int) -> tuple[Sequence[DatasetRecord], int]:
        """Return a page of datasets, the newest first and without their previews, and how many there are."""
        asked = {"workspace_id": workspace_id, "limit": limit, "offset": offset}
        with self._db.session() as session:
            total = session.scalar(_COUNT, {"workspace_id": workspace_id}) or 0
            return [
                DatasetRecord(row, name or email) for row, name, email in session.execute(_PAGE, asked)
            ], total

    def page(self, workspace_id: str, *, limit: int, cursor: str | None) -> ItemPage[DatasetRecord]:
        """Return datasets from a place on, the newest first and without their previews."""
        with self._db.session() as session:

            def entries(ids: Sequence[str]) -> dict[str, DatasetRecord]:
                rows = session.execute(_RECORDS.where(DbDataset.id.in_(ids)))
                return {row.id: DatasetRecord(row, name or email) for row, name, email in rows}

            return newest_page(session, DbDataset, workspace_id, entries, limit=limit, cursor=cursor)

    def download_url(self, workspace_id: str, name_or_id: str) -> tuple[str, timedelta, str]:
        """Return a URL of the bytes, how long it works, and the name of the file."""
        row = self._find(workspace_id, name_or_id)
        if row.status != "uploaded" or row.blob_key is None:
            raise ConflictError(_why_not_ready(row), details={"status": row.status})
        filename = f"{row.name}.{row.extension}"
        url = self._blobs.signed_get_url(row.blob_key, filename=filename, ttl=DOWNLOAD_TTL)
        return url, DOWNLOAD_TTL, filename

    def logs(
        self,
        workspace_id: str,
        name_or_id: str,
        *,
        limit: int,
        direction: Literal["older", "newer"],
        cursor: str | None,
    ) -> LogPage:
        """Return a page of what was said about a dataset."""
        row = self._find(workspace_id, name_or_id)
        return self._logs.page(row.id, limit=limit, direction=direction, cursor=cursor)

    def _find(self, workspace_id: str, name_or_id: str) -> DbDataset:
        return self.get(workspace_id, name_or_id).row

    def _resume_upload(
        self,
        workspace_id: str,
        creator_id: str,
        request: UploadRequest,
        overwrite_id: str | None,
        intent: UploadIntent,
    ) -> tuple[DatasetRecord, UploadInstructions] | None:
        """Hand back the open upload of the same user and bytes, with fresh URLs; None when there is none."""
        with self._db.session() as session:
            row = find_dataset(session, workspace_id, overwrite_id or request.name)
        pending = PendingUpload.of(row)
        if row is None or pending is None or row.name != request.name:
            return None
        # What would replace bytes has to say so, each time.
        may_replace = overwrite_id is not None or row.blob_key is None
        same = pending.is_of(creator_id, request.extension, request.size, intent)
        if not (same and may_replace) or pending.expires_at <= self._clock.now():
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

    def _begin(self, request: UploadRequest, creator_id: str, intent: UploadIntent | None) -> PendingUpload:
        in_parts = request.size >= self.limits.multipart_from_bytes
        return PendingUpload(
            upload=self._blobs.begin_upload(f"{BLOB_PREFIX}/{token_hex(16)}.{request.extension}"),
            extension=request.extension,
            size=request.size,
            part_size=self.limits.part_bytes if in_parts else request.size,
            creator_id=creator_id,
            expires_at=self._clock.now() + UPLOAD_TTL,
            intent=intent,
        )

    def _register(
        self, workspace_id: str, request: UploadRequest, overwrite_id: str | None, pending: PendingUpload
    ) -> tuple[DbDataset, BlobUpload | None]:
        """Make the row wait for an upload; returns it and the upload it waited for before."""
        now = self._clock.now()
        try:
            with self._db.transaction() as session:
                row = self._replaceable(session, workspace_id, request, overwrite_id, lock=True)
                former = PendingUpload.of(row)
                if row is None:
                    row = DbDataset(id=new_id("ds"), workspace_id=workspace_id, name=request.name)
                    row.created_at = now
                    session.add(row)
                if row.blob_key is None:
                    _start_upload(row, request, pending)
                    row.created_at = row.updated_at = now
                else:
                    row.status = "uploaded"
                row.upload = pending.to_json()
                row.error = None
                message = f"upload started: {request.size:,} bytes ({request.extension})"
                session.flush()
                self._logs.add(session, row.id, [LogLine(message, "info", "upload")])
        except IntegrityError:
            # Two at once on a database that lets both look first.
            with self._db.session() as session:
                existing = find_dataset(session, workspace_id, request.name)
            raise _name_taken(existing, request) from None
        return row, former.upload if former is not None else None

    def _replaceable(
        self,
        session: Session,
        workspace_id: str,
        request: UploadRequest,
        overwrite_id: str | None,
        *,
        lock: bool = False,
    ) -> DbDataset | None:
        """Return the row that the announced bytes are for, or None when there is none of that name."""
        if overwrite_id is not None:
            row = find_dataset(session, workspace_id, overwrite_id, lock=lock)
            if row is None:
                raise _unknown(session, workspace_id, overwrite_id)
            if row.name != request.name:
                problem = f"the dataset to overwrite is called '{row.name}', not '{request.name}'"
                raise DatasetRejected([("overwrite_dataset_id", problem)])
            return row
        named = select(DbDataset).where(
            DbDataset.workspace_id == workspace_id, DbDataset.name == request.name
        )
        row = session.scalar(named.with_for_update() if lock else named)
        if row is not None and not self._holds_nothing(row):
            raise _name_taken(row, request)
        return row

    def _holds_nothing(self, row: DbDataset) -> bool:
        """Whether a dataset has nothing that could be lost: no bytes, and none on their way."""
        pending = PendingUpload.of(row)
        if row.blob_key is not None or row.status == "processing":
            return False
        return pending is None or pending.expires_at <= self._clock.now()

    def _received(
        self, row: DbDataset, pending: PendingUpload, parts: Sequence[CompletedPart] | None
    ) -> Sequence[str]:
        """Return the ETags of the parts that are here, or nothing where the upload has ended meanwhile."""
        try:
            return pending.match(self._blobs.parts(pending.upload), parts)
        except UploadNotFound:
            return []
        except DatasetRejected:
            # The same was said at the same time: a check that has begun takes the parts away as it goes.
            if self._find(row.workspace_id, row.id).upload == row.upload:
                raise
            return []

    def _note_complete(self, dataset_id: str, pending: PendingUpload, etags: Sequence[str]) -> None:
        with self._db.transaction() as session:
            row = session.get(DbDataset, dataset_id, with_for_update=True)
            current = PendingUpload.of(row)
            if row is not None and current is None:
                # The same was said at the same time, and the bytes have been checked since.
                _require_no_abort(row)
                return
            if row is None or current is None or current.upload != pending.upload:
                raise ConflictError("another upload of this dataset has begun meanwhile.")
            if current.etags is not None:
                return
            if not etags:
                raise ConflictError("the bytes of this upload are gone; upload the file again.")
            row.upload = pending.completed(etags).to_json()
            row.status = "processing"
            self._logs.add(
                session, dataset_id, [LogLine("all bytes are here; checking the file", "info", "upload")]
            )


def _start_upload(row: DbDataset, request: UploadRequest, pending: PendingUpload) -> None:
    row.status = "pending"
    row.extension = request.extension
    row.file_size = request.size
    row.row_count = row.sha256 = row.preview = None
    row.creator_id = pending.creator_id


def _display_name(user: DbUser | None) -> str | None:
    return None if user is None else user.name or user.email


def _require_no_abort(row: DbDataset) -> None:
    if row.status == "cancelled":
        raise ConflictError(f"the upload of '{row.name}' was aborted or has expired; upload it again.")


def _unknown(session: Session, workspace_id: str, name_or_id: str) -> NotFoundError:
    newest = (
        select(DbDataset.name)
        .where(DbDataset.workspace_id == workspace_id)
        .order_by(DbDataset.created_at.desc())
    )
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
