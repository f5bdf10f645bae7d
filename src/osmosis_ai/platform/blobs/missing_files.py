"""Whether the files that a platform's database names are where it keeps files: a look at a few, when it starts.

A database that was restored without its files, or that is started with another bucket, would say so sample by sample, to
whoever asks for one. Every file is looked for by nobody: a platform has millions.
"""

from __future__ import annotations

from collections.abc import Iterator

from sqlalchemy import select

from osmosis_ai.platform.blobs.store import BlobError, BlobNotFound, BlobStore
from osmosis_ai.platform.db.engine import Database
from osmosis_ai.platform.db.tables import DbDataset, DbRun

_OF_EACH = 5
"""Files of the oldest and of the newest, datasets and runs: 20 in all, and what was lost from some day on is among them."""


def missing_files(db: Database, blobs: BlobStore, shown: str) -> str | None:
    """Return, in a sentence, how many of a few files are missing; None where none is, or the store does not answer.

    Args:
        db: names them.
        blobs: where they should be.
        shown: what people are told of where that is.
    """
    keys = list(dict.fromkeys(_some_keys(db)))
    try:
        missing = sum(not _is_there(blobs, key) for key in keys)
    except BlobError:
        return None  # which is said where files are needed
    if not missing:
        return None
    return (
        f"{missing} of {len(keys)} datasets and results of runs that were looked for are not in {shown}. Was the database "
        "restored, or moved, without its files? Start with the OSMOSIS_BLOBS_URL or OSMOSIS_HOME that it had, or bring the "
        "files back: what they hold can not be read, and runs of these datasets fail."
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


def _is_there(blobs: BlobStore, key: str) -> bool:
    try:
        blobs.size(key)
    except BlobNotFound:
        return False
    return True
