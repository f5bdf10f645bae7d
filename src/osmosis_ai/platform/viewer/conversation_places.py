"""Where the conversations of many samples lie, in one statement: a search reads as many as it has time for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import ColumnElement, String, and_, cast, literal, select
from sqlalchemy.orm import Session

from osmosis_ai.evaluation.attempt_files import item_name
from osmosis_ai.platform.db.tables import DbRun, DbRunFile, DbSample
from osmosis_ai.platform.viewer.found_runs import of_runs
from osmosis_ai.viewer.source import SampleEntry


def conversation_places(
    session: Session, workspace_id: str, run: str, samples: Sequence[SampleEntry]
) -> list[DbRunFile | None]:
    """Return the conversation of each sample; None where there is none."""
    paths = [f"trajectories/{item_name(sample.row, sample.attempt)}.json" for sample in samples]
    path = _path_of_sample()
    asked: Any = select(path, DbRunFile).select_from(DbRun)
    found = session.execute(
        of_runs(asked, workspace_id, "eval", run)
        .join(DbSample, DbSample.run_id == DbRun.id)
        .outerjoin(DbRunFile, and_(DbRunFile.run_id == DbSample.run_id, DbRunFile.path == path))
        # Use the index to find the rows; PostgreSQL would scan a list of pairs for each sample.
        .where(DbSample.row_index.in_({sample.row for sample in samples}), path.in_(paths))
    ).all()
    files: dict[str, DbRunFile | None] = {row[0]: row[1] for row in found}
    return [files.get(each) for each in paths]


def _path_of_sample() -> ColumnElement[str]:
    """Return under which path a run keeps the conversation of its sample, as ``item_name`` calls it."""
    row, attempt = cast(DbSample.row_index, String), cast(DbSample.run_index, String)
    return literal("trajectories/row_", String) + row + "_run_" + attempt + ".json"
