"""Finding a workspace's things by name, and what somebody who asked for one that is not there probably meant."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from sqlalchemy import Select
from sqlalchemy.orm import Session

from osmosis_ai.config.issues import closest, nearest
from osmosis_ai.errors import NotFoundError

_COMPARED = 1000
"""A wrong name costs no more than comparing it with so many."""
_NAMED = 3
"""Number of similar names to suggest."""


class NoSuchNameError(NotFoundError):
    """Nothing has this name."""

    def __init__(
        self,
        message: str,
        *,
        nearest: Iterable[str],
        meant: str | None = None,
        otherwise: str | None = None,
    ) -> None:
        self.nearest = tuple(nearest)
        super().__init__(
            message,
            details={"suggestion": meant} if meant else None,
            hint=f"did you mean {meant}?" if meant else otherwise,
        )


def row_named(
    session: Session, rows: Select[Any], table: Any, name_or_id: str, *, called: str, otherwise: str
) -> Any:
    """Return the one of ``rows`` with this name, or else this id."""
    for column in (table.name, table.id):
        row = session.execute(rows.where(column == name_or_id)).first()
        if row is not None:
            return row
    names = rows.with_only_columns(table.name).order_by(table.created_at.desc())
    raise no_such_name(session, called, name_or_id, names, otherwise)


def no_such_name(
    session: Session, called: str, wanted: str, names: Select[str], otherwise: str | None
) -> NoSuchNameError:
    """Return the error about a name that is not there."""
    near = nearest(wanted[:255], session.scalars(names.limit(_COMPARED)), most=_NAMED, cutoff=0)
    message = f"there is no {called} '{wanted[:200]}' in this workspace."
    return NoSuchNameError(message, nearest=near, meant=closest(wanted[:255], near), otherwise=otherwise)
