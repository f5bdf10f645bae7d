"""A run's numbers, as stored in its row and sent to clients. Unknown values are absent, never zero."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from osmosis_ai.datasets.selection import RowsDrawn
from osmosis_ai.evaluation.metrics import Estimates, RunScore
from osmosis_ai.platform.db.tables import DbRun
from osmosis_ai.platform.runs.submit.eval_request import effective_eval_settings
from osmosis_ai.platform.runs.submit.row_selection import RowSelection

if TYPE_CHECKING:
    from osmosis_ai.platform.runs.read.run_store import ListedRun


def summarised_results(known: Mapping[str, Any], metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Return the results that the engine's numbers (as in ``metrics.json``) stand for."""
    summary = metrics["summary"]
    stats = summary.get("reward_stats")
    # What was said of samples that never came is of none that there are.
    known = {name: value for name, value in known.items() if name not in ("score", "reward_stats")}
    if stats is not None:
        by_k = {str(point["k"]): point["value"] for point in summary.get("pass_at_k", ())}
        stats = {**stats, "pass_at_k": by_k}
    return _merged(
        known,
        score=stats["mean"] if stats is not None else None,
        pass_rate=summary["pass_rate"],
        graded=summary["graded"],
        passed=summary["passed"],
        failed=summary["failed"],
        skipped=summary["skipped"],
        total_runs=summary["total_samples"],
        total_tokens=summary["tokens_used"],
        reward_stats=stats,
        headline=_headline(metrics),
    )


def headline_of(run: DbRun | ListedRun) -> RunScore | None:
    """Return a run's result in a line; None before anything is counted."""
    results, rows = run.results or {}, rows_of(run)
    planned = rows.rows * effective_eval_settings(run.request)["n"] if rows is not None else 0
    return RunScore.of_results(results, planned=planned, rows=rows)


def rows_of(run: DbRun | ListedRun) -> RowsDrawn | None:
    """Return how many rows of how many a run uses, and how they were chosen."""
    sampled = (run.results or {}).get("sampled_rows")
    return RowSelection.read(run.selection).drawn(sampled) if run.selection and sampled is not None else None


def _headline(metrics: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Return the headline that a run's row keeps beside the numbers of the wire."""
    if metrics is None:
        return None
    return RunScore.of(Estimates.model_validate(metrics["estimates"])).model_dump(mode="json")


def _merged(known: Mapping[str, Any], **new: Any) -> dict[str, Any]:
    return {**known, **{name: value for name, value in new.items() if value is not None}}
