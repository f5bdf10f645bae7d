"""Results of judging sessions, in the order of their life: uploaded, listed, read, deleted."""

from __future__ import annotations

from typing import Annotated, Any

import orjson
from fastapi import Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from pydantic import ValidationError
from starlette.concurrency import run_in_threadpool

from osmosis_ai.api.wire import rubric_results as wire
from osmosis_ai.platform.http.authentication import Scope, Services, WorkspaceScope
from osmosis_ai.platform.http.errors import ApiError
from osmosis_ai.platform.http.packed_bodies import unpacked_body
from osmosis_ai.platform.http.page_links import page_url
from osmosis_ai.platform.http.paging import MAX_PAGE
from osmosis_ai.platform.http.routing import api_router
from osmosis_ai.platform.http.runs import present
from osmosis_ai.platform.rubric_results import FoundRubricResult
from osmosis_ai.platform.services import PlatformServices

router = api_router("/api/cli/rubric-results")

_BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "description": "May be packed with gzip (`Content-Encoding: gzip`).",
        "content": {"application/json": {"schema": wire.RubricUpload.model_json_schema()}},
    }
}
_TOO_LARGE = (
    f"a rubric result has at most {wire.LARGEST_DOCUMENT_BYTES >> 20} MiB; judge fewer records in each, "
    "or look at it with `osmosis view` where it is."
)


@router.post("", openapi_extra=_BODY)
async def upload_rubric_result(
    request: Request, services: Services, scope: WorkspaceScope
) -> wire.StoredRubricResult:
    """Keep a result; the same document of the same name again changes nothing."""
    body = await unpacked_body(request, most_bytes=wire.LARGEST_DOCUMENT_BYTES, refusal=_TOO_LARGE)
    return await run_in_threadpool(_keep, services, scope, body)


@router.get("")
def list_rubric_results(
    services: Services,
    scope: WorkspaceScope,
    limit: Annotated[int, Query(ge=1, le=MAX_PAGE)] = MAX_PAGE,
    cursor: Annotated[str | None, Query(max_length=512)] = None,
) -> wire.RubricResultPage:
    """List results, the newest first, from a place on."""
    page = services.rubric_results.page(scope.workspace_id, limit=limit, cursor=cursor or None)
    return wire.RubricResultPage(
        rubric_results=[_wire(services, scope, each) for each in page.items],
        **present({"next_cursor": page.next}),
    )


@router.get("/{name_or_id}")
def get_rubric_result(services: Services, scope: WorkspaceScope, name_or_id: str) -> wire.StoredRubricResult:
    """Return one result as lists show it."""
    return _wire(services, scope, services.rubric_results.get(scope.workspace_id, name_or_id))


@router.get(
    "/{name_or_id}/document",
    response_class=Response,
    responses={200: {"content": {"application/json": {"schema": wire.RubricDocument.model_json_schema()}}}},
)
def rubric_result_document(services: Services, scope: WorkspaceScope, name_or_id: str) -> Response:
    """Return the document of one result."""
    found = services.rubric_results.get(scope.workspace_id, name_or_id)
    return Response(services.rubric_results.read(found.row), media_type="application/json")


@router.delete("/{name_or_id}")
def delete_rubric_result(services: Services, scope: WorkspaceScope, name_or_id: str) -> dict[str, Any]:
    """Delete a result; somebody else's needs an admin or owner."""
    row = services.rubric_results.get(scope.workspace_id, name_or_id).row
    scope.require_maker(row.creator_id, "a rubric result")
    services.rubric_results.delete(row)
    return {}


def _keep(services: PlatformServices, scope: Scope, body: bytes) -> wire.StoredRubricResult:
    try:
        # Strictly: no NaN, no infinities, no halves of characters, and no deeper than any parser goes.
        content = orjson.loads(body)
    except ValueError:
        raise ApiError(
            400,
            "INVALID_JSON",
            "the body of the request is no valid JSON (NaN and Infinity are not allowed either).",
        ) from None
    try:
        said = wire.RubricUpload.model_validate(content)
    except ValidationError as error:
        problems = error.errors(include_input=False, include_context=False)
        raise RequestValidationError([{**each, "loc": ("body", *each["loc"])} for each in problems]) from None
    found, is_new = services.rubric_results.add(
        scope.workspace_id, scope.user.id, said.name, content["document"], said.document.generated_at
    )
    return _wire(services, scope, found).model_copy(update={"is_new": is_new})


def _wire(services: PlatformServices, scope: Scope, found: FoundRubricResult) -> wire.StoredRubricResult:
    row, line = found.row, found.row.headline
    known = {
        "generated_at": row.started_at,
        "creator_name": found.creator,
        "model": row.model_path,
        "dataset": row.dataset_name,
        "rubric_id": row.config,
        "score": row.reward,
        "calls": wire.JudgeCallCounts.model_validate(line) if line is not None else None,
        "cost_usd": row.cost_usd,
        "duration_s": row.duration_ms / 1000 if row.duration_ms is not None else None,
    }
    return wire.StoredRubricResult(
        id=row.id,
        name=row.name,
        status=row.status,
        sha256=row.sha256,
        size=row.size,
        created_at=row.created_at,
        platform_url=page_url(services, scope.workspace, "rubrics", row.name),
        **present(known),
    )
