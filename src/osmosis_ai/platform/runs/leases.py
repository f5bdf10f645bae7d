"""Leases: only the worker whose token is in a run's row may write the run.

A lease is a token with an expiry in the run's row. A claim is one transaction that replaces the token, so at most one
token is valid. Every write of a worker goes through :meth:`Leases.writing`, which checks the token in the same
transaction, so a replaced owner cannot write (fencing). The expiry only says when others *may* take the run. Until
one does, its owner, whose machine may have been suspended, may continue.

The current time is the database's on PostgreSQL (``clock_timestamp()``; ``now()`` stands still in a transaction) and
the platform's on SQLite, which has no clock. Clocks jump, so they only decide *when to try*:

- If the clock is set forward, a live lease looks expired. At worst its run is taken over early and continues from its
  journal.
- If it is set back, an expiry further ahead than a lease's term counts as expired, so a dead owner's run does not wait
  for the old time. The same holds for a pause during which a run must not be claimed.

After downtime, the platform gives every owner a new term before anyone may claim (:meth:`Leases.renew_all`).
No clock error can create two owners or a second outcome; that depends only on the row.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement, and_, func, or_, select, update
from sqlalchemy.orm import InstrumentedAttribute, Session

from osmosis_ai.platform.clock import Clock, SystemClock
from osmosis_ai.platform.db.engine import Database
from osmosis_ai.platform.db.tables import DbRun
from osmosis_ai.platform.runs.heard_runs import HeardRun, find_heard, keep_heard
from osmosis_ai.platform.runs.lifecycle import OPEN, LeaseLostError, Outcome

LEASE = timedelta(seconds=30)
"""How long a lease lasts from each renewal on, unless the platform's config says otherwise."""
# Between two readings of a healthy clock: the time that a row may have been written "ahead".
CLOCK_SLACK = timedelta(seconds=1)
LONGEST_PAUSE = timedelta(minutes=5)
"""How far ahead ``claimable_at`` of a run is written at most."""
_CLOCKS_COMPARED_S = 10.0
"""How often the database's clock is compared with the platform's, where a page tells how long a worker has been silent."""


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to write a run."""

    run_id: str
    token: str = field(repr=False)
    attempt: int


class Leases:
    """The leases of one platform's runs."""

    def __init__(self, db: Database, clock: Clock, term: timedelta = LEASE) -> None:
        self._db = db
        self._clock = clock
        self.term = term
        self._ahead: tuple[float, timedelta] | None = None

    def now(self, session: Session) -> datetime:
        """Return the moment by which leases are written and judged."""
        if self._db.is_sqlite or not isinstance(self._clock, SystemClock):
            return self._clock.now()
        moment: datetime = session.scalars(select(func.clock_timestamp())).one()
        return moment

    def silent_at(self, heartbeat_at: datetime | None) -> datetime | None:
        """Return the moment, where an owner that was heard at ``heartbeat_at`` is silent by now; None where it is not."""
        if heartbeat_at is None:
            return None
        moment = self._clock.now() + self._database_is_ahead()
        return moment if moment - heartbeat_at >= self.term / 2 else None

    def _database_is_ahead(self) -> timedelta:
        """Return by how much the database's clock is; it is asked once in a while, for a list of runs as for one."""
        if self._db.is_sqlite or not isinstance(self._clock, SystemClock):
            return timedelta()
        asked_at, known = self._clock.monotonic(), self._ahead
        if known is None or asked_at - known[0] >= _CLOCKS_COMPARED_S:
            with self._db.session() as session:
                known = self._ahead = (asked_at, self.now(session) - self._clock.now())
        return known[1]

    def claim(self, run_id: str, token: str) -> Lease | None:
        """Become the owner of a run; None when it has an owner, has ended or does not exist."""
        with self._db.transaction() as session:
            run = session.get(DbRun, run_id, with_for_update=True)
            return self.give(session, run, token) if run is not None and self.is_open(session, run) else None

    def is_free(self, run: DbRun) -> bool:
        """Tell whether nobody owns a run that was read just now."""
        with self._db.session() as session:
            return is_free(run, self.now(session), self.term)

    def is_open(self, session: Session, run: DbRun) -> bool:
        """Tell whether ``run`` has not ended, and nobody owns it."""
        return run.status in OPEN and is_free(run, self.now(session), self.term)

    def give(self, session: Session, run: DbRun, token: str) -> Lease:
        """Make the bearer of ``token`` the owner of a run that is open, as part of the caller's transaction."""
        run.status = "running"
        run.started_at = run.started_at or self._clock.now()
        run.attempt += 1
        run.lease_token = token
        self.extend(session, run)
        return Lease(run.id, token, run.attempt)

    def extend(self, session: Session, run: DbRun) -> None:
        """Give the owner of ``run`` a whole term from now on, as part of the caller's transaction."""
        now = self.now(session)
        run.heartbeat_at = now
        run.lease_expires_at = now + self.term

    def renew_all(self) -> None:
        """Give every owner a whole term from now on: none of them could renew while the platform was away."""
        with self._db.transaction() as session:
            session.execute(
                update(DbRun)
                .where(DbRun.status == "running", DbRun.lease_expires_at.is_not(None))
                .values(lease_expires_at=self.now(session) + self.term)
            )

    def renew(self, lease: Lease) -> None:
        """Keep the run for another while."""
        with self.writing(lease):
            pass

    def release(self, run_id: str, token: str) -> None:
        """Release the run for another worker; does nothing if ``token`` does not own it."""
        with self._db.transaction() as session:
            run = session.get(DbRun, run_id, with_for_update=True)
            if run is not None and run.lease_token == token:
                _clear(run)

    def require(self, lease: Lease) -> None:
        """Find out by reading whether ``lease`` counts, before anything is done for its owner."""
        with self._db.session() as session:
            run = session.get(DbRun, lease.run_id)
        if run is None or not _is_owner(run, lease):
            raise _lost(lease)

    @contextmanager
    def writing(self, lease: Lease) -> Iterator[tuple[Session, DbRun]]:
        """Write the run's row and what belongs to it, all or nothing; also renews the lease."""
        with self._db.transaction() as session:
            run = session.get(DbRun, lease.run_id, with_for_update=True)
            if run is None or not _is_owner(run, lease):
                raise _lost(lease)
            self.extend(session, run)
            yield session, run

    @contextmanager
    def hearing(self, lease: Lease) -> Iterator[tuple[Session, HeardRun]]:
        """Write an evaluation's exchange like :meth:`writing`, with statements limited to named columns."""
        with self._db.transaction() as session:
            run = find_heard(session, lease.run_id)
            if run is None or not _is_owner(run, lease):
                raise _lost(lease)
            yield session, run
            if not session.in_transaction():
                return  # taken back
            is_by_database = not self._db.is_sqlite and isinstance(self._clock, SystemClock)
            keep_heard(session, run, self.term, None if is_by_database else self._clock.now())

    def ask_to_stop(self, run: DbRun) -> None:
        """Have ``run`` stop, as part of the caller's transaction: at once where nobody works on it yet."""
        if run.status == "pending":
            self.end(run, "stopped")
        else:
            run.stop_requested_at = self._clock.now()

    def end(self, run: DbRun, outcome: Outcome, error: str | None = None) -> None:
        """Give ``run``, as part of the caller's transaction, its final status; its secrets are forgotten."""
        if run.status not in OPEN:
            raise LeaseLostError(f"the run {run.id} has already ended: {run.status}.")
        run.status = outcome
        run.error = error
        run.completed_at = self._clock.now()
        run.sealed_secrets = None
        _clear(run)


def is_free(run: DbRun, now: datetime, term: timedelta = LEASE) -> bool:
    """Tell whether nobody owns the run, or its owner has been silent for too long."""
    if run.lease_token is None or run.lease_expires_at is None:
        return True
    return _is_over(run.lease_expires_at, now, term)


def that_known_workers_have(now: datetime) -> ColumnElement[bool]:
    """Return the condition of a query for runs that machines with a name work on."""
    return and_(DbRun.status == "running", DbRun.worker_id.is_not(None), DbRun.lease_expires_at > now)


def last_heard_of_workers() -> Any:
    """Return the query for when machines with a name last spoke of a run (``worker_id``, ``moment``)."""
    of_workers = DbRun.status == "running", DbRun.worker_id.is_not(None), DbRun.heartbeat_at.is_not(None)
    last = func.max(DbRun.heartbeat_at).label("moment")
    return select(DbRun.worker_id, last).where(*of_workers).group_by(DbRun.worker_id)


def that_are_free(now: datetime, term: timedelta) -> ColumnElement[bool]:
    """Return the condition of a query for running runs of which :func:`is_free` holds."""
    return _are_over(DbRun.lease_expires_at, now, term)


def is_due(run: DbRun, now: datetime) -> bool:
    """Tell whether the run may be claimed, as far as nobody owns it: no pause keeps others from it."""
    return run.claimable_at is None or _is_over(run.claimable_at, now, LONGEST_PAUSE)


def that_are_due(now: datetime) -> ColumnElement[bool]:
    """Return the condition of a query for runs of which :func:`is_due` holds."""
    return _are_over(DbRun.claimable_at, now, LONGEST_PAUSE)


def _is_over(until: datetime, now: datetime, longest: timedelta) -> bool:
    return until <= now or until > now + longest + CLOCK_SLACK


def _are_over(
    until: InstrumentedAttribute[datetime | None], now: datetime, longest: timedelta
) -> ColumnElement[bool]:
    return or_(until.is_(None), until <= now, until > now + longest + CLOCK_SLACK)


def _is_owner(run: DbRun | HeardRun, lease: Lease) -> bool:
    # What was let go by name keeps its token, to know who asks again.
    return run.status == "running" and run.lease_token == lease.token and run.lease_expires_at is not None


def _lost(lease: Lease) -> LeaseLostError:
    return LeaseLostError(f"the run {lease.run_id} is no longer this worker's.")


def _clear(run: DbRun) -> None:
    run.lease_token = run.lease_expires_at = None
