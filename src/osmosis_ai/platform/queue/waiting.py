"""Why a run waits: for its code to be packed, for a worker, or for the store.

The status of such a run is ``pending`` or ``running``, as scripts for the hosted service expect; this text is shown in
addition.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Protocol

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from osmosis_ai.platform.clock import Clock, SystemClock
from osmosis_ai.platform.db.engine import Database
from osmosis_ai.platform.db.tables import DbRunShard
from osmosis_ai.platform.machines import Demands, PoolWaits
from osmosis_ai.platform.runs.lifecycle import OPEN

STOPPING = "it is stopping: the run ends when its workers have sent their last results."
PACKING = "its code is being packed for workers."
_EXACT_S, _STEP_S = 10, 5
_CLOCKS_COMPARED_S = 10.0
"""How often the database's clock is compared with this machine's."""


class WaitingRun(Protocol):
    """The columns of a run that explaining its wait needs."""

    @property
    def id(self) -> str: ...
    @property
    def workspace_id(self) -> str: ...
    @property
    def status(self) -> str: ...
    @property
    def stop_requested_at(self) -> datetime | None: ...
    @property
    def pool(self) -> str | None: ...
    @property
    def request(self) -> Mapping[str, Any]: ...


class RunWaits:
    """Explains why the runs of one list wait, with at most three statements for all of them."""

    def __init__(
        self,
        db: Database,
        clock: DatabaseClock,
        demands: Demands,
        term: timedelta,
        executes_nothing: str | None,
    ) -> None:
        self._db = db
        self._clock = clock
        self._term = term
        self._executes_nothing = executes_nothing
        self._pools = PoolWaits(db, demands)
        self._shards: dict[str, list[DbRunShard]] = {}

    def read(self, session: Session, runs: Iterable[WaitingRun]) -> RunWaits:
        """Read the shards of all open runs of the list at once; those of other runs are read one by one."""
        self._shards |= _read_shards(session, [run.id for run in runs if run.status in OPEN])
        return self

    def why(self, run: WaitingRun) -> str | None:
        """Return why no worker executes a run, or a part of it, in a sentence; None if one does."""
        found = self._waiting(run)
        return found[0] if found is not None else None

    def silent_since(self, run: WaitingRun) -> datetime | None:
        """Return when the worker of a run was last heard, if its silence is why it waits."""
        found = self._waiting(run)
        return found[1] if found is not None else None

    def _waiting(self, run: WaitingRun) -> tuple[str, datetime | None] | None:
        if run.status not in OPEN or run.stop_requested_at is not None:
            return None
        if run.id not in self._shards:
            with self._db.session() as session:
                self.read(session, [run])
        shards = [shard for shard in self._shards[run.id] if shard.status in OPEN]
        if any(shard.kind == "prepare" for shard in shards):
            if run.pool is None and self._executes_nothing is not None:
                return f"isolation: {self._executes_nothing}", None
            waits = next((shard.waits for shard in shards if shard.waits), None)
            return waits or PACKING, None
        waiting = [(shard, self._shard_waits(run, shard)) for shard in shards]
        is_alike = len({found and found[0] for _, found in waiting}) == 1
        for shard, found in waiting:
            if found is not None:
                prefix = "" if is_alike else f"worker {shard.number + 1} of {shard.count}: "
                return prefix + found[0], found[1]
        return None

    def _shard_waits(self, run: WaitingRun, shard: DbRunShard) -> tuple[str, datetime | None] | None:
        if shard.kind == "finalize":
            return (shard.waits, None) if shard.waits else None
        now = self._clock.now()
        has_owner = shard.status == "running" and shard.lease_expires_at is not None
        if not has_owner or (shard.lease_expires_at is not None and shard.lease_expires_at <= now):
            if run.pool is None and self._executes_nothing is not None:
                return f"isolation: {self._executes_nothing}", None
            if run.pool is not None and (
                none_fits := self._pools.why(run.workspace_id, run.pool, run.request)
            ):
                return none_fits, None
        if shard.status == "pending":
            if shard.waits or not shard.attempt:
                return (shard.waits, None) if shard.waits else None
            return f"its worker released it; it waits for {_another(run)}.", None
        if shard.heartbeat_at is None or shard.lease_expires_at is None:
            return None
        silence, left = now - shard.heartbeat_at, shard.lease_expires_at - now
        if silence < self._term / 2:
            return None
        silent = f"its worker has been silent for {_about(silence, math.floor)}"
        if left <= timedelta():
            return f"{silent}; it waits for {_another(run)}.", shard.heartbeat_at
        return f"{silent}; in {_about(left, math.ceil)} {_another(run)} may continue it.", shard.heartbeat_at


class DatabaseClock:
    """The time of leases, without asking the database each time."""

    def __init__(self, db: Database, clock: Clock) -> None:
        self._db = db
        self._clock = clock
        self._ahead: tuple[float, timedelta] | None = None

    def now(self) -> datetime:
        """Return the present moment by the clock that leases use."""
        if self._db.is_sqlite or not isinstance(self._clock, SystemClock):
            return self._clock.now()
        asked_at, known = self._clock.monotonic(), self._ahead
        if known is None or asked_at - known[0] >= _CLOCKS_COMPARED_S:
            with self._db.session() as session:
                ahead = session.scalars(select(func.clock_timestamp())).one() - self._clock.now()
            known = self._ahead = (asked_at, ahead)
        return self._clock.now() + known[1]


def _read_shards(session: Session, run_ids: Sequence[str]) -> dict[str, list[DbRunShard]]:
    found: dict[str, list[DbRunShard]] = {run_id: [] for run_id in run_ids}
    if run_ids:
        asked = select(DbRunShard).where(DbRunShard.run_id.in_(run_ids)).order_by(DbRunShard.number)
        for shard in session.scalars(asked):
            found[shard.run_id].append(shard)
    return found


def _another(run: WaitingRun) -> str:
    return (
        "another worker of the platform" if run.pool is None else f"another worker of the pool '{run.pool}'"
    )


def _about(time: timedelta, whole: Callable[[float], int]) -> str:
    """Format a duration coarsely, so that open pages do not get an update every second."""
    seconds = time.total_seconds()
    if seconds < _EXACT_S:
        return f"{max(1, whole(seconds))} s"
    if seconds < 120:
        return f"{_STEP_S * whole(seconds / _STEP_S)} s"
    return f"{whole(seconds / 60)} min" if seconds < 7200 else f"{whole(seconds / 3600)} h"
