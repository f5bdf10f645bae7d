"""Evaluation runs of the platform: listed, described, their numbers read."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from osmosis_ai.services.eval_runs.retry import MergedRuns
from osmosis_ai.services.runs.finite import finite, jsonable, plain
from osmosis_ai.services.runs.lifecycle import WAITING, DescribedRun, RunKind

if TYPE_CHECKING:
    from collections.abc import Mapping

    from osmosis_ai.api.client import PlatformClient
    from osmosis_ai.api.wire.eval_runs import EvalMetrics, EvalResults, EvalRun, EvalRunDetail, EvalRunRow
    from osmosis_ai.datasets.selection import RowsDrawn
    from osmosis_ai.evaluation.headline import Headline
    from osmosis_ai.evaluation.metrics_models import Estimates
    from osmosis_ai.services.listing import Listing


@dataclass(frozen=True)
class RunProgress:
    """Samples that are done, and all that are planned."""

    completed: int
    total: int


@dataclass(frozen=True)
class DescribedEvaluation(DescribedRun):
    """An evaluation in full.

    Attributes:
        merged: with its retries, or with what it is a retry of; None without any.
    """

    kind: ClassVar[RunKind] = "eval"
    detail: EvalRunDetail
    metrics: EvalMetrics | None = None
    metrics_error: str | None = None
    merged: MergedRuns | None = None

    @property
    def run(self) -> EvalRun:
        return self.detail.eval_run

    @property
    def summary(self) -> dict[str, Any]:
        return run_summary(self.detail.results, self.detail.config, full=True)

    @property
    def model(self) -> str | None:
        path = (self.detail.config or {}).get("model_path")
        return path if isinstance(path, str) else None

    @property
    def estimates(self) -> Estimates | None:
        """The intervals and counts, where the platform has them in a form this version knows."""
        from osmosis_ai.evaluation.metrics_models import Estimates

        return Estimates.read(self.metrics.estimates) if self.metrics is not None else None

    @property
    def headline(self) -> Headline | None:
        """The run's result in a line; None before anything is counted."""
        from osmosis_ai.evaluation.headline import Headline

        estimates, detail = self.estimates, self.detail
        if estimates is not None:
            return Headline.of(estimates, rows_drawn(detail.results, detail.config))
        return run_headline(detail.results, detail.config)

    def data(self) -> dict[str, Any]:
        detail, run = self.detail, self.run
        dataset = detail.dataset.name if detail.dataset else None
        rollout = detail.rollout.name if detail.rollout else None
        return {
            **super().data(),
            "eval_run": {
                **_own_fields(run, model=self.model, dataset=dataset, rollout=rollout),
                **({"platform_url": run.platform_url} if run.platform_url else {}),
            },
            "headline": self.headline.to_json() if self.headline is not None else None,
            "results": plain(detail.results),
            "model": self.model,
            "dataset": dataset,
            "rollout": rollout,
            "dataset_df_stats": detail.dataset_df_stats,
            "metrics": plain(self.metrics),
            **self._related(),
        }

    def _related(self) -> dict[str, Any]:
        """Return what scripts see of retries, where there are any."""
        detail, merged = self.detail, self.merged
        if detail.retry_of is None and not detail.retries:
            return {}
        return {
            "retry_of": plain(detail.retry_of),
            "retries": [plain(run) for run in detail.retries],
            "merged": jsonable(merged.data()) if merged is not None else None,
        }

    def outcome(self) -> dict[str, Any]:
        headline = self.headline.to_json() if self.headline is not None else None
        known = {"headline": headline, "metrics": run_metrics(self.metrics)}
        return {**super().outcome(), **known, **self._related()}


def list_runs(client: PlatformClient, *, limit: int, everything: bool) -> Listing[EvalRunRow]:
    """Return the workspace's runs, the newest first; arguments as in ``fetch_listing``."""
    from osmosis_ai.services.listing import fetch_listing

    return fetch_listing(
        lambda size, offset: client.eval_runs.list(limit=size, offset=offset),
        lambda page: page.eval_runs,
        limit=limit,
        everything=everything,
    )


def describe_run(client: PlatformClient, name: str) -> DescribedEvaluation:
    """Return a run with its numbers; that the numbers cannot be had is no failure.

    Raises:
        PlatformError: no such run, or as every call.
    """
    from osmosis_ai.api.http_errors import PlatformError

    detail = client.eval_runs.get(name)
    merged = None
    if detail.retry_of is not None or detail.retries:
        with suppress(PlatformError):
            merged = MergedRuns.of(client.eval_runs.merged(detail.eval_run.id))
    if detail.eval_run.status in WAITING:
        return DescribedEvaluation(detail, merged=merged)
    try:
        return DescribedEvaluation(detail, client.eval_runs.metrics(detail.eval_run.id), merged=merged)
    except PlatformError as error:
        return DescribedEvaluation(detail, metrics_error=error.message, merged=merged)


def run_item(row: EvalRunRow) -> dict[str, Any]:
    """Return a listed run as scripts see it."""
    item = _own_fields(
        row,
        model=row.model.name if row.model else None,
        dataset=row.dataset.name if row.dataset else None,
        rollout=row.rollout.name if row.rollout else None,
    )
    optional = {
        "results": plain(row.results),
        "config": row.config,
        "platform_url": row.platform_url,
        "retry_of": plain(row.retry_of),
        "waits": row.waits,
    }
    item |= {key: value for key, value in optional.items() if value}
    headline, rows = run_headline(row.results, row.config), rows_drawn(row.results, row.config)
    return {
        **item,
        "summary": run_summary(row.results, row.config),
        "headline": headline.to_json() if headline is not None else None,
        "rows": rows.words if rows is not None else None,
    }


def run_headline(results: EvalResults | None, config: Mapping[str, Any] | None) -> Headline | None:
    """Return a run's result in a line, as far as the platform lets it be known."""
    from osmosis_ai.evaluation.headline import Headline

    if results is None:
        return None
    progress = run_progress(results, config)
    known = {key: finite(value) if isinstance(value, float) else value for key, value in results}
    planned = progress.total if progress is not None else results.total_runs or 0
    return Headline.of_results(known, planned=planned, rows=rows_drawn(results, config))


def rows_drawn(results: EvalResults | None, config: Mapping[str, Any] | None) -> RowsDrawn | None:
    """Return how many rows of how many a run uses, and how they were chosen as far as the platform says."""
    from osmosis_ai.datasets.selection import RowsDrawn

    if results is None or results.sampled_rows is None:
        return None
    told = results.rows_drawn or {}
    kind = told.get("kind", "first" if (config or {}).get("limit") else None)
    return RowsDrawn(
        results.sampled_rows, results.total_dataset_rows, kind, told.get("fraction"), told.get("seed")
    )


def run_summary(
    results: EvalResults | None, config: Mapping[str, Any] | None, *, full: bool = False
) -> dict[str, Any]:
    """Return the numbers of a run that are known; ``full`` adds those that only a detail shows."""
    if results is None:
        return {}
    known: dict[str, Any] = {
        "avg_reward": finite(results.score),
        "pass_rate": finite(results.pass_rate),
        "graded": results.graded,
        "passed": results.passed,
        "failed": results.failed,
        "skipped": results.skipped,
    }
    progress = run_progress(results, config)
    if progress is not None:
        known["progress"] = {"completed": progress.completed, "total": progress.total, "unit": "samples"}
    if full:
        known |= {
            "pass_threshold": finite(results.pass_threshold),
            "total_tokens": results.total_tokens,
            "dataset_rows": results.total_dataset_rows,
            "resumed_count": results.resumed_count,
        }
    return {key: value for key, value in known.items() if value is not None}


def run_progress(results: EvalResults | None, config: Mapping[str, Any] | None) -> RunProgress | None:
    """Return how far a run is; never more than all of it. None while the platform does not say."""
    if results is None or results.sampled_rows is None:
        return None
    attempts = (config or {}).get("n")
    planned = results.planned_samples or results.sampled_rows * (
        attempts if type(attempts) is int and attempts > 0 else 1
    )
    completed = results.total_runs or 0
    return RunProgress(completed, max(planned, completed))


def run_metrics(metrics: EvalMetrics | None) -> dict[str, Any] | None:
    """Return a run's numbers under the names that `eval run` gives them."""
    if metrics is None:
        return None
    found = {**metrics.overview.model_dump(exclude={"duration_ms"}), "reward_stats": metrics.reward_stats}
    found["pass_at_k"] = [point.model_dump() for point in metrics.pass_at_k] or None
    known = {key: value for key, value in found.items() if value is not None}
    return dict(jsonable({**known, "estimates": metrics.estimates}))


def _own_fields(
    run: EvalRun, *, model: str | None, dataset: str | None, rollout: str | None
) -> dict[str, Any]:
    known = run.model_dump(mode="json")
    fields = {key: known[key] for key in ("id", "name", "status", "created_at", "started_at", "completed_at")}
    fields |= {"model": model, "dataset": dataset, "rollout": rollout}
    fields |= {"creator_name": run.creator_name, "creator_email": run.creator_email}
    if run.imported is not None:
        fields["imported"] = plain(run.imported)
    return {**fields, "error": run.error} if run.error else fields
