"""Routes, their pages of lists, and the addresses of the platform's pages and of clients.

Paths are split before they are decoded, so ``%2F`` is part of a name, and JSON is parsed strictly.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial, wraps
from inspect import iscoroutinefunction
from typing import Annotated, Any, Literal, TypeVar
from urllib.parse import quote, unquote_to_bytes, urlsplit

import orjson
from anyio import CapacityLimiter
from anyio.lowlevel import RunVar
from anyio.to_thread import run_sync
from fastapi import APIRouter, Depends, Query, Request, Response
from fastapi.routing import APIRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from osmosis_ai.platform.db.tables import DbWorkspace
from osmosis_ai.platform.http.errors import JSON_BODY, ApiError
from osmosis_ai.platform.services import PlatformServices

Endpoint = TypeVar("Endpoint", bound=Callable[..., Any])

logger = logging.getLogger("osmosis_ai.platform.http")

RUN_PAGES = {"eval": "evals", "training": "training"}
MAX_PAGE = 50
MAX_LOG_PAGE = 200
MAX_SAMPLE_PAGE = 5_000
# Beyond any table, and a valid number for every database.
_MAX_OFFSET = 10**12
_QUICK_READ = "osmosis_quick_read"
_READS_AT_ONCE = 4
_READERS: RunVar[CapacityLimiter] = RunVar("osmosis_readers")


def api_router(prefix: str = "", *, checks: Sequence[Callable[..., Any]] = ()) -> APIRouter:
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


# -- pages of lists ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PageParams:
    limit: int
    offset: int

    def keys(self, total: int, shown: int) -> dict[str, Any]:
        """Return the keys of a page with ``shown`` items of ``total``."""
        end = self.offset + shown
        has_more = shown > 0 and end < total
        return {"total_count": total, "has_more": has_more, "next_offset": end if has_more else None}


@dataclass(frozen=True, slots=True)
class LogPageParams:
    limit: int
    direction: Literal["older", "newer"]
    cursor: str | None


@dataclass(frozen=True, slots=True)
class SamplePageParams:
    limit: int
    cursor: str | None


async def _page_params(
    limit: Annotated[int, Query(ge=1, le=MAX_PAGE)] = MAX_PAGE,
    offset: Annotated[int, Query(ge=0, le=_MAX_OFFSET)] = 0,
) -> PageParams:
    return PageParams(limit, offset)


async def _log_page_params(
    limit: Annotated[int, Query(ge=1, le=MAX_LOG_PAGE)] = 50,
    direction: Literal["older", "newer"] = "older",
    cursor: Annotated[str | None, Query(max_length=64)] = None,
) -> LogPageParams:
    return LogPageParams(limit, direction, cursor or None)


async def _sample_page_params(
    limit: Annotated[int, Query(ge=1, le=MAX_SAMPLE_PAGE)] = 1_000,
    cursor: Annotated[str | None, Query(max_length=64)] = None,
) -> SamplePageParams:
    return SamplePageParams(limit, cursor or None)


Paging = Annotated[PageParams, Depends(_page_params)]
"""The requested page; a limit above 50 is refused with 400."""

LogPaging = Annotated[LogPageParams, Depends(_log_page_params)]
"""The requested page of a log; a limit above 200 is refused with 400."""

SamplePaging = Annotated[SamplePageParams, Depends(_sample_page_params)]
"""The requested page of samples; a limit above 5,000 is refused with 400."""


# -- addresses -----------------------------------------------------------------------------------------


def root_path(services: PlatformServices) -> str:
    """Return the path prefix of the platform behind a proxy; usually empty."""
    return urlsplit(services.config.base_url).path


def workspace_path(services: PlatformServices, workspace: DbWorkspace) -> str:
    return f"{root_path(services)}/{quote(workspace.name, safe='')}"


def is_encrypted(services: PlatformServices) -> bool:
    return services.config.base_url.startswith("https://")


def page_url(services: PlatformServices, workspace: DbWorkspace, *segments: str) -> str:
    path = "/".join(quote(segment, safe="") for segment in (workspace.name, *segments))
    return f"{services.config.base_url}/{path}"


def run_url(services: PlatformServices, workspace: DbWorkspace, kind: str, name: str) -> str:
    return page_url(services, workspace, RUN_PAGES[kind], name)


def client_address(request: Request) -> str:
    """Return the address of the client, by which wrong passwords are counted."""
    services: PlatformServices = request.app.state.services
    if not services.config.trusted_proxies and "x-forwarded-for" in request.headers:
        _warn_about_unnamed_proxy()
    return request.client.host if request.client else "unknown"


@lru_cache
def _warn_about_unnamed_proxy() -> None:
    """Log it once: anyone can set the header, so it is ignored."""
    logger.warning(
        "requests have an X-Forwarded-For header, but OSMOSIS_TRUSTED_PROXIES is not set: the sign-in limits treat all "
        "users behind the proxy as one client"
    )
