"""Evaluation runs of a platform: list, describe, watch and retry."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from shlex import quote
from typing import TYPE_CHECKING, Any, ClassVar

from osmosis_ai.api.capabilities import Capability
from osmosis_ai.api.connections import REPEATING
from osmosis_ai.api.http_errors import PlatformError
from osmosis_ai.api.models.eval_runs import (
    EvalMetrics,
    EvalRun,
    EvalRunDetail,
    EvalRunList,
    EvalRunRow,
    RetryCheck,
)
from osmosis_ai.api.models.runs import EvalRetry, Run, RunSecrets, SubmittedRun
from osmosis_ai.datasets.selection import RowsDrawn
from osmosis_ai.evaluation.hooks import ProgressSnapshot
from osmosis_ai.evaluation.metrics import Estimates, RunScore
from osmosis_ai.services.capabilities import require_offered
from osmosis_ai.services.listing import fetch_listing
from osmosis_ai.services.runs.lifecycle import (
    RUN_PATHS,
    WAITING,
    DescribedRun,
    RunKind,
    finite,
    get_evaluation,
    jsonable,
    plain,
    run_path,
)
from osmosis_ai.services.runs.secrets import explaining_failures, stand_ins, supplied_values
from osmosis_ai.ui.run_numbers import execution_rows, format_counts, score_json

if TYPE_CHECKING:
    from osmosis_ai.api.client import PlatformClient


@dataclass(frozen=True)
class DescribedEvaluation(DescribedRun):
    """An evaluation with its metrics or, while it is watched, its progress."""

    kind: ClassVar[RunKind] = "eval"
    detail: EvalRunDetail
    metrics: EvalMetrics | None = None
    metrics_error: str | None = None
    progress: ProgressSnapshot | None = None

    @property
    def run(self) -> EvalRun:
        return self.detail.eval_run

    @property
    def summary(self) -> dict[str, Any]:
        results, known = self.detail.results, run_summary(self.detail)
        if results is not None:
            known |= {
                "pass_threshold": finite(results.pass_threshold),
                "total_tokens": results.total_tokens,
                "dataset_rows": results.total_dataset_rows,
                "resumed_count": results.resumed_count,
            }
        return {key: value for key, value in known.items() if value is not None}

    @property
    def estimates(self) -> Estimates | None:
        """The intervals and counts; None if missing or in a format that this version does not know."""
        return Estimates.read(self.metrics.estimates) if self.metrics is not None else None

    @property
    def headline(self) -> RunScore | None:
        """The run's result in one line; None before any sample is counted."""
        if self.estimates is not None:
            return RunScore.of(self.estimates, rows_drawn(self.detail))
        return run_headline(self.detail)

    def data(self) -> dict[str, Any]:
        detail, parts = self.detail, {"model": self.model, **_names(self.detail)}
        return {
            **super().data(),
            **parts,
            "eval_run": {**_own_fields(self.run), **parts},
            "headline": score_json(self.headline),
            "results": plain(detail.results),
            "dataset_df_stats": detail.dataset_df_stats,
            "metrics": plain(self.metrics),
        }

    def outcome(self) -> dict[str, Any]:
        known = {"headline": score_json(self.headline), "metrics": _run_metrics(self.metrics)}
        return {**super().outcome(), **known}


def list_runs(client: PlatformClient, limit: int, everything: bool) -> EvalRunList:
    return fetch_listing(client.pages(RUN_PATHS["eval"], EvalRunList), limit=limit, everything=everything)


def describe_run(client: PlatformClient, name: str) -> DescribedEvaluation:
    """Return a run with its metrics; unavailable metrics are not an error."""
    detail = get_evaluation(client, name)
    if detail.run.status in WAITING:
        return DescribedEvaluation(detail)
    try:
        path = run_path("eval", detail.run.id, "/metrics")
        return DescribedEvaluation(detail, client.get(path, model=EvalMetrics))
    except PlatformError as error:
        return DescribedEvaluation(detail, metrics_error=error.message)


def run_item(row: EvalRunRow) -> dict[str, Any]:
    rows = rows_drawn(row)
    item = _own_fields(row) | {"model": row.model.name if row.model else None, **_names(row)}
    optional = {"results": plain(row.results), "config": row.config, "waits": row.waits}
    return {
        **item,
        **{key: value for key, value in optional.items() if value},
        "summary": run_summary(row),
        "headline": score_json(run_headline(row)),
        "rows": rows.words if rows is not None else None,
    }


def _own_fields(run: EvalRun) -> dict[str, Any]:
    retry = {"revision", "retried_at"} if run.revision else set()
    absent = {"waits", *(key for key in ("error", "platform_url") if not getattr(run, key))}
    fields = run.model_dump(mode="json", include=(Run.model_fields.keys() | retry) - absent)
    return fields if run.imported is None else {**fields, "imported": plain(run.imported)}


def _names(run: EvalRunRow | EvalRunDetail) -> dict[str, str | None]:
    return {
        key: part.name if part else None for key, part in (("dataset", run.dataset), ("rollout", run.rollout))
    }


def run_headline(run: EvalRunRow | EvalRunDetail) -> RunScore | None:
    results = run.results
    if results is None:
        return None
    progress = _progress(run)
    known = {key: finite(value) if isinstance(value, float) else value for key, value in results}
    planned = progress[1] if progress is not None else results.total_runs or 0
    return RunScore.of_results(known, planned=planned, rows=rows_drawn(run))


def rows_drawn(run: EvalRunRow | EvalRunDetail) -> RowsDrawn | None:
    """Describe how many of how many rows a run uses and, if known, how they were chosen."""
    results = run.results
    if results is None or results.sampled_rows is None:
        return None
    told = results.rows_drawn or {}
    kind = told.get("kind", "first" if (run.config or {}).get("limit") else None)
    return RowsDrawn(
        results.sampled_rows, results.total_dataset_rows, kind, told.get("fraction"), told.get("seed")
    )


def run_summary(run: EvalRunRow | EvalRunDetail) -> dict[str, Any]:
    results, progress = run.results, _progress(run)
    if results is None:
        return {}
    known: dict[str, Any] = {"avg_reward": finite(results.score), "pass_rate": finite(results.pass_rate)}
    known |= results.model_dump(include={"graded", "passed", "failed", "skipped"})
    if progress is not None:
        known["progress"] = {"completed": progress[0], "total": progress[1], "unit": "samples"}
    return {key: value for key, value in known.items() if value is not None}


def _progress(run: EvalRunRow | EvalRunDetail) -> tuple[int, int] | None:
    """Return completed and planned samples; None if the platform does not report them."""
    results, attempts = run.results, (run.config or {}).get("n")
    if results is None or results.sampled_rows is None:
        return None
    planned = results.sampled_rows * (attempts if type(attempts) is int and attempts > 0 else 1)
    completed = results.total_runs or 0
    return completed, max(planned, completed)


def _run_metrics(metrics: EvalMetrics | None) -> dict[str, Any] | None:
    """Return a run's metrics under the names used by `eval run`."""
    if metrics is None:
        return None
    found = {**metrics.overview.model_dump(exclude={"duration_ms"}), "reward_stats": metrics.reward_stats}
    found["pass_at_k"] = [point.model_dump() for point in metrics.pass_at_k] or None
    known = {key: value for key, value in found.items() if value is not None}
    return dict(jsonable({**known, "estimates": metrics.estimates}))


@dataclass(frozen=True)
class ProposedRetry:
    """A retry that the platform would accept: its preview, and the request with the values of secrets."""

    check: RetryCheck
    again: EvalRetry = field(repr=False)
    execution: Sequence[tuple[str, str]] = ()

    @property
    def name(self) -> str:
        return self.check.eval_run.name or self.check.eval_run.id or ""

    @property
    def samples(self) -> str:
        return f"{self.check.samples:,} of {self.check.planned:,}"

    @property
    def reasons(self) -> str:
        check = self.check
        parts = [
            f"failed {format_counts(check.failed)}" if check.failed else "",
            f"{check.no_reward:,} without a reward" if check.no_reward else "",
            f"{check.missing:,} not started" if check.missing else "",
        ]
        return "; ".join(filter(None, parts))


def plan_retry(
    client: PlatformClient,
    name: str,
    secret_values: Mapping[str, str],
    *,
    max_cost: float | None = None,
    max_tokens: int | None = None,
) -> ProposedRetry:
    """Preview a retry of a run; without a limit in US dollars or tokens, the run's budget applies."""
    detail = get_evaluation(client, name)
    require_offered(client, Capability.EVAL_RETRIES)
    provided = supplied_values(tuple(detail.resolved_secret_scopes or ()), secret_values)
    client.hide(provided.values())
    budget = {"max_cost": max_cost, "max_tokens": max_tokens}
    known = {key: value for key, value in budget.items() if value is not None}

    def again(values: Mapping[str, str]) -> EvalRetry:
        secrets = {"secrets": RunSecrets(provided=dict(values))} if values else {}
        return EvalRetry.model_validate({**known, **secrets})

    path = run_path("eval", detail.run.id, "/retry/check")
    with explaining_failures():
        check = client.post(path, again(stand_ins(provided)), model=RetryCheck, retry=REPEATING)
    execution = execution_rows((detail.request or {}).get("advanced_config"), known)
    return ProposedRetry(check, again(provided), execution)


def submit_retry(client: PlatformClient, planned: ProposedRetry) -> SubmittedRun:
    """Reopen a run to repeat its attempts without a score; the request is never retried."""
    path = run_path("eval", planned.check.eval_run.id or planned.name, "/retry")
    with explaining_failures(f"osmosis eval info {quote(planned.name)}"):
        return client.post(path, planned.again, model=SubmittedRun)


class EvaluationLook:
    """Polls a run and measures how long workers have worked on it, and what they finished meanwhile.

    Waiting time does not count. A lost worker is noticed late, so the time since the last finished sample is
    then subtracted.
    """

    def __init__(self, client: PlatformClient, name: str) -> None:
        self._client = client
        self._name = name
        self._at: float | None = None  # last look while a worker was active
        self._completed = self._finished = 0
        self._worked_s = self._certain_s = 0.0

    def __call__(self) -> DescribedEvaluation:
        detail = get_evaluation(self._client, self._name)
        self._name = detail.run.id
        progress, results, score = _progress(detail), detail.results, run_headline(detail)
        if progress is None or results is None:
            return DescribedEvaluation(detail)
        completed, total = progress
        self._measure(completed, works=detail.run.status == "running" and not detail.waits)
        reward = finite(score.reward) if score is not None else None
        mean = finite(results.score)
        snapshot = ProgressSnapshot(
            completed=completed,
            total=total,
            passed=results.passed or 0,
            failed=results.failed or 0,
            skipped=results.skipped or 0,
            scored=(results.graded or 0) if mean is not None else 0,
            reward_mean=mean if reward is None else reward,
            tokens=results.total_tokens or 0,
            cost_usd=None,
            in_flight=None,
            elapsed_s=self._worked_s,
            finished=self._finished,
        )
        return DescribedEvaluation(detail, progress=snapshot)

    def _measure(self, completed: int, *, works: bool) -> None:
        now, more = time.monotonic(), max(0, completed - self._completed)
        if self._at is not None:
            self._worked_s += now - self._at
            self._finished += more
            if more:
                self._certain_s = self._worked_s
        if not works:
            self._worked_s = self._certain_s
        self._at, self._completed = (now if works else None), completed
