"""Evaluation runs, in the order of their life: submitted, listed, followed, stopped, downloaded."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

from fastapi import Body, Query

from osmosis_ai.api.wire import eval_runs as wire
from osmosis_ai.api.wire.base import LogPage, Named
from osmosis_ai.api.wire.runs import StopReply, SubmittedRun
from osmosis_ai.platform.clock import Clock
from osmosis_ai.platform.db.models import Run
from osmosis_ai.platform.http.errors import ApiError
from osmosis_ai.platform.http.paging import LogPaging, Paging
from osmosis_ai.platform.http.routing import api_router
from osmosis_ai.platform.http.scope import Services, WorkspaceScope
from osmosis_ai.platform.runs.downloads import LINK_TTL, WantedFile, parse_types, totals
from osmosis_ai.platform.runs.reading import RunSummary
from osmosis_ai.platform.runs.rejection import SubmitRejectedError
from osmosis_ai.platform.runs.request import effective_settings
from osmosis_ai.platform.runs.selection import RowChoice
from osmosis_ai.platform.runs.submit import Submission
from osmosis_ai.platform.secrets import MissingSecretsError
from osmosis_ai.workspace.config_sections import EvaluationSettings, Experiment

MAX_URLS = 500
_SUBMIT_SCHEMA = {
    "type": "object",
    "required": ["experiment_config"],
    "properties": {
        "experiment_config": Experiment.model_json_schema(),
        "evaluation_config": EvaluationSettings.model_json_schema(),
        "advanced_config": {"type": "object"},
        "env_config": {"type": "object", "additionalProperties": {"type": "string"}},
        "secrets": {
            "type": "object",
            "properties": {
                "required": {"type": "array", "items": {"type": "string"}},
                "provided": {"type": "object", "additionalProperties": {"type": "string"}},
            },
        },
    },
}
_SUBMIT_BODY = {"requestBody": {"content": {"application/json": {"schema": _SUBMIT_SCHEMA}}}}

router = api_router("/api/cli/eval-runs")


@router.post("", openapi_extra=_SUBMIT_BODY)
async def submit_eval_run(
    services: Services, scope: WorkspaceScope, body: Annotated[dict[str, Any], Body()]
) -> SubmittedRun:
    """Submit a run; everything that is wrong with it is in `issues`."""
    submission = Submission(scope.workspace_id, scope.repository, scope.user, body)
    try:
        run = await asyncio.wrap_future(services.submits.start(submission))
    except SubmitRejectedError as error:
        raise ApiError(
            error.status, error.reason, error.message, field=error.field, issues=error.wire_issues()
        ) from None
    except MissingSecretsError as error:
        # Clients read the names out of this very sentence.
        raise ApiError(404, "SECRETS_NOT_FOUND", error.message, missing=list(error.names)) from None
    return SubmittedRun(id=run.id, name=run.name, status=run.status, created_at=run.created_at)


@router.get("")
def list_eval_runs(services: Services, scope: WorkspaceScope, page: Paging) -> wire.EvalRunList:
    """List runs, the newest first."""
    listed, total = services.eval_runs.page(scope.workspace_id, limit=page.limit, offset=page.offset)
    return wire.EvalRunList(
        eval_runs=[
            wire.EvalRunRow(
                **_own_fields(run, run.creator_name, run.creator_email),
                model=Named(name=run.model_path),
                dataset=_named(run.dataset_id, run.dataset_name),
                rollout=_named(run.rollout_id, run.rollout_name),
                results=_results(run),
                config=_config(run),
            )
            for run in listed
        ],
        **page.keys(total, len(listed)),
    )


@router.get("/{name_or_id}")
def get_eval_run(services: Services, scope: WorkspaceScope, name_or_id: str) -> wire.EvalRunDetail:
    """Return one run."""
    found = services.eval_runs.get(scope.workspace_id, name_or_id)
    run, creator = found.run, found.creator
    by = (creator.name, creator.email) if creator is not None else (None, None)
    optional: dict[str, Any] = {
        "branch": run.branch,
        "env_config": run.request.get("env_config"),
        "resolved_secret_scopes": run.secret_scopes or None,
    }
    return wire.EvalRunDetail(
        eval_run=wire.EvalRun(**_own_fields(run, *by)),
        config=_config(run),
        results=_results(run),
        dataset=_named(run.dataset_id, run.dataset_name),
        rollout=_named(run.rollout_id, run.rollout_name),
        entrypoint=run.request["experiment_config"]["entrypoint"],
        commit_sha=run.commit_sha,
        **{key: value for key, value in optional.items() if value is not None},
    )


@router.get("/{name_or_id}/metrics")
def eval_run_metrics(services: Services, scope: WorkspaceScope, name_or_id: str) -> wire.EvalMetrics:
    """Return a run's numbers so far; `estimates` are ours, over scored samples and with intervals."""
    run = services.eval_runs.get(scope.workspace_id, name_or_id).run
    results, metrics = run.results or {}, run.metrics or {}
    stats = dict(results.get("reward_stats") or {})
    stats.pop("pass_at_k", None)
    summary = metrics.get("summary") or {}
    return wire.EvalMetrics(
        status=run.status,
        overview=_overview(run, services.clock),
        reward_stats=stats or summary.get("reward_stats"),
        pass_at_k=[wire.PassAtK(**point) for point in summary.get("pass_at_k") or ()],
        eval_run_id=run.id,
        estimates=metrics.get("estimates"),
    )


@router.get("/{name_or_id}/logs")
def eval_run_logs(services: Services, scope: WorkspaceScope, name_or_id: str, page: LogPaging) -> LogPage:
    """Return a page of a run's log."""
    return services.eval_runs.logs(
        scope.workspace_id, name_or_id, limit=page.limit, direction=page.direction, cursor=page.cursor
    )


@router.post("/{name_or_id}/stop")
def stop_eval_run(services: Services, scope: WorkspaceScope, name_or_id: str) -> StopReply:
    """Ask for a run to stop; one that has ended stays as it is."""
    run, still_to_end = services.eval_runs.stop(scope.workspace_id, name_or_id, by=scope.user.email)
    return StopReply(id=run.id, status="stopping" if still_to_end else run.status)


@router.get("/{name_or_id}/samples/manifest")
def sample_manifest(
    services: Services,
    scope: WorkspaceScope,
    name_or_id: str,
    types: Annotated[str | None, Query(description="Out of `metrics,trajectories,artifacts,logs`.")] = None,
    rows: Annotated[str | None, Query(description="Rows of the dataset, such as `3,7,10-20`.")] = None,
) -> wire.SampleManifest:
    """List the files of a run, of the asked types and rows."""
    run = services.eval_runs.get(scope.workspace_id, name_or_id).run
    files = services.downloads.manifest(run, parse_types(types), rows or None)
    return wire.SampleManifest(
        files=[
            wire.ManifestFile(path=file.path, size=file.size, **({"token": file.token} if file.token else {}))
            for file in files
        ],
        totals=totals(files),
    )


@router.post("/{name_or_id}/samples/download-urls")
def download_urls(
    services: Services, scope: WorkspaceScope, name_or_id: str, request: wire.DownloadUrlsRequest
) -> wire.DownloadUrls:
    """Return where files of a manifest can be had for a while; unknown ones are left out."""
    if not 1 <= len(request.items) <= MAX_URLS:
        raise ApiError(400, "VALIDATION_FAILED", f"`items` takes 1 to {MAX_URLS} files.", field="items")
    run = services.eval_runs.get(scope.workspace_id, name_or_id).run
    wanted = [WantedFile(item.path, item.token) for item in request.items]
    return wire.DownloadUrls(
        items=[
            wire.DownloadItem(path=file.path, url=url, **({"token": file.token} if file.token else {}))
            for file, url in services.downloads.urls(run, wanted)
        ],
        expires_in=LINK_TTL.total_seconds(),
    )


def _own_fields(run: Run | RunSummary, creator_name: str | None, creator_email: str | None) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "id": run.id,
        "name": run.name,
        "status": run.status,
        "created_at": run.created_at,
        "started_at": run.started_at,
        "completed_at": run.completed_at,
        "creator_name": creator_name or creator_email,
        "creator_email": creator_email,
        "error": run.error,
    }
    return {key: value for key, value in fields.items() if value is not None}


def _named(id: str | None, name: str) -> Named:
    return Named(id=id, name=name) if id is not None else Named(name=name)


def _config(run: Run | RunSummary) -> dict[str, Any]:
    """Return the effective settings; with the seeds, the run could be repeated from them."""
    config = {"model_path": run.model_path, **effective_settings(run.request), "seed": run.seed}
    draw_seed = RowChoice.read(run.selection).draw_seed if run.selection else None
    return config if draw_seed is None else {**config, "row_draw_seed": draw_seed}


def _results(run: Run | RunSummary) -> wire.EvalResults:
    return wire.EvalResults(**(run.results or {}))


def _overview(run: Run, clock: Clock) -> wire.EvalMetricsOverview:
    results = run.results or {}
    total, skipped = results.get("total_runs", 0), results.get("skipped", 0)
    overview: dict[str, Any] = {
        "duration_ms": _duration_ms(run, clock),
        "total_samples": total,
        "completed_samples": total - skipped,
        "graded": results.get("graded", 0),
        "passed": results.get("passed", 0),
        "failed": results.get("failed", 0),
        "skipped": skipped,
        "pass_rate": results.get("pass_rate"),
        "pass_threshold": results.get("pass_threshold"),
        "tokens_used": results.get("total_tokens", 0),
    }
    return wire.EvalMetricsOverview(**{key: value for key, value in overview.items() if value is not None})


def _duration_ms(run: Run, clock: Clock) -> float | None:
    """Return how long the engine has worked on the run, or, while it does, how long ago it began."""
    if run.started_at is None:
        return None
    measured = (run.metrics or {}).get("duration_ms")
    if measured is not None and run.status != "running":
        return float(measured)
    until = run.completed_at or clock.now()
    return max(0.0, (until - run.started_at).total_seconds() * 1000)
