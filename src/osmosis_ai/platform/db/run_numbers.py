"""Sort columns of runs, since values inside JSON have no index on both engines.

They are computed from a run's results and metrics whenever these are written.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Float, event
from sqlalchemy.orm import Mapped, mapped_column

SORT_COLUMNS = {
    "status": "status",
    "reward": "reward",
    "pass_rate": "pass_rate",
    "cost": "cost_usd",
    "duration": "duration_ms",
}
"""The column of an order; runs by start and by name have indexes of their own."""
CONFIG_COLUMNS = ("workspace_id", "kind", "rollout_name", "dataset_name")
"""What runs of one config have in common."""


class RunNumbers:
    """Adds to a run what it is sorted by; NULL is what is not known (yet)."""

    reward: Mapped[float | None] = mapped_column(Float)
    pass_rate: Mapped[float | None] = mapped_column(Float)
    cost_usd: Mapped[float | None] = mapped_column(Float)
    duration_ms: Mapped[float | None] = mapped_column(Float)


def numbers_of(
    results: Mapping[str, Any] | None,
    metrics: Mapping[str, Any] | None,
    started_at: datetime | None,
    completed_at: datetime | None,
) -> dict[str, float | None]:
    """Return the values of these columns."""
    known, measured = results or {}, metrics or {}
    stats, headline = known.get("reward_stats") or {}, known.get("headline") or {}
    graded, passed = known.get("graded"), known.get("passed")
    took = (completed_at - started_at).total_seconds() * 1000 if started_at and completed_at else None
    found = {
        "reward": known.get("reward", known.get("score", stats.get("mean"))),
        "pass_rate": headline.get("pass_rate", passed / graded if graded and passed is not None else None),
        "cost_usd": ((measured.get("estimates") or {}).get("cost_usd") or {}).get("total"),
        "duration_ms": measured.get("duration_ms", took),
    }
    return {name: _number(value) for name, value in found.items()}


def duration_ms(run: Any, now: datetime) -> float | None:
    """Return how long a run has taken in milliseconds; None before it begins."""
    if run.duration_ms is not None or run.started_at is None:
        return float(run.duration_ms) if run.duration_ms is not None else None
    since_start: timedelta = now - run.started_at
    return max(0.0, since_start.total_seconds() * 1000)


def _number(value: Any) -> float | None:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    return float(value) if is_number else None


@event.listens_for(RunNumbers, "before_insert", propagate=True)
@event.listens_for(RunNumbers, "before_update", propagate=True)
def _follow(_mapper: object, _connection: object, run: Any) -> None:
    numbers = numbers_of(run.results, run.metrics, run.started_at, run.completed_at)
    for name, value in numbers.items():
        if getattr(run, name) != value:
            setattr(run, name, value)
