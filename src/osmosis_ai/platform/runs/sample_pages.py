"""Pages of an evaluation's samples, and of those of a training run's newest validation.

A page starts after the last row and attempt (its cursor), so reading all pages takes linear time, and those of a growing
run contain no attempt twice.
"""

from __future__ import annotations

import math
import re
from typing import Any

from sqlalchemy import select, tuple_

from osmosis_ai.api.models.eval_runs import EvalSample, EvalSamplePage
from osmosis_ai.api.models.training_runs import ValidationPage
from osmosis_ai.errors import ConflictError, OsmosisError
from osmosis_ai.platform.db.engine import Database
from osmosis_ai.platform.db.tables import DbSample
from osmosis_ai.training.runs.run_directory import ValidationSamples

_CURSOR = re.compile(r"(\d{1,9})-(\d{1,9})", re.ASCII)
_MEASURED = ("reward", "tokens", "cost_usd", "duration_ms", "model_latency_ms")
_DETAILS = ("boundary", "category", "error", "input", "output", "notes", "parts", "finish_reasons")
_PLAIN = ("row_index", "run_index", "status", "source_row_index", "row_digest", *_MEASURED)


def sample_page(
    db: Database, run_id: str, *, limit: int, cursor: str | None, details: bool = False
) -> EvalSamplePage:
    """Return the ``limit`` samples after ``cursor``, by row and attempt."""
    columns = [getattr(DbSample, name) for name in (*_PLAIN, *(_DETAILS if details else ()))]
    order = (DbSample.row_index, DbSample.run_index)
    wanted = select(*columns).where(DbSample.run_id == run_id).order_by(*order).limit(limit + 1)
    if cursor is not None:
        wanted = wanted.where(tuple_(*order) > tuple_(*_position(cursor)))
    with db.session() as session:
        found = session.execute(wanted).all()
    page = [_wire_sample(sample, details=details) for sample in found[:limit]]
    if len(found) <= limit:
        return EvalSamplePage(samples=page)
    return EvalSamplePage(samples=page, next_cursor=f"{page[-1].row}-{page[-1].attempt}")


def validation_page(samples: ValidationSamples | None, *, limit: int, cursor: str | None) -> ValidationPage:
    """Return ``limit`` samples of a training run's newest validation, in list order."""
    if samples is None:
        return ValidationPage()
    step, start = _position(cursor) if cursor is not None else (samples.step, 0)
    if step != samples.step:
        raise ConflictError(
            f"the run has a newer validation, after step {samples.step}; start at the first page."
        )
    end = start + limit
    return ValidationPage(
        step=samples.step,
        total=samples.total,
        pass_threshold=samples.pass_threshold,
        samples=[_wire_sample(record, details=True) for record in samples.records[start:end]],
        **({"next_cursor": f"{samples.step}-{end}"} if end < len(samples.records) else {}),
    )


def _position(cursor: str) -> tuple[int, int]:
    match = _CURSOR.fullmatch(cursor)
    if match is None:
        raise OsmosisError("`cursor` did not come from a page of samples.", details={"field": "cursor"})
    return int(match[1]), int(match[2])


def _wire_sample(sample: Any, *, details: bool) -> EvalSample:
    """Return a sample of the database, or a journal's record, as on the wire."""
    measured = {name: getattr(sample, name) for name in _MEASURED}
    known: dict[str, Any] = {
        name: value for name, value in measured.items() if value is not None and math.isfinite(value)
    }
    for name in ("row_digest", *(_DETAILS if details else ())):
        if (value := getattr(sample, name)) is not None:
            known[name] = value
    return EvalSample(
        row=sample.row_index,
        attempt=sample.run_index,
        status=sample.status,
        source_row_index=sample.source_row_index,
        **known,
    )
