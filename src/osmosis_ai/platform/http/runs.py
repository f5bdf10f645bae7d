"""What the routes of evaluation and training runs share: the submit, and a run's own fields."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Annotated, Any

from fastapi import APIRouter, Body

from osmosis_ai._version import __version__
from osmosis_ai.api.wire.base import LogPage, Named
from osmosis_ai.api.wire.runs import CheckedRepository, StopReply, SubmitCheck, SubmittedRun
from osmosis_ai.config.checks import ConfigKind
from osmosis_ai.platform.config import PlatformConfig
from osmosis_ai.platform.db.tables import DbRun
from osmosis_ai.platform.gitsync.clone_url import parse_clone_url
from osmosis_ai.platform.http.authentication import Scope, Services, WorkspaceScope
from osmosis_ai.platform.http.errors import ApiError
from osmosis_ai.platform.http.page_links import page_url, run_url, run_url_below
from osmosis_ai.platform.http.paging import LogPaging
from osmosis_ai.platform.http.routing import api_router, quick_read
from osmosis_ai.platform.http.run_events import add_run_events
from osmosis_ai.platform.isolation import isolation_shown
from osmosis_ai.platform.runs.lifecycle import OPEN, RunKind
from osmosis_ai.platform.runs.read.run_store import FoundRun, ListedRun, RunEndedError, RunStore
from osmosis_ai.platform.runs.submit.errors import SubmitRejectedError
from osmosis_ai.platform.runs.submit.submitter import RunSubmission
from osmosis_ai.platform.secrets import MissingSecretsError
from osmosis_ai.platform.services import PlatformServices


def run_router(prefix: str, kind: RunKind, config: ConfigKind) -> APIRouter:
    """Return a router with the routes that are the same for both kinds of runs."""
    router = api_router(prefix)

    @router.post("", openapi_extra=_submit_body(config))
    async def submit(
        services: Services, scope: WorkspaceScope, body: Annotated[dict[str, Any], Body()]
    ) -> SubmittedRun:
        """Submit a run; everything that is wrong with it is in `issues`."""
        return await _submit(services, scope, kind, body)

    @router.post("/check", openapi_extra=_submit_body(config))
    async def check(
        services: Services, scope: WorkspaceScope, body: Annotated[dict[str, Any], Body()]
    ) -> SubmitCheck:
        """Tell what a submit of this body would be told, and make no run; refusals have `dry_run` in them."""
        return await _check(services, scope, kind, body)

    @router.get("/{name_or_id}/logs")
    @quick_read
    def logs(services: Services, scope: WorkspaceScope, name_or_id: str, page: LogPaging) -> LogPage:
        """Return a page of a run's log."""
        store = services.runs_of(kind)
        return store.logs(
            scope.workspace_id, name_or_id, limit=page.limit, direction=page.direction, cursor=page.cursor
        )

    add_run_events(router, kind)

    @router.post("/{name_or_id}/stop")
    def stop(services: Services, scope: WorkspaceScope, name_or_id: str) -> StopReply:
        """Ask for a run to stop; what it has done stays, and one that has ended stays as it is."""
        return stop_run(services.runs_of(kind), scope.workspace_id, name_or_id, by=scope.user.email)

    @router.delete("/{name_or_id}")
    def delete(services: Services, scope: WorkspaceScope, name_or_id: str) -> dict[str, Any]:
        """Delete a run that has ended, with all it has left; somebody else's needs an admin or owner."""
        run = services.runs_of(kind).get(scope.workspace_id, name_or_id).run
        scope.require_maker(run.creator_id, "a run")
        services.run_deletion.delete(run)
        return {}

    return router


def _submit_body(kind: ConfigKind) -> dict[str, Any]:
    """Return what the API's description says of the body of a submit."""
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


async def _submit(
    services: PlatformServices, scope: Scope, kind: RunKind, body: Mapping[str, Any]
) -> SubmittedRun:
    """Take on a run."""
    with refusals(services, scope):
        run = await asyncio.wrap_future(services.submitter.start(_submission(scope, kind, body)))
    return submitted(services, scope, run)


def submitted(services: PlatformServices, scope: Scope, run: DbRun) -> SubmittedRun:
    """Return the reply to who has submitted ``run``."""
    return SubmittedRun(
        id=run.id,
        name=run.name,
        status=run.status,
        created_at=run.created_at,
        platform_url=run_url(services, scope.workspace, run),
    )


async def _check(
    services: PlatformServices, scope: Scope, kind: RunKind, body: Mapping[str, Any]
) -> SubmitCheck:
    """Tell what would come of a submit, by the very steps of one, and make no run."""
    with refusals(services, scope, dry_run=True):
        checked = await asyncio.wrap_future(services.submitter.start_check(_submission(scope, kind, body)))
    repository = scope.repository
    source = parse_clone_url(repository.clone_url, allow_local=True)
    return SubmitCheck(
        dry_run=True,
        commit_sha=checked.commit_sha,
        repository=CheckedRepository(identity=repository.identity, local=source.is_local),
        dataset=named(checked.dataset.id, checked.dataset.name),
        sampled_rows=len(checked.rows.rows()),
        total_dataset_rows=checked.rows.total_rows,
        resolved_secret_scopes=dict(checked.scopes),
        dataset_sha256=checked.dataset.sha256,
        platform_version=__version__,
    )


def _submission(scope: Scope, kind: RunKind, body: Mapping[str, Any]) -> RunSubmission:
    return RunSubmission(kind, scope.workspace_id, scope.repository, scope.user, dict(body))


@contextmanager
def refusals(services: PlatformServices, scope: Scope, **extra: Any) -> Iterator[None]:
    """Turn the reasons why a run is not taken on into replies; ``extra`` are more keys of them."""
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
    # Clients read the names out of this very sentence.
    page = page_url(services, scope.workspace, "secrets")
    names = list(error.names)
    return ApiError(404, "SECRETS_NOT_FOUND", error.message, missing=names, platform_url=page, **extra)


def stop_run(runs: RunStore, workspace_id: str, name_or_id: str, *, by: str) -> StopReply:
    """Ask for a run to stop; one that waited still has stopped with that."""
    try:
        run = runs.stop(workspace_id, name_or_id, by=by)
    except RunEndedError as error:
        refusal = ApiError(409, "RUN_ENDED", error.message, id=error.run.id)
        refusal.extra["status"] = error.run.status
        raise refusal from None
    return StopReply(id=run.id, status="stopping" if run.status in OPEN else run.status)


def summary_fields(run: ListedRun, runs_url: str, waits: str | None) -> dict[str, Any]:
    """Return a listed run's own fields, as far as they are known, and where its page is: below ``runs_url``."""
    own = _own_fields(run, run.creator_name, run.creator_email)
    return {**own, **present({"waits": waits}), "platform_url": run_url_below(runs_url, run.name)}


def detail_fields(services: PlatformServices, scope: Scope, found: FoundRun) -> dict[str, Any]:
    """Return a run's own fields, as far as they are known, and where its page is."""
    creator = found.creator
    by = (creator.name, creator.email) if creator is not None else (None, None)
    return {**_own_fields(found.run, *by), "platform_url": run_url(services, scope.workspace, found.run)}


def configuration(services: PlatformServices, run: DbRun) -> dict[str, Any]:
    """Return what a detail says of how a run was configured, as far as there is anything to say."""
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
    """Return what is needed to submit a run again; of one that was executed elsewhere, only which rows it has."""
    rows = {"dataset_sha256": (run.selection or {}).get("sha256")}
    if run.imported is not None:
        return present(rows)
    ran = {"environment": run.environment, "isolation": isolation_shown(config, run)}
    return present({"request": run.request, **rows, "platform_version": run.platform_version, **ran})


def named(id: str | None, name: str) -> Named:
    """Return a reference to what may have gone by now."""
    return Named(id=id, name=name) if id is not None else Named(name=name)


def present(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``fields`` without those that are None: what is not known is not sent."""
    return {key: value for key, value in fields.items() if value is not None}


def _own_fields(
    run: DbRun | ListedRun, creator_name: str | None, creator_email: str | None
) -> dict[str, Any]:
    return present(
        {
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
    )
