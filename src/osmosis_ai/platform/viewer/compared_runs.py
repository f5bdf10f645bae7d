"""An evaluation and its retries as comparisons read them: what it was computed from, and every attempt's numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
from sqlalchemy import select
from sqlalchemy.orm import Session

from osmosis_ai.api.wire.eval_runs import RunOrigin
from osmosis_ai.errors import ConflictError
from osmosis_ai.evaluation.comparison.run_samples import SAMPLE_FIELDS, ComparedInputs, RunSamples
from osmosis_ai.evaluation.comparison.told_samples import with_told_samples
from osmosis_ai.platform.db.tables import DbRun, DbSample
from osmosis_ai.platform.runs.read.merging import RunFamily, newest_results

_BATCH = 5000
_NAMES = (
    "status",
    "reward",
    "cost_usd",
    "tokens",
    "duration_ms",
    "model_latency_ms",
    "row_digest",
    "source_row_index",
)
_COLUMNS = (
    DbSample.row_index.label("row"),
    DbSample.run_index.label("attempt"),
    *(getattr(DbSample, name) for name in (*_NAMES, "run_id")),
)


def compared_run(session: Session, family: RunFamily) -> RunSamples:
    """Return a run with its retries.

    Raises:
        ConflictError: it has no row yet.
    """
    run = family.original
    if not family.rows:
        raise ConflictError(f"the run {run.name} is {run.status}: it has no row yet.")
    told = _newest(session, family)
    return with_told_samples(
        _without_samples(family), told, rows=family.rows, n=family.n, teller="the platform"
    )


def _newest(session: Session, family: RunFamily) -> list[Any]:
    """Return of each attempt its newest result."""
    asked = select(*_COLUMNS).where(newest_results(family))
    return list(session.execute(asked.execution_options(yield_per=_BATCH)))


def _without_samples(family: RunFamily) -> RunSamples:
    run = family.original
    imported = run.imported or {}
    origin = RunOrigin.model_validate(run.imported) if run.imported is not None else None
    return RunSamples(
        name=run.name,
        run_id=imported.get("local_run_id") or run.id,
        place="platform",
        location=run.name,
        status=run.status,
        inputs=_inputs(run, family),
        row_keys=(),
        keyed_by="row_digest",
        source_rows=np.zeros(0, dtype=np.int64),
        samples=np.zeros(0, dtype=np.dtype(SAMPLE_FIELDS)),
        planned=family.planned,
        unfinished=_unfinished(family),
        imported=origin.words if origin is not None else None,
    )


def _inputs(run: DbRun, family: RunFamily) -> ComparedInputs:
    imported = run.imported or {}
    return ComparedInputs(
        model=run.model_path,
        dataset_name=run.dataset_name,
        dataset_sha256=(run.selection or {}).get("sha256"),
        rollout=run.rollout_name,
        entrypoint=(run.request.get("experiment_config") or {}).get("entrypoint"),
        grader_digest=run.grader_digest,
        commit=run.commit_sha or imported.get("git_head"),
        dirty=imported.get("git_dirty") if run.imported is not None else False,
        n=family.n,
        seed=run.seed if run.imported is None else None,
        pass_threshold=family.pass_threshold,
        env=dict(run.request.get("env_config") or {}),
    )


def _unfinished(family: RunFamily) -> str | None:
    """Return why a run, with its retries, proves nothing yet; None when it does."""
    run, goes_on = family.original, family.still_open
    if run.retried is not None:
        return "it is a retry: it has only samples that had no score before."
    if goes_on is not None:
        return f"the run {goes_on.name} is {goes_on.status}: its samples are not all there yet."
    if family.retries or run.status == "finished":
        return None
    said = f" ({run.error.rstrip('.')})" if run.error else ""
    return f"the run is {run.status}, not finished{said}: a part of a run proves nothing."
