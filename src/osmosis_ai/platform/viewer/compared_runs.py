"""Runs as comparisons read them, all of a page in one statement: what each was computed from, and its numbers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from sqlalchemy import select
from sqlalchemy.orm import Session

from osmosis_ai.api.models.eval_runs import RunOrigin
from osmosis_ai.decisions.samples import SAMPLE_FIELDS, ComparedInputs, RunSamples, SampleCollector
from osmosis_ai.errors import ConflictError
from osmosis_ai.platform.db.tables import DbRun, DbSample
from osmosis_ai.platform.runs.lifecycle import OPEN
from osmosis_ai.platform.viewer.sample_lists import (
    SAMPLE_COLUMNS,
    evaluation_settings,
    sample_entry,
    sampled_rows,
)
from osmosis_ai.viewer.source import SampleEntry

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


def compared_runs(session: Session, runs: Sequence[DbRun]) -> list[RunSamples]:
    """Return evaluations, in one statement however many they are."""
    collectors: dict[str, SampleCollector] = {}
    for run in runs:
        rows, n = sampled_rows(run), evaluation_settings(run).n
        if not rows:
            raise ConflictError(f"the run {run.name} is {run.status}: it has no row yet.")
        empty = _without_samples(run)
        collectors[run.id] = SampleCollector(empty, rows=rows, n=n, source="the platform")
    samples = select(*_COLUMNS).where(DbSample.run_id.in_(collectors))
    for sample in session.execute(samples.execution_options(yield_per=_BATCH)):
        collectors[sample.run_id].add(sample)
    return [collectors[run.id].run() for run in runs]


def samples_of_row(
    session: Session, runs: Sequence[DbRun], row_digest: str, *, limit: int
) -> list[list[SampleEntry]]:
    """Return each evaluation's samples of a row, in one statement for at most ``limit`` of them."""
    rows = session.execute(
        select(*SAMPLE_COLUMNS)
        .where(DbSample.row_digest == row_digest, DbSample.run_id.in_({run.id for run in runs}))
        .order_by(DbSample.row_index, DbSample.run_index)
        .limit(limit)
    ).all()
    thresholds = [evaluation_settings(run).pass_threshold for run in runs]
    return [
        [sample_entry(row, threshold) for row in rows if row.run_id == run.id]
        for run, threshold in zip(runs, thresholds, strict=True)
    ]


def _without_samples(run: DbRun) -> RunSamples:
    imported = run.imported or {}
    origin = RunOrigin.model_validate(run.imported) if run.imported is not None else None
    return RunSamples(
        name=run.name,
        run_id=imported.get("local_run_id") or run.id,
        place="platform",
        location=run.name,
        status=run.status,
        inputs=_inputs(run),
        row_keys=(),
        keyed_by="row_digest",
        source_rows=np.zeros(0, dtype=np.int64),
        samples=np.zeros(0, dtype=np.dtype(SAMPLE_FIELDS)),
        planned=sampled_rows(run) * evaluation_settings(run).n,
        unfinished=_unfinished(run),
        imported=origin.words if origin is not None else None,
        revision=run.revision,
    )


def _inputs(run: DbRun) -> ComparedInputs:
    imported, settings = run.imported or {}, evaluation_settings(run)
    return ComparedInputs(
        model=run.model_path,
        dataset_name=run.dataset_name,
        dataset_sha256=(run.selection or {}).get("sha256"),
        rollout=run.rollout_name,
        entrypoint=(run.request.get("experiment_config") or {}).get("entrypoint"),
        grader_digest=run.grader_digest,
        commit=run.commit_sha or imported.get("git_head"),
        dirty=imported.get("git_dirty") if run.imported is not None else False,
        n=settings.n,
        seed=run.seed if run.imported is None else None,
        pass_threshold=settings.pass_threshold,
        env=dict(run.request.get("env_config") or {}),
    )


def _unfinished(run: DbRun) -> str | None:
    """Return why a run proves nothing yet; None when it does."""
    if run.status == "finished":
        return None
    if run.status in OPEN:
        return f"the run {run.name} is {run.status}: its samples are not all there yet."
    said = f" ({run.error.rstrip('.')})" if run.error else ""
    return f"the run is {run.status}, not finished{said}: a part of a run proves nothing."
