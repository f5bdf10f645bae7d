"""Delete an ended run: its rows in one transaction, then its files.

The transaction leaves the run's id in ``deleted_runs`` until the files are gone, so that the next start or maintenance
finishes an interrupted deletion. References by name to the run or its adapters remain.
"""

from __future__ import annotations

import logging

from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from osmosis_ai.errors import ConflictError, OsmosisError
from osmosis_ai.platform.blobs.store import BlobError, BlobStore, BlobStoreSilent
from osmosis_ai.platform.clock import Clock
from osmosis_ai.platform.db.engine import Database
from osmosis_ai.platform.db.tables import (
    DbDeletedRun,
    DbEvalImport,
    DbLogLine,
    DbLoraModel,
    DbRun,
    DbWorkspace,
)
from osmosis_ai.platform.runs.lifecycle import COMMAND_GROUPS, KIND_NAMES, OPEN
from osmosis_ai.platform.runs.run_store import RunCounts

logger = logging.getLogger("osmosis_ai.platform.runs")


class RunDeletion:
    """Deletes runs."""

    def __init__(self, db: Database, clock: Clock, blobs: BlobStore, counts: RunCounts) -> None:
        self._db = db
        self._clock = clock
        self._blobs = blobs
        self._counts = counts

    def delete(self, run: DbRun) -> None:
        """Delete a run, with its samples, curves, adapters, log and files."""
        with self._db.transaction() as session:
            # A deployment locks the workspace's row too, so no adapter is deployed in between.
            session.get_one(DbWorkspace, run.workspace_id, with_for_update=True)
            current = session.get(DbRun, run.id, with_for_update=True)
            if current is None:
                return
            if current.status in OPEN:
                group = COMMAND_GROUPS[current.kind]
                raise ConflictError(
                    f"the {KIND_NAMES[current.kind]} run '{current.name}' is {current.status}: only ended runs can be "
                    "deleted.",
                    hint=f"stop it first with `{group} stop {current.name}`",
                )
            _require_unneeded(session, current)
            session.add(DbDeletedRun(id=current.id, deleted_at=self._clock.now()))
            session.execute(delete(DbLogLine).where(DbLogLine.subject_id == current.id))
            # Without this row, the same evaluation may be uploaded again.
            session.execute(delete(DbEvalImport).where(DbEvalImport.run_id == current.id))
            # Samples, files, curves and adapters are deleted with the row.
            session.execute(delete(DbRun).where(DbRun.id == current.id))
        self._counts.forget(run.workspace_id)
        try:
            self._remove_files(run.id)
        except (OSError, OsmosisError) as error:
            logger.warning("the files of the deleted run %s are deleted later: %s", run.id, error)

    def finish(self) -> None:
        """Delete the files that an interruption or an unavailable store has left of deleted runs."""
        try:
            with self._db.session() as session:
                left = list(session.scalars(select(DbDeletedRun.id)))
            for run_id in left:
                try:
                    self._remove_files(run_id)
                except BlobStoreSilent:
                    raise
                except (OSError, BlobError) as error:  # the files of other runs are deleted all the same
                    logger.warning("the files of the deleted run %s stay for now: %s", run_id, error)
        except OsmosisError as error:
            logger.warning("files of deleted runs stay for now: %s", error)

    def _remove_files(self, run_id: str) -> None:
        self._blobs.delete_below(f"runs/{run_id}")
        with self._db.transaction() as session:
            session.execute(delete(DbDeletedRun).where(DbDeletedRun.id == run_id))


def _require_unneeded(session: Session, run: DbRun) -> None:
    """Check that no adapter of the run is deployed or used by an open run."""
    of_run = select(DbLoraModel).where(DbLoraModel.run_id == run.id)
    models = session.scalars(of_run.order_by(DbLoraModel.step)).all()
    for model in models:
        if model.deployment_status == "active":
            raise ConflictError(
                f"the run '{run.name}' cannot be deleted: its model '{model.name}' is deployed.",
                hint=f"undeploy it first with `osmosis model undeploy {model.name}`",
            )
    names = {f"{model.base_model}:{model.name}": model.name for model in models}
    users = (DbRun.workspace_id == run.workspace_id, DbRun.status.in_(OPEN), DbRun.model_path.in_(names))
    user = session.scalars(select(DbRun).where(*users).order_by(DbRun.created_at)).first()
    if user is not None:
        raise ConflictError(
            f"the run '{run.name}' cannot be deleted: its model '{names[user.model_path]}' is used by the "
            f"{KIND_NAMES[user.kind]} run '{user.name}', which is {user.status}.",
            hint=f"wait for it, or stop it with `{COMMAND_GROUPS[user.kind]} stop {user.name}`",
        )
