"""Routes: paths are split before they are decoded, so ``%2F`` is part of a name, and JSON is parsed strictly."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from functools import partial, wraps
from inspect import iscoroutinefunction
from typing import Any, TypeVar
from urllib.parse import unquote_to_bytes

import orjson
from anyio import CapacityLimiter
from anyio.lowlevel import RunVar
from anyio.to_thread import run_sync
from fastapi import APIRouter, Depends, Request, Response
from fastapi.routing import APIRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from osmosis_ai.platform.http.errors import JSON_BODY, ApiError

Endpoint = TypeVar("Endpoint", bound=Callable[..., Any])

_QUICK_READ = "osmosis_quick_read"
_READS_AT_ONCE = 4
_READERS: RunVar[CapacityLimiter] = RunVar("osmosis_readers")


def api_router(prefix: str = "", *, checks: Sequence[Callable[..., Any]] = ()) -> APIRouter:
    """Return a router of :class:`ApiRoute`."""
    return APIRouter(
        prefix=prefix, route_class=ApiRoute, redirect_slashes=False, dependencies=[*map(Depends, checks)]
    )


def quick_read(endpoint: Endpoint) -> Endpoint:
    """Mark a route that only reads a page or a row by an index; it takes ``services``."""
    setattr(endpoint, _QUICK_READ, True)
    return endpoint


class RawPath:
    """Passes the undecoded path to the routes."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        raw = scope.get("raw_path")
        if scope["type"] == "http" and raw and b"%" in raw:
            scope = {**scope, "path": raw.partition(b"?")[0].decode("latin-1")}
        await self.app(scope, receive, send)


class _ApiRequest(Request):
    async def json(self) -> Any:
        """Parse the body: NaN, infinities and invalid Unicode are refused."""
        kept = self.scope.setdefault(JSON_BODY, [])
        if not kept:
            kept.append(orjson.loads(await self.body()))
        return kept[0]


class ApiRoute(APIRoute):
    """A route that follows the rules of this module."""

    def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        only_reads = set(options.get("methods") or ()) == {"GET"}
        options["response_model_exclude_unset"] = True
        super().__init__(path, _awaitable(endpoint, only_reads), **options)

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def handle_raw(request: Request) -> Response:
            scope = request.scope
            parameters = {key: _decoded(value) for key, value in scope.get("path_params", {}).items()}
            return await handle(_ApiRequest({**scope, "path_params": parameters}, request.receive))

        return handle_raw


def _awaitable(endpoint: Callable[..., Any], only_reads: bool) -> Callable[..., Any]:
    """Return an endpoint that runs in a thread, if it is not a coroutine already."""
    if iscoroutinefunction(endpoint):
        return endpoint

    is_quick_read = getattr(endpoint, _QUICK_READ, False)

    @wraps(endpoint)
    async def in_thread(**arguments: Any) -> Any:
        if is_quick_read and arguments["services"].db.is_sqlite:
            return endpoint(**arguments)
        call = partial(endpoint, **arguments)
        return await run_sync(call, limiter=_readers() if only_reads else None)

    return in_thread


def _readers() -> CapacityLimiter:
    """Return the limiter for quick reads, which do not wait for the disk: more threads would only compete for the GIL."""
    try:
        return _READERS.get()
    except LookupError:
        limiter = CapacityLimiter(_READS_AT_ONCE)
        _READERS.set(limiter)
        return limiter


def _decoded(segment: Any) -> Any:
    if not isinstance(segment, str):
        return segment
    try:
        text = unquote_to_bytes(segment).decode("utf-8")
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        raise ApiError(400, "INVALID_PATH", "the path of the request is not valid UTF-8 text.")
    return text
