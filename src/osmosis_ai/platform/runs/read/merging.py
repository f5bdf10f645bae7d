"""Combine an evaluation with the retries of its failed samples.

All retries refer to the original run. The newest result of each attempt counts: a retry only repeats attempts without a
score, so no score is replaced. An attempt without any score is unscored in the combined numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, String, and_, cast, exists, func, select
from sqlalchemy.orm import Session, aliased

from osmosis_ai.config.sections import EvaluationSettings
from osmosis_ai.controller.record import TerminalRecord
from osmosis_ai.errors import ConflictError
from osmosis_ai.evaluation.metrics import Estimates, RunMetrics, compute_metrics
from osmosis_ai.evaluation.results import AttemptTable
from osmosis_ai.platform.blobs.store import BlobError, BlobNotFound, BlobStore
from osmosis_ai.platform.db.engine import Database
from osmosis_ai.platform.db.tables import DbRun, DbSample
from osmosis_ai.platform.runs.journal_segments import run_records
from osmosis_ai.platform.runs.lifecycle import OPEN
from osmosis_ai.platform.runs.stored_journal import stored_records

_BATCH = 5000
_MEASURED = (
    "tokens",
    "prompt_tokens",
    "completion_tokens",
    "cost_usd",
    "duration_ms",
    "model_latency_ms",
    "model_calls",
    "boundary",
    "error_type",
    "lost_attempts",
    "finish_reasons",
    "source_row_index",
)
_COLUMNS = tuple(
    getattr(DbSample, name)
    for name in ("row_index", "run_index", "status", "reward", "row_digest", *_MEASURED)
)


@dataclass(frozen=True)
class RunFamily:
    """A run that was submitted as a whole, and the retries of it, the oldest first."""

    original: DbRun
    retries: tuple[DbRun, ...]

    @property
    def runs(self) -> tuple[DbRun, ...]:
        """All of them."""
        return (self.original, *self.retries)

    @property
    def version(self) -> tuple[object, ...]:
        """What was counted of the samples holds as long as this is the same."""
        return tuple((run.id, run.status, run.journal_generation, run.journal_bytes) for run in self.runs)

    @property
    def still_open(self) -> DbRun | None:
        """One that has not ended."""
        return next((run for run in self.runs if run.status in OPEN), None)

    @property
    def rows(self) -> int:
        """How many rows of the dataset the run uses."""
        return int((self.original.results or {}).get("sampled_rows") or 0)

    @property
    def planned(self) -> int:
        """How many samples there are to be."""
        made = self.original.retried
        return self.rows * self.n if made is None else len(made)

    @property
    def n(self) -> int:
        """How many attempts each row gets."""
        return self._settings.n

    @property
    def pass_threshold(self) -> float:
        """The least reward that passes."""
        return self._settings.pass_threshold

    @property
    def _settings(self) -> EvaluationSettings:
        written = self.original.request.get("evaluation_config") or {}
        return EvaluationSettings(**{key: value for key, value in written.items() if value is not None})


@dataclass(frozen=True)
class MergedResults:
    """What a run and its retries have come to."""

    estimates: Estimates
    counted: Mapping[str, int]


@dataclass(frozen=True)
class Unscored:
    """The work items without a score."""

    items: tuple[tuple[int, int], ...]
    failed: Mapping[str, int]
    no_reward: int
    missing: int


def family_of(db: Database, run: DbRun) -> RunFamily:
    """Return a run with its retries; of a retry, the run that it is one of, as long as that is there."""
    with db.session() as session:
        return read_family(session, run)


def read_family(session: Session, run: DbRun) -> RunFamily:
    """As :func:`family_of`, in a session of the caller's."""
    original = run
    if run.retry_of_id is not None:
        original = session.get(DbRun, run.retry_of_id) or run
    retries = (DbRun.workspace_id == run.workspace_id, DbRun.retry_of_id == original.id)
    found = session.scalars(select(DbRun).where(*retries).order_by(DbRun.created_at, DbRun.id)).all()
    return RunFamily(original, tuple(found))


def require_ended(family: RunFamily) -> None:
    """Check that neither the run nor a retry is active."""
    run = family.still_open
    if run is None:
        return
    what = "it" if run is family.original else f"its retry '{run.name}'"
    raise ConflictError(
        f"the evaluation run '{family.original.name}' cannot be retried: {what} is {run.status}.",
        hint=f"wait for it with `osmosis eval watch {run.name}`",
    )


def merge(db: Database, blobs: BlobStore, family: RunFamily) -> MergedResults:
    """Work out the numbers of a run and its retries together."""
    table, owners = _counted(db, family)
    lost = [run.name for run in family.runs if not _count_judges(table, blobs, run, owners)]
    counted = dict.fromkeys((run.id for run in family.runs), 0)
    for run_id in owners.values():
        counted[run_id] += 1
    estimates = compute_metrics(table, pass_threshold=family.pass_threshold).estimates
    again = sum(counted[run.id] for run in family.retries)
    warnings = [_uncounted_judges(name) for name in lost]
    if again:
        warnings.insert(
            0, f"{again:,} of {estimates.counts.planned:,} samples are of retries: they had no score before"
        )
    estimates = estimates.model_copy(update={"warnings": [*warnings, *estimates.warnings]})
    return MergedResults(estimates, counted)


def measure_accepted(
    db: Database, blobs: BlobStore, run: DbRun, still_mine: Callable[[], None] = lambda: None
) -> RunMetrics:
    """Compute an active run's numbers from its accepted journal, as its worker would."""
    family = RunFamily(run, ())
    table, owners = _counted(db, family, still_mine)
    warnings = []
    try:
        for place, record in enumerate(run_records(db, blobs, run.id)):
            if place % _BATCH == 0:
                still_mine()
            if (record.row_index, record.run_index) in owners:
                table.set_judge_calls(record)
    except (BlobError, ConflictError, OSError, ValueError):
        warnings = [_uncounted_judges(run.name)]
    found = compute_metrics(table, pass_threshold=family.pass_threshold)
    estimates = found.estimates
    estimates = estimates.model_copy(update={"warnings": [*warnings, *estimates.warnings]})
    return found.model_copy(update={"estimates": estimates})


def _counted(
    db: Database, family: RunFamily, still_mine: Callable[[], None] = lambda: None
) -> tuple[AttemptTable, dict[tuple[int, int], str]]:
    """Return what the newest results of a family come to, judges aside, and of each work item whose its result is."""
    owners = dict[tuple[int, int], str]()
    table = AttemptTable(family.rows, family.n, only=_made_by(family.original))
    for run_id, sample in _samples(db, family):
        if len(owners) % _BATCH == 0:
            still_mine()
        item = (sample.row_index, sample.run_index)
        measured = {name: getattr(sample, name) for name in _MEASURED}
        table.set_result(TerminalRecord(*item, "", sample.status, reward=sample.reward, **measured))
        owners[item] = run_id
        if sample.row_digest:
            table.set_row_digest(sample.row_index, sample.row_digest)
    return table, owners


def _uncounted_judges(name: str) -> str:
    return f"what the judges of {name} were asked is not counted: its journal is gone"


def _count_judges(
    table: AttemptTable, blobs: BlobStore, run: DbRun, owners: Mapping[tuple[int, int], str]
) -> bool:
    """Count the judge calls of the counted samples; return False if the journal cannot be read."""
    asked = ((run.metrics or {}).get("estimates") or {}).get("judges")
    if not asked:
        return True
    if run.journal_blob is None:
        return False
    try:
        for record in stored_records(blobs, run.journal_blob):
            if owners.get((record.row_index, record.run_index)) == run.id:
                table.set_judge_calls(record)
    except (BlobNotFound, ConflictError):
        return False
    return True


def unscored_items(db: Database, family: RunFamily) -> Unscored:
    """Return what of a run has no score, its retries taken into account; what a grader took out needs none."""
    left: dict[tuple[int, int], str | None] = dict.fromkeys(
        sorted(
            _made_by(family.original) or ((row, run) for row in range(family.rows) for run in range(family.n))
        )
    )
    for _, sample in _samples(db, family):
        item = (sample.row_index, sample.run_index)
        if sample.status == "skipped" or (sample.status == "success" and _is_number(sample.reward)):
            left.pop(item, None)
        else:
            left[item] = (sample.boundary or "unknown") if sample.status == "failed" else ""
    failed: dict[str, int] = {}
    for boundary in filter(None, left.values()):
        failed[boundary] = failed.get(boundary, 0) + 1
    ways = list(left.values())
    return Unscored(tuple(sorted(left)), failed, ways.count(""), ways.count(None))


def _made_by(run: DbRun) -> list[tuple[int, int]] | None:
    """Return the work items of a run that makes only some: a retry whose original is gone."""
    return None if run.retried is None else [(row, attempt) for row, attempt in run.retried]


def _is_number(reward: float | None) -> bool:
    return reward is not None and math.isfinite(reward)


def newest_results(family: RunFamily) -> ColumnElement[bool]:
    """Return the condition that a sample is the newest result of its work item in a family."""
    original, *retries = (run.id for run in family.runs)
    if not retries:
        return DbSample.run_id == original
    again, retry = aliased(DbSample), aliased(DbRun)
    item = (again.row_index, again.run_index)
    newest_first = (retry.created_at.desc(), retry.id.desc())
    # What a retry made takes the place of the newest of the earlier retries' results, without any of the original's.
    replaced = func.lead(again.run_id, 1, original, type_=String).over(
        partition_by=item, order_by=newest_first
    )
    made_again = (
        select(_sample_key(replaced, *item))
        .join(retry, retry.id == again.run_id)
        .where(again.run_id.in_(retries))
    )
    # Of a key in one piece either database makes a set first; of three columns SQLite reads the list for each sample.
    key = _sample_key(DbSample.run_id, DbSample.row_index, DbSample.run_index)
    return and_(DbSample.run_id.in_([original, *retries]), key.not_in(made_again))


def _sample_key(run_id: Any, row: Any, attempt: Any) -> ColumnElement[str]:
    """Return a sample's run and work item as one text."""
    key: ColumnElement[str] = run_id + "/" + cast(row, String) + "/" + cast(attempt, String)
    return key


def not_made_again(later: Sequence[str]) -> list[ColumnElement[bool]]:
    """Return the condition that none of the ``later`` runs has a result of the same work item."""
    if not later:
        return []
    newer = aliased(DbSample)
    same = (newer.row_index == DbSample.row_index, newer.run_index == DbSample.run_index)
    return [~exists().where(newer.run_id.in_(later), *same)]


def _samples(db: Database, family: RunFamily) -> Iterator[tuple[str, Any]]:
    """Yield of every work item the newest result with the id of its run, in one statement however many runs there are."""
    asked = select(DbSample.run_id, *_COLUMNS).where(newest_results(family))
    with db.session() as session:
        for sample in session.execute(asked.execution_options(yield_per=_BATCH)):
            yield sample.run_id, sample
