"""Routes and fields that evaluation and training runs share."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Annotated, Any

from fastapi import APIRouter, Body

from osmosis_ai._version import __version__
from osmosis_ai.api.models.base import LogPage, Named
from osmosis_ai.api.models.eval_runs import EvalSample
from osmosis_ai.api.models.runs import CheckedRepository, Run, StopReply, SubmitCheck, SubmittedRun
from osmosis_ai.config.checks import ConfigKind
from osmosis_ai.errors import OsmosisError
from osmosis_ai.platform.db.tables import DbRun
from osmosis_ai.platform.gitsync.git import parse_clone_url
from osmosis_ai.platform.http.authentication import Scope, Services, WorkspaceScope
from osmosis_ai.platform.http.errors import ApiError
from osmosis_ai.platform.http.routing import LogPaging, api_router, page_url, quick_read, run_url
from osmosis_ai.platform.isolation import isolation_shown
from osmosis_ai.platform.runs.lifecycle import OPEN, RunKind
from osmosis_ai.platform.secrets import MissingSecretsError
from osmosis_ai.platform.services import PlatformServices


def run_router(prefix: str, kind: RunKind, config: ConfigKind) -> APIRouter:
    """Return a router with the routes that both kinds of runs have."""
    router = api_router(prefix)

    @router.post("", openapi_extra=_submit_body(config))
    async def submit(
        services: Services, scope: WorkspaceScope, body: Annotated[dict[str, Any], Body()]
    ) -> SubmittedRun:
        """Submit a run. In a refusal, `issues` lists every problem."""
        submitter = services.submitter
        with refusals(services, scope):
            run = await submitter.in_thread(
                lambda: submitter.create(submitter.check(kind, scope.repository, scope.user, body))
            )
        return submitted(services, scope, run)

    @router.post("/check", openapi_extra=_submit_body(config))
    async def check(
        services: Services, scope: WorkspaceScope, body: Annotated[dict[str, Any], Body()]
    ) -> SubmitCheck:
        """Check a submission without creating a run. Refusals contain `dry_run`."""
        submitter, repository = services.submitter, scope.repository
        with refusals(services, scope, dry_run=True):
            checked = await submitter.in_thread(lambda: submitter.check(kind, repository, scope.user, body))
        source = parse_clone_url(repository.clone_url)
        return SubmitCheck(
            dry_run=True,
            commit_sha=checked.commit_sha,
            repository=CheckedRepository(identity=repository.identity, local=source.transport == "file"),
            dataset=named(checked.dataset.id, checked.dataset.name),
            sampled_rows=len(checked.rows.rows()),
            total_dataset_rows=checked.rows.total_rows,
            resolved_secret_scopes=dict(checked.scopes),
            dataset_sha256=checked.rows.sha256 or None,
            platform_version=__version__,
        )

    @router.get("/{name_or_id}/logs")
    @quick_read
    def logs(services: Services, scope: WorkspaceScope, name_or_id: str, page: LogPaging) -> LogPage:
        """Return a page of a run's log."""
        run = services.runs.get(scope.workspace_id, kind, name_or_id)
        return services.logs.page(run.id, limit=page.limit, direction=page.direction, cursor=page.cursor)

    @router.post("/{name_or_id}/stop")
    def stop(services: Services, scope: WorkspaceScope, name_or_id: str) -> StopReply:
        """Request that a run stops. Its results so far are kept."""
        run = services.runs.stop(scope.workspace_id, kind, name_or_id, by=scope.user.email)
        return StopReply(id=run.id, status="stopping" if run.status in OPEN else run.status)

    @router.delete("/{name_or_id}")
    def delete(services: Services, scope: WorkspaceScope, name_or_id: str) -> dict[str, Any]:
        """Delete an ended run with all its files. Only an admin or owner can delete another user's run."""
        run = services.runs.get(scope.workspace_id, kind, name_or_id)
        scope.require_maker(run.creator_id, "a run")
        services.runs.delete(run)
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
    return SubmittedRun.of(run, platform_url=run_url(services, scope.workspace, run.kind, run.name))


@contextmanager
def refusals(services: PlatformServices, scope: Scope, **extra: Any) -> Iterator[None]:
    """Turn the refusal of a run into a reply; ``extra`` are more keys of it."""
    try:
        yield
    except ApiError as error:
        error.extra |= extra
        raise
    except MissingSecretsError as error:
        # Clients parse the names out of this sentence.
        page, names = page_url(services, scope.workspace, "secrets"), list(error.names)
        raise ApiError(
            404, "SECRETS_NOT_FOUND", error.message, missing=names, platform_url=page, **extra
        ) from None


# -- fields of runs ----------------------------------------------------------------------------------


def run_fields(run: DbRun, url: str) -> dict[str, Any]:
    """Return the known fields of a run that lists and details share."""
    known = {name: getattr(run, name, None) for name in Run.model_fields}
    known["creator_name"] = run.creator.display_name if run.creator is not None else None
    known["creator_email"] = run.creator.email if run.creator is not None else None
    return present({**known, "platform_url": url})


def configuration(services: PlatformServices, run: DbRun) -> dict[str, Any]:
    """Return how a run was configured, what is needed to submit it again, and why it waits."""
    waits = services.runs.waits([run])
    known = {
        "dataset": named(run.dataset_id, run.dataset_name),
        "rollout": named(run.rollout_id, run.rollout_name),
        "entrypoint": run.request["experiment_config"]["entrypoint"],
        "branch": run.branch,
        "commit_sha": run.commit_sha,
        "env_config": run.request.get("env_config"),
        "resolved_secret_scopes": run.secret_scopes or None,
        "waits": waits.why(run),
        "silent_since": waits.silent_since(run),
        "dataset_sha256": (run.selection or {}).get("sha256"),
    }
    if run.imported is None:
        known |= {
            "request": run.request,
            "platform_version": run.platform_version,
            "environment": run.environment,
            "isolation": isolation_shown(services.config, run),
        }
    return present(known)


def named(id: str | None, name: str) -> Named:
    """Return a reference to something that may have been deleted."""
    return Named(**present({"id": id, "name": name}))


def present(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``fields`` without those that are None."""
    return {key: value for key, value in fields.items() if value is not None}


# -- samples -----------------------------------------------------------------------------------------

_CURSOR = re.compile(r"(\d{1,9})-(\d{1,9})", re.ASCII)
_MEASURED = ("reward", "tokens", "cost_usd", "duration_ms", "model_latency_ms")
SAMPLE_DETAILS = ("boundary", "category", "error", "input", "output", "notes", "parts", "finish_reasons")
SAMPLE_FIELDS = ("row_index", "run_index", "status", "source_row_index", "row_digest", *_MEASURED)


def sample_position(cursor: str) -> tuple[int, int]:
    """Return the two numbers of a cursor."""
    match = _CURSOR.fullmatch(cursor)
    if match is None:
        raise OsmosisError("`cursor` did not come from a page of attempts.", details={"field": "cursor"})
    return int(match[1]), int(match[2])


def wire_sample(sample: Any, *, details: bool) -> EvalSample:
    """Return a sample of the database, or a journal's record, as on the wire."""
    measured = {name: getattr(sample, name) for name in _MEASURED}
    known: dict[str, Any] = {
        name: value for name, value in measured.items() if value is not None and math.isfinite(value)
    }
    known |= present(
        {name: getattr(sample, name) for name in ("row_digest", *(SAMPLE_DETAILS if details else ()))}
    )
    return EvalSample(
        row=sample.row_index,
        attempt=sample.run_index,
        status=sample.status,
        source_row_index=sample.source_row_index,
        **known,
    )
