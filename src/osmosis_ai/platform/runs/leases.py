"""Who may write a run: the worker whose token the row holds, and nobody else.

A lease is a token with an expiry in the run's row. Claiming is one transaction that puts a new token there,
so at any moment at most one token counts. Every write of a worker goes through :meth:`Leases.writing`, which
reads the token in the same transaction: an owner who was replaced, however late it finds out, writes nothing
any more (fencing). The expiry only says when others *may* take the run; until somebody does, its owner, who
may have slept with the machine, goes on where it was.

Clocks jump, so none is trusted with more than *when to try*:

- set forward, a live lease looks expired; at worst its run is taken over early, and continues from its journal;
- set back, an expiry lies further ahead than a lease lasts, which no clock at hand can have written: it counts as
  expired, so a dead owner's run is not lost until the old time comes round again.

Neither can make two owners or a second outcome; that rests on the row alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from sqlalchemy import select
from sqlalchemy.orm import Session

from osmosis_ai.errors import ConflictError
from osmosis_ai.platform.clock import Clock
from osmosis_ai.platform.db.engine import Database
from osmosis_ai.platform.db.tables import DbRun
from osmosis_ai.platform.runs.lifecycle import OPEN, Outcome

LEASE = timedelta(seconds=30)
HEARTBEAT_S = 5.0
# Between two readings of a healthy clock: the time that a row may have been written "ahead".
_CLOCK_SLACK = timedelta(seconds=1)


class LeaseLostError(ConflictError):
    """The run has another owner now, or has ended; what was to be written was not."""


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to write a run.

    Attributes:
        attempt: how often the run has been claimed, this time included.
    """

    run_id: str
    token: str = field(repr=False)
    attempt: int


class Leases:
    """The leases of one platform's runs.

    Args:
        db: where they are.
        clock: says when one may be taken over.
    """

    def __init__(self, db: Database, clock: Clock) -> None:
        self._db = db
        self._clock = clock

    def claim(self, run_id: str, token: str) -> Lease | None:
        """Become the owner of a run; None when it has an owner, has ended or does not exist.

        Args:
            run_id: which run.
            token: a fresh random text, the new owner's own.
        """
        with self._db.transaction() as session:
            run = session.get(DbRun, run_id, with_for_update=True)
            now = self._clock.now()
            if run is None or run.status not in OPEN or not is_free(run, now):
                return None
            run.status = "running"
            run.started_at = run.started_at or now
            run.attempt += 1
            run.lease_token = token
            _extend(run, now)
            return Lease(run_id, token, run.attempt)

    def renew(self, lease: Lease) -> None:
        """Keep the run for another while.

        Raises:
            LeaseLostError: it has another owner, or has ended.
        """
        with self.writing(lease):
            pass

    def is_to_stop(self, lease: Lease) -> bool:
        """Tell whether somebody asked for the run to stop."""
        with self._db.session() as session:
            asked = select(DbRun.stop_requested_at).where(DbRun.id == lease.run_id)
            return session.scalar(asked) is not None

    def release(self, run_id: str, token: str) -> None:
        """Let the run go, for whoever comes next; harmless when ``token`` does not own it.

        For owners that leave work behind, and for whoever knows that an owner is dead.
        """
        with self._db.transaction() as session:
            run = session.get(DbRun, run_id, with_for_update=True)
            if run is not None and run.lease_token == token:
                _clear(run)

    @contextmanager
    def writing(self, lease: Lease) -> Iterator[tuple[Session, DbRun]]:
        """Write the run's row and what belongs to it, all or nothing; also renews the lease.

        Raises:
            LeaseLostError: the lease's run has another owner, or has ended; nothing is written.
        """
        with self._db.transaction() as session:
            run = session.get(DbRun, lease.run_id, with_for_update=True)
            if run is None or run.status != "running" or run.lease_token != lease.token:
                raise LeaseLostError(f"the run {lease.run_id} is no longer this worker's.")
            _extend(run, self._clock.now())
            yield session, run

    def ask_to_stop(self, run: DbRun) -> None:
        """Have ``run`` stop, as part of the caller's transaction: at once where nobody works on it yet."""
        if run.status == "pending":
            self.end(run, "stopped")
        else:
            run.stop_requested_at = self._clock.now()

    def end(self, run: DbRun, outcome: Outcome, error: str | None = None) -> None:
        """Give ``run``, as part of the caller's transaction, its final status; its secrets are forgotten.

        Raises:
            LeaseLostError: it has one already.
        """
        if run.status not in OPEN:
            raise LeaseLostError(f"the run {run.id} has already ended: {run.status}.")
        run.status = outcome
        run.error = error
        run.completed_at = self._clock.now()
        run.sealed_secrets = None
        _clear(run)


def is_free(run: DbRun, now: datetime) -> bool:
    """Tell whether nobody owns the run, or its owner has been silent for too long."""
    if run.lease_token is None or run.lease_expires_at is None:
        return True
    left = run.lease_expires_at - now
    return left <= timedelta() or left > LEASE + _CLOCK_SLACK


def _extend(run: DbRun, now: datetime) -> None:
    run.heartbeat_at = now
    run.lease_expires_at = now + LEASE


def _clear(run: DbRun) -> None:
    run.lease_token = run.lease_expires_at = None
