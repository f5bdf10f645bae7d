"""Pages of an evaluation's samples.

A page starts after the last row and attempt (its cursor). Reading takes linear time, and a growing run
yields no attempt twice.
"""

from __future__ import annotations

import math
import re
from typing import Any

from sqlalchemy import and_, or_, select

from osmosis_ai.api.wire.eval_runs import EvalSample, EvalSamplePage
from osmosis_ai.api.wire.training_runs import ValidationPage
from osmosis_ai.errors import ConflictError, OsmosisError
from osmosis_ai.platform.db.engine import Database
from osmosis_ai.platform.db.tables import DbSample
from osmosis_ai.training.runs.run_directory import ValidationSamples

_CURSOR = re.compile(r"(\d{1,9})-(\d{1,9})", re.ASCII)
_MEASURED = ("reward", "tokens", "cost_usd", "duration_ms", "model_latency_ms")
_DETAILS = ("boundary", "category", "error", "input", "output", "notes", "parts", "finish_reasons")
_DETAILED = tuple(getattr(DbSample, name) for name in _DETAILS)
_COLUMNS = tuple(
    getattr(DbSample, name)
    for name in ("row_index", "run_index", "status", "source_row_index", "row_digest", *_MEASURED)
)


def sample_page(
    db: Database, run_id: str, *, limit: int, cursor: str | None, details: bool = False
) -> EvalSamplePage:
    """Return the ``limit`` samples behind ``cursor``, by row and attempt."""
    columns = (*_COLUMNS, *_DETAILED) if details else _COLUMNS
    wanted = select(*columns).where(DbSample.run_id == run_id)
    if cursor is not None:
        row, attempt = _position(cursor)
        wanted = wanted.where(
            or_(DbSample.row_index > row, and_(DbSample.row_index == row, DbSample.run_index > attempt))
        )
    with db.session() as session:
        ordered = wanted.order_by(DbSample.row_index, DbSample.run_index)
        found = session.execute(ordered.limit(limit + 1)).all()
    page = [told_sample(sample, details=details) for sample in found[:limit]]
    if len(found) <= limit:
        return EvalSamplePage(samples=page)
    return EvalSamplePage(samples=page, next_cursor=f"{page[-1].row}-{page[-1].attempt}")


def _position(cursor: str) -> tuple[int, int]:
    match = _CURSOR.fullmatch(cursor)
    if match is None:
        raise OsmosisError("`cursor` did not come from a page of samples.", details={"field": "cursor"})
    return int(match[1]), int(match[2])


def validation_page(samples: ValidationSamples | None, *, limit: int, cursor: str | None) -> ValidationPage:
    """Return ``limit`` samples of a training run's newest validation, in list order."""
    if samples is None:
        return ValidationPage()
    step, place = _position(cursor) if cursor is not None else (samples.step, 0)
    if step != samples.step:
        raise ConflictError(
            f"the run has a newer validation, after step {samples.step}; start at the first page."
        )
    page = samples.records[place : place + limit]
    more = place + limit < len(samples.records)
    return ValidationPage(
        step=samples.step,
        total=samples.total,
        pass_threshold=samples.pass_threshold,
        samples=[told_sample(record, details=True) for record in page],
        **({"next_cursor": f"{samples.step}-{place + limit}"} if more else {}),
    )


def told_sample(sample: Any, *, details: bool) -> EvalSample:
    """Return a sample of the database, or a journal's record, as the wire tells it."""
    measured = {name: getattr(sample, name) for name in _MEASURED}
    known: dict[str, Any] = {
        name: value for name, value in measured.items() if value is not None and math.isfinite(value)
    }
    if sample.row_digest is not None:
        known["row_digest"] = sample.row_digest
    if details:
        told = {name: getattr(sample, name) for name in _DETAILS}
        known |= {name: value for name, value in told.items() if value is not None}
    return EvalSample(
        row=sample.row_index,
        attempt=sample.run_index,
        status=sample.status,
        source_row_index=sample.source_row_index,
        **known,
    )
