"""The curves of a training run: the points of each metric in the order of its steps, and each in a line."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby

from sqlalchemy import bindparam, select

from osmosis_ai.platform.db.engine import Database
from osmosis_ai.platform.db.tables import DbMetricPoint
from osmosis_ai.training.runs.metrics import TITLES
from osmosis_ai.training.runs.validation_headline import ValidationHeadline

VALIDATION = "validation"
"""Where the metrics of a run's row have its newest validation, row by row."""

# Plain columns: a long run has hundreds of thousands of points.
_POINTS = (
    select(DbMetricPoint.key, DbMetricPoint.step, DbMetricPoint.value, DbMetricPoint.timestamp)
    .where(DbMetricPoint.run_id == bindparam("run_id"))
    .order_by(DbMetricPoint.key, DbMetricPoint.step)
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
    with db.session() as session:
        rows = session.execute(_POINTS, {"run_id": run_id}).all()
    curves = [
        MetricCurve(key, [CurvePoint(*row[1:]) for row in points])
        for key, points in groupby(rows, key=lambda row: row[0])
    ]
    return sorted(curves, key=lambda curve: (_POSITION.get(curve.key, len(_POSITION)), curve.key))


def validation_of(curves: Sequence[MetricCurve]) -> ValidationHeadline | None:
    """Return what the newest validation of a run came to."""
    return ValidationHeadline.of({curve.key: [(p.step, p.value) for p in curve.points] for curve in curves})
