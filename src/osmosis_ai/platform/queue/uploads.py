"""Files that workers report: small ones inline, others as blobs that they upload by signed URLs first.

A blob's size and digest are announced before it is sent, and a run has limits on open uploads and total size. The store
is never asked inside a transaction.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from sqlalchemy import delete, func, insert, select, update
from sqlalchemy.orm import Session

from osmosis_ai.api.models.workers import RunFilePart, SentUpload, UploadGrant, WantedUpload
from osmosis_ai.errors import ConflictError, OsmosisError
from osmosis_ai.evaluation.attempt_files import attempt_in_path
from osmosis_ai.platform.blobs.signing import UrlSigner
from osmosis_ai.platform.blobs.store import (
    BlobInfo,
    BlobStore,
    BlobUpload,
    Part,
    PartsMismatch,
    UploadNotFound,
    check_key,
)
from osmosis_ai.platform.db.base import upsert
from osmosis_ai.platform.db.engine import Database
from osmosis_ai.platform.db.tables import DbConversation, DbRun, DbRunFile, DbRunUpload
from osmosis_ai.platform.runs.lifecycle import (
    CHECKPOINTS,
    RESUME,
    VALIDATION,
    UploadGoneError,
    UploadLimitError,
)

URL_TTL = timedelta(hours=1)
PART_BYTES = 512 << 20
"""The size of a part of a large blob: S3 accepts up to 5 GiB per part and 10,000 parts."""
MOST_OPEN = 1024
"""Uploads of a run that may be open at a time."""
_GB = 10**9
_TRAINING_FOLDERS = frozenset({CHECKPOINTS, RESUME, VALIDATION})


@dataclass(frozen=True, slots=True)
class BegunUpload:
    """An upload that a worker may send."""

    wanted: WantedUpload
    id: str
    is_stored: bool = False
    received: Mapping[int, Part] = field(default_factory=dict)
    is_new: bool = False


class RunUploads:
    """The uploads of one platform's workers."""

    def __init__(
        self, db: Database, blobs: BlobStore, signer: UrlSigner, most_bytes: float = math.inf
    ) -> None:
        self._db = db
        self._blobs = blobs
        self._own_address = signer.base_url
        self._most_bytes = most_bytes

    def complete(self, run_id: str, sent: Sequence[SentUpload]) -> None:
        """Create the blobs of completed uploads; may be repeated."""
        known = self._known(run_id, [each.name for each in sent])
        for each in sent:
            row = known.get(each.name)
            if row is None or row.upload_id != each.id:
                raise _gone(each.name)
            if not row.is_stored:
                self._complete(row, [each.etag, *each.further_etags])

    def begin(self, run_id: str, wanted: Sequence[WantedUpload]) -> list[BegunUpload]:
        """Begin uploads at the store; :meth:`note_wanted` records them."""
        known = self._known(run_id, [each.name for each in wanted])
        begun: list[BegunUpload] = []
        try:
            for each in wanted:
                begun.append(self._begin(run_id, each, known.get(each.name)))
        except BaseException:
            self.give_up(run_id, begun)
            raise
        return begun

    def note_wanted(self, session: Session, run_id: str, begun: Sequence[BegunUpload]) -> list[BlobUpload]:
        """Record new uploads in the transaction that holds their run; return those that they replace."""
        new = [each for each in begun if each.is_new]
        if not new:
            return []
        more = sum(each.wanted.size for each in new)
        mine = update(DbRun).where(DbRun.id == run_id).values(upload_bytes=DbRun.upload_bytes + more)
        session.execute(mine)
        if (session.scalar(select(DbRun.upload_bytes).where(DbRun.id == run_id)) or 0) > self._most_bytes:
            raise UploadLimitError(
                f"a run may upload at most {self._most_bytes / _GB:g} GB of files, and this one has more.",
                hint="raise `OSMOSIS_RUN_UPLOAD_GB` on the platform",
                details={"bytes": self._most_bytes},
            )
        replaced = [former for each in new if (former := _record(session, run_id, each)) is not None]
        is_open = DbRunUpload.run_id == run_id, ~DbRunUpload.is_stored
        if (session.scalar(select(func.count()).where(*is_open)) or 0) > MOST_OPEN:
            raise UploadLimitError(
                f"a run may have at most {MOST_OPEN} uploads open, and this one has more.",
                details={"uploads": MOST_OPEN},
            )
        return replaced

    def give_up(self, run_id: str, begun: Sequence[BegunUpload]) -> None:
        """Abort uploads that were begun and not recorded; maintenance does if the store is unavailable."""
        self._abort(
            [BlobUpload(each.id, blob_key(run_id, each.wanted.name)) for each in begun if each.is_new]
        )

    def clear(self, replaced: Sequence[BlobUpload], obsolete: Sequence[str]) -> None:
        """Abort replaced uploads, and delete the blobs below obsolete prefixes."""
        self._abort(replaced)
        for prefix in obsolete:
            self._blobs.delete_below(prefix)

    def forget(self, run_id: str) -> None:
        """Abort the open uploads of an ended run, and delete blobs that no file names."""
        mine = DbRunUpload.run_id == run_id
        with self._db.session() as session:
            rows = session.scalars(select(DbRunUpload).where(mine)).all()
            named = set(session.scalars(select(DbRunFile.blob_key).where(DbRunFile.run_id == run_id)))
        for row in rows:
            key = blob_key(run_id, row.name)
            if not row.is_stored:
                self._blobs.abort_upload(BlobUpload(row.upload_id, key))
            elif row.name.startswith("files/") and key not in named:
                self._blobs.delete(key)
        if rows:
            with self._db.transaction() as session:
                session.execute(delete(DbRunUpload).where(mine))

    def _abort(self, uploads: Sequence[BlobUpload]) -> None:
        for upload in uploads:
            with suppress(OSError, OsmosisError):
                self._blobs.abort_upload(upload)

    def grant(self, run_id: str, begun: BegunUpload) -> UploadGrant:
        """Return where to send an upload."""
        name, size = begun.wanted.name, begun.wanted.size
        if begun.is_stored:
            return UploadGrant(name=name, id=begun.id, url="")
        upload = BlobUpload(begun.id, blob_key(run_id, name))
        whole, rest = divmod(size, PART_BYTES)
        sizes = [PART_BYTES] * whole + ([rest] if rest or not whole else [])
        # A worker knows the platform's address better than the platform.
        first, *further = (
            self._blobs.signed_part_url(upload, number, size=part, ttl=URL_TTL).removeprefix(
                self._own_address
            )
            for number, part in enumerate(sizes, 1)
        )
        parts: dict[str, Any] = {}
        if further:
            received = {n: part.etag for n, part in begun.received.items() if sizes[n - 1 : n] == [part.size]}
            parts = {"further_urls": further, "part_size": PART_BYTES, "received": received}
        return UploadGrant(name=name, id=begun.id, url=first, **parts)

    def _known(self, run_id: str, names: Collection[str]) -> dict[str, DbRunUpload]:
        if not names:
            return {}
        with self._db.session() as session:
            named = (DbRunUpload.run_id == run_id, DbRunUpload.name.in_(names))
            return {row.name: row for row in session.scalars(select(DbRunUpload).where(*named))}

    def _complete(self, row: DbRunUpload, etags: Sequence[str]) -> None:
        upload = BlobUpload(row.upload_id, blob_key(row.run_id, row.name))
        try:
            info = self._blobs.complete_upload(upload, [etag.strip('"') for etag in etags])
        except (UploadNotFound, PartsMismatch):
            raise _gone(row.name) from None
        is_right = (info.size, info.sha256) == (row.size, row.sha256)
        if not is_right:
            self._blobs.delete(upload.key)
        with self._db.transaction() as session:
            current = session.get(DbRunUpload, (row.run_id, row.name), with_for_update=True)
            if current is not None and current.upload_id == row.upload_id:
                current.is_stored = is_right
                if not is_right:
                    session.delete(current)
        if not is_right:
            raise UploadGoneError(
                f"the received bytes of `{row.name}` differ from the announced size or digest.",
                details={"upload": row.name},
            )

    def _begin(self, run_id: str, wanted: WantedUpload, row: DbRunUpload | None) -> BegunUpload:
        key = blob_key(run_id, wanted.name)
        if row is not None and (row.size, row.sha256) == (wanted.size, wanted.sha256):
            if row.is_stored:
                return BegunUpload(wanted, row.upload_id, is_stored=True)
            try:
                received = self._blobs.parts(BlobUpload(row.upload_id, key))
                return BegunUpload(wanted, row.upload_id, received=received)
            except UploadNotFound:
                pass
        elif row is not None and row.is_stored:
            raise ConflictError(
                f"`{wanted.name}` is already stored with different content.",
                details={"upload": wanted.name},
            )
        return BegunUpload(wanted, self._blobs.begin_upload(key).id, is_new=True)


def require_own_names(shard_id: str, names: Iterable[str]) -> None:
    """Refuse names of uploads that are neither those of a shard's files nor of a training run."""
    for name in names:
        folder, _, rest = name.partition("/")
        if name.rpartition("/")[0] != f"files/{shard_id}" and not (rest and folder in _TRAINING_FOLDERS):
            raise OsmosisError(f"`{name}` is not a name for an upload of this shard.")


def check_contents(parts: Sequence[RunFilePart]) -> None:
    """Refuse inline files that do not unpack to their size."""
    for part in parts:
        if part.content is not None:
            unpacking, size = zlib.decompressobj(), None
            with suppress(zlib.error):
                size = len(unpacking.decompress(part.content, part.size + 1))
            if size != part.size or not unpacking.eof or unpacking.unused_data:
                raise _invalid(part, "its content does not unpack to its size")


def attempt_of(part: RunFilePart) -> tuple[int, int]:
    """Return the row and number of the attempt that a file of an evaluation belongs to."""
    found = attempt_in_path(part.path)
    if found is None or found[0] != part.kind or part.length is not None:
        raise _invalid(part, "an attempt has no such file")
    return found[1:]


def take_files(session: Session, run_id: str, revision: int, parts: Sequence[RunFilePart]) -> None:
    """Write the rows of a run's files, in the transaction that holds the run."""
    blobs = stored_blobs(session, run_id, {part.blob for part in parts if part.blob is not None})
    upsert(session, DbRunFile, [file_row(run_id, revision, part, blobs) for part in parts])
    newest = {part.path: part.content for part in parts}
    replaced = DbConversation.run_id == run_id, DbConversation.path.in_(newest)
    session.execute(delete(DbConversation).where(*replaced))
    inline = [
        {"run_id": run_id, "path": path, "content": content}
        for path, content in newest.items()
        if content is not None
    ]
    if inline:
        session.execute(insert(DbConversation), inline)


def file_row(run_id: str, revision: int, part: RunFilePart, blobs: Mapping[str, BlobInfo]) -> dict[str, Any]:
    """Return the row of a file, if it fits the upload that it names."""
    blob = blobs[part.blob] if part.blob is not None else None
    if blob is not None:
        end = (part.offset or 0) + (part.size if part.length is None else part.length)
        if end > blob.size or (part.length is None and end < blob.size):
            raise _invalid(part, "its upload has another size")
    return {
        "run_id": run_id,
        "path": part.path,
        "kind": part.kind,
        "source_row_index": part.source_row_index,
        "size": part.size,
        "blob_key": blob_key(run_id, part.blob) if part.blob is not None else None,
        "offset": part.offset,
        "length": part.length,
        "sha256": blob.sha256 if blob is not None and part.length is None else None,
        "revision": revision,
    }


def stored_blobs(session: Session, run_id: str, names: Collection[str]) -> Mapping[str, BlobInfo]:
    """Return the blobs of these uploads; an UploadGoneError if one has not arrived."""
    if not names:
        return {}
    sent = (DbRunUpload.run_id == run_id, DbRunUpload.name.in_(names), DbRunUpload.is_stored)
    rows = session.scalars(select(DbRunUpload).where(*sent))
    found = {row.name: BlobInfo(row.size, row.sha256) for row in rows}
    for name in names:
        if name not in found:
            raise _gone(name)
    return found


def blob_key(run_id: str, name: str) -> str:
    """Return the key of an upload."""
    try:
        return check_key(f"runs/{run_id}/{name}")
    except ValueError:
        raise OsmosisError(f"{name[:160]!r} cannot be the name of a blob.") from None


def _record(session: Session, run_id: str, new: BegunUpload) -> BlobUpload | None:
    """Record an upload; return the one of the same name that it replaces."""
    name = new.wanted.name
    row = session.get(DbRunUpload, (run_id, name))
    if row is not None and row.is_stored:
        details = {"upload": name}
        raise ConflictError(f"`{name}` was stored by another call; repeat this one.", details=details)
    former = None if row is None else BlobUpload(row.upload_id, blob_key(run_id, name))
    described = {"size": new.wanted.size, "sha256": new.wanted.sha256, "upload_id": new.id}
    session.merge(DbRunUpload(run_id=run_id, name=name, **described, is_stored=False))
    session.flush()
    return former


def _invalid(part: RunFilePart, problem: str) -> OsmosisError:
    shown = part.path[:200]
    return OsmosisError(f"{shown!r} is not a valid file of a run: {problem}.", details={"path": shown})


def _gone(name: str) -> UploadGoneError:
    return UploadGoneError(
        f"`{name[:160]}` has not arrived: request and send it again.", details={"upload": name[:160]}
    )
