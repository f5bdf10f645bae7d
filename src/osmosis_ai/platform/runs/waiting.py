"""Why a run waits: for its code to be packed, for a worker, or for the store.

The status of such a run is ``pending`` or ``running``, as scripts for the hosted service expect; this text is shown in
addition.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from sqlalchemy import select
from sqlalchemy.orm import Session

from osmosis_ai.platform.db.engine import Database
from osmosis_ai.platform.db.tables import DbRun, DbRunShard
from osmosis_ai.platform.machines import Demands, PoolWaits, Wait, format_age
from osmosis_ai.platform.runs.lifecycle import OPEN
from osmosis_ai.platform.runs.run_store import Queue

STOPPING = "it is stopping: the run ends when its workers have sent their last results."
PACKING = "its code is being packed for workers."


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
