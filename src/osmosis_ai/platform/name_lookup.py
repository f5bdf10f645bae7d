"""Which of a workspace's names somebody who asked for one that is not there probably meant."""

from __future__ import annotations

from sqlalchemy import Select
from sqlalchemy.orm import Session

from osmosis_ai.config.spelling import closest

_COMPARED = 1000
"""A wrong name costs no more than comparing it with so many."""


def hint_of_name(session: Session, wanted: str, names: Select[str], otherwise: str | None) -> str | None:
    """Return the hint of an error about a name that is not there.

    Args:
        wanted: the name.
        names: those that there are, the newest first.
        otherwise: the hint when none of them is like it.
    """
    near = closest(wanted[:255], session.scalars(names.limit(_COMPARED)))
    return f"did you mean {near}?" if near else otherwise
