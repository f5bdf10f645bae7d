"""Runs as comparisons read them, all of a page in one statement: what each was computed from, and its numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from sqlalchemy import select
from sqlalchemy.orm import Session

from osmosis_ai.api.wire.eval_runs import RunOrigin
from osmosis_ai.decisions.samples import SAMPLE_FIELDS, ComparedInputs, RunSamples, ToldSamples
from osmosis_ai.errors import ConflictError
from osmosis_ai.platform.db.tables import DbRun, DbSample
from osmosis_ai.platform.runs.read.merging import RunFamily
from osmosis_ai.platform.viewer.sample_lists import SAMPLE_COLUMNS, sample_entry
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


def compared_runs(session: Session, families: Sequence[RunFamily]) -> list[RunSamples]:
    """Return evaluations, each with its retries, in one statement however many they are."""
    for family in families:
        if not family.rows:
            run = family.original
            raise ConflictError(f"the run {run.name} is {run.status}: it has no row yet.")
    found = [_ToldFamily(family) for family in families]
    # A retry that is compared by itself, too, is of two of them.
    readers: dict[str, list[_ToldFamily]] = {}
    for each in found:
        for run_id in each.ages:
            readers.setdefault(run_id, []).append(each)
    asked = select(*_COLUMNS).where(DbSample.run_id.in_(readers))
    for sample in session.execute(asked.execution_options(yield_per=_BATCH)):
        for each in readers[sample.run_id]:
            each.add(sample)
    return [each.told.run() for each in found]


def samples_of_row(
    session: Session, families: Sequence[RunFamily], row_digest: str, *, limit: int
) -> list[list[SampleEntry]]:
    """Return of each evaluation the newest results of a row, in one statement for at most ``limit`` of them."""
    ids = {run.id for family in families for run in family.runs}
    rows = session.execute(
        select(*SAMPLE_COLUMNS)
        .where(DbSample.row_digest == row_digest, DbSample.run_id.in_(ids))
        .order_by(DbSample.row_index, DbSample.run_index)
        .limit(limit)
    ).all()
    found = []
    for family in families:
        newest: dict[tuple[int, int], SampleEntry] = {}
        for run in family.runs:
            mine = (sample_entry(row, family.pass_threshold) for row in rows if row.run_id == run.id)
            newest.update({(each.row, each.attempt): each for each in mine})
        found.append(list(newest.values()))
    return found


class _ToldFamily:
    """Takes the samples of a run and its retries in any order; of each attempt the newest result stays."""

    def __init__(self, family: RunFamily) -> None:
        empty = _without_samples(family)
        self.told = ToldSamples(empty, rows=family.rows, n=family.n, teller="the platform")
        self.ages = {run.id: age for age, run in enumerate(family.runs)}
        self._made_again: dict[tuple[int, int], int] = {}

    def add(self, sample: Any) -> None:
        item, age = (sample.row, sample.attempt), self.ages[sample.run_id]
        if age < self._made_again.get(item, 0):
            return
        if age:
            self._made_again[item] = age
        self.told.add(sample)


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
