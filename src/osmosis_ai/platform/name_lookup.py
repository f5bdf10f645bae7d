"""Finding a workspace's things by name, and what somebody who asked for one that is not there probably meant."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Select
from sqlalchemy.orm import Session

from osmosis_ai.config.issues import closest
from osmosis_ai.errors import NotFoundError

_COMPARED = 1000
"""A wrong name costs no more than comparing it with so many."""


def row_named(
    session: Session, rows: Select[Any], table: Any, name_or_id: str, *, called: str, otherwise: str
) -> Any:
    """Return the one of ``rows`` with this name, or else this id.

    Args:
        session: the caller's.
        rows: what may be found.
        table: the class of the rows whose name and id are meant.
        name_or_id: which.
        called: what such a thing is called.
        otherwise: the hint of the error when no name is like it.

    Raises:
        NotFoundError: there is none.
    """
    for column in (table.name, table.id):
        row = session.execute(rows.where(column == name_or_id)).first()
        if row is not None:
            return row
    names = rows.with_only_columns(table.name).order_by(table.created_at.desc())
    raise NotFoundError(
        f"there is no {called} '{name_or_id[:200]}' in this workspace.",
        hint=hint_of_name(session, name_or_id, names, otherwise),
    )


def hint_of_name(session: Session, wanted: str, names: Select[str], otherwise: str | None) -> str | None:
    """Return the hint of an error about a name that is not there.

    Args:
        session: the caller's.
        wanted: the name.
        names: those that there are, the newest first.
        otherwise: the hint when none of them is like it.
    """
    near = closest(wanted[:255], session.scalars(names.limit(_COMPARED)))
    return f"did you mean {near}?" if near else otherwise
