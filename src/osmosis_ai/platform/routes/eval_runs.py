"""Evaluation runs: submit, list, follow, stop, retry, download, upload."""

from __future__ import annotations

from dataclasses import asdict
from functools import lru_cache
from typing import Annotated, Any

from fastapi import Query
from fastapi.responses import StreamingResponse
from sqlalchemy import select, tuple_

from osmosis_ai.api.models import eval_imports as imports
from osmosis_ai.api.models import eval_runs as wire
from osmosis_ai.api.models.base import WireModel
from osmosis_ai.api.models.datasets import CompletedPart
from osmosis_ai.api.models.runs import EvalRetry
from osmosis_ai.config.checks import EVAL
from osmosis_ai.platform.clock import Clock
from osmosis_ai.platform.db.engine import Database
from osmosis_ai.platform.db.tables import DbRun, DbSample, duration_ms
from osmosis_ai.platform.http.authentication import Scope, Services, WorkspaceScope
from osmosis_ai.platform.http.errors import ApiError
from osmosis_ai.platform.http.routing import Paging, SamplePaging, quick_read, run_url
from osmosis_ai.platform.routes import runs
from osmosis_ai.platform.runs.files import LINK_TTL, parse_types
from osmosis_ai.platform.runs.reopening import PlannedRetry
from osmosis_ai.platform.runs.results import eval_config, headline_of, rows_of
from osmosis_ai.platform.runs.run_imports import ImportState
from osmosis_ai.platform.services import PlatformServices
from osmosis_ai.ui.run_numbers import score_json

MAX_URLS = 500

router = runs.run_router("/api/cli/eval-runs", "eval", EVAL)


@router.get("")
@quick_read
def list_eval_runs(services: Services, scope: WorkspaceScope, page: Paging) -> wire.EvalRunList:
    """List runs, newest first."""
    listed, total = services.runs.page(scope.workspace_id, "eval", limit=page.limit, offset=page.offset)
    why = services.runs.waits(listed).why
    return wire.EvalRunList(
        eval_runs=[
            _row(run, run_url(services, scope.workspace, "eval", run.name), why(run)) for run in listed
        ],
        **page.keys(total, len(listed)),
    )


@router.get("/{name_or_id}")
@quick_read
def get_eval_run(services: Services, scope: WorkspaceScope, name_or_id: str) -> wire.EvalRunDetail:
    """Return one run."""
    run = services.runs.get(scope.workspace_id, "eval", name_or_id)
    url = run_url(services, scope.workspace, "eval", run.name)
    return wire.EvalRunDetail(
        eval_run=wire.EvalRun(**runs.run_fields(run, url), **_origin(run)),
        config={"model_path": run.model_path, **eval_config(run)},
        results=_results(run),
        **runs.configuration(services, run),
        **runs.present({"grader_digest": run.grader_digest}),
    )


@router.get("/{name_or_id}/metrics")
@quick_read
def eval_run_metrics(services: Services, scope: WorkspaceScope, name_or_id: str) -> wire.EvalMetrics:
    """Return a run's metrics so far. `estimates` covers scored attempts and has confidence intervals."""
    run = services.runs.get(scope.workspace_id, "eval", name_or_id)
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
    details: Annotated[bool, Query(description="Include previews, errors and graders' notes.")] = False,
) -> wire.EvalSamplePage:
    """Return the attempts of a run, ordered by row and attempt number."""
    run = services.runs.get(scope.workspace_id, "eval", name_or_id)
    return _sample_page(services.db, run.id, limit=page.limit, cursor=page.cursor, details=details)


def _sample_page(
    db: Database, run_id: str, *, limit: int, cursor: str | None, details: bool
) -> wire.EvalSamplePage:
    """Return the samples after the row and attempt in ``cursor``, so that reading all pages takes linear time."""
    names = (*runs.SAMPLE_FIELDS, *(runs.SAMPLE_DETAILS if details else ()))
    order = (DbSample.row_index, DbSample.run_index)
    wanted = select(*(getattr(DbSample, name) for name in names)).where(DbSample.run_id == run_id)
    if cursor is not None:
        wanted = wanted.where(tuple_(*order) > tuple_(*runs.sample_position(cursor)))
    found = db.rows(wanted.order_by(*order).limit(limit + 1))
    page = [runs.wire_sample(sample, details=details) for sample in found[:limit]]
    if len(found) <= limit:
        return wire.EvalSamplePage(samples=page)
    return wire.EvalSamplePage(samples=page, next_cursor=f"{page[-1].row}-{page[-1].attempt}")


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
        str | None,
        Query(description="Comma-separated: `metrics`, `trajectories`, `artifacts`, `logs`, `journal`."),
    ] = None,
    rows: Annotated[str | None, Query(description="Rows of the dataset, such as `3,7,10-20`.")] = None,
) -> StreamingResponse:
    """List the files of a run, optionally of some types and rows."""
    run = services.runs.get(scope.workspace_id, "eval", name_or_id)
    pieces = services.run_files.manifest(run, parse_types(types), rows or None)
    return StreamingResponse(pieces, media_type="application/json")


@router.post("/{name_or_id}/samples/download-urls")
def download_urls(
    services: Services, scope: WorkspaceScope, name_or_id: str, request: wire.DownloadUrlsRequest
) -> wire.DownloadUrls:
    """Return download URLs for files of a manifest. Unknown files are omitted."""
    if not 1 <= len(request.items) <= MAX_URLS:
        raise ApiError(400, "VALIDATION_FAILED", f"`items` must have 1 to {MAX_URLS} files.", field="items")
    run = services.runs.get(scope.workspace_id, "eval", name_or_id)
    found = services.run_files.urls(run, request.items)
    return wire.DownloadUrls(items=found, expires_in=int(LINK_TTL.total_seconds()))


@router.post("/{name_or_id}/retry/check")
async def check_retry(
    services: Services, scope: WorkspaceScope, name_or_id: str, again: EvalRetry
) -> wire.RetryCheck:
    """Return what a retry would repeat, without changing anything."""
    with runs.refusals(services, scope):
        planned = await services.submitter.in_thread(lambda: plan_retry(services, scope, name_or_id, again))
    return planned.repeated


@router.post("/{name_or_id}/retry")
async def retry(
    services: Services, scope: WorkspaceScope, name_or_id: str, again: EvalRetry
) -> wire.RetriedRun:
    """Retry a run: its failed and unscored attempts run again on the same commit and rows."""

    def plan_and_retry() -> wire.RetriedRun:
        planned = plan_retry(services, scope, name_or_id, again)
        run = services.reopener.retry(planned, by=scope.user.email)
        submitted = runs.submitted(services, scope, run).model_dump()
        return wire.RetriedRun(**submitted, workflow_id=run.id, retryable_samples=planned.repeated.samples)

    with runs.refusals(services, scope):
        return await services.submitter.in_thread(plan_and_retry)


def plan_retry(services: PlatformServices, scope: Scope, name_or_id: str, again: EvalRetry) -> PlannedRetry:
    """Return what a retry of a run would repeat."""
    run = services.runs.get(scope.workspace_id, "eval", name_or_id)
    provided = again.secrets.provided if again.secrets is not None else {}
    budget = again.model_dump(include={"max_cost", "max_tokens"}, exclude_none=True)
    return services.reopener.plan_retry(run, scope.user, provided, budget)


# A list has the same object for an ended run each time.
@lru_cache(maxsize=1024)
def _row(run: DbRun, url: str, waits: str | None) -> wire.EvalRunRow:
    return wire.EvalRunRow(
        **runs.run_fields(run, url),
        **_origin(run),
        model=runs.named(run.model_path, run.model_path),
        dataset=runs.named(run.dataset_id, run.dataset_name),
        rollout=runs.named(run.rollout_id, run.rollout_name),
        results=_results(run),
        config={"model_path": run.model_path, **eval_config(run)},
        **runs.present({"commit_sha": run.commit_sha, "waits": waits}),
    )


def _origin(run: DbRun) -> dict[str, Any]:
    """Return the origin of an imported run, or the revision of a retried one."""
    if run.imported is not None:
        return {"imported": wire.RunOrigin.model_validate(run.imported)}
    return {"revision": run.revision, "retried_at": run.retried_at} if run.revision else {}


def _results(run: DbRun) -> wire.EvalResults:
    headline, rows = headline_of(run), rows_of(run)
    ours = {
        "headline": score_json(headline),
        "rows_drawn": {**asdict(rows), "words": rows.words} if rows is not None else None,
    }
    return wire.EvalResults(**_with_null_rate(runs.present({**(run.results or {}), **ours})))


def _overview(run: DbRun, clock: Clock) -> wire.EvalMetricsOverview:
    results = run.results or {}
    total, skipped = results.get("total_runs", 0), results.get("skipped", 0)
    overview = {
        **dict.fromkeys(("graded", "passed", "failed"), 0),
        **results,
        "duration_ms": duration_ms(run, clock.now()),
        "total_samples": total,
        "completed_samples": total - skipped,
        "skipped": skipped,
        "tokens_used": results.get("total_tokens", 0),
    }
    return wire.EvalMetricsOverview(**_with_null_rate(runs.present(overview)))


def _with_null_rate(numbers: dict[str, Any]) -> dict[str, Any]:
    """Return a run's numbers, with a null pass rate if no sample has a score."""
    return {**numbers, "pass_rate": None} if numbers.get("graded") == 0 else numbers


# -- uploads of evaluations that ran on other machines -----------------------------------------------


@router.post("/imports")
def start_import(
    services: Services, scope: WorkspaceScope, body: imports.EvalImportStart
) -> imports.EvalImportSession:
    """Start an upload of a run. A repeated request for the same run resumes it."""
    state = services.eval_imports.start(scope.workspace_id, scope.repository.id, scope.user.id, body)
    return _import_session(services, scope, state)


@router.post("/imports/{session_id}/uploads")
def import_uploads(
    services: Services, scope: WorkspaceScope, session_id: str, body: imports.ImportUploadsRequest
) -> imports.ImportUploads:
    """Return upload URLs for those of the named files (1 to 100) that have not been uploaded."""
    return imports.ImportUploads(
        files=services.eval_imports.upload_instructions(scope.workspace_id, session_id, body.paths)
    )


@router.post("/imports/{session_id}/uploads/complete")
def complete_import_upload(
    services: Services, scope: WorkspaceScope, session_id: str, body: imports.ImportUploadComplete
) -> WireModel:
    """Complete the upload of a file; its bytes must match the announced digest."""
    parts = None
    if body.parts is not None:
        parts = [CompletedPart(PartNumber=part.part_number, ETag=part.etag) for part in body.parts]
    services.eval_imports.complete_file(scope.workspace_id, session_id, body.path, parts)
    return WireModel()


@router.post("/imports/{session_id}/finalize")
def finalize_import(services: Services, scope: WorkspaceScope, session_id: str) -> imports.EvalImportSession:
    """Create a run from the uploaded files. The request may be repeated."""
    return _import_session(services, scope, services.eval_imports.finalize(scope.workspace_id, session_id))


def _import_session(
    services: PlatformServices, scope: Scope, state: ImportState
) -> imports.EvalImportSession:
    session = imports.EvalImportSession(
        session_id=state.row.id,
        status="uploading" if state.run is None else "finalized",
        expected_files=len(state.files),
        uploaded_files=sum(file.is_stored for file in state.files),
        files=[
            imports.ImportFileState.of(file, state="uploaded" if file.is_stored else "pending")
            for file in state.files
        ],
    )
    if state.run is None:
        session.expires_at = state.row.expires_at
        return session
    session.eval_run_id, session.eval_run_name = state.run.id, state.run.name
    session.platform_url = run_url(services, scope.workspace, state.run.kind, state.run.name)
    return session
