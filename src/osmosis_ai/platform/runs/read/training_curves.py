"""The curves of a training run: the points of each metric in the order of its steps, and what its log tells of them."""

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
from osmosis_ai.training.runs.curves import CurveMark, ValidationHeadline, marked_warnings, restarts
from osmosis_ai.training.runs.metrics import TITLES

VALIDATION = "validation"
"""Where the metrics of a run's row have its newest validation, row by row."""

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


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """The value of a metric after a step."""

    step: int
    value: float
    timestamp: datetime


@dataclass(frozen=True, slots=True)
class MetricCurve:
    """One metric; at least one point, by rising step."""

    key: str
    points: list[CurvePoint]

    @property
    def title(self) -> str:
        """What people call the metric."""
        return TITLES.get(self.key, self.key)

    @property
    def initial(self) -> float:
        """The first value."""
        return self.points[0].value

    @property
    def latest(self) -> float:
        """The last value."""
        return self.points[-1].value

    @property
    def lowest(self) -> float:
        """The least value."""
        return min(point.value for point in self.points)

    @property
    def highest(self) -> float:
        """The greatest value."""
        return max(point.value for point in self.points)


def read_curves(db: Database, run_id: str) -> list[MetricCurve]:
    """Return a run's curves in the order people want to see them; metrics of other trainers come last."""
    return read_curves_of(db, [run_id])[run_id]


def read_curves_of(db: Database, run_ids: Sequence[str]) -> dict[str, list[MetricCurve]]:
    """Return the curves of each of some runs as :func:`read_curves`, in one statement."""
    found: dict[str, list[MetricCurve]] = {run_id: [] for run_id in run_ids}
    with db.session() as session:
        rows = session.execute(_POINTS, {"run_ids": list(run_ids)})
        for (run_id, key), points in groupby(rows, key=lambda row: (row[0], row[1])):
            found[run_id].append(MetricCurve(key, [CurvePoint(*row[2:]) for row in points]))
    for curves in found.values():
        curves.sort(key=lambda curve: (_POSITION.get(curve.key, len(_POSITION)), curve.key))
    return found


def logged_marks(logs: LogStore, run_id: str) -> list[CurveMark]:
    """Return marks for resumed steps and warnings from the run's log."""
    plans, warnings = logs.marks(run_id, PLAN), logs.marks(run_id, WARNED)
    told = ((line.message or "", line.details) for line in warnings if line.details)
    return [*restarts(plan.details for plan in plans if plan.details), *marked_warnings(told)]


def validation_of(curves: Sequence[MetricCurve]) -> ValidationHeadline | None:
    """Return what the newest validation of a run came to."""
    return ValidationHeadline.of({curve.key: [(p.step, p.value) for p in curve.points] for curve in curves})
