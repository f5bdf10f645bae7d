"""Uploads of evaluations that ran on other machines. Every step is repeatable.

An upload is identified by its run and the digest of the run's manifest. Announcing it again resumes it with the missing
files. A file counts when its bytes match the announcement. No run exists until the upload is finalized, and an upload
not finalized within :data:`UPLOAD_TTL` of its last announcement is deleted.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import and_, delete, or_, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from osmosis_ai.api.models.datasets import CompletedPart
from osmosis_ai.api.models.eval_imports import LARGEST_BATCH, EvalImportStart, ImportFile, ImportUpload
from osmosis_ai.errors import ConflictError, NotFoundError, OsmosisError
from osmosis_ai.platform.blobs.store import BlobStore, BlobUpload, PartsMismatch, UploadNotFound
from osmosis_ai.platform.blobs.upload_session import (
    MULTIPART_FROM_BYTES,
    PART_BYTES,
    UPLOAD_TTL,
    UnexpectedBytesError,
    UploadSession,
    old_uploads,
)
from osmosis_ai.platform.clock import Clock
from osmosis_ai.platform.db.base import upsert
from osmosis_ai.platform.db.engine import Database
from osmosis_ai.platform.db.tables import (
    DbDeletedRun,
    DbEvalImport,
    DbEvalImportFile,
    DbRun,
    DbRunUpload,
    new_id,
)
from osmosis_ai.platform.logs import LogStore
from osmosis_ai.platform.runs.imported_run import ReceivedRun, check_announcement, known_provenance
from osmosis_ai.platform.runs.run_store import RunStore

_NAMED_PROBLEMS = 5
_TRIES = 8


@dataclass(frozen=True, slots=True)
class ImportState:
    """An upload, its files by path, and the run that it has become."""

    row: DbEvalImport
    files: Sequence[DbEvalImportFile]
    run: DbRun | None


class EvalImportStore:
    def __init__(self, db: Database, blobs: BlobStore, clock: Clock, logs: LogStore, runs: RunStore) -> None:
        self._db = db
        self._blobs = blobs
        self._clock = clock
        self._logs = logs
        self._runs = runs

    def start(
        self, workspace_id: str, repository_id: str, creator_id: str, start: EvalImportStart
    ) -> ImportState:
        """Begin an upload, or resume it if its run was announced before.

        With ``reimport``, a run that its creator uploaded before with other files is deleted first.
        """
        check_announcement(start)
        known = self._known(workspace_id, start)
        if known is not None and self._is_over(known.row, known.run):
            self._forget(known.row)
            known = None
        if known is None:
            return self._begin(workspace_id, repository_id, creator_id, start)
        if known.run is None:
            return self._continue(known, start)
        if {_key_of(file) for file in known.files} == {_key_of(file) for file in start.files}:
            return known
        if not start.reimport or known.run.creator_id != creator_id:
            raise ConflictError(
                f"this run was already uploaded as {known.run.name}, with other files: it continued after the upload.",
                details={"eval_run_id": known.run.id, "eval_run_name": known.run.name},
                hint="the user who uploaded it can replace it with `osmosis eval upload --replace`",
            )
        self._runs.delete(known.run)
        return self._begin(workspace_id, repository_id, creator_id, start)

    def upload_instructions(
        self, workspace_id: str, session_id: str, paths: Sequence[str]
    ) -> list[ImportUpload]:
        """Return upload URLs for the missing files of ``paths``."""
        if not 1 <= len(paths) <= LARGEST_BATCH:
            raise OsmosisError(f"`paths` takes 1 to {LARGEST_BATCH} files.", details={"field": "paths"})
        missing = [file for file in self._files(workspace_id, session_id, paths) if not file.is_stored]
        begun = [(file, *self._open_upload(file)) for file in missing]
        noted, surplus = [], []
        with self._db.transaction() as session:
            # All writers lock the upload before its files, so that they cannot deadlock.
            session.get(DbEvalImport, session_id, with_for_update=True)
            for file, upload, received in begun:
                row = _current(session, file)
                theirs = None if row.upload == file.upload else _upload_of(row)
                if theirs is None and not row.is_stored:
                    row.upload = {"id": upload.upload.id, "part_size": upload.part_size}
                    noted.append((file, upload, received))
                else:
                    # A concurrent request began another upload, or has completed it.
                    surplus.append(upload.upload)
                    noted += [(file, theirs, None)] if theirs is not None else []
        for unneeded in surplus:
            self._blobs.abort_upload(unneeded)
        return [
            ImportUpload.of(file, upload=upload.instructions(self._blobs, received))
            for file, upload, received in noted
        ]

    def complete_file(
        self, workspace_id: str, session_id: str, path: str, parts: Sequence[CompletedPart] | None
    ) -> None:
        """Accept a file whose bytes have all been sent, if they match the announcement."""
        (file,) = self._files(workspace_id, session_id, [path])
        if file.is_stored:
            return
        upload = _upload_of(file)
        if upload is None:
            raise ConflictError(f"nothing has been sent of `{path}`: ask where to send it first.")
        is_right = True
        try:
            upload.complete(self._blobs, self._received(upload, path, parts))
        except (UploadNotFound, PartsMismatch):
            raise ConflictError(f"the bytes of `{path}` are gone; send them again.") from None
        except UnexpectedBytesError:
            is_right = False
        with self._db.transaction() as session:
            row = _current(session, file)
            row.is_stored, row.upload = is_right, None
        if not is_right:
            raise OsmosisError(
                f"the bytes received of `{path}` are not those that were announced: it was changed, or damaged on its "
                "way; upload the run again.",
                details={"path": path},
            )

    def finalize(self, workspace_id: str, session_id: str) -> ImportState:
        """Create the run of an upload whose files have all arrived; repeating it changes nothing."""
        state = self.get(workspace_id, session_id)
        if state.run is not None:
            return state
        if missing := [file.path for file in state.files if not file.is_stored]:
            raise ConflictError(
                f"{len(missing)} of {len(state.files)} files have not arrived, the first is `{missing[0]}`."
            )
        received = ReceivedRun.read(state.row, state.files, self._blobs)
        received.pack_journal(self._blobs)
        for left in reversed(range(_TRIES)):
            try:
                with self._db.transaction() as session:
                    row = session.get(DbEvalImport, session_id, with_for_update=True)
                    if row is None:
                        raise _unknown(session_id)
                    if row.status == "uploading":
                        received.store(session, self._logs, self._clock.now())
                        row.status = "finalized"
                break
            except IntegrityError:
                # On engines with several writers, another run may take the name in between.
                if not left:
                    raise
        self._runs.forget_count(workspace_id)
        return self.get(workspace_id, session_id)

    def get(self, workspace_id: str, session_id: str) -> ImportState:
        with self._db.session() as session:
            return self._state(session, self._row(session, workspace_id, session_id))

    def tidy(self) -> None:
        """Delete uploads that cannot become a run any more, with all their bytes."""
        over = or_(
            and_(DbEvalImport.status == "uploading", DbEvalImport.expires_at <= self._clock.now()),
            and_(DbEvalImport.status == "finalized", DbEvalImport.run_id.not_in(select(DbRun.id))),
        )
        for row in self._db.scalars(select(DbEvalImport).where(over)):
            self._forget(row)
        self._abort_orphans()

    # -- finding uploads and their files ---------------------------------------------------------------

    def _row(self, session: Session, workspace_id: str, session_id: str) -> DbEvalImport:
        row = session.get(DbEvalImport, session_id)
        if row is None or row.workspace_id != workspace_id:
            raise _unknown(session_id)
        if self._is_over(row, session.get(DbRun, row.run_id)):
            raise _unknown(session_id)
        return row

    def _state(self, session: Session, row: DbEvalImport) -> ImportState:
        files = select(DbEvalImportFile).where(DbEvalImportFile.import_id == row.id)
        found = session.scalars(files.order_by(DbEvalImportFile.path)).all()
        return ImportState(row, found, session.get(DbRun, row.run_id))

    def _known(self, workspace_id: str, start: EvalImportStart) -> ImportState | None:
        same = select(DbEvalImport).where(
            DbEvalImport.workspace_id == workspace_id,
            DbEvalImport.local_run_id == start.local_run_id,
            DbEvalImport.manifest_digest == start.manifest_digest,
        )
        with self._db.session() as session:
            row = session.scalar(same)
            return None if row is None else self._state(session, row)

    def _is_over(self, row: DbEvalImport, run: DbRun | None) -> bool:
        """Return whether the time of an upload has passed, or its run was deleted."""
        return run is None if row.status == "finalized" else row.expires_at <= self._clock.now()

    def _files(self, workspace_id: str, session_id: str, paths: Sequence[str]) -> list[DbEvalImportFile]:
        """Return the announced files of an upload with these paths."""
        wanted = list(dict.fromkeys(paths))
        with self._db.session() as session:
            row = self._row(session, workspace_id, session_id)
            named = (DbEvalImportFile.import_id == row.id, DbEvalImportFile.path.in_(wanted))
            found = {file.path: file for file in session.scalars(select(DbEvalImportFile).where(*named))}
        for path in wanted:
            if path not in found:
                raise OsmosisError(
                    f"the file {path[:200]!r} was not announced.", details={"path": path[:200]}
                )
        return [found[path] for path in wanted]

    # -- beginning, continuing and forgetting ----------------------------------------------------------

    def _begin(
        self, workspace_id: str, repository_id: str, creator_id: str, start: EvalImportStart
    ) -> ImportState:
        now = self._clock.now()
        row = DbEvalImport(
            id=new_id("imp"),
            workspace_id=workspace_id,
            repository_id=repository_id,
            local_run_id=start.local_run_id,
            manifest_digest=start.manifest_digest,
            status="uploading",
            announced=_without_files(start),
            run_id=new_id("run"),
            creator_id=creator_id,
            created_at=now,
            expires_at=now + UPLOAD_TTL,
        )
        try:
            with self._db.transaction() as session:
                session.add(row)
                session.flush()
                upsert(session, DbEvalImportFile, [_file_row(row, file) for file in start.files])
        except IntegrityError:
            # A concurrent request has announced the same run.
            known = self._known(workspace_id, start)
            if known is None:
                raise
            return known
        return self.get(workspace_id, row.id)

    def _continue(self, known: ImportState, start: EvalImportStart) -> ImportState:
        """Keep the stored files that are announced unchanged, and wait for the others."""
        announced = {_key_of(file) for file in start.files}
        kept = {_key_of(file) for file in known.files} & announced
        gone = [file for file in known.files if _key_of(file) not in kept]
        with self._db.transaction() as session:
            row = session.get(DbEvalImport, known.row.id, with_for_update=True)
            if row is None or row.status != "uploading":
                raise ConflictError("this upload has ended meanwhile; start it again.")
            row.expires_at = self._clock.now() + UPLOAD_TTL
            row.announced = _without_files(start)
            for file in gone:
                this = (DbEvalImportFile.import_id == row.id, DbEvalImportFile.path == file.path)
                session.execute(delete(DbEvalImportFile).where(*this))
            new = [_file_row(row, file) for file in start.files if _key_of(file) not in kept]
            upsert(session, DbEvalImportFile, new)
        for file in gone:
            if (upload := _upload_of(file)) is not None:
                self._blobs.abort_upload(upload.upload)
            self._blobs.delete(file.blob_key)
        return self.get(known.row.workspace_id, known.row.id)

    def _open_upload(self, file: DbEvalImportFile) -> tuple[UploadSession, Mapping[int, str] | None]:
        """Return the open upload of a file and its received parts, or a new upload."""
        upload = _upload_of(file)
        if upload is not None and (received := upload.received(self._blobs)) is not None:
            return upload, received
        part_size = PART_BYTES if file.size >= MULTIPART_FROM_BYTES else file.size
        return _session_of(file, self._blobs.begin_upload(file.blob_key).id, part_size), None

    def _received(
        self, upload: UploadSession, path: str, parts: Sequence[CompletedPart] | None
    ) -> Sequence[str]:
        """Return the ETags of the received parts; empty if they were already combined into a blob."""
        received = upload.received(self._blobs)
        if received is None:
            return []
        if problems := upload.problems_with(received, parts):
            raise OsmosisError(
                f"`{path}` is not complete: {'; '.join(problems[:_NAMED_PROBLEMS])}.", details={"path": path}
            )
        return list(received.values())

    def _forget(self, row: DbEvalImport) -> None:
        """Delete an upload with its bytes, unless a client has continued it since."""
        with self._db.transaction() as session:
            current = session.get(DbEvalImport, row.id, with_for_update=True)
            if current is None or (current.status, current.expires_at) != (row.status, row.expires_at):
                return
            files = self._state(session, current).files
            session.delete(current)
            # If this is interrupted, the deletion of runs removes the remaining files.
            session.merge(DbDeletedRun(id=row.run_id, deleted_at=self._clock.now()))
        for upload in filter(None, map(_upload_of, files)):
            self._blobs.abort_upload(upload.upload)
        self._blobs.delete_below(f"runs/{row.run_id}")
        with self._db.transaction() as session:
            session.execute(delete(DbDeletedRun).where(DbDeletedRun.id == row.run_id))

    def _abort_orphans(self) -> None:
        """Abort uploads that no row names, because the request that began them was interrupted."""
        begun = old_uploads(self._blobs, "runs", now=self._clock.now())
        if not begun:
            return
        with self._db.session() as session:
            files = session.scalars(select(DbEvalImportFile).where(DbEvalImportFile.upload.is_not(None)))
            known = {(file.upload or {}).get("id") for file in files}
            # Workers' uploads have the same prefix.
            known |= set(session.scalars(select(DbRunUpload.upload_id).where(~DbRunUpload.is_stored)))
        for upload in begun:
            if upload.id not in known:
                self._blobs.abort_upload(upload)


def _current(session: Session, file: DbEvalImportFile) -> DbEvalImportFile:
    """Return a file's row for writing, if it still waits for the same bytes."""
    row = session.get(DbEvalImportFile, (file.import_id, file.path), with_for_update=True)
    if row is None or row.blob_key != file.blob_key:
        raise ConflictError("this upload was restarted meanwhile; upload the run again.")
    return row


def _upload_of(file: DbEvalImportFile) -> UploadSession | None:
    if file.upload is None:
        return None
    return _session_of(file, file.upload["id"], file.upload["part_size"])


def _session_of(file: DbEvalImportFile, upload_id: str, part_size: int) -> UploadSession:
    upload = BlobUpload(upload_id, file.blob_key)
    return UploadSession(upload=upload, size=file.size, sha256=file.sha256, part_size=part_size)


def _without_files(start: EvalImportStart) -> dict[str, Any]:
    """Return an announcement as its row keeps it; files have rows of their own."""
    kept = {"files": [], "schema_versions": {}, "provenance": known_provenance(start.provenance)}
    return start.model_copy(update=kept).to_wire()


def _key_of(file: DbEvalImportFile | ImportFile) -> tuple[str, int, str]:
    return file.path, file.size, file.sha256


def _file_row(row: DbEvalImport, file: ImportFile) -> dict[str, Any]:
    # Other bytes get another key, because the content of a blob never changes.
    name = hashlib.sha256(f"{file.path}\0{file.sha256}".encode()).hexdigest()
    return {
        "import_id": row.id,
        "path": file.path,
        "size": file.size,
        "sha256": file.sha256,
        "blob_key": f"runs/{row.run_id}/files/{name}",
        "upload": None,
        "is_stored": False,
    }


def _unknown(session_id: str) -> NotFoundError:
    return NotFoundError(
        f"there is no upload '{session_id[:80]}' in this workspace, or its time is over.",
        hint="run `osmosis eval upload` again: it starts from scratch",
    )
