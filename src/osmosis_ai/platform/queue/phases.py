"""The phases of a run: prepared, executed by workers, finalized; or stopped before.

``pending -> running -> finished | failed | stopped``. A run has one ``prepare`` shard, then one or more ``work`` shards,
then one ``finalize`` shard. It becomes ``running`` with the first claim of a ``work`` shard. A shard that fails, a
request to stop, or a budget that is used up ends the others as soon as their workers have sent what they have.

The budget of an evaluation (``max_cost`` and ``max_tokens`` of ``[advanced.execution]``) limits what one submit or one
retry spends. It is checked each time a worker reports records. The attempts that are in flight by then have cost
something too.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement, and_, case, delete, func, or_, select, update
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import InstrumentedAttribute, Session

from osmosis_ai.config.execution import ExecutionSection
from osmosis_ai.platform.clock import Clock, SystemClock
from osmosis_ai.platform.db.engine import Database, DatabaseBusyError, StorageFullError
from osmosis_ai.platform.db.tables import DbRun, DbRunShard, DbSample, new_id
from osmosis_ai.platform.log_lines import LogLine
from osmosis_ai.platform.logs import LogStore
from osmosis_ai.platform.machines import Demands
from osmosis_ai.platform.runs.lifecycle import OPEN, Outcome
from osmosis_ai.platform.runs.reopening import forget_resume, resume_archive_of

TERM = timedelta(seconds=30)
"""How long a lease lasts from each renewal, unless the platform's settings say otherwise."""
LONGEST_PAUSE = timedelta(minutes=5)
"""How far ahead ``not_before`` of a shard is set at most."""
# Two readings of a healthy clock may differ by this.
_CLOCK_SLACK = timedelta(seconds=1)


@dataclass
class RunPhases:
    """Moves runs from phase to phase. Methods that take a session are part of its transaction."""

    db: Database
    clock: Clock
    logs: LogStore
    demands: Demands = field(default_factory=Demands)
    term: timedelta = TERM

    def __post_init__(self) -> None:
        self.changed = threading.Event()
        """Set when the platform itself may have a shard to execute."""
        self.claimable = threading.Event()
        """Set when a worker may have a shard to execute."""
        self._interrupted = False
        # Leases use the database's clock instead of the platform's.
        self._has_own_clock = not self.db.is_sqlite and isinstance(self.clock, SystemClock)

    def add(self, session: Session, run: DbRun, attempts: Sequence[tuple[int, int]] | None = None) -> None:
        """Queue a pending run: all of it, or only these attempts (row, number) of an evaluation that is retried."""
        session.execute(delete(DbRunShard).where(DbRunShard.run_id == run.id))
        listed = None if attempts is None else [list(each) for each in attempts]
        session.add(DbRunShard(id=new_id("shd"), run_id=run.id, kind="prepare", attempts=listed))
        self.changed.set()

    def request_stop(self, session: Session, run: DbRun) -> None:
        """Make a run stop: at once if no worker has begun with it."""
        run.stop_requested_at = self.clock.now()
        self._advance(session, run)

    def close_stopped(self) -> None:
        """Stop the shards without a worker of runs that must end, since no worker claims them any more."""
        ending = or_(DbRun.stop_requested_at.is_not(None), DbRun.error.is_not(None))
        asked = select(DbRun.id).join(DbRunShard).where(DbRun.status.in_(OPEN), ending).distinct()
        for run_id in self.db.scalars(asked.where(DbRunShard.kind != "finalize", self._is_free())):
            with self._writing() as session:
                run = session.get(DbRun, run_id, with_for_update=True)
                if run is not None and run.status in OPEN:
                    self._advance(session, run)

    def extend_all(self) -> None:
        """Give every owner a whole term from now on: none could renew its lease while the platform was away."""
        with self.db.transaction() as session:
            owned = update(DbRunShard).where(DbRunShard.status == "running")
            session.execute(owned.values(lease_expires_at=self._now + self.term))

    def _advance(self, session: Session, run: DbRun) -> None:
        """Stop the idle shards of a run that must end, and begin its next phase once no shard is open."""
        if run.stop_requested_at is not None or run.error is not None:
            idle = DbRunShard.run_id == run.id, DbRunShard.kind != "finalize", self._is_free()
            session.execute(update(DbRunShard).where(*idle).values(status="stopped", lease_expires_at=None))
        mine = select(DbRunShard).where(DbRunShard.run_id == run.id).order_by(DbRunShard.number)
        mine = mine.with_for_update().execution_options(populate_existing=True)
        shards = session.scalars(mine).all()
        if run.status not in OPEN or any(shard.status in OPEN for shard in shards):
            return
        if [(shard.kind, shard.status) for shard in shards] == [("prepare", "finished")]:
            session.add_all(self._work_shards(run, shards[0].attempts))
            self.claimable.set()
        elif run.status == "pending" or any(shard.kind == "finalize" for shard in shards):
            # No worker has begun with it, or it cannot be finalized.
            self.end_run(session, run)
        else:
            session.add(DbRunShard(id=new_id("shd"), run_id=run.id, kind="finalize"))
            self.changed.set()

    def _work_shards(self, run: DbRun, attempts: list[Any] | None) -> list[DbRunShard]:
        workers = self.demands.read(run.request).workers or 1
        rows = int((run.results or {}).get("sampled_rows") or 1) if run.kind == "eval" else 1
        parts: list[list[Any] | None]
        if attempts is None:
            parts = [None] * min(workers, rows)
        else:
            place = {row: place for place, row in enumerate(dict.fromkeys(row for row, _ in attempts))}
            count = min(workers, len(place))
            parts = [
                [each for each in attempts if place[each[0]] % count == number] for number in range(count)
            ]
        return [
            DbRunShard(
                id=new_id("shd"), run_id=run.id, kind="work", number=number, count=len(parts), attempts=part
            )
            for number, part in enumerate(parts)
        ]

    def end_run(self, session: Session, run: DbRun) -> None:
        """Give a run its final status; its secrets are forgotten."""
        outcome: Outcome
        if run.stop_requested_at is not None:
            outcome, run.error = "stopped", None
        else:
            outcome = "finished" if run.error is None else "failed"
        if run.kind == "training":
            if outcome == "finished":
                forget_resume(run)
            elif run.error is not None and (archive := resume_archive_of(run)) is not None:
                run.error += (
                    f" Resume it from the checkpoint of step {archive['step']}: "
                    f"`osmosis train resume {run.name}`."
                )
        run.status, run.completed_at, run.sealed_secrets = outcome, self.clock.now(), None
        line = LogLine(run.error or outcome, level="error" if run.error else "info", step="run")
        self.logs.add(session, run.id, [line])

    @contextmanager
    def _writing(self) -> Iterator[Session]:
        """Open a transaction; the first one after an outage extends all leases before anything else is written."""
        if self._interrupted:
            self.extend_all()
            self._interrupted = False
        try:
            with self.db.transaction() as session:
                yield session
        except (DatabaseBusyError, StorageFullError, DBAPIError) as error:
            # Other database errors are those of one call, which must not extend the leases of all.
            self._interrupted |= not isinstance(error, DBAPIError) or error.connection_invalidated
            raise

    @property
    def _now(self) -> Any:
        """The present moment by the clock of leases; on PostgreSQL, an expression for its statements."""
        # `now()` would be the start of the transaction.
        return func.clock_timestamp() if self._has_own_clock else self.clock.now()

    def time(self, session: Session) -> datetime:
        """Return the present moment by the clock of leases."""
        now = self._now
        return now if isinstance(now, datetime) else session.scalars(select(now)).one()

    def _extend(self, shard: DbRunShard) -> None:
        shard.heartbeat_at, shard.lease_expires_at = self._now, self._now + self.term

    def _is_free(self) -> ColumnElement[bool]:
        """Return the condition that no worker owns a shard."""
        return and_(DbRunShard.status.in_(OPEN), is_over(DbRunShard.lease_expires_at, self._now, self.term))

    def _is_claimable(self, kind: str) -> ColumnElement[bool]:
        due = is_over(DbRunShard.not_before, self._now, LONGEST_PAUSE)
        ready = and_(DbRunShard.kind == kind, self._is_free(), due, DbRun.status.in_(OPEN))
        if kind == "finalize":
            return ready
        return and_(ready, DbRun.stop_requested_at.is_(None), DbRun.error.is_(None))


def is_over(
    until: InstrumentedAttribute[datetime | None], now: Any, longest: timedelta
) -> ColumnElement[bool]:
    """Return the condition that a moment has passed, or lies further ahead than it was ever set: the clock was set back."""
    return or_(until.is_(None), until <= now, until > now + longest + _CLOCK_SLACK)


def used_up(session: Session, run_id: str, limits: ExecutionSection, planned: int) -> str | None:
    """Return why a run of ``planned`` attempts must end, as a sentence with what to do; None if it may go on, or is done."""
    if limits.max_cost is None and limits.max_tokens is None:
        return None
    name = session.scalar(select(DbRun.name).where(DbRun.id == run_id))
    problem = _problem(session, run_id, limits, f"osmosis eval retry {name}")
    if problem is None:
        return None
    is_scored = and_(DbSample.status == "success", DbSample.reward.is_not(None))
    is_done = or_(is_scored, DbSample.status == "skipped", DbSample.position > _reopened_at(run_id))
    done = session.scalar(select(func.count()).where(DbSample.run_id == run_id, is_done))
    return None if done == planned else problem


def _problem(session: Session, run_id: str, limits: ExecutionSection, again: str) -> str | None:
    tokens, cost = func.coalesce(DbSample.tokens, 0), func.coalesce(DbSample.cost_usd, 0.0)
    called = DbSample.model_calls > 0
    totals = select(
        func.sum(tokens + func.coalesce(DbSample.judge_tokens, 0)),
        func.sum(cost + func.coalesce(DbSample.judge_cost_usd, 0.0)),
        func.count(case((and_(called, tokens == 0), 1))),
        func.count(case((and_(called, DbSample.cost_usd.is_(None)), 1))),
    )
    new = DbSample.run_id == run_id, DbSample.position > _reopened_at(run_id)
    found = session.execute(totals.where(*new)).one()
    used_tokens, spent, without_tokens, without_cost = (number or 0 for number in found)
    if limits.max_cost is not None and spent >= limits.max_cost:
        return (
            f"its budget is used up: it had spent ${spent:.4f}, and max_cost is {limits.max_cost:g}. Continue with "
            f"`{again} --max-cost DOLLARS`."
        )
    if limits.max_tokens is not None and used_tokens >= limits.max_tokens:
        return (
            f"its budget is used up: it had used {used_tokens:,} tokens, and max_tokens is {limits.max_tokens:,}. Continue with "
            f"`{again} --max-tokens TOKENS`."
        )
    if without_tokens:
        return "its budget cannot be kept: the model does not report how many tokens it used. Submit it without one."
    if without_cost and limits.max_cost is not None:
        return "its budget cannot be kept: the price of the model is unknown. Limit it with `max_tokens` instead."
    return None


def _reopened_at(run_id: str) -> Any:
    return select(DbRun.reopened_at).where(DbRun.id == run_id).scalar_subquery()
