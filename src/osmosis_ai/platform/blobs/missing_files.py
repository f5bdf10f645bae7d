"""Check at startup that a sample of the files named by the database exists.

A database restored without its files, or started with another bucket, would otherwise fail file by file at access.
There may be millions of files, so not all are checked.
"""

from __future__ import annotations

from collections.abc import Iterator

from sqlalchemy import select
from sqlalchemy.orm import Session

from osmosis_ai.platform.blobs.store import BlobError, BlobNotFound, BlobStore
from osmosis_ai.platform.db.engine import Database
from osmosis_ai.platform.db.tables import DbDataset, DbLoraModel, DbRun, DbRunFile

_OF_EACH = 5
"""The oldest and the newest datasets, journals, conversations and adapters, about 40 files: a loss from some day on shows in the newest."""


def missing_files(db: Database, blobs: BlobStore, shown: str) -> str | None:
    """Return a sentence about missing files; None if there are none or the store does not answer."""
    keys = list(dict.fromkeys(_some_keys(db)))
    try:
        missing = sum(not _is_there(blobs, key) for key in keys)
    except BlobError:
        return None  # which is said where files are needed
    if not missing:
        return None
    return (
        f"{missing} of {len(keys)} files of datasets, runs and adapters that were looked for are not in {shown}. Was the database "
        "restored, or moved, without its files? Start with the OSMOSIS_BLOBS_URL or OSMOSIS_HOME that it had, or bring the "
        "files back: what they hold cannot be read, and runs of these datasets fail."
    )


def _some_keys(db: Database) -> Iterator[str]:
    with db.session() as session:
        for key, at in (
            (DbDataset.blob_key, DbDataset.created_at),
            (DbRun.journal_blob, DbRun.created_at),
        ):
            for order in (at.asc(), at.desc()):
                asked = select(key).where(key.is_not(None)).order_by(order).limit(_OF_EACH)
                yield from filter(None, session.scalars(asked))
        for newest_first in (False, True):
            yield from _conversations(session, newest_first=newest_first)
            yield from _adapters(session, newest_first=newest_first)


def _conversations(session: Session, *, newest_first: bool) -> Iterator[str]:
    """Yield the blob of some conversation of a few runs."""
    its_files = DbRunFile.run_id == DbRun.id, DbRunFile.kind == "trajectories"
    asked = select(DbRun.id).where(select(DbRunFile.path).where(*its_files).exists())
    order = DbRun.created_at.desc() if newest_first else DbRun.created_at.asc()
    for run_id in session.scalars(asked.order_by(order).limit(_OF_EACH)).all():
        named = DbRunFile.run_id == run_id, DbRunFile.kind == "trajectories", DbRunFile.blob_key.is_not(None)
        yield from filter(None, session.scalars(select(DbRunFile.blob_key).where(*named).limit(1)))


def _adapters(session: Session, *, newest_first: bool) -> Iterator[str]:
    """Yield the largest file of a few adapters, which is its weights."""
    order = DbLoraModel.created_at.desc() if newest_first else DbLoraModel.created_at.asc()
    for files in session.scalars(select(DbLoraModel.files).order_by(order).limit(_OF_EACH)):
        yield from (max(files.values(), key=lambda file: file["size"])["blob_key"],) if files else ()


def _is_there(blobs: BlobStore, key: str) -> bool:
    try:
        blobs.size(key)
    except BlobNotFound:
        return False
    return True
