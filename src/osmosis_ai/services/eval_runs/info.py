"""Evaluation runs of the platform and of this machine: describe, list, retry and watch."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from osmosis_ai.errors import NotFoundError, OsmosisError
from osmosis_ai.services.runs.finite import finite, jsonable, plain
from osmosis_ai.services.runs.lifecycle import TERMINAL, WAITING, DescribedRun, RunKind

if TYPE_CHECKING:
    from osmosis_ai.api.client import PlatformClient
    from osmosis_ai.api.models.eval_runs import (
        EvalMetrics,
        EvalResults,
        EvalRun,
        EvalRunDetail,
        EvalRunRow,
        RetryCheck,
    )
    from osmosis_ai.api.models.runs import EvalRetry, SubmittedRun
    from osmosis_ai.controller.record import TerminalRecord
    from osmosis_ai.datasets.selection import RowsDrawn
    from osmosis_ai.evaluation.hooks import ProgressSnapshot
    from osmosis_ai.evaluation.local_results import LocalResults
    from osmosis_ai.evaluation.metrics import Estimates, RunScore
    from osmosis_ai.services.listing import Listing


@dataclass(frozen=True)
class RunProgress:
    """Completed and planned samples."""

    completed: int
    total: int


@dataclass(frozen=True)
class DescribedEvaluation(DescribedRun):
    """An evaluation with its metrics."""

    kind: ClassVar[RunKind] = "eval"
    detail: EvalRunDetail
    metrics: EvalMetrics | None = None
    metrics_error: str | None = None

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
        """The intervals and counts; None if missing or in a format that this version does not know."""
        from osmosis_ai.evaluation.metrics import Estimates

        return Estimates.read(self.metrics.estimates) if self.metrics is not None else None

    @property
    def headline(self) -> RunScore | None:
        """The run's result in one line; None before any sample is counted."""
        from osmosis_ai.evaluation.metrics import RunScore

        estimates, detail = self.estimates, self.detail
        if estimates is not None:
            return RunScore.of(estimates, rows_drawn(detail.results, detail.config))
        return run_headline(detail.results, detail.config)

    def data(self) -> dict[str, Any]:
        from osmosis_ai.ui.run_numbers import score_json

        detail, run = self.detail, self.run
        dataset = detail.dataset.name if detail.dataset else None
        rollout = detail.rollout.name if detail.rollout else None
        return {
            **super().data(),
            "eval_run": {
                **_own_fields(run, model=self.model, dataset=dataset, rollout=rollout),
                **({"platform_url": run.platform_url} if run.platform_url else {}),
            },
            "headline": score_json(self.headline),
            "results": plain(detail.results),
            "model": self.model,
            "dataset": dataset,
            "rollout": rollout,
            "dataset_df_stats": detail.dataset_df_stats,
            "metrics": plain(self.metrics),
        }

    def outcome(self) -> dict[str, Any]:
        from osmosis_ai.ui.run_numbers import score_json

        known = {"headline": score_json(self.headline), "metrics": run_metrics(self.metrics)}
        return {**super().outcome(), **known}


def list_runs(client: PlatformClient, *, limit: int, everything: bool) -> Listing[EvalRunRow]:
    """List the workspace's runs, newest first; arguments as in ``fetch_listing``."""
    from osmosis_ai.services.listing import fetch_listing

    return fetch_listing(
        lambda size, offset: client.eval_runs.list(limit=size, offset=offset),
        lambda page: page.eval_runs,
        limit=limit,
        everything=everything,
    )


def describe_run(client: PlatformClient, name: str) -> DescribedEvaluation:
    """Return a run with its metrics; unavailable metrics are not an error.

    Raises:
        PlatformError: the run does not exist or the request failed.
    """
    from osmosis_ai.api.http_errors import PlatformError

    detail = client.eval_runs.get(name)
    if detail.eval_run.status in WAITING:
        return DescribedEvaluation(detail)
    try:
        return DescribedEvaluation(detail, client.eval_runs.metrics(detail.eval_run.id))
    except PlatformError as error:
        return DescribedEvaluation(detail, metrics_error=error.message)


def run_item(row: EvalRunRow) -> dict[str, Any]:
    """Return the JSON of a listed run."""
    from osmosis_ai.ui.run_numbers import score_json

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
        "waits": row.waits,
    }
    item |= {key: value for key, value in optional.items() if value}
    headline, rows = run_headline(row.results, row.config), rows_drawn(row.results, row.config)
    return {
        **item,
        "summary": run_summary(row.results, row.config),
        "headline": score_json(headline),
        "rows": rows.words if rows is not None else None,
    }


def run_headline(results: EvalResults | None, config: Mapping[str, Any] | None) -> RunScore | None:
    """Return a run's result in one line, if known."""
    from osmosis_ai.evaluation.metrics import RunScore

    if results is None:
        return None
    progress = run_progress(results, config)
    known = {key: finite(value) if isinstance(value, float) else value for key, value in results}
    planned = progress.total if progress is not None else results.total_runs or 0
    return RunScore.of_results(known, planned=planned, rows=rows_drawn(results, config))


def rows_drawn(results: EvalResults | None, config: Mapping[str, Any] | None) -> RowsDrawn | None:
    """Describe how many of how many rows a run uses and, if known, how they were chosen."""
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
    """Return the known metrics of a run; ``full`` includes those that only a detail view shows."""
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
    """Return a run's progress, capped at its total; None if the platform does not report it."""
    if results is None or results.sampled_rows is None:
        return None
    attempts = (config or {}).get("n")
    planned = results.sampled_rows * (attempts if type(attempts) is int and attempts > 0 else 1)
    completed = results.total_runs or 0
    return RunProgress(completed, max(planned, completed))


def run_metrics(metrics: EvalMetrics | None) -> dict[str, Any] | None:
    """Return a run's metrics under the names used by `eval run`."""
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
    if run.revision:
        fields |= {"revision": run.revision, "retried_at": known["retried_at"]}
    return {**fields, "error": run.error} if run.error else fields


@dataclass(frozen=True)
class ProposedRetry:
    """A retry that the platform would accept.

    Attributes:
        check: the platform's preview.
        again: its input, with secret values.
        execution: labelled texts of pool, workers, labels and budget.
    """

    check: RetryCheck
    again: EvalRetry = field(repr=False)
    execution: Sequence[tuple[str, str]] = ()

    @property
    def name(self) -> str:
        """The run to retry."""
        return self.check.eval_run.name or self.check.eval_run.id or ""

    @property
    def samples(self) -> str:
        return f"{self.check.samples:,} of {self.check.planned:,}"

    @property
    def reasons(self) -> str:
        """Why the samples have no score."""
        from osmosis_ai.ui.run_numbers import format_counts

        check = self.check
        parts = [
            f"failed {format_counts(check.failed)}" if check.failed else "",
            f"{check.no_reward:,} without a reward" if check.no_reward else "",
            f"{check.missing:,} never made" if check.missing else "",
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
    """Preview a retry of a run.

    Args:
        client: the platform.
        name: the run's name or id.
        secret_values: values from the user's secrets file, for this retry only.
        max_cost: US dollars, and
        max_tokens: tokens that the retry may use; None keeps the run's budget.

    Raises:
        PlatformError: the run does not exist, the platform does not support retries, or the request failed.
        OsmosisError: the run has no attempts to retry, or cannot be retried.
    """
    from osmosis_ai.api.capabilities import Capability
    from osmosis_ai.api.models.runs import EvalRetry, RunSecrets
    from osmosis_ai.services.capabilities import require_offered
    from osmosis_ai.services.runs.secrets import explaining_failures, stand_ins, supplied_values
    from osmosis_ai.ui.run_numbers import execution_rows

    detail = client.eval_runs.get(name)
    require_offered(client, Capability.EVAL_RETRIES)
    provided = supplied_values(tuple(detail.resolved_secret_scopes or ()), secret_values)
    client.hide(provided.values())
    budget = {"max_cost": max_cost, "max_tokens": max_tokens}
    known = {key: value for key, value in budget.items() if value is not None}

    def again(values: Mapping[str, str]) -> EvalRetry:
        secrets = {"secrets": RunSecrets(provided=dict(values))} if values else {}
        return EvalRetry.model_validate({**known, **secrets})

    with explaining_failures():
        check = client.eval_runs.check_retry(detail.eval_run.id, again(stand_ins(provided)))
    execution = execution_rows((detail.request or {}).get("advanced_config"), known)
    return ProposedRetry(check, again(provided), execution)


def submit_retry(client: PlatformClient, planned: ProposedRetry) -> SubmittedRun:
    """Reopen a run to repeat its attempts without a score; the request is never retried.

    Raises:
        PlatformError: the platform refused, or did not answer; in the latter case the run may be reopened.
    """
    from osmosis_ai.services.runs.secrets import explaining_failures

    with explaining_failures(f"osmosis eval info {quote(planned.name)}"):
        return client.eval_runs.retry(planned.check.eval_run.id or planned.name, planned.again)


_LONGEST_NAME = 255
WatchedStatus = Literal["running", "finished", "incomplete"]


@dataclass(frozen=True)
class WatchedRun:
    """A snapshot of a run directory.

    Attributes:
        status: ``incomplete`` if no process works on the run and attempts are pending.
        metrics: the last written ``metrics.json``; None before it exists.
    """

    run_name: str
    run_dir: Path
    local_run_id: str
    status: WatchedStatus
    progress: ProgressSnapshot
    metrics: dict[str, Any] | None

    @property
    def ended(self) -> bool:
        """Whether the run has stopped."""
        return self.status != "running"

    @property
    def estimates(self) -> Estimates | None:
        """The recorded estimates."""
        from osmosis_ai.evaluation.metrics import Estimates

        return Estimates.read((self.metrics or {}).get("estimates"))

    @property
    def rows(self) -> RowsDrawn | None:
        """Number and selection of rows; None before the first metrics."""
        from osmosis_ai.datasets.selection import RowsDrawn

        return RowsDrawn.read((self.metrics or {}).get("eval_run", {}).get("rows"))

    @property
    def headline(self) -> RunScore | None:
        """The recorded result in one line."""
        from osmosis_ai.evaluation.metrics import RunScore

        estimates = self.estimates
        return None if estimates is None else RunScore.of(estimates, self.rows)


def run_nowhere(run: str, missing: NotFoundError, error: OsmosisError) -> OsmosisError:
    """Return the error about a run that was found neither on this machine nor on a platform.

    Args:
        run: as the user named it.
        missing: error of the local search.
        error: error of the platform request.
    """
    platform_code = getattr(error, "platform_code", None)
    if error.code in ("AUTH_REQUIRED", "VALIDATION") and getattr(error, "status", None) is None:
        hint = f"{missing.hint}; log in to see runs of a platform" if missing.hint else None
        return NotFoundError(missing.message, details=missing.details, hint=hint)
    if error.code == "NOT_FOUND" and not (platform_code or "").startswith("GIT_"):
        meant = _meant_there(error)
        here = missing.hint
        if meant and missing.details.get("nearest"):
            here = f"of the local runs, {here}"
        hints = (meant, here, "`osmosis eval list` lists all runs")
        return NotFoundError(
            f"there is no run `{run}`, neither on this machine nor on the platform.",
            details=missing.details,
            hint="; ".join(filter(None, hints)),
        )
    if getattr(error, "status", 0) is None and missing.hint:
        # An unreachable platform may have the run, and so may this machine under a similar name.
        error.hint = f"{error.hint}; of the local runs, {missing.hint}" if error.hint else missing.hint
    return error


def _meant_there(error: OsmosisError) -> str | None:
    """Return the closest match among the platform's runs."""
    if error.hint is not None and error.hint.startswith("did you mean"):
        return error.hint
    suggested = getattr(error, "body", {}).get("suggestion")
    return f"did you mean {suggested[:_LONGEST_NAME]}?" if isinstance(suggested, str) and suggested else None


class RunWatcher:
    """Polls a run's directory, reading each byte of the journal once."""

    def __init__(self, run_dir: Path) -> None:
        from osmosis_ai.evaluation.local_results import LocalResults

        self._results = LocalResults(run_dir)
        self._tokens = 0
        self._cost_usd: float | None = None
        self._finished = 0
        self._results.advance(self._count)
        self._finished = 0  # count from here on
        self._started = time.monotonic()

    def look(self) -> WatchedRun:
        """Return a snapshot."""
        results = self._results
        results.advance(self._count)
        return WatchedRun(
            run_name=results.name,
            run_dir=results.directory.path,
            local_run_id=results.manifest.local_run_id,
            status=results.status,
            progress=self._progress(results),
            metrics=results.directory.read_metrics(),
        )

    def _count(self, record: TerminalRecord) -> None:
        self._finished += 1
        self._tokens += record.tokens or 0
        if record.cost_usd is not None:
            self._cost_usd = (self._cost_usd or 0.0) + record.cost_usd

    def _progress(self, results: LocalResults) -> ProgressSnapshot:
        from osmosis_ai.evaluation.hooks import ProgressSnapshot

        return ProgressSnapshot.of(
            results.table,
            results.pass_threshold,
            tokens=self._tokens,
            cost_usd=self._cost_usd,
            in_flight=None,
            elapsed_s=time.monotonic() - self._started,
            finished=self._finished,
        )


@dataclass(frozen=True)
class SeenEvaluation:
    """A snapshot of a platform's run; ``progress`` is None if the platform does not report it."""

    detail: EvalRunDetail
    progress: ProgressSnapshot | None

    @property
    def ended(self) -> bool:
        """Whether the status is final."""
        return self.detail.eval_run.status in TERMINAL["eval"]


class WorkPace:
    """Measures how long workers have worked on a run since it was first seen, and what they finished.

    Waiting time does not count. A lost worker is noticed late, so the time since the last finished sample is
    then subtracted.

    Args:
        clock: monotonic seconds.

    Attributes:
        worked_s: seconds of work.
        finished: samples finished in that time.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._at: float | None = None  # last look while a worker was active
        self._completed = 0
        self._certain_s = 0.0
        self.worked_s, self.finished = 0.0, 0

    def see(self, completed: int, *, works: bool) -> None:
        """Record how many samples are done, and whether a worker ``works`` on the run."""
        now, more = self._clock(), max(0, completed - self._completed)
        if self._at is not None:
            self.worked_s += now - self._at
            self.finished += more
            if more:
                self._certain_s = self.worked_s
        if not works:
            self.worked_s = self._certain_s
        self._at, self._completed = (now if works else None), completed


class EvaluationLook:
    """Polls a run of a platform."""

    def __init__(self, client: PlatformClient, name: str) -> None:
        self._client = client
        self._name = name
        self._pace = WorkPace(time.monotonic)

    def __call__(self) -> SeenEvaluation:
        detail = self._client.eval_runs.get(self._name)
        self._name = detail.eval_run.id
        return SeenEvaluation(detail, self._snapshot(detail))

    def _snapshot(self, detail: EvalRunDetail) -> ProgressSnapshot | None:
        from osmosis_ai.evaluation.hooks import ProgressSnapshot

        progress, results = run_progress(detail.results, detail.config), detail.results
        score = run_headline(results, detail.config)
        reward = finite(score.reward) if score is not None else None
        if progress is None or results is None:
            return None
        self._pace.see(progress.completed, works=detail.eval_run.status == "running" and not detail.waits)
        return ProgressSnapshot(
            completed=progress.completed,
            total=progress.total,
            passed=results.passed or 0,
            failed=results.failed or 0,
            skipped=results.skipped or 0,
            scored=(results.graded or 0) if finite(results.score) is not None else 0,
            reward_mean=finite(results.score) if reward is None else reward,
            tokens=results.total_tokens or 0,
            cost_usd=None,
            in_flight=None,
            elapsed_s=self._pace.worked_s,
            finished=self._pace.finished,
        )
