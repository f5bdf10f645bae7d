"""Blob uploads of workers: requested, put to a signed URL, and accepted after verification.

A blob's size and digest are announced first, and a run has limits on open uploads and total size.
Only :func:`note_wanted` may be called inside a transaction; the store is asked before it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from sqlalchemy import delete, func, select
from sqlalchemy.orm import Session

from osmosis_ai.api.wire.workers import RunFilePart, SentUpload, UploadGrant, WantedUpload
from osmosis_ai.errors import ConflictError, OsmosisError
from osmosis_ai.platform.blobs.parted_upload import PartedUpload
from osmosis_ai.platform.blobs.shards import LARGEST_FILE_BYTES
from osmosis_ai.platform.blobs.store import (
    BlobInfo,
    BlobStore,
    BlobUpload,
    Part,
    PartsMismatch,
    UploadNotFound,
    check_key,
)
from osmosis_ai.platform.db.engine import Database
from osmosis_ai.platform.db.tables import DbRun, DbRunFile, DbRunShard, DbRunUpload
from osmosis_ai.platform.runs.desk.run_shards import MERGED_FOLDER, SHARDS_FOLDER, is_shard
from osmosis_ai.platform.runs.heard_runs import HeardRun
from osmosis_ai.platform.runs.journal_segments import SEGMENTS_FOLDER
from osmosis_ai.platform.runs.lifecycle import UploadGoneError, UploadLimitError
from osmosis_ai.platform.runs.stored_journal import JOURNAL_NAME, RETRIED_FOLDER

URL_TTL = timedelta(hours=1)
PART_BYTES = 512 << 20
"""How much of a blob is sent at once: S3 takes 5 GiB, and of 10,000 parts this makes 5 TB, the most that it keeps."""
MOST_OPEN = 1024
"""Uploads of a run that were granted and not said to be sent; a worker of this release has some hundred at most."""
_GB = 10**9
_OUR_PLACES = frozenset({SEGMENTS_FOLDER, MERGED_FOLDER, "derived", JOURNAL_NAME, RETRIED_FOLDER})
"""Below a run's own prefix: what the platform makes itself, and reads without asking whose it is."""


@dataclass(frozen=True, slots=True)
class BegunUpload:
    """An upload that a worker may send: as it was wanted, and under which id."""

    wanted: WantedUpload
    id: str
    is_stored: bool = False
    received: Mapping[int, Part] = field(default_factory=dict)
    is_new: bool = False


class RunUploads:
    """The uploads of one platform's workers."""

    def __init__(self, db: Database, blobs: BlobStore, most_bytes: int) -> None:
        self._db = db
        self._blobs = blobs
        self.most_bytes = most_bytes

    def complete(self, run_id: str, sent: Sequence[SentUpload]) -> None:
        """Make blobs of what was sent; may be repeated."""
        known = self._known(run_id, [each.name for each in sent])
        for each in sent:
            row = known.get(each.name)
            if row is None or row.upload_id != each.id:
                raise _gone(each.name)
            if not row.is_stored:
                self._complete(row, [each.etag, *each.further_etags])

    def begin(self, run_id: str, wanted: Sequence[WantedUpload]) -> list[BegunUpload]:
        """Start the requested uploads, or resume them if already started."""
        names = [each.name for each in wanted]
        if len({*names}) < len(names):
            raise OsmosisError("a blob is asked for twice.")
        known = self._known(run_id, names)
        begun: list[BegunUpload] = []
        try:
            for each in wanted:
                begun.append(self._begin(run_id, each, known.get(each.name)))
        except BaseException:
            self.give_up(run_id, begun)
            raise
        return begun

    def give_up(self, run_id: str, begun: Sequence[BegunUpload]) -> None:
        """Delete started but unrecorded uploads; maintenance retries if the store is unavailable. Blocking."""
        self.abort([BlobUpload(each.id, blob_key(run_id, each.wanted.name)) for each in begun if each.is_new])

    def abort(self, uploads: Sequence[BlobUpload]) -> None:
        """Let nobody send these any more; as :meth:`give_up`."""
        for upload in uploads:
            with suppress(OSError, OsmosisError):
                self._blobs.abort_upload(upload)

    def grants(self, run_id: str, begun: Sequence[BegunUpload]) -> list[UploadGrant]:
        """Return where to send uploads; of one that is stored the URL is empty."""
        return [self._grant(run_id, each) for each in begun]

    def forget(self, run_id: str) -> None:
        """Abort an ended run's open uploads, and delete shards without files. Blocking."""
        mine = DbRunUpload.run_id == run_id
        with self._db.session() as session:
            left = session.scalars(select(DbRunUpload).where(mine, DbRunUpload.is_stored.is_(False))).all()
        for row in left:
            self._blobs.abort_upload(BlobUpload(row.upload_id, blob_key(run_id, row.name)))
        if self._sent_shards_in_vain(run_id):
            self._blobs.delete_below(f"runs/{run_id}/{SHARDS_FOLDER}")
        with self._db.transaction() as session:
            session.execute(delete(DbRunUpload).where(mine))

    def _sent_shards_in_vain(self, run_id: str) -> bool:
        """Return whether a killed worker left only shards without files. Otherwise they are deleted with merged ones."""
        sent = select(DbRunUpload.name).where(
            DbRunUpload.run_id == run_id, DbRunUpload.name.startswith(f"{SHARDS_FOLDER}/")
        )
        told = (
            select(DbRunShard.key).where(DbRunShard.run_id == run_id),
            select(DbRunFile.path).where(DbRunFile.run_id == run_id, DbRunFile.shard_offset.is_not(None)),
        )
        with self._db.session() as session:
            return session.scalar(sent.limit(1)) is not None and not any(
                session.scalar(asked.limit(1)) is not None for asked in told
            )

    def _grant(self, run_id: str, begun: BegunUpload) -> UploadGrant:
        name, size = begun.wanted.name, begun.wanted.size
        if begun.is_stored:
            return UploadGrant(name=name, id=begun.id, url="")
        upload = BlobUpload(begun.id, blob_key(run_id, name))
        sizes = PartedUpload(upload=upload, size=size, part_size=PART_BYTES).part_sizes()
        first, *further = (
            self._blobs.signed_part_url(upload, number, size=part, ttl=URL_TTL)
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
                f"the bytes received of `{row.name}` are not those that were announced.",
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
                f"`{wanted.name}` is stored with other bytes; a blob never changes under its name.",
                details={"upload": wanted.name},
            )
        return BegunUpload(wanted, self._blobs.begin_upload(key).id, is_new=True)


def note_wanted(
    session: Session, run: DbRun | HeardRun, begun: Sequence[BegunUpload], most_bytes: int
) -> list[BlobUpload]:
    """Write down what a worker may send, as part of the transaction that holds its run."""
    new = [each for each in begun if each.is_new]
    if not new:
        return []
    run.upload_bytes += sum(each.wanted.size for each in new)
    if run.upload_bytes > most_bytes:
        raise UploadLimitError(
            f"this run may send {most_bytes / _GB:g} GB of files and conversations in all, and more is to come.",
            hint="`OSMOSIS_RUN_UPLOAD_GB` is the platform's setting",
            details={"bytes": most_bytes},
        )
    replaced = [former for each in new if (former := _replaced(session, run.id, each)) is not None]
    open_now = select(func.count()).where(DbRunUpload.run_id == run.id, ~DbRunUpload.is_stored)
    if (session.scalar(open_now) or 0) > MOST_OPEN:
        raise UploadLimitError(
            f"this run has {MOST_OPEN} uploads open, which were asked for and not said to be sent; more are not let begin.",
            details={"uploads": MOST_OPEN},
        )
    return replaced


def _replaced(session: Session, run_id: str, new: BegunUpload) -> BlobUpload | None:
    """Write down an upload; return the one that was to be sent under its name until now."""
    name = new.wanted.name
    described = {"size": new.wanted.size, "sha256": new.wanted.sha256, "upload_id": new.id}
    row = session.get(DbRunUpload, (run_id, name))
    if row is not None and row.is_stored:
        raise ConflictError(f"`{name}` has been stored meanwhile; say it again.", details={"upload": name})
    former = None if row is None else BlobUpload(row.upload_id, blob_key(run_id, name))
    session.merge(DbRunUpload(run_id=run_id, name=name, **described, is_stored=False))
    session.flush()
    return former


def stored_blobs(session: Session, run_id: str, names: Collection[str]) -> Mapping[str, BlobInfo]:
    """Return the blobs of these uploads."""
    if not names:
        return {}
    sent = (DbRunUpload.run_id == run_id, DbRunUpload.name.in_(names), DbRunUpload.is_stored)
    rows = session.scalars(select(DbRunUpload).where(*sent))
    found = {row.name: BlobInfo(row.size, row.sha256) for row in rows}
    for name in names:
        if name not in found:
            raise _gone(name)
    return found


def check_part(part: RunFilePart, blob: BlobInfo) -> None:
    """Check that a file fits a blob: all of it, or a piece that is unpacked in memory on reading."""
    offset, length = part.shard_offset, part.shard_length
    if offset is None or length is None:
        is_there = offset is length and part.size == blob.size and not is_shard(part.blob)
    else:
        is_there = offset + length <= blob.size and part.size <= LARGEST_FILE_BYTES
    below = part.path.split("/")
    if not is_there or "\\" in part.path or not part.path.isprintable() or {"", ".", ".."} & {*below}:
        raise OsmosisError(
            f"{part.path[:200]!r} cannot be a file in a blob of {blob.size} bytes.",
            details={"path": part.path[:200]},
        )


def blob_key(run_id: str, name: str) -> str:
    """Return the key of an upload."""
    if name == SHARDS_FOLDER or name.partition("/")[0] in _OUR_PLACES:
        raise OsmosisError(f"`{name}` is the platform's own.", details={"upload": name})
    try:
        return check_key(f"runs/{run_id}/{name}")
    except ValueError:
        raise OsmosisError(f"{name[:160]!r} cannot be the name of a blob.") from None


def _gone(name: str) -> UploadGoneError:
    return UploadGoneError(
        f"nothing has come of `{name[:160]}`: ask where to send it, and send it.",
        details={"upload": name[:160]},
    )
