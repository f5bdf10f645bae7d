"""The runs of workspaces as users see them: lists, details, why they wait, and requests to stop or delete them.

Every query filters by workspace first. List entries of ended runs are cached.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Protocol

from sqlalchemy import bindparam, delete, func, select
from sqlalchemy.orm import Session, defer, joinedload

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
    DbRunShard,
    DbWorkspace,
)
from osmosis_ai.platform.log_lines import LogLine
from osmosis_ai.platform.logs import LogStore
from osmosis_ai.platform.machines import Demands, PoolWaits, Wait, format_age
from osmosis_ai.platform.refusals import ApiError
from osmosis_ai.platform.runs.lifecycle import COMMAND_GROUPS, KIND_NAMES, OPEN, RunKind
from osmosis_ai.platform.workspaces import row_named

logger = logging.getLogger("osmosis_ai.platform.runs")

STOPPING = "it is stopping: the run ends when its workers have sent their last results."
PACKING = "its code is being packed for workers."

_NEWEST_FIRST = (DbRun.created_at.desc(), DbRun.id.desc())
_COUNT_KEPT_S = 30.0
_MOST_ENDED = 4096

# The index alone finds the ids, however large the offset is.
_PAGE_IDS = (
    select(DbRun.id)
    .where(DbRun.workspace_id == bindparam("workspace_id"), DbRun.kind == bindparam("kind"))
    .order_by(*_NEWEST_FIRST)
    .limit(bindparam("limit"))
    .offset(bindparam("offset"))
    .subquery()
)
_PAGE = (
    select(DbRun.id, DbRun.completed_at).join(_PAGE_IDS, DbRun.id == _PAGE_IDS.c.id).order_by(*_NEWEST_FIRST)
)
_LISTED = (
    select(DbRun)
    .where(DbRun.id.in_(bindparam("ids", expanding=True)))
    .options(joinedload(DbRun.creator))
    .options(defer(DbRun.metrics), defer(DbRun.training_state), defer(DbRun.sealed_secrets))
)


class Queue(Protocol):
    """The methods of the queue (``platform/queue``) that runs call, each in its caller's transaction."""

    term: timedelta
    """How long a lease lasts."""

    def add(self, session: Session, run: DbRun, attempts: Sequence[tuple[int, int]] | None = None) -> None:
        """Queue a pending run: all of it, or only these attempts (row, number) of an evaluation."""

    def request_stop(self, session: Session, run: DbRun) -> None:
        """Make a run stop: at once if no worker has begun with it."""

    def time(self, session: Session) -> datetime:
        """Return the present moment by the clock of leases."""


@dataclass
class RunStore:
    """The runs of all workspaces, each with its ``creator``."""

    _db: Database
    _clock: Clock
    _blobs: BlobStore
    _logs: LogStore
    _queue: Queue
    _demands: Demands
    _executes_nothing: str | None

    def __post_init__(self) -> None:
        # Counting a hundred thousand runs takes milliseconds: total, newest run and time of counting.
        self._counts: dict[str, dict[RunKind, tuple[int, str | None, float]]] = {}
        # An ended run that is reopened ends at another moment.
        self._ended: dict[tuple[str, datetime | None], DbRun] = {}

    def page(self, workspace_id: str, kind: RunKind, *, limit: int, offset: int) -> tuple[list[DbRun], int]:
        """Return one page of a workspace's runs without metrics, newest first, and the number of all its runs."""
        asked = {"workspace_id": workspace_id, "kind": kind, "limit": limit, "offset": offset}
        with self._db.session() as session:
            total = self._count(session, workspace_id, kind)
            keys = [(id, completed_at) for id, completed_at in session.execute(_PAGE, asked)]
            known = {key: run for key in keys if (run := self._ended.get(key)) is not None}
            if missing := [id for id, completed_at in keys if (id, completed_at) not in known]:
                found = session.scalars(_LISTED, {"ids": missing})
                known |= {(run.id, run.completed_at): run for run in found}
        if len(self._ended) > _MOST_ENDED:
            self._ended.clear()
        self._ended.update((key, run) for key, run in known.items() if run.status not in OPEN)
        return [known[key] for key in keys], total

    def _count(self, session: Session, workspace_id: str, kind: RunKind) -> int:
        """Return the number of runs, at most :data:`_COUNT_KEPT_S` old unless there is a newer run."""
        counts = self._counts.setdefault(workspace_id, {})
        mine = (DbRun.workspace_id == workspace_id, DbRun.kind == kind)
        newest = session.scalar(select(DbRun.id).where(*mine).order_by(*_NEWEST_FIRST).limit(1))
        now = self._clock.monotonic()
        if kind in counts:
            total, counted_newest, counted_at = counts[kind]
            if counted_newest == newest and now - counted_at < _COUNT_KEPT_S:
                return total
        total = session.scalar(select(func.count()).select_from(DbRun).where(*mine)) or 0
        # If the workspace was forgotten in between, this number is not used again.
        counts[kind] = (total, newest, now)
        return total

    def forget_count(self, workspace_id: str) -> None:
        """Count the runs of a workspace again, since one was created or deleted."""
        self._counts.pop(workspace_id, None)

    def get(self, workspace_id: str, kind: RunKind, name_or_id: str) -> DbRun:
        mine: Any = select(DbRun).where(DbRun.workspace_id == workspace_id, DbRun.kind == kind)
        mine = mine.options(joinedload(DbRun.creator))
        called, see = f"{KIND_NAMES[kind]} run", f"see `{COMMAND_GROUPS[kind]} list`"
        with self._db.session() as session:
            run: DbRun = row_named(session, mine, DbRun, name_or_id, called=called, otherwise=see)[0]
            return run

    def waits(self, runs: Iterable[DbRun] = ()) -> RunWaits:
        """Return what explains why runs wait, having read what it needs of these."""
        waits = RunWaits(self._db, self._queue, self._demands, self._executes_nothing)
        if runs := list(runs):
            with self._db.session() as session:
                waits.read(session, runs)
        return waits

    def stop(self, workspace_id: str, kind: RunKind, name_or_id: str, *, by: str) -> DbRun:
        """Ask a run to stop, and return it; repeating it changes nothing."""
        found = self.get(workspace_id, kind, name_or_id)
        with self._db.transaction() as session:
            run = session.get_one(DbRun, found.id, with_for_update=True)
            if run.status not in OPEN:
                ended = ApiError(
                    409, "RUN_ENDED", f"the run {run.name} has already ended: {run.status}.", id=run.id
                )
                ended.extra["status"] = run.status
                raise ended
            if run.stop_requested_at is None:
                self._logs.add(session, run.id, [LogLine(f"{by} asked for the run to stop", step="run")])
                self._queue.request_stop(session, run)
            return run

    def delete(self, run: DbRun) -> None:
        """Delete an ended run with its samples, curves, adapters, log and files.

        One transaction deletes the rows and leaves the run's id in ``deleted_runs`` until the files are gone, so that
        an interrupted deletion is finished later. References by name to the run or its adapters remain.
        """
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
        self.forget_count(run.workspace_id)
        try:
            self._remove_files(run.id)
        except (OSError, OsmosisError) as error:
            logger.warning("the files of the deleted run %s are deleted later: %s", run.id, error)

    def finish_deletions(self) -> None:
        """Delete the files that an interruption or an unavailable store has left of deleted runs."""
        try:
            for run_id in self._db.scalars(select(DbDeletedRun.id)):
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
    if deployed := [model.name for model in models if model.deployment_status == "active"]:
        listed = ", ".join(f"'{name}'" for name in deployed)
        are = f"models {listed} are" if len(deployed) > 1 else f"model {listed} is"
        raise ConflictError(
            f"the run '{run.name}' cannot be deleted: its {are} deployed.",
            hint=f"undeploy first: `{'; '.join(f'osmosis model undeploy {name}' for name in deployed)}`",
        )
    names = {f"{model.base_model}:{model.name}": model.name for model in models}
    users = (DbRun.workspace_id == run.workspace_id, DbRun.status.in_(OPEN), DbRun.model_path.in_(names))
    open_runs = session.scalars(select(DbRun).where(*users).order_by(DbRun.created_at, DbRun.name)).all()
    if open_runs:
        uses = [
            f"its model '{names[user.model_path]}' is used by the {KIND_NAMES[user.kind]} run '{user.name}', "
            f"which is {user.status}"
            for user in open_runs
        ]
        stops = "; ".join(f"{COMMAND_GROUPS[user.kind]} stop {user.name}" for user in open_runs)
        raise ConflictError(
            f"the run '{run.name}' cannot be deleted: {'; '.join(uses)}.",
            hint=f"wait until they end, or stop them: `{stops}`",
        )


class RunWaits:
    """Explains why the runs of one list wait, with few statements for all of them."""

    def __init__(self, db: Database, queue: Queue, demands: Demands, executes_nothing: str | None) -> None:
        self._db = db
        self._queue = queue
        self._executes_nothing = executes_nothing
        self._pools = PoolWaits(db, demands)
        self._shards: dict[str, list[DbRunShard]] = {}

    def read(self, session: Session, runs: Iterable[DbRun]) -> RunWaits:
        """Read the shards of all open runs of the list at once; those of other runs are read one by one."""
        read: dict[str, list[DbRunShard]] = {run.id: [] for run in runs if run.status in OPEN}
        if read:
            self._now = self._queue.time(session)
            asked = select(DbRunShard).where(DbRunShard.run_id.in_(read), DbRunShard.status.in_(OPEN))
            for shard in session.scalars(asked.order_by(DbRunShard.number)):
                read[shard.run_id].append(shard)
            self._shards |= read
        return self

    def why(self, run: DbRun) -> str | None:
        """Return why no worker executes a run, or a part of it, or that it is stopping; None if neither."""
        return self._wait(run)[0]

    def silent_since(self, run: DbRun) -> datetime | None:
        """Return when the worker of a run was last heard, if its silence is why it waits."""
        return self._wait(run)[1]

    def _wait(self, run: DbRun) -> Wait:
        if run.status not in OPEN:
            return None, None
        if run.stop_requested_at is not None:
            return STOPPING, None
        if run.id not in self._shards:
            with self._db.session() as session:
                self.read(session, [run])
        shards = self._shards[run.id]
        waits = [self._shard_wait(run, shard) for shard in shards]
        is_alike = len({reason for reason, _ in waits}) == 1
        for shard, (reason, silent_since) in zip(shards, waits, strict=True):
            if reason is not None:
                prefix = "" if is_alike else f"worker {shard.number + 1} of {shard.count}: "
                return prefix + reason, silent_since
        return None, None

    def _shard_wait(self, run: DbRun, shard: DbRunShard) -> Wait:
        if shard.kind == "finalize":
            return shard.waits, None
        if run.error is not None:
            return f"it is ending because {run.error.partition('. ')[0].rstrip('.')}.", None
        silent_since, expires_at = shard.heartbeat_at, shard.lease_expires_at
        is_owned = expires_at is not None and expires_at > self._now
        if (shard.kind == "prepare" or not is_owned) and run.pool is None and self._executes_nothing:
            return f"isolation: {self._executes_nothing}", None
        if shard.kind == "prepare":
            return shard.waits or PACKING, None
        if not is_owned and run.pool is not None:
            reason, since = self._pools.why(run.workspace_id, run.pool, run.request, self._now)
            if reason is not None:
                return reason, since
        if expires_at is None or silent_since is None:
            is_released = shard.attempt and not shard.waits
            return (
                "its worker released it; it waits for another worker." if is_released else shard.waits,
                None,
            )
        silent_s = (self._now - silent_since).total_seconds()
        if silent_s < self._queue.term.total_seconds() / 2:
            return None, None
        silent = f"its worker has been silent for {format_age(silent_s)}"
        if not is_owned:
            return f"{silent}; it waits for another worker.", silent_since
        left = format_age((expires_at - self._now).total_seconds())
        return f"{silent}; another worker may continue it in {left}.", silent_since
