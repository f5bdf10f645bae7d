"""The curves of a training run: the points of each metric by step, and marks of events from its log."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby

from sqlalchemy import bindparam, select

from osmosis_ai.platform.db.engine import Database
from osmosis_ai.platform.db.tables import DbMetricPoint
from osmosis_ai.platform.log_lines import PLAN, WARNED
from osmosis_ai.platform.logs import LogStore
from osmosis_ai.training.runs.curves import CurveMark, marked_warnings, restarts
from osmosis_ai.training.runs.metrics import TITLES

VALIDATION = "validation"
"""The key of the newest validation in the metrics of a run's row."""

# Plain columns: a long run has hundreds of thousands of points.
_POINTS = (
    select(
        DbMetricPoint.run_id,
        DbMetricPoint.key,
        DbMetricPoint.step,
        DbMetricPoint.value,
        DbMetricPoint.timestamp,
    )
    .where(DbMetricPoint.run_id.in_(bindparam("run_ids", expanding=True)))
    .order_by(DbMetricPoint.run_id, DbMetricPoint.key, DbMetricPoint.step)
    .execution_options(yield_per=5000)
)
_POSITION = {key: position for position, key in enumerate(TITLES)}
_LAST = len(_POSITION)


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """The value of a metric after a step."""

    step: int
    value: float
    timestamp: datetime


Curves = dict[str, list[CurvePoint]]
"""The points of each metric, at least one, by rising step."""


def read_curves(db: Database, run_id: str) -> Curves:
    """Return a run's curves in the order in which users want to see them; metrics of other trainers come last."""
    return read_curves_of(db, [run_id])[run_id]


def read_curves_of(db: Database, run_ids: Sequence[str]) -> dict[str, Curves]:
    """Return the curves of each of some runs like :func:`read_curves`, in one statement."""
    found: dict[str, Curves] = {run_id: {} for run_id in run_ids}
    with db.session() as session:
        rows = session.execute(_POINTS, {"run_ids": list(run_ids)})
        for (run_id, key), points in groupby(rows, key=lambda row: (row[0], row[1])):
            found[run_id][key] = [CurvePoint(*row[2:]) for row in points]
    return {
        run_id: {key: curves[key] for key in sorted(curves, key=lambda key: (_POSITION.get(key, _LAST), key))}
        for run_id, curves in found.items()
    }


def values_of(curves: Curves) -> dict[str, list[tuple[int, float]]]:
    """Return step and value of each point."""
    return {key: [(point.step, point.value) for point in points] for key, points in curves.items()}


def logged_marks(logs: LogStore, run_id: str) -> list[CurveMark]:
    """Return marks for resumed steps and warnings from the run's log."""
    plans, warnings = logs.marks(run_id, PLAN), logs.marks(run_id, WARNED)
    texts = ((line.message or "", line.details) for line in warnings if line.details)
    return [*restarts(plan.details for plan in plans if plan.details), *marked_warnings(texts)]
