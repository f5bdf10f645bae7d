"""Routes of the viewer."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from dataclasses import replace
from difflib import get_close_matches
from functools import partial

import orjson
from fastapi import APIRouter, Depends, Request
from fastapi.responses import HTMLResponse, JSONResponse, StreamingResponse
from fastapi.routing import APIRoute
from starlette.responses import Response

from osmosis_ai.errors import NotFoundError, OsmosisError
from osmosis_ai.ui.pages import artifact_headers, page_headers
from osmosis_ai.ui.run_numbers import score_json
from osmosis_ai.viewer import queries
from osmosis_ai.viewer.access import SECTIONS, RenderedPage, Viewing, render
from osmosis_ai.viewer.conversations import MEDIA_TYPES, exported_samples
from osmosis_ai.viewer.local_runs import RunKind
from osmosis_ai.viewer.pages import compare, conversation, runs

Visitor = Callable[..., Viewing]
PageFunction = Callable[..., RenderedPage | Response]
"""``page(view, words, **path)`` returns a page or another reply, such as a file."""

_NOT_STORED = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}


def viewer_router(
    viewing: Visitor, *, home: str = "/", has_rubrics: bool = True, route_class: type[APIRoute] = APIRoute
) -> APIRouter:
    router = APIRouter(redirect_slashes=False, route_class=route_class)
    add = partial(add_page, router, viewing)
    add(home, runs.listed, (*queries.RUN_WORDS, "cursor"))
    add("/evals", partial(runs.listed, kind="eval"), (*queries.RUN_WORDS, "cursor"))
    add("/training", partial(runs.listed, kind="training"), (*queries.RUN_WORDS, "cursor"))
    add("/evals/{run}", runs.evaluation, ("slice",))
    add("/evals/{run}/samples", runs.samples, (*queries.SAMPLE_WORDS, "in", "group", "cursor"))
    add("/evals/{run}/samples.csv", partial(_export, kind="csv"), (*queries.SAMPLE_WORDS, "in"))
    add("/evals/{run}/samples.jsonl", partial(_export, kind="jsonl"), (*queries.SAMPLE_WORDS, "in"))
    add("/evals/{run}/samples/{item}/artifacts/{path:path}", conversation.artifact)
    add("/evals/{run}/log", runs.log, ("cursor",))
    add("/training/{run}", runs.training, ("smooth", "validation"))
    add("/training/{run}/log", partial(runs.log, kind="training"), ("cursor",))
    said, as_file = (*queries.SAMPLE_WORDS, *conversation.WORDS), ("as", "step")
    add("/evals/{run}/samples/{item}", conversation.page, said)
    add("/evals/{run}/samples/{item}/raw", conversation.raw, as_file)
    add("/training/{run}/validation/{item}", partial(conversation.page, kind="training"), said)
    add("/training/{run}/validation/{item}/raw", partial(conversation.raw, kind="training"), as_file)
    if has_rubrics:
        add("/rubrics", partial(runs.listed, kind="rubric"), (*queries.RUN_WORDS, "cursor"))
        add("/rubrics/{run}", runs.judging, ("cursor",))
    add("/compare", compare.page, ("run", "kind", "metric", "slice", "allow"))
    add("/compare/row", compare.row, ("run", "row"))
    add_live(router, viewing, "eval")
    add_live(router, viewing, "training")
    return router


def add_page(
    router: APIRouter, viewing: Visitor, path: str, page: PageFunction, knows: Collection[str] = ()
) -> None:
    section = path.strip("/").split("/")[0]
    kind = next((kind for kind, below in SECTIONS.items() if below == section), None)
    names = [each.partition(":")[0] for each in re.findall(r"{([^}]+)}", path)]

    def endpoint(request: Request, view: Viewing = Depends(viewing)) -> Response:  # noqa: B008 - FastAPI's way
        part = request.headers.get("x-live-part")
        try:
            queries.require_known(request.query_params, knows)
            # Below a prefix there are parameters that are not the page's.
            parameters = {name: request.path_params[name] for name in names}
            asked = view
            if part is not None and kind is not None and "run" in parameters:
                asked = replace(view, parts=frozenset(part.split(",")))
            elif kind in ("eval", "training") and "run" in parameters:
                # Read the cursor before the run, so that the page notices later changes.
                asked = replace(view, shell=replace(view.shell, live=view.live(kind, parameters["run"])))
            return answer(asked, page(asked, queries.words_of(request.url.query), **parameters), part=part)
        except OsmosisError as error:
            # A comparison stands below no list: it names places in all of them.
            return refusal(view, error, section="" if section == "compare" else section)

    router.add_api_route(path, endpoint, methods=["GET"], include_in_schema=False, response_model=None)


def add_live(router: APIRouter, viewing: Visitor, kind: RunKind) -> None:
    """Add the route of a run's state; open pages request it every two seconds."""

    @router.get(f"/{SECTIONS[kind]}/{{run}}/changes", include_in_schema=False, response_model=None)
    def changes(request: Request, view: Viewing = Depends(viewing)) -> Response:  # noqa: B008 - FastAPI's way
        try:
            now = view.source.state(kind, request.path_params["run"])
        except OsmosisError as error:
            status = 404 if isinstance(error, NotFoundError) else 400 if error.code == "VALIDATION" else 503
            return JSONResponse({"message": error.message}, status, headers=_NOT_STORED)
        headline = score_json(now.headline)
        shown = {"cursor": now.cursor, "status": now.status, "headline": headline, "ended": now.ended}
        return Response(orjson.dumps(shown), media_type="application/json", headers=_NOT_STORED)


def answer(view: Viewing, page: RenderedPage | Response, *, part: str | None = None) -> Response:
    if isinstance(page, Response):
        return page
    text = render(view, page, part=part)
    return HTMLResponse(text.encode("utf-8", "replace"), status_code=page.status, headers=page_headers())


def refusal(view: Viewing, error: OsmosisError, *, section: str = "") -> Response:
    is_missing = isinstance(error, NotFoundError)
    if not is_missing and error.code != "VALIDATION":
        raise error
    values = {
        "title": "Not found" if is_missing else "This cannot be shown",
        "problem": error.sentence,
        "hint": error.hint,
        "details": error.details if is_missing else {},
        "section": section,
    }
    return answer(view, RenderedPage("message.html", values, 404 if is_missing else 400))


def nothing_here(view: Viewing, path: str) -> Response:
    lists = [name for item in view.shell.nav if (name := item.href.removeprefix(view.root).strip("/"))]
    nearest = get_close_matches(path.removeprefix(view.root).strip("/")[:200], lists, n=3, cutoff=0)
    return refusal(view, NotFoundError(f"there is no page at {path[:200]}.", details={"nearest": nearest}))


def _export(view: Viewing, words: queries.Words, *, run: str, kind: str) -> Response:
    query = queries.sample_query(words)
    in_conversations = queries.searches_conversations(words, query)
    pieces = exported_samples(view.source, run, query, kind=kind, in_conversations=in_conversations)
    headers = artifact_headers(f"{run[:100]}-samples.{kind}")
    return StreamingResponse(pieces, media_type=MEDIA_TYPES[kind], headers=headers)
