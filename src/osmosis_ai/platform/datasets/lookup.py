"""Find a dataset, and provide its bytes to a run as a separate file with a known digest.

If a dataset is overwritten while a run starts, the run gets either the old or the new bytes completely.
"""

from __future__ import annotations

from pathlib import Path

from sqlalchemy import select
from sqlalchemy.orm import Session

from osmosis_ai.datasets import file_digest
from osmosis_ai.errors import NotFoundError, OsmosisError
from osmosis_ai.platform.blobs.incoming import BLOCK_BYTES, IncomingFile
from osmosis_ai.platform.blobs.store import BlobNotFound, BlobStore
from osmosis_ai.platform.datasets.upload_request import normal_name
from osmosis_ai.platform.db.engine import Database
from osmosis_ai.platform.db.tables import DbDataset


def find_dataset(
    session: Session, workspace_id: str, name_or_id: str, *, lock: bool = False
) -> DbDataset | None:
    """Return a dataset of a workspace by its id or name; an id wins over a name that looks like it."""
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
        # Overwritten since the row was read; the bytes of the new row are there.
        row = _with_bytes(db, dataset_id)
        _copy(blobs, row, target)
    return row


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
