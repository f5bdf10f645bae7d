"""Evaluation runs, in the order of their life: submitted, listed, followed, stopped, downloaded."""

from __future__ import annotations

from dataclasses import asdict
from functools import lru_cache
from typing import Annotated, Any

from fastapi import Query
from fastapi.responses import StreamingResponse

from osmosis_ai.api.wire import eval_runs as wire
from osmosis_ai.config.checks import EVAL
from osmosis_ai.platform.clock import Clock
from osmosis_ai.platform.db.run_numbers import duration_ms
from osmosis_ai.platform.db.tables import DbRun
from osmosis_ai.platform.http import runs
from osmosis_ai.platform.http.authentication import Services, WorkspaceScope
from osmosis_ai.platform.http.errors import ApiError
from osmosis_ai.platform.http.page_links import runs_url
from osmosis_ai.platform.http.paging import Paging, SamplePaging
from osmosis_ai.platform.http.routing import quick_read
from osmosis_ai.platform.runs.eval_results import headline_of, rows_of
from osmosis_ai.platform.runs.read.downloads import LINK_TTL, WantedFile, parse_types
from osmosis_ai.platform.runs.read.run_store import ListedRun
from osmosis_ai.platform.runs.read.sample_pages import sample_page
from osmosis_ai.platform.runs.submit.eval_request import effective_eval_settings
from osmosis_ai.platform.runs.submit.row_selection import RowSelection
from osmosis_ai.ui.run_numbers import score_json

MAX_URLS = 500

router = runs.run_router("/api/cli/eval-runs", "eval", EVAL)


@router.get("")
@quick_read
def list_eval_runs(services: Services, scope: WorkspaceScope, page: Paging) -> wire.EvalRunList:
    """List runs, the newest first."""
    listed, total = services.eval_runs.page(scope.workspace_id, limit=page.limit, offset=page.offset)
    why = services.run_waits(listed).why
    below = runs_url(services, scope.workspace, "eval")
    return wire.EvalRunList(
        eval_runs=[_row(run, below, why(run)) for run in listed],
        **page.keys(total, len(listed)),
    )


@router.get("/{name_or_id}")
@quick_read
def get_eval_run(services: Services, scope: WorkspaceScope, name_or_id: str) -> wire.EvalRunDetail:
    """Return one run."""
    found = services.eval_runs.get(scope.workspace_id, name_or_id)
    run = found.run
    return wire.EvalRunDetail(
        eval_run=wire.EvalRun(**runs.detail_fields(services, scope, found), **_origin(run)),
        config=_config(run),
        results=_results(run),
        dataset=runs.named(run.dataset_id, run.dataset_name),
        rollout=runs.named(run.rollout_id, run.rollout_name),
        **runs.configuration(services, run),
        **runs.present({"grader_digest": run.grader_digest}),
    )


@router.get("/{name_or_id}/metrics")
@quick_read
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


@router.get("/{name_or_id}/samples")
def eval_run_samples(
    services: Services,
    scope: WorkspaceScope,
    name_or_id: str,
    page: SamplePaging,
    details: Annotated[bool, Query(description="With previews, errors and what graders noted.")] = False,
) -> wire.EvalSamplePage:
    """Return what the attempts of a run came to, by row and attempt."""
    run = services.eval_runs.get(scope.workspace_id, name_or_id).run
    return sample_page(services.db, run.id, limit=page.limit, cursor=page.cursor, details=details)


@router.get(
    "/{name_or_id}/samples/manifest",
    response_class=StreamingResponse,
    responses={200: {"model": wire.SampleManifest}},
)
def sample_manifest(
    services: Services,
    scope: WorkspaceScope,
    name_or_id: str,
    types: Annotated[
        str | None, Query(description="Out of `metrics,trajectories,artifacts,logs,journal`.")
    ] = None,
    rows: Annotated[str | None, Query(description="Rows of the dataset, such as `3,7,10-20`.")] = None,
) -> StreamingResponse:
    """List the files of a run, of the asked types and rows."""
    run = services.eval_runs.get(scope.workspace_id, name_or_id).run
    pieces = services.downloads.manifest(run, parse_types(types), rows or None)
    return StreamingResponse(pieces, media_type="application/json")


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
        expires_in=int(LINK_TTL.total_seconds()),
    )


# The summary of an ended run is always the same object; those of others are soon crowded out.
@lru_cache(maxsize=1024)
def _row(run: ListedRun, below: str, waits: str | None) -> wire.EvalRunRow:
    return wire.EvalRunRow(
        **runs.summary_fields(run, below, waits),
        **_origin(run),
        model=runs.named(run.model_path, run.model_path),
        dataset=runs.named(run.dataset_id, run.dataset_name),
        rollout=runs.named(run.rollout_id, run.rollout_name),
        results=_results(run),
        config=_config(run),
        **runs.present({"commit_sha": run.commit_sha}),
    )


def _origin(run: DbRun | ListedRun) -> dict[str, Any]:
    """Return the mark of a run that was executed elsewhere, or retried."""
    if run.imported is not None:
        return {"imported": wire.RunOrigin.model_validate(run.imported)}
    return {"revision": run.revision, "retried_at": run.retried_at} if run.revision else {}


def _config(run: DbRun | ListedRun) -> dict[str, Any]:
    """Return the effective settings; with the seeds, the run could be repeated from them."""
    config = {"model_path": run.model_path, **effective_eval_settings(run.request)}
    if run.imported is not None:
        return config
    config["seed"] = run.seed
    draw_seed = RowSelection.read(run.selection).draw_seed if run.selection else None
    return config if draw_seed is None else {**config, "row_draw_seed": draw_seed}


def _results(run: DbRun | ListedRun) -> wire.EvalResults:
    headline, rows = headline_of(run), rows_of(run)
    ours = {
        "headline": score_json(headline),
        "rows_drawn": {**asdict(rows), "words": rows.words} if rows is not None else None,
    }
    return wire.EvalResults(**_with_null_rate(runs.present({**(run.results or {}), **ours})))


def _overview(run: DbRun, clock: Clock) -> wire.EvalMetricsOverview:
    results = run.results or {}
    total, skipped = results.get("total_runs", 0), results.get("skipped", 0)
    overview: dict[str, Any] = {
        "duration_ms": duration_ms(run, clock.now()),
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
    return wire.EvalMetricsOverview(**_with_null_rate(runs.present(overview)))


def _with_null_rate(numbers: dict[str, Any]) -> dict[str, Any]:
    """Return a run's numbers, with a null pass rate if no sample has a score."""
    return {**numbers, "pass_rate": None} if numbers.get("graded") == 0 else numbers
