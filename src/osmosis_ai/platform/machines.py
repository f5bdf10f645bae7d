"""The machines that execute runs: requirements, known machines, and why no machine executes a pending run.

A machine is identified by its description and token, so a restart does not change it. Facts about machines are
informational: a claim decides whether a worker gets a shard.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import orjson
from sqlalchemy import delete, func, select, update
from sqlalchemy.orm import Session

from osmosis_ai.api.models.workers import ClaimRequest
from osmosis_ai.config.execution import ExecutionSection, read_execution
from osmosis_ai.platform.clock import Clock
from osmosis_ai.platform.config import PlatformConfig
from osmosis_ai.platform.db.base import upsert
from osmosis_ai.platform.db.engine import Database, DatabaseBusyError, StorageFullError
from osmosis_ai.platform.db.tables import DbKnownWorker, DbRunShard, DbWorkerToken

KEPT = timedelta(days=7)
"""How long a machine is listed after its last claim or run."""
_MOST_KEPT = 5000
_MOST_OF_TOKEN = 500
"""Maximum number of machines per token, since its holder can invent descriptions."""
_NOTED_EVERY = timedelta(minutes=1)
_MOST_NAMED = 3
_SILENT_AFTER = timedelta(minutes=3)
"""How long after its last claim or report a machine counts as available, as in `osmosis platform status`."""


# -- requirements ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Demands:
    """The operator's requirements for every machine, in addition to those of a run.

    Remote machines have their own settings, so these are sent with each run.
    """

    no_network: bool = False
    sandbox: bool = False

    @classmethod
    def of(cls, config: PlatformConfig) -> Demands:
        return cls(no_network=config.network == "none", sandbox=config.isolation == "required")

    def read(self, request: Mapping[str, Any]) -> ExecutionSection:
        """Return all requirements of a run, as submitted."""
        asked = read_execution(request.get("advanced_config"))
        more: dict[str, Any] = {}
        if self.no_network:
            more["network"] = "none"
        if self.sandbox and asked.pool is None:
            more["isolation"] = "required"
        return asked.model_copy(update=more) if more else asked


@dataclass(frozen=True, slots=True)
class Machine:
    """Resources that a worker offers to each run; None is assumed to be enough."""

    labels: frozenset[str] = frozenset()
    cpus: float | None = None
    gpus: float | None = None
    memory_gb: float | None = None
    sandbox: bool | None = None

    @classmethod
    def of(cls, known: ClaimRequest | DbKnownWorker) -> Machine:
        return cls(frozenset(known.labels), known.cpus, known.gpus, known.memory_gb, known.sandbox)

    def lacks(self, asks: ExecutionSection) -> Iterator[str]:
        """Yield each requirement of a run that the machine does not meet, with the machine's value."""
        for label in asks.labels or ():
            if label not in self.labels:
                yield f"no label `{label}`"
        for wanted, had, what in (
            (asks.cpus, self.cpus, "CPU" if asks.cpus == 1 else "CPUs"),
            (asks.gpus, self.gpus, "GPU" if asks.gpus == 1 else "GPUs"),
            (asks.memory_gb, self.memory_gb, "GiB of memory"),
        ):
            if wanted is not None and had is not None and wanted > had:
                yield f"{had:g} of {wanted:g} {what}"
        if asks.needs_sandbox and self.sandbox is False:
            yield "no sandbox"


def needs_key(asks: ExecutionSection) -> str | None:
    """Return a key that runs with the same requirements share; None without requirements."""
    asked = asks.model_dump(include={"cpus", "gpus", "memory_gb"})
    asked |= {"labels": sorted(set(asks.labels or ())), "sandbox": asks.needs_sandbox}
    known = {name: value for name, value in asked.items() if value}
    return orjson.dumps(known, option=orjson.OPT_SORT_KEYS).decode() if known else None


# -- known machines ----------------------------------------------------------------------------------


class KnownWorkers:
    """The machines that have claimed with a worker token."""

    def __init__(self, db: Database, clock: Clock) -> None:
        self._db = db
        self._clock = clock
        self._noted: dict[str, datetime] = {}

    def note(self, request: ClaimRequest, token: DbWorkerToken) -> str:
        """Record a claim's machine, at most once a minute, and return its id; never fails the claim."""
        described, now = _described(request, token), self._clock.now()
        known = _id_of(described)
        if known in self._noted and abs(now - self._noted[known]) < _NOTED_EVERY:
            return known
        row = {"id": known, "pool": token.pool, "seen_at": now, "left_at": None, **described}
        try:
            with self._db.transaction(wait_s=0) as session:
                upsert(session, DbKnownWorker, [row])
                newest = select(DbKnownWorker.id).where(DbKnownWorker.token_id == token.id)
                newest = newest.order_by(DbKnownWorker.seen_at.desc(), DbKnownWorker.id)
                if too_many := session.scalars(newest.offset(_MOST_OF_TOKEN)).all():
                    session.execute(delete(DbKnownWorker).where(DbKnownWorker.id.in_(too_many)))
        except (DatabaseBusyError, StorageFullError):
            return known
        if len(self._noted) > _MOST_KEPT:
            self._noted.clear()
        self._noted[known] = now
        return known

    def note_left(self, request: ClaimRequest, token: DbWorkerToken) -> None:
        """Record that a machine has left, until its next claim."""
        known = _id_of(_described(request, token))
        self._noted.pop(known, None)
        with self._db.transaction() as session:
            mine = update(DbKnownWorker).where(DbKnownWorker.id == known, DbKnownWorker.left_at.is_(None))
            session.execute(mine.values(left_at=self._clock.now()))

    def all(self) -> list[tuple[DbKnownWorker, int, datetime]]:
        """Return the machines with a valid token that have not left, with their active shards and when last seen."""
        with self._db.session() as session:
            active = _active(session, self._clock.now())
            seen = [(row, _last_seen(row, at)) for _, row, at in _known(session) if row is not None]
        return [
            (row, active.get(row.id, 0), last_seen)
            for row, last_seen in sorted(seen, key=lambda each: (each[0].pool, each[0].machine or ""))
            if row.id in active or not _has_left(row, last_seen)
        ]

    def forget_old(self) -> None:
        """Delete machines that have not been seen for long, and the oldest of too many."""
        now = self._clock.now()
        with self._db.transaction() as session:
            busy = list(_active(session, now))
            old = DbKnownWorker.seen_at < now - KEPT, DbKnownWorker.id.not_in(busy)
            session.execute(delete(DbKnownWorker).where(*old))
            if (session.scalar(select(func.count()).select_from(DbKnownWorker)) or 0) > _MOST_KEPT:
                newest = select(DbKnownWorker.id).order_by(DbKnownWorker.seen_at.desc()).limit(_MOST_KEPT)
                kept = set(session.scalars(newest))
                session.execute(delete(DbKnownWorker).where(DbKnownWorker.id.not_in(kept)))


def _described(request: ClaimRequest, token: DbWorkerToken) -> dict[str, Any]:
    facts = request.model_dump(include={"machine", "cpus", "gpus", "memory_gb", "sandbox", "sandbox_problem"})
    return {**facts, "token_id": token.id, "labels": sorted(set(request.labels))}


def _id_of(described: dict[str, Any]) -> str:
    return hashlib.sha256(orjson.dumps(described, option=orjson.OPT_SORT_KEYS)).hexdigest()[:40]


_HEARTBEAT_AT = (
    select(func.max(DbRunShard.heartbeat_at))
    .where(DbRunShard.worker_id == DbKnownWorker.id)
    .correlate(DbKnownWorker)
    .scalar_subquery()
)


def _known(session: Session) -> list[tuple[DbWorkerToken, DbKnownWorker | None, datetime | None]]:
    """Return the valid tokens, each with every machine that claims with it and its heartbeat, recently seen ones first."""
    known = (
        select(DbWorkerToken, DbKnownWorker, _HEARTBEAT_AT)
        .outerjoin(DbKnownWorker, DbKnownWorker.token_id == DbWorkerToken.id)
        .where(DbWorkerToken.revoked_at.is_(None))
        .order_by(DbKnownWorker.seen_at.desc(), DbKnownWorker.machine, DbKnownWorker.id)
    )
    return [(token, worker, at) for token, worker, at in session.execute(known)]


def _last_seen(worker: DbKnownWorker, heartbeat_at: datetime | None) -> datetime:
    return max(worker.seen_at, heartbeat_at or worker.seen_at)


def _has_left(worker: DbKnownWorker, last_seen: datetime) -> bool:
    # Workers with the same description and token are one machine here, and one of them may still report.
    return worker.left_at is not None and last_seen <= worker.left_at


def _active(session: Session, now: datetime) -> dict[str, int]:
    live = DbRunShard.status == "running", DbRunShard.lease_expires_at > now
    counted = select(DbRunShard.worker_id, func.count(DbRunShard.run_id.distinct())).where(*live)
    found = session.execute(counted.group_by(DbRunShard.worker_id))
    return {worker: runs for worker, runs in found if worker is not None}


# -- why a run of a pool waits -------------------------------------------------------------------------


Wait = tuple[str | None, datetime | None]
"""The reason why a run or shard waits, or None; and since when its worker is silent if that is the reason."""


class PoolWaits:
    """Explains why runs of pools wait; reads the machines once for a whole list of runs."""

    def __init__(self, db: Database, demands: Demands) -> None:
        self._db = db
        self._demands = demands
        self._known: list[tuple[DbWorkerToken, DbKnownWorker | None, datetime | None]] | None = None
        self._explained: dict[tuple[str, str, str | None], Wait] = {}

    def why(self, workspace_id: str, pool: str, request: Mapping[str, Any], now: datetime) -> Wait:
        """Return why no known worker of the pool can execute a run."""
        asks = self._demands.read(request)
        alike = workspace_id, pool, needs_key(asks)
        if alike not in self._explained:
            self._explained[alike] = self._explain(workspace_id, pool, asks, now)
        return self._explained[alike]

    def _explain(self, workspace_id: str, pool: str, asks: ExecutionSection, now: datetime) -> Wait:
        if self._known is None:
            with self._db.session() as session:
                self._known = _known(session)
        permitted = [
            (worker, heartbeat_at)
            for token, worker, heartbeat_at in self._known
            if token.pool == pool and (token.workspace_ids is None or workspace_id in token.workspace_ids)
        ]
        if not permitted:
            return (
                f"no worker token is valid for the pool '{pool}' and this workspace: the operator creates one "
                f"with `osmosis platform worker-token create --pool {pool}`."
            ), None
        workers = [(worker, _last_seen(worker, at)) for worker, at in permitted if worker is not None]
        if not workers:
            return f"no worker of the pool '{pool}' has asked for a run in the last {KEPT.days} days.", None
        fitting = [(worker, at) for worker, at in workers if not any(Machine.of(worker).lacks(asks))]
        if not fitting:
            return _why_none_fits(pool, asks, [worker for worker, _ in workers]), None
        if any(now - at < _SILENT_AFTER and not _has_left(worker, at) for worker, at in fitting):
            return None, None
        silent_since = max(max(at, worker.left_at or at) for worker, at in fitting)
        ago = f"{format_age((now - silent_since).total_seconds())} ago"
        if (count := len({worker.machine or worker.id for worker, _ in fitting})) == 1:
            seen = f"the only one that fits was last seen {ago}"
        else:
            seen = f"the {count} that fit were last seen {ago} or earlier"
        return f"it waits for a worker of the pool '{pool}': {seen}.", silent_since


def _why_none_fits(pool: str, asks: ExecutionSection, workers: Sequence[DbKnownWorker]) -> str:
    had = frozenset[str]().union(*(worker.labels for worker in workers))
    if nowhere := [label for label in asks.labels or () if label not in had]:
        named = ", ".join(f"`{label}`" for label in nowhere)
        return f"no known worker of the pool '{pool}' has the label{'s' if len(nowhere) > 1 else ''} {named}."
    # A machine is known once for each size and token that it claimed with.
    shown = list(dict.fromkeys(_described_lack(worker, asks) for worker in workers))
    if (more := len(shown) - _MOST_NAMED) > 0:
        shown[_MOST_NAMED:] = [f"and {more} more lack something"]
    return f"no known worker of the pool '{pool}' has everything this run requires: {'; '.join(shown)}."


def _described_lack(worker: DbKnownWorker, asks: ExecutionSection) -> str:
    lacking = list(Machine.of(worker).lacks(asks))
    because = f" ({worker.sandbox_problem})" if "no sandbox" in lacking and worker.sandbox_problem else ""
    return f"{worker.machine or worker.id[:8]} has {', '.join(lacking)}{because}"


def format_age(seconds: float) -> str:
    """Format a duration coarsely, so that open pages do not get an update every second."""
    if seconds < 120:
        return f"{max(5, 5 * round(seconds / 5))} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.0f} h"
