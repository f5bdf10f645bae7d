"""Finding runs by their names, with what is read together with them, in one statement."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import ColumnElement, CompoundSelect, Select, String, select, type_coerce, union
from sqlalchemy.orm import Session

from osmosis_ai.config.issues import nearest
from osmosis_ai.errors import NotFoundError
from osmosis_ai.platform.db.tables import DbRun
from osmosis_ai.platform.log_lines import storable
from osmosis_ai.platform.runs.lifecycle import COMMAND_GROUPS, KIND_NAMES
from osmosis_ai.viewer.local_runs import RunKind

_COMPARED = 1000
_NEAREST = 3


def find_runs(session: Session, workspace_id: str, kind: RunKind, names: Sequence[str]) -> list[DbRun]:
    """Return the run of each name or id, in one statement."""
    found = session.scalars(of_runs(select(DbRun), workspace_id, kind, *names)).all()
    known = {run.id: run for run in found} | {run.name: run for run in found}
    for name in names:
        if name not in known:
            raise no_such_run(session, workspace_id, kind, name)
    return [known[name] for name in names]


def kinds_of(session: Session, workspace_id: str, names: Sequence[str]) -> dict[str, frozenset[RunKind]]:
    """Return of which kinds a workspace has a run of each name or id, in one statement."""
    found = session.execute(_named(workspace_id, names)).all()
    return {name: frozenset(run.kind for run in found if name in (run.name, run.id)) for name in names}


def of_runs(asked: Select[Any], workspace_id: str, kind: RunKind, *names: str) -> Select[Any]:
    """Return ``asked`` of the runs of these names or ids."""
    mine = _named(workspace_id, names, _not_by_index(DbRun.kind) == kind).subquery()
    return asked.join(mine, DbRun.id == mine.c.id)


def _named(workspace_id: str, names: Sequence[str], *which: ColumnElement[bool]) -> CompoundSelect[Any]:
    """Return the statement of the runs of these names or ids."""
    known = [storable(name)[:255] for name in names]
    asked = select(DbRun.id, DbRun.kind, DbRun.name).where(*which)
    return union(
        asked.where(DbRun.workspace_id == workspace_id, DbRun.name.in_(known)),
        asked.where(_not_by_index(DbRun.workspace_id) == workspace_id, DbRun.id.in_(known)),
    )


def _not_by_index(column: Any) -> ColumnElement[str]:
    return type_coerce(column.concat(""), String)


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
