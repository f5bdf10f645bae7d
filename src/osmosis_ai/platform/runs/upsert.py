"""Rows that may be there already: written again, they become what they are written as."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session

from osmosis_ai.platform.db.tables import Base

# Below the number of variables that SQLite takes in one statement, for every table here.
_ROWS_PER_STATEMENT = 500


def upsert(session: Session, model: type[Base], rows: Sequence[dict[str, Any]]) -> None:
    """Insert ``rows`` of ``model``, replacing those with the same primary key; all rows have the same keys."""
    table = model.__table__
    key = [column.name for column in table.primary_key]
    dialect: Any = sqlite if session.get_bind().dialect.name == "sqlite" else postgresql
    for start in range(0, len(rows), _ROWS_PER_STATEMENT):
        part = rows[start : start + _ROWS_PER_STATEMENT]
        statement = dialect.insert(table).values(part)
        changed = {name: statement.excluded[name] for name in part[0] if name not in key}
        session.execute(statement.on_conflict_do_update(index_elements=key, set_=changed))
