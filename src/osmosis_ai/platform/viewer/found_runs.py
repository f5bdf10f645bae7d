"""Finding a run by its name, with what is read together with it, in one statement."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Select, or_, select
from sqlalchemy.orm import Session, aliased

from osmosis_ai.config.issues import nearest
from osmosis_ai.errors import NotFoundError
from osmosis_ai.evaluation.run_places import RunKind
from osmosis_ai.platform.db.tables import DbRun
from osmosis_ai.platform.runs.lifecycle import COMMAND_GROUPS, KIND_NAMES
from osmosis_ai.platform.runs.read.merging import RunFamily

_COMPARED = 1000
_NEAREST = 3


def find_family(session: Session, workspace_id: str, kind: RunKind, name: str) -> RunFamily:
    """Return a run with its retries; a retry by itself, of which only what it made again is there to see.

    Args:
        session: of the database.
        workspace_id: of the run.
        kind: of the run.
        name: or id.

    Raises:
        NotFoundError: the workspace has none, with the nearest names in ``details["nearest"]``.
    """
    found = session.scalars(of_family(select(DbRun), workspace_id, kind, name)).all()
    named = [run for run in found if run.name == name] or [run for run in found if run.id == name]
    if not named:
        raise no_such_run(session, workspace_id, kind, name)
    original = named[0]
    return RunFamily(original, tuple(run for run in found if run.retry_of_id == original.id))


def of_family(asked: Select[Any], workspace_id: str, kind: RunKind, name: str) -> Select[Any]:
    """Return ``asked`` of a run of this name or id, and of its retries, the oldest first."""
    original = aliased(DbRun)
    known = name.encode("utf-8", "replace").decode().replace("\0", "")[:255]
    named = or_(original.name == known, original.id == known)
    return (
        asked.join(original, or_(DbRun.id == original.id, DbRun.retry_of_id == original.id))
        .where(original.workspace_id == workspace_id, original.kind == kind, named)
        .order_by(DbRun.created_at, DbRun.id)
    )


def no_such_run(session: Session, workspace_id: str, kind: RunKind, name: str) -> NotFoundError:
    """Return what to say of a run that is not there."""
    mine = select(DbRun.name).where(DbRun.workspace_id == workspace_id, DbRun.kind == kind)
    names = session.scalars(mine.order_by(DbRun.created_at.desc()).limit(_COMPARED)).all()
    group = COMMAND_GROUPS.get(kind)
    return NotFoundError(
        f"there is no {KIND_NAMES.get(kind, kind)} run '{name[:200]}' in this workspace.",
        details={"nearest": nearest(name[:255], names, most=_NEAREST, cutoff=0)},
        hint=f"see `{group} list`" if group else None,
    )
