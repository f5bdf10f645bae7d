"""A run's numbers, as stored in its row and sent to clients.

Active runs use their live progress, ended ones the engine's metrics. Unknown values are absent, never zero.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from osmosis_ai.datasets.selection import RowsDrawn
from osmosis_ai.evaluation.metrics import Estimates, RunScore
from osmosis_ai.platform.db.tables import DbRun
from osmosis_ai.platform.runs.submit.eval_request import effective_eval_settings
from osmosis_ai.platform.runs.submit.row_selection import RowSelection

if TYPE_CHECKING:
    from osmosis_ai.evaluation.hooks import ProgressSnapshot
    from osmosis_ai.platform.runs.read.run_store import ListedRun


def live_results(
    known: Mapping[str, Any], progress: ProgressSnapshot, metrics: Mapping[str, Any] | None
) -> dict[str, Any]:
    """Return the results of a run under way; ``metrics`` are those that the engine last wrote."""
    completed = progress.completed - progress.skipped
    headline = _headline(metrics)
    if headline is not None and progress.scored and not headline["scored"]:
        # The engine writes its metrics now and then: those from before the first score say less than the counts.
        known, headline = {name: value for name, value in known.items() if name != "headline"}, None
    return _merged(
        known,
        score=progress.reward_mean,
        pass_rate=progress.passed / completed if completed else None,
        graded=progress.scored,
        passed=progress.passed,
        failed=progress.failed,
        skipped=progress.skipped,
        total_runs=progress.completed,
        # A later worker does not know the usage of attempts that were lost with an earlier one.
        total_tokens=max(progress.tokens, known.get("total_tokens") or 0),
        headline=headline,
    )


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


def written_estimates(run: DbRun) -> dict[str, Any] | None:
    """Return the estimates that stand beside a run's results; None where they are from before its first score."""
    written: dict[str, Any] | None = (run.metrics or {}).get("estimates")
    counts = (written or {}).get("counts") or {}
    return None if counts.get("scored") == 0 and (run.results or {}).get("graded") else written


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
