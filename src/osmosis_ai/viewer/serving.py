"""The server of `osmosis view`: one-time keys, sessions and its port."""

from __future__ import annotations

import hashlib
import html
import ipaddress
import secrets
import socket
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from threading import Lock

from fastapi import FastAPI, Request
from fastapi.responses import HTMLResponse
from starlette.exceptions import HTTPException
from starlette.middleware.base import RequestResponseEndpoint
from starlette.middleware.gzip import GZipMiddleware
from starlette.responses import Response

from osmosis_ai.errors import OsmosisError
from osmosis_ai.files import write_atomic
from osmosis_ai.installation import installed_state
from osmosis_ai.processes.addresses import describe_bind_error, listen, stop_on_signals
from osmosis_ai.ui.pages import THEME_COOKIE, NavItem, ShellView, assets, page_headers, theme_of
from osmosis_ai.viewer.access import LISTS, SECTIONS, RenderedPage, Viewing, environment, render
from osmosis_ai.viewer.routes import nothing_here, viewer_router
from osmosis_ai.viewer.source import RunSource

MOST_KEYS = 20
MOST_SESSIONS = 50


class ViewerKeys:
    def __init__(self) -> None:
        self._lock = Lock()
        self._unused: OrderedDict[str, str] = OrderedDict()
        self._sessions: OrderedDict[str, None] = OrderedDict()

    def make(self, leads_to: str) -> str:
        """Return a key that opens ``leads_to`` in one browser; old unused keys are dropped."""
        key = secrets.token_urlsafe(32)
        with self._lock:
            self._unused[_digest(key)] = leads_to
            if len(self._unused) > MOST_KEYS:
                self._unused.popitem(last=False)
        return key

    def change(self, key: str) -> tuple[str, str] | None:
        """Exchange a key for (session, path); None if it is unknown or used."""
        with self._lock:
            path = self._unused.pop(_digest(key), None)
            if path is None:
                return None
            session = secrets.token_urlsafe(32)
            self._sessions[_digest(session)] = None
            if len(self._sessions) > MOST_SESSIONS:
                self._sessions.popitem(last=False)
            return session, path

    def is_in(self, session: str) -> bool:
        with self._lock:
            return _digest(session) in self._sessions


def _digest(given: str) -> str:
    return hashlib.sha256(given.encode("utf-8", "replace")).hexdigest()


OPEN_PATH = "/open"
_ASSETS = "/assets"
_CHANGED = "Osmosis was reinstalled after this viewer started, and this page has changed."
_SMALLEST_GZIPPED_BYTES = 1_000


def viewer_app(
    source: RunSource,
    keys: ViewerKeys,
    *,
    hosts: frozenset[str],
    on_opened: Callable[[str], None] = lambda _: None,
) -> FastAPI:
    app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None)
    # What is read later may be of another release.
    environment(), assets()
    installed = installed_state()

    def viewing(request: Request) -> Viewing:
        path = request.url.path
        places = [("Runs", "/"), *((LISTS[kind], f"/{section}") for kind, section in SECTIONS.items())]
        nav = [
            NavItem(text, href, path == href or (path.startswith(f"{href}/") and href != "/"))
            for text, href in places
        ]
        theme = theme_of(request.cookies.get(THEME_COOKIE))
        return Viewing(source, ShellView(nav=nav, assets=_ASSETS, theme=theme), is_local=True)

    app.include_router(viewer_router(viewing))

    @app.exception_handler(404)
    def not_found(request: Request, _error: HTTPException) -> Response:
        return nothing_here(viewing(request), request.url.path)

    @app.exception_handler(405)
    def not_so(_request: Request, error: HTTPException) -> Response:
        return _said("This address accepts only GET requests.\n", 405, error.headers)

    @app.exception_handler(Exception)
    def failed(_request: Request, error: Exception) -> Response:
        # What a function imports may be of a newer release by now.
        why = f"The page failed ({type(error).__name__})."
        if installed_state() != installed:
            why = _CHANGED
        return _said(f"{why}\nStop this viewer and run `osmosis view` again.\n", 500)

    @app.get(_ASSETS + "/{name}")
    def asset(name: str, request: Request) -> Response:
        found = assets().get(name)
        if found is None:
            raise HTTPException(404)
        content, headers = found.reply(request.headers.get("accept-encoding", ""))
        return Response(content, headers=headers)

    @app.get(OPEN_PATH)
    def open_with_key(request: Request, key: str = "") -> Response:
        on_opened(key)
        changed = keys.change(key)
        name = cookie_name(request.url.port)
        if changed is None and not keys.is_in(request.cookies.get(name, "")):
            return turned_away("This address was already used, or its viewer has ended.")
        session, path = changed or ("", "/")
        page = RenderedPage("opened.html", {"title": "Opening", "path": path})
        reply = HTMLResponse(render(viewing(request), page), headers=page_headers(keep=False))
        if session:
            reply.set_cookie(name, session, httponly=True, samesite="strict")
        return reply

    app.add_middleware(GZipMiddleware, minimum_size=_SMALLEST_GZIPPED_BYTES)

    @app.middleware("http")
    async def door(request: Request, page: RequestResponseEndpoint) -> Response:
        return _refusal(request, keys, hosts) or await page(request)

    return app


def cookie_name(port: int | None) -> str:
    return f"osmosis_view_{port}"


def turned_away(why: str) -> Response:
    """Return the reply to an unauthorized client, which reveals no data."""
    return _said(f"{why}\nRun `osmosis view` again: it prints a new one-time address.\n", 403)


def _said(text: str, status: int, more: Mapping[str, str] | None = None) -> Response:
    headers = {**page_headers(keep=False), **(more or {})}
    return Response(text, status, media_type="text/plain; charset=utf-8", headers=headers)


def _refusal(asked: Request, keys: ViewerKeys, hosts: frozenset[str]) -> Response | None:
    """Return the reply to a request that does not name this server, or has no session."""
    host, origin = asked.headers.get("host", "").lower(), asked.headers.get("origin")
    reads = asked.method in ("GET", "HEAD")
    if host not in hosts:
        return turned_away("This viewer has another address.")
    if not reads and origin not in (None, f"http://{host}"):
        return turned_away("This request came from another page.")
    path: str = asked.scope["path"]
    if path == OPEN_PATH or path.startswith(f"{_ASSETS}/"):
        return None
    if not reads and origin is None:
        return turned_away("This request did not come from a page of this viewer.")
    if keys.is_in(asked.cookies.get(cookie_name(asked.url.port), "")):
        return None
    return turned_away("This browser has no session, or it stores no cookies.")


_FOLDER = "viewers"
_OPENING_S = 60.0
_OPENING_PAGE = '<!doctype html><meta charset="utf-8"><meta http-equiv="refresh" content="0;url={url}"><title>Osmosis</title>\n'


def opening_address(url: str, key: str) -> str:
    return f"{url}{OPEN_PATH}?key={key}"


def bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def leave_opening_page(cache_dir: Path, address: str) -> Path | None:
    """Write a page that redirects to an address, readable by this user only; None if that fails."""
    folder = cache_dir / _FOLDER
    for left in folder.glob("open-*.html"):  # nobody opened them
        with suppress(OSError):
            if left.lstat().st_mtime < time.time() - _OPENING_S:
                left.unlink()
    page = _opening_page(folder, address.rpartition("key=")[2])
    with suppress(OSError):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_atomic(page, _OPENING_PAGE.format(url=html.escape(address)), mode=0o600, durable=False)
        return page
    return None


def remove_opening_page(folder: Path, key: str) -> None:
    with suppress(OSError):
        _opening_page(folder, key).unlink()


def _opening_page(folder: Path, key: str) -> Path:
    return folder / f"open-{_digest(key)[:32]}.html"


LOOPBACK = "127.0.0.1"
_SHUTDOWN_S = 3


class RunningViewer:
    def __init__(self, source: RunSource, *, cache_dir: Path, host: str = LOOPBACK, port: int = 0) -> None:
        self.host = host = loopback_address(host)
        try:
            self.listener = listen(host, port)
        except (OSError, OverflowError) as error:
            raise OsmosisError(
                f"cannot listen on {bracketed(host)}:{port}: {describe_bind_error(error)}",
                code="CONFLICT",
                hint="omit --port to use a free port",
            ) from error
        self.port: int = self.listener.getsockname()[1]
        name = f"{secrets.token_hex(8)}.localhost"
        named = name if host == LOOPBACK and name_leads_here(name) else bracketed(host)
        self.url = f"http://{named}:{self.port}"
        self.source, self.keys, self.opening_pages = source, ViewerKeys(), cache_dir / _FOLDER

    def address(self, path: str) -> str:
        return opening_address(self.url, self.keys.make(path))

    def run(self) -> None:
        import uvicorn

        hosts = frozenset({self.url.partition("://")[2], f"{bracketed(self.host)}:{self.port}"})
        on_opened = partial(remove_opening_page, self.opening_pages)
        app = viewer_app(self.source, self.keys, hosts=hosts, on_opened=on_opened)
        config = uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            lifespan="off",
            ws="none",
            server_header=False,
            timeout_graceful_shutdown=_SHUTDOWN_S,
        )
        server = uvicorn.Server(config)
        with stop_on_signals(server), closing(self.listener):
            server.run(sockets=[self.listener])


def loopback_address(host: str) -> str:
    host = LOOPBACK if host == "localhost" else host
    with suppress(ValueError):
        if ipaddress.ip_address(host).is_loopback:
            return host
    raise OsmosisError(
        f"the viewer listens only on this machine, and {host!r} is not a loopback address.",
        hint="to show runs to others: osmosis platform start, and osmosis eval upload RUN",
    )


def name_leads_here(name: str) -> bool:
    """Whether a name below ``localhost`` resolves to this machine (RFC 6761, section 6.3)."""
    try:
        found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return False
    return LOOPBACK in {each[4][0] for each in found}
