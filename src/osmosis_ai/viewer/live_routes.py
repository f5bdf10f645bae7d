"""The addresses of what is new in a run: JSON with an ``ETag`` for who asks, server-sent events for who listens."""

from __future__ import annotations

import hashlib
import socket
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import asdict
from typing import Any

import orjson
import uvicorn
from fastapi import APIRouter, Depends, FastAPI, Request
from fastapi.responses import JSONResponse
from fastapi.sse import KEEPALIVE_COMMENT, EventSourceResponse, format_sse_event
from starlette.responses import Response

from osmosis_ai.errors import NotFoundError, OsmosisError
from osmosis_ai.ui.run_numbers import score_json
from osmosis_ai.viewer.access import SECTIONS, Viewing
from osmosis_ai.viewer.cursors import positions_in
from osmosis_ai.viewer.live import POLL_AGAIN_S, LiveHub, Watched, is_over
from osmosis_ai.viewer.local_runs import RunKind
from osmosis_ai.viewer.source import Changes

EVENTS = "text/event-stream"
_NOT_KEPT = {"Cache-Control": "private, no-cache", "X-Content-Type-Options": "nosniff"}
# nginx would hold events back until its buffer is full.
_UNBUFFERED = {"Cache-Control": "no-store", "X-Accel-Buffering": "no", "X-Content-Type-Options": "nosniff"}


def live_hub(app: FastAPI) -> LiveHub:
    """Return the readers of a server, of which each has one."""
    hub = getattr(app.state, "live_hub", None)
    if not isinstance(hub, LiveHub):
        hub = app.state.live_hub = LiveHub()
    return hub


class LiveServer(uvicorn.Server):
    """A server that closes its streams at shutdown, since it waits for every open reply."""

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop, streams first."""
        if isinstance(self.config.app, FastAPI):
            live_hub(self.config.app).close()
        await super().shutdown(sockets)


def add_live(router: APIRouter, viewing: Callable[..., Viewing]) -> None:
    """Add the addresses of what is new in evaluations and training runs."""

    def add(kind: RunKind) -> None:
        @router.get(f"/{SECTIONS[kind]}/{{run}}/changes", include_in_schema=False, response_model=None)
        async def changes(request: Request, view: Viewing = Depends(viewing)) -> Response:  # noqa: B008 - FastAPI's way
            return await live_reply(request, view, kind, request.path_params["run"])

    add("eval")
    add("training")


async def live_reply(request: Request, view: Viewing, kind: RunKind, run: str) -> Response:
    """Return what is new in a run: events where the request accepts them, else JSON."""
    hub, watched = live_hub(request.app), Watched(view.root, kind, run)
    since = request.headers.get("last-event-id") or request.query_params.get("since")
    try:
        if since:
            positions_in(since)
        now = await hub.changes(watched, view.source, since=since)
    except OsmosisError as error:
        status = 404 if isinstance(error, NotFoundError) else 400 if error.code == "VALIDATION" else 503
        return JSONResponse({"message": error.message}, status, headers=_NOT_KEPT)
    if EVENTS not in request.headers.get("accept", ""):
        return _document(now, request.headers.get("if-none-match"))
    if is_over(now) and since == now.cursor:
        # What a browser's EventSource takes for the end (HTML, section 9.2.3): it does not come back.
        return Response(status_code=204, headers=_NOT_KEPT)
    if not hub.may_stream(view.visitor):
        wait = {"Retry-After": str(POLL_AGAIN_S), **_NOT_KEPT}
        return JSONResponse({"message": "as many streams as a visitor may have are open."}, 429, headers=wait)
    return EventSourceResponse(_events(hub, watched, view, since), headers=_UNBUFFERED)


async def _events(hub: LiveHub, watched: Watched, view: Viewing, since: str | None) -> AsyncIterator[bytes]:
    stream = hub.stream(watched, view.source, visitor=view.visitor, since=since, allowed=view.allowed)
    async for news in stream:
        if news.changes is not None:
            yield _event("change", _described(news.changes), cursor=news.changes.cursor)
        elif news.end == "failed":
            return  # the client reconnects and then gets the error
        elif news.end is not None:
            yield _event("end", {"reason": news.end})
        else:
            yield KEEPALIVE_COMMENT


def _event(name: str, data: Mapping[str, Any], *, cursor: str | None = None) -> bytes:
    return format_sse_event(event=name, id=cursor, data_str=orjson.dumps(data).decode())


def _document(now: Changes, seen: str | None) -> Response:
    tag = f'"{hashlib.sha256(now.cursor.encode()).hexdigest()[:16]}"'
    headers = {**_NOT_KEPT, "ETag": tag}
    if seen is not None and tag in seen:
        return Response(status_code=304, headers=headers)
    return Response(orjson.dumps(_described(now)), media_type="application/json", headers=headers)


def _described(changes: Changes) -> dict[str, Any]:
    return {
        **asdict(changes),
        "headline": score_json(changes.headline),
        "ended": is_over(changes),
    }
