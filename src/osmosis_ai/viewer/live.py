"""Live updates of a run: one reader per run on the server, server-sent events or JSON for each page."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import socket
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Any, NamedTuple

import orjson
import uvicorn
from fastapi import APIRouter, Depends, FastAPI, Request
from fastapi.responses import JSONResponse
from fastapi.sse import KEEPALIVE_COMMENT, EventSourceResponse, format_sse_event
from starlette.responses import Response

from osmosis_ai.errors import NotFoundError, OsmosisError
from osmosis_ai.ui.run_numbers import score_json
from osmosis_ai.viewer.access import SECTIONS, SharedReads, Viewing
from osmosis_ai.viewer.local_runs import RunKind
from osmosis_ai.viewer.source import RunSource, RunState

logger = logging.getLogger(__name__)

READ_EVERY_S = 1.0
KEEP_ALIVE_S = 15.0
"""Interval of keep-alive events and access checks."""
MAX_STREAMS = 4
"""Streams per visitor: browsers open six connections to a server, and pages need some."""
POLL_AGAIN_S = 5
_LINGER_S = 6.0
"""How long a reader runs without viewers; longer than the interval of a polling client."""
_EVENTS = "text/event-stream"
_NOT_KEPT = {"Cache-Control": "private, no-cache", "X-Content-Type-Options": "nosniff"}
# nginx would hold events back until its buffer is full.
_UNBUFFERED = {"Cache-Control": "no-store", "X-Accel-Buffering": "no", "X-Content-Type-Options": "nosniff"}


class Watched(NamedTuple):
    """A watched run; ``place`` is the path of its workspace, empty on this machine."""

    place: str
    kind: RunKind
    run: str


class LiveNews(NamedTuple):
    """A new state, or why the stream ends (``ended``, ``gone`` or ``refused``)."""

    state: RunState | None = None
    end: str | None = None


class LiveHub:
    """The readers of a server; use it from the event loop's thread."""

    def __init__(self, *, read_every_s: float = READ_EVERY_S, keep_alive_s: float = KEEP_ALIVE_S) -> None:
        self._read_every_s, self._keep_alive_s = read_every_s, keep_alive_s
        self._readers: dict[Watched, _RunReader] = {}
        self._streams: Counter[str] = Counter()
        self._closed = False

    def may_stream(self, visitor: str) -> bool:
        return not self._closed and self._streams[visitor] < MAX_STREAMS

    async def state(self, watched: Watched, source: RunSource) -> RunState:
        """Return the state of a run, at most one interval old."""
        return (await self._reader(watched, source)).look()

    async def stream(
        self,
        watched: Watched,
        source: RunSource,
        *,
        visitor: str = "",
        since: str | None = None,
        allowed: Callable[[], bool] | None = None,
    ) -> AsyncIterator[LiveNews]:
        """Yield the state if it differs from ``since``, then each change or an empty event."""
        reader = await self._reader(watched, source)
        if not self.may_stream(visitor):
            return  # The limit was reached; the client's next try reports it.
        loop = asyncio.get_running_loop()
        asked = loop.time()
        reader.watchers += 1
        self._streams[visitor] += 1
        try:
            while not self._closed:
                changed = reader.changed
                if (state := reader.look()).cursor != since:
                    since = state.cursor
                    yield LiveNews(state)
                if reader.end is not None:
                    yield LiveNews(end=reader.end)
                    return
                with suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(changed.wait(), self._keep_alive_s)
                if not changed.is_set():
                    yield LiveNews()
                if allowed is not None and loop.time() - asked >= self._keep_alive_s:
                    asked = loop.time()
                    if not await asyncio.to_thread(allowed):
                        yield LiveNews(end="refused")
                        return
        finally:
            reader.watchers -= 1
            self._streams -= Counter([visitor])  # which keeps those above 0

    def reads(self, watched: Watched) -> SharedReads | None:
        """Return the cached reads of the current state; None without a viewer. Thread-safe."""
        reader = self._readers.get(watched)
        return reader.reads if reader is not None and reader.failure is None else None

    def close(self) -> None:
        self._closed = True
        for reader in self._readers.values():
            reader.stop()

    async def _reader(self, watched: Watched, source: RunSource) -> _RunReader:
        reader = self._readers.get(watched)
        if reader is None or reader.task.done():
            reader = self._readers[watched] = _RunReader(watched, source, self._read_every_s)
            # All viewers fetch the final state of a run when it ends.
            loop = asyncio.get_running_loop()
            reader.task.add_done_callback(lambda _: loop.call_later(_LINGER_S, self._forget, watched, reader))
        while reader.state is None and not self._closed:
            await reader.changed.wait()
            if reader.failure is not None:
                raise reader.failure
        if self._closed:
            raise OsmosisError("the server stops.", code="INTERNAL")
        return reader

    def _forget(self, watched: Watched, reader: _RunReader) -> None:
        if self._readers.get(watched) is reader:
            del self._readers[watched]


class _RunReader:
    def __init__(self, watched: Watched, source: RunSource, read_every_s: float) -> None:
        self._watched, self._source, self._read_every_s = watched, source, read_every_s
        self.state: RunState | None = None
        self.watchers = 0
        self._looked = asyncio.get_running_loop().time()
        self.changed = asyncio.Event()
        self.end: str | None = None
        self.reads: SharedReads | None = None
        self.failure: Exception | None = None
        self.task = asyncio.create_task(self._read())

    def look(self) -> RunState:
        assert self.state is not None
        self._looked = asyncio.get_running_loop().time()
        return self.state

    def stop(self) -> None:
        self.task.cancel()
        self._notify()

    async def _read(self) -> None:
        kind, run = self._watched.kind, self._watched.run
        loop = asyncio.get_running_loop()
        try:
            while self.watchers or loop.time() - self._looked < _LINGER_S:
                found = await asyncio.to_thread(self._source.state, kind, run)
                if self.state is None or found.cursor != self.state.cursor:
                    self.state, self.reads = found, SharedReads()
                    self.end = "ended" if found.ended else None
                    self._notify()
                if self.end is not None:
                    return
                await asyncio.sleep(self._read_every_s)
        except Exception as error:  # Each viewer learns of it and asks again.
            self.end = "gone" if isinstance(error, NotFoundError) else "failed"
            self.failure = error
            if self.state is not None and self.end == "failed":
                logger.warning("the %s run %s cannot be read", kind, run, exc_info=True)
            self._notify()

    def _notify(self) -> None:
        changed, self.changed = self.changed, asyncio.Event()
        changed.set()


# -- addresses ---------------------------------------------------------------------------------------


def live_hub(app: FastAPI) -> LiveHub:
    hub = getattr(app.state, "live_hub", None)
    if not isinstance(hub, LiveHub):
        hub = app.state.live_hub = LiveHub()
    return hub


class LiveServer(uvicorn.Server):
    """A server that closes its streams before it waits for open replies."""

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        if isinstance(self.config.app, FastAPI):
            live_hub(self.config.app).close()
        await super().shutdown(sockets)


def add_live(router: APIRouter, viewing: Callable[..., Viewing], kind: RunKind) -> None:
    @router.get(f"/{SECTIONS[kind]}/{{run}}/changes", include_in_schema=False, response_model=None)
    async def changes(request: Request, view: Viewing = Depends(viewing)) -> Response:  # noqa: B008 - FastAPI's way
        return await live_reply(request, view, kind, request.path_params["run"])


async def live_reply(request: Request, view: Viewing, kind: RunKind, run: str) -> Response:
    """Return the state of a run: events where the request accepts them, else JSON with an ``ETag``."""
    hub, watched = live_hub(request.app), Watched(view.root, kind, run)
    since = request.headers.get("last-event-id") or request.query_params.get("since")
    try:
        now = await hub.state(watched, view.source)
    except OsmosisError as error:
        status = 404 if isinstance(error, NotFoundError) else 400 if error.code == "VALIDATION" else 503
        return JSONResponse({"message": error.message}, status, headers=_NOT_KEPT)
    if _EVENTS not in request.headers.get("accept", ""):
        headers = {**_NOT_KEPT, "ETag": f'"{hashlib.sha256(now.cursor.encode()).hexdigest()[:16]}"'}
        if headers["ETag"] in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=headers)
        return Response(orjson.dumps(_described(now)), media_type="application/json", headers=headers)
    if now.ended and since == now.cursor:
        # A browser's EventSource does not reconnect after this (HTML, section 9.2.3).
        return Response(status_code=204, headers=_NOT_KEPT)
    if not hub.may_stream(view.visitor):
        wait = {"Retry-After": str(POLL_AGAIN_S), **_NOT_KEPT}
        return JSONResponse({"message": "the visitor has too many open streams."}, 429, headers=wait)
    stream = hub.stream(watched, view.source, visitor=view.visitor, since=since, allowed=view.allowed)
    return EventSourceResponse(_events(stream), headers=_UNBUFFERED)


async def _events(stream: AsyncIterator[LiveNews]) -> AsyncIterator[bytes]:
    async for state, end in stream:
        if state is not None:
            described = orjson.dumps(_described(state)).decode()
            yield format_sse_event(event="change", id=state.cursor, data_str=described)
        elif end == "failed":
            return  # The client reconnects and then gets the error.
        elif end is not None:
            yield format_sse_event(event="end", data_str=orjson.dumps({"reason": end}).decode())
        else:
            yield KEEPALIVE_COMMENT


def _described(state: RunState) -> dict[str, Any]:
    headline = score_json(state.headline)
    return {"cursor": state.cursor, "status": state.status, "headline": headline, "ended": state.ended}
