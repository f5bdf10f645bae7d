"""The results of runs: metrics of evaluations, computed from their samples, and curves of training runs.

Unknown values are absent, never zero. The metrics of an active evaluation are updated incrementally.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby
from typing import Any

from sqlalchemy import bindparam, select
from sqlalchemy.orm import Session

from osmosis_ai.controller.outcomes import LimitedBy
from osmosis_ai.controller.record import TerminalRecord
from osmosis_ai.datasets.selection import RowsDrawn
from osmosis_ai.evaluation.metrics import Estimates, RunScore, compute_metrics
from osmosis_ai.evaluation.results import AttemptTable
from osmosis_ai.platform.db.engine import Database, DatabaseBusyError, StorageFullError
from osmosis_ai.platform.db.tables import DbMetricPoint, DbRun, DbRunShard, DbSample
from osmosis_ai.platform.log_lines import PLAN, WARNED
from osmosis_ai.platform.logs import LogStore
from osmosis_ai.platform.runs.requests import RowSelection, evaluation_settings
from osmosis_ai.training.runs.curves import CurveMark, marked_warnings, restarts
from osmosis_ai.training.runs.metrics import TITLES

logger = logging.getLogger("osmosis_ai.platform.queue")

_MOST_ATTEMPTS = 2_000_000
"""Attempts in the tables of active runs; the samples of further runs are read again each time."""
_BATCH = 5000
_COLUMNS = (
    *("row_index", "run_index", "source_row_index", "status", "reward", "boundary", "category", "error_type"),
    *("tokens", "prompt_tokens", "completion_tokens", "cost_usd", "finish_reasons", "lost_attempts"),
    *("duration_ms", "model_latency_ms", "model_calls"),
    *("judge_calls", "judge_tokens", "judge_cost_usd", "judge_outside_scale"),
)
_SAMPLES = tuple(getattr(DbSample, name) for name in ("row_digest", "position", *_COLUMNS))


def summarised_results(known: Mapping[str, Any], metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Return the results of a run with these metrics (as in ``metrics.json``), in addition to those ``known``."""
    summary = metrics["summary"]
    stats = summary.get("reward_stats")
    if stats is not None:
        by_k = {str(point["k"]): point["value"] for point in summary.get("pass_at_k", ())}
        stats = {**stats, "pass_at_k": by_k}
    new = {
        "score": stats["mean"] if stats is not None else None,
        **{name: summary[name] for name in ("pass_rate", "graded", "passed", "failed", "skipped")},
        "total_runs": summary["total_samples"],
        "total_tokens": summary["tokens_used"],
        "reward_stats": stats,
        "headline": RunScore.of(Estimates.model_validate(metrics["estimates"])).model_dump(mode="json"),
    }
    # Former numbers of rewards are obsolete even if no sample has a reward now.
    kept = {name: value for name, value in known.items() if name not in ("score", "reward_stats")}
    return {**kept, **{name: value for name, value in new.items() if value is not None}}


def headline_of(run: DbRun) -> RunScore | None:
    """Return a run's result in a line; None before any sample is counted."""
    rows = rows_of(run)
    planned = rows.rows * evaluation_settings(run.request).n if rows is not None else 0
    return RunScore.of_results(run.results or {}, planned=planned, rows=rows)


def rows_of(run: DbRun) -> RowsDrawn | None:
    """Return the number of rows that a run uses, and how they were selected."""
    sampled = (run.results or {}).get("sampled_rows")
    return RowSelection.read(run.selection).drawn(sampled) if run.selection and sampled is not None else None


def eval_config(run: DbRun) -> dict[str, Any]:
    """Return the settings of an evaluation with defaults, and with seeds if the platform executed it."""
    config = evaluation_settings(run.request).model_dump(exclude_none=True)
    if run.imported is not None:
        return config
    draw_seed = RowSelection.read(run.selection).draw_seed if run.selection else None
    return {**config, "seed": run.seed, **({"row_draw_seed": draw_seed} if draw_seed is not None else {})}


@dataclass
class _Counted:
    """The samples of an active run that have been counted: up to a position, under a revision."""

    table: AttemptTable
    revision: int
    position: int = 0
    longest_ms: float = 0.0


class MetricsUpdater:
    def __init__(self, db: Database) -> None:
        self._db = db
        self._tables: OrderedDict[str, _Counted] = OrderedDict()

    def update(self) -> None:
        """Write the numbers of active runs with new samples."""
        changed = (DbRun.status == "running", DbRun.kind == "eval", DbRun.accepted > DbRun.counted)
        for run in self._db.scalars(select(DbRun).where(*changed)):
            try:
                counted, metrics = self._measure(run)
                with self._db.transaction() as session:
                    current = session.get(DbRun, run.id, with_for_update=True)
                    if current is not None and (current.status, current.revision) == (
                        "running",
                        run.revision,
                    ):
                        write_numbers(current, metrics, counted.position)
            except (DatabaseBusyError, StorageFullError):
                raise
            except Exception:  # of one run: the others are counted all the same
                logger.exception("the metrics of the run %s cannot be computed", run.name)

    def final(self, run: DbRun) -> dict[str, Any] | None:
        """Return the metrics of all samples of a run whose workers have ended; None if it never began to be counted."""
        if run.kind != "eval" or (run.results or {}).get("sampled_rows") is None:
            return None
        _, metrics = self._measure(run)
        self._tables.pop(run.id, None)
        return metrics

    def _measure(self, run: DbRun) -> tuple[_Counted, dict[str, Any]]:
        settings = evaluation_settings(run.request)
        counted = self._tables.get(run.id)
        if counted is None or counted.revision != run.revision:
            rows = int((run.results or {}).get("sampled_rows") or 0)
            counted = _Counted(AttemptTable(rows, settings.n), run.revision)
            self._tables[run.id] = counted
            attempts = sum(len(each.table) for each in list(self._tables.values()))
            while attempts > _MOST_ATTEMPTS and len(self._tables) > 1:
                attempts -= len(self._tables.popitem(last=False)[1].table)
        with self._db.session() as session:
            self._read_samples(session, run, counted)
            work = DbRunShard.run_id == run.id, DbRunShard.kind == "work"
            shards = session.scalars(select(DbRunShard).where(*work)).all()
        found = compute_metrics(counted.table, pass_threshold=settings.pass_threshold)
        estimates = found.estimates.model_copy(update={"limited_by": _limited_by(shards)})
        earlier_ms = float((run.metrics or {}).get("earlier_ms") or 0.0)
        worked_ms = earlier_ms + 1000 * max((shard.worked_s for shard in shards), default=0.0)
        return counted, {
            "duration_ms": round(max(worked_ms, counted.longest_ms)),
            **({"earlier_ms": earlier_ms} if earlier_ms else {}),
            "summary": found.summary,
            "estimates": estimates.model_dump(mode="json"),
        }

    def _read_samples(self, session: Session, run: DbRun, counted: _Counted) -> None:
        table = counted.table
        new = (DbSample.run_id == run.id, DbSample.position > counted.position)
        samples = select(*_SAMPLES).where(*new).order_by(DbSample.position)
        if run.accepted - counted.position > _BATCH:
            # A cursor on the server would cost more than a few rows.
            samples = samples.execution_options(yield_per=_BATCH)
        for sample in session.execute(samples):
            counted.position = sample.position
            counted.longest_ms = max(counted.longest_ms, sample.duration_ms or 0.0)
            # An attempt without a score that a retry has not repeated yet is pending.
            is_scored = sample.status == "success" and sample.reward is not None
            is_old = run.revision and sample.position <= run.reopened_at
            if is_old and not is_scored and sample.status != "skipped":
                continue
            values = {name: getattr(sample, name) for name in _COLUMNS}
            table.set_result(TerminalRecord(rollout_id="", **values))
            if sample.row_digest:
                table.set_row_digest(sample.row_index, sample.row_digest)


def write_numbers(run: DbRun, metrics: dict[str, Any], position: int) -> None:
    """Write the metrics of a run's samples up to a position into its row."""
    summary = metrics["summary"]
    run.metrics = metrics
    run.results = summarised_results(run.results or {}, metrics)
    planned = metrics["estimates"]["counts"]["planned"]
    run.progress = {"completed": summary["total_samples"], "total": planned}
    run.counted = max(run.counted, position)


def _limited_by(shards: Sequence[DbRunShard]) -> LimitedBy | None:
    """Return what limited the worker that worked longest."""
    known = [shard for shard in shards if shard.limited_by]
    if not known:
        return None
    try:
        return LimitedBy.model_validate(max(known, key=lambda shard: shard.worked_s).limited_by)
    except ValueError:
        return None


# -- curves ------------------------------------------------------------------------------------------

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
    step: int
    value: float
    timestamp: datetime


Curves = dict[str, list[CurvePoint]]
"""The points of each metric, at least one, by rising step."""


def read_curves(db: Database, *run_ids: str) -> dict[str, Curves]:
    """Return the curves of runs in the order in which users want to see them; metrics of other trainers come last."""
    found: dict[str, Curves] = {run_id: {} for run_id in run_ids}
    with db.session() as session:
        rows = session.execute(_POINTS, {"run_ids": run_ids})
        for (run_id, key), points in groupby(rows, key=lambda row: (row[0], row[1])):
            found[run_id][key] = [CurvePoint(*row[2:]) for row in points]
    return {
        run_id: {key: curves[key] for key in sorted(curves, key=lambda key: (_POSITION.get(key, _LAST), key))}
        for run_id, curves in found.items()
    }


def values_of(curves: Curves) -> dict[str, list[tuple[int, float]]]:
    return {key: [(point.step, point.value) for point in points] for key, points in curves.items()}


def logged_adapter(logs: LogStore, run_id: str) -> dict[str, str]:
    """Return which weights of a training run have an adapter, by label; empty before its start."""
    found = [plan.details.get("adapter") for plan in logs.marks(run_id, PLAN) if plan.details]
    adapter = found[-1] if found else None
    return {str(label): str(text) for label, text in adapter.items()} if isinstance(adapter, dict) else {}


def logged_marks(logs: LogStore, run_id: str) -> list[CurveMark]:
    """Return marks for resumed steps and warnings from the run's log."""
    plans, warnings = logs.marks(run_id, PLAN), logs.marks(run_id, WARNED)
    texts = ((line.message or "", line.details) for line in warnings if line.details)
    return [*restarts(plan.details for plan in plans if plan.details), *marked_warnings(texts)]
