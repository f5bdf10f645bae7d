"""Delete a dataset: row and log in one transaction, then its bytes.

The cleanup of :mod:`.datasets.ingest` removes unreferenced bytes at every start and later, so a crash in between is
harmless. Runs that used the dataset keep its name and their results. Started runs have a copy of its rows.
"""

from __future__ import annotations

from sqlalchemy import delete, select

from osmosis_ai.errors import ConflictError
from osmosis_ai.platform.blobs.store import BlobStore
from osmosis_ai.platform.datasets.pending_uploads import PendingUpload
from osmosis_ai.platform.db.engine import Database
from osmosis_ai.platform.db.tables import DbDataset, DbLogLine, DbRun
from osmosis_ai.platform.runs.lifecycle import COMMAND_GROUPS, KIND_NAMES, OPEN


def delete_dataset(db: Database, blobs: BlobStore, dataset: DbDataset) -> None:
    """Delete a dataset that was found; one that has gone meanwhile is no error."""
    with db.transaction() as session:
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
        bytes_key, pending = row.blob_key, PendingUpload.of(row)
        session.execute(delete(DbLogLine).where(DbLogLine.subject_id == row.id))
        session.delete(row)
    if bytes_key is not None:
        blobs.delete(bytes_key)
    if pending is not None:
        blobs.abort_upload(pending.upload)
