"""Case-insensitive text search in columns.

PostgreSQL folds case by its database's locale (the locale ``C`` folds only ``a`` to ``z``). SQLite would never fold
more than that, so :mod:`osmosis_ai.platform.db.engine` adds a function to every connection.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from sqlalchemy import ColumnElement, and_, func, or_
from sqlalchemy.orm import Session

from osmosis_ai.platform.log_lines import storable
from osmosis_ai.sqlite_text import ESCAPE, HOLDS, like_pattern


def one_holds(session: Session, columns: Iterable[Any], text: str) -> ColumnElement[bool]:
    """Return the condition that a text is in one of some columns."""
    wanted = storable(text)
    if session.get_bind().dialect.name != "sqlite":
        return or_(*(column.icontains(wanted, autoescape=True) for column in columns))
    pattern, holds = like_pattern(wanted), getattr(func, HOLDS)
    return or_(*(and_(column.like(pattern, escape=ESCAPE), holds(column, wanted) == 1) for column in columns))
