"""Routes and fields that evaluation and training runs share."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Annotated, Any

from fastapi import APIRouter, Body, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from osmosis_ai._version import __version__
from osmosis_ai.api.models.base import LogPage, Named
from osmosis_ai.api.models.runs import CheckedRepository, StopReply, SubmitCheck, SubmittedRun
from osmosis_ai.config.checks import ConfigKind
from osmosis_ai.platform.accounts import TokenRejected
from osmosis_ai.platform.config import PlatformConfig
from osmosis_ai.platform.db.tables import DbRun
from osmosis_ai.platform.gitsync.remote import parse_clone_url
from osmosis_ai.platform.http.addresses import page_url, run_url, workspace_path
from osmosis_ai.platform.http.authentication import (
    GitHeader,
    Scope,
    Services,
    WorkspaceScope,
    bearer_token,
    resolve_scope,
)
from osmosis_ai.platform.http.errors import ApiError
from osmosis_ai.platform.http.paging import LogPaging
from osmosis_ai.platform.http.routing import api_router, quick_read
from osmosis_ai.platform.isolation import isolation_shown
from osmosis_ai.platform.runs.lifecycle import OPEN, RunKind
from osmosis_ai.platform.runs.requests import SubmitRejectedError
from osmosis_ai.platform.runs.run_store import FoundRun, RunEndedError, RunStore
from osmosis_ai.platform.runs.submitter import RunSubmission
from osmosis_ai.platform.secrets import MissingSecretsError
from osmosis_ai.platform.services import PlatformServices
from osmosis_ai.platform.viewer.source import PlatformSource
from osmosis_ai.ui.shell import ShellView
from osmosis_ai.viewer.access import Viewing
from osmosis_ai.viewer.live_routes import live_reply


def run_router(prefix: str, kind: RunKind, config: ConfigKind) -> APIRouter:
    """Return a router with the routes that both kinds of runs have."""
    router = api_router(prefix)

    @router.post("", openapi_extra=_submit_body(config))
    async def submit(
        services: Services, scope: WorkspaceScope, body: Annotated[dict[str, Any], Body()]
    ) -> SubmittedRun:
        """Submit a run. In a refusal, `issues` lists every problem."""
        with refusals(services, scope):
            submission = _submission(scope, kind, body)
            submitting = services.submitter.in_thread(lambda: services.submitter.submit(submission))
            run = await asyncio.wrap_future(submitting)
        return submitted(services, scope, run)

    @router.post("/check", openapi_extra=_submit_body(config))
    async def check(
        services: Services, scope: WorkspaceScope, body: Annotated[dict[str, Any], Body()]
    ) -> SubmitCheck:
        """Check a submission without creating a run. Refusals contain `dry_run`."""
        with refusals(services, scope, dry_run=True):
            submission = _submission(scope, kind, body)
            checking = services.submitter.in_thread(lambda: services.submitter.check(submission))
            checked = await asyncio.wrap_future(checking)
        repository = scope.repository
        source = parse_clone_url(repository.clone_url, allow_local=True)
        return SubmitCheck(
            dry_run=True,
            commit_sha=checked.commit_sha,
            repository=CheckedRepository(identity=repository.identity, local=source.transport == "file"),
            dataset=named(checked.dataset.id, checked.dataset.name),
            sampled_rows=len(checked.rows.rows()),
            total_dataset_rows=checked.rows.total_rows,
            resolved_secret_scopes=dict(checked.scopes),
            dataset_sha256=checked.dataset.sha256,
            platform_version=__version__,
        )

    @router.get("/{name_or_id}/logs")
    @quick_read
    def logs(services: Services, scope: WorkspaceScope, name_or_id: str, page: LogPaging) -> LogPage:
        """Return a page of a run's log."""
        run = services.runs_of(kind).get(scope.workspace_id, name_or_id).run
        return services.logs.page(run.id, limit=page.limit, direction=page.direction, cursor=page.cursor)

    @router.get("/{name_or_id}/events", response_model=None)
    async def events(
        request: Request, services: Services, scope: WorkspaceScope, name_or_id: str, git: GitHeader = None
    ) -> Response:
        """Return the state of a run, or stream its changes to a client that accepts `text/event-stream`."""
        plain = bearer_token(request)
        found = await run_in_threadpool(services.runs_of(kind).get, scope.workspace_id, name_or_id)

        def allowed() -> bool:
            with services.db.session() as session:
                try:
                    now = resolve_scope(session, services.accounts.principal(session, plain), git)
                except (ApiError, TokenRejected):
                    return False
            return now.workspace_id == scope.workspace_id

        view = Viewing(
            PlatformSource(services, scope.workspace_id, services.sample_counts),
            ShellView(),
            root=workspace_path(services, scope.workspace),
            visitor=f"token {scope.principal.token.id}",
            allowed=allowed,
        )
        return await live_reply(request, view, kind, found.run.name or found.run.id)

    @router.post("/{name_or_id}/stop")
    def stop(services: Services, scope: WorkspaceScope, name_or_id: str) -> StopReply:
        """Request that a run stops. Its results so far are kept."""
        return stop_run(services.runs_of(kind), scope.workspace_id, name_or_id, by=scope.user.email)

    @router.delete("/{name_or_id}")
    def delete(services: Services, scope: WorkspaceScope, name_or_id: str) -> dict[str, Any]:
        """Delete an ended run with all its files. Only an admin or owner can delete another user's run."""
        run = services.runs_of(kind).get(scope.workspace_id, name_or_id).run
        scope.require_maker(run.creator_id, "a run")
        services.run_deletion.delete(run)
        return {}

    return router


def _submit_body(kind: ConfigKind) -> dict[str, Any]:
    """Return the OpenAPI schema of the body of a submit."""
    sections = {
        f"{name}_config": model.model_json_schema()
        for name, model in kind.models().items()
        if name in kind.sections
    }
    schema = {
        "type": "object",
        "required": ["experiment_config"],
        "properties": {
            **sections,
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
    return {"requestBody": {"content": {"application/json": {"schema": schema}}}}


def submitted(services: PlatformServices, scope: Scope, run: DbRun) -> SubmittedRun:
    """Return the reply to a submit."""
    return SubmittedRun(
        id=run.id,
        name=run.name,
        status=run.status,
        created_at=run.created_at,
        platform_url=run_url(services, scope.workspace, run.kind, run.name),
    )


def _submission(scope: Scope, kind: RunKind, body: Mapping[str, Any]) -> RunSubmission:
    return RunSubmission(kind, scope.workspace_id, scope.repository, scope.user, dict(body))


@contextmanager
def refusals(services: PlatformServices, scope: Scope, **extra: Any) -> Iterator[None]:
    """Turn the refusal of a run into a reply; ``extra`` are more keys of it."""
    try:
        yield
    except SubmitRejectedError as error:
        raise ApiError(
            error.status, error.reason, error.message, field=error.field, issues=error.wire_issues(), **extra
        ) from None
    except MissingSecretsError as error:
        raise missing_secrets(services, scope, error, **extra) from None


def missing_secrets(
    services: PlatformServices, scope: Scope, error: MissingSecretsError, **extra: Any
) -> ApiError:
    """Return the refusal of a run whose secrets are not stored."""
    # Clients parse the names out of this sentence.
    page = page_url(services, scope.workspace, "secrets")
    names = list(error.names)
    return ApiError(404, "SECRETS_NOT_FOUND", error.message, missing=names, platform_url=page, **extra)


def stop_run(runs: RunStore, workspace_id: str, name_or_id: str, *, by: str) -> StopReply:
    """Request that a run stops; a pending run stops at once."""
    try:
        run = runs.stop(workspace_id, name_or_id, by=by)
    except RunEndedError as error:
        refusal = ApiError(409, "RUN_ENDED", error.message, id=error.run.id)
        refusal.extra["status"] = error.run.status
        raise refusal from None
    return StopReply(id=run.id, status="stopping" if run.status in OPEN else run.status)


def run_fields(found: FoundRun, url: str) -> dict[str, Any]:
    """Return the known fields of a run that lists and details share."""
    run, creator = found.run, found.creator
    known = {
        "id": run.id,
        "name": run.name,
        "status": run.status,
        "created_at": run.created_at,
        "started_at": run.started_at,
        "completed_at": run.completed_at,
        "creator_name": (creator.name or creator.email) if creator is not None else None,
        "creator_email": creator.email if creator is not None else None,
        "error": run.error,
        "platform_url": url,
    }
    return present(known)


def configuration(services: PlatformServices, run: DbRun) -> dict[str, Any]:
    """Return how a run was configured, and why it waits."""
    known = {
        "entrypoint": run.request["experiment_config"]["entrypoint"],
        "branch": run.branch,
        "commit_sha": run.commit_sha,
        "env_config": run.request.get("env_config"),
        "resolved_secret_scopes": run.secret_scopes or None,
    }
    waits = services.run_waits([run])
    shown = {"waits": waits.why(run), "silent_since": waits.silent_since(run)}
    return {**present({**known, **shown}), **_repeatable(services.config, run)}


def _repeatable(config: PlatformConfig, run: DbRun) -> dict[str, Any]:
    """Return what is needed to submit a run again; for an imported run only its rows."""
    rows = {"dataset_sha256": (run.selection or {}).get("sha256")}
    if run.imported is not None:
        return present(rows)
    ran = {"environment": run.environment, "isolation": isolation_shown(config, run)}
    return present({"request": run.request, **rows, "platform_version": run.platform_version, **ran})


def named(id: str | None, name: str) -> Named:
    """Return a reference to something that may have been deleted."""
    return Named(id=id, name=name) if id is not None else Named(name=name)


def present(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``fields`` without those that are None."""
    return {key: value for key, value in fields.items() if value is not None}
