"""Run columns used by each exchange, read and written by precompiled statements.

Every exchange of every worker does this. Loading the whole row as an ORM object, with the run's request and selection,
would cost several times as much.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from datetime import datetime, timedelta
from functools import cache
from typing import Any

from sqlalchemy import Interval, Table, bindparam, func, select, update
from sqlalchemy.orm import Session

from osmosis_ai.platform.db.run_numbers import numbers_of
from osmosis_ai.platform.db.tables import DbRun


@dataclass
class HeardRun:
    """A run's row, as far as an exchange is about it; what is assigned is written by :func:`keep_heard`."""

    id: str
    kind: str
    status: str
    attempt: int
    revision: int
    lease_token: str | None
    lease_expires_at: datetime | None
    stop_requested_at: datetime | None
    started_at: datetime | None
    completed_at: datetime | None
    is_claim_answered: bool
    journal_generation: int
    journal_bytes: int
    log_lines: int
    upload_bytes: int
    fruitless: int
    grader_digest: str | None
    environment: str | None
    isolation: str | None
    progress: dict[str, Any] | None
    results: dict[str, Any] | None
    metrics: dict[str, Any] | None
    was: dict[str, Any] = field(default_factory=dict, repr=False)

    def changes(self) -> dict[str, Any]:
        """Return what was assigned, and what follows from it."""
        new = {name: value for name in _COLUMNS if (value := getattr(self, name)) is not self.was[name]}
        if "results" in new or "metrics" in new:
            new |= numbers_of(self.results, self.metrics, self.started_at, self.completed_at)
        return new


_COLUMNS = tuple(each.name for each in fields(HeardRun) if each.name != "was")


def find_heard(session: Session, run_id: str) -> HeardRun | None:
    """Return a run that nobody else writes until the transaction ends; None where there is none."""
    found = session.connection().execute(_locked(), {"run_id": run_id}).one_or_none()
    if found is None:
        return None
    was = dict(zip(_COLUMNS, found, strict=True))
    return HeardRun(**was, was=was)


def keep_heard(session: Session, run: HeardRun, term: timedelta, now: datetime | None) -> None:
    """Write what was assigned, and give the owner a whole ``term`` from ``now`` on; None: by the database's clock."""
    said: dict[str, Any] = run.changes()
    columns = tuple(sorted(said))
    said |= (
        {"its_id": run.id, "term": term} if now is None else {"its_id": run.id, "now": now, "end": now + term}
    )
    session.connection().execute(_kept(columns, is_by_database=now is None), said)


@cache
def _locked() -> Any:
    table = _table()
    columns = [table.c[name] for name in _COLUMNS]
    return select(*columns).where(table.c.id == bindparam("run_id")).with_for_update()


@cache
def _kept(columns: tuple[str, ...], *, is_by_database: bool) -> Any:
    values: dict[str, Any] = {name: bindparam(name) for name in columns}
    if is_by_database:
        # Of a transaction `now()` is when it began.
        values["heartbeat_at"] = func.clock_timestamp()
        values["lease_expires_at"] = func.clock_timestamp() + bindparam("term", type_=Interval)
    else:
        values["heartbeat_at"], values["lease_expires_at"] = bindparam("now"), bindparam("end")
    return update(_table()).where(_table().c.id == bindparam("its_id")).values(values)


def _table() -> Table:
    table = DbRun.__table__
    assert isinstance(table, Table)
    return table
