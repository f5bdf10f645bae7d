"""The server of one person's runs: the viewer's pages behind a door."""

from __future__ import annotations

import hmac
from collections.abc import Callable, Mapping

from fastapi import FastAPI, Request
from fastapi.responses import HTMLResponse, JSONResponse
from starlette.exceptions import HTTPException
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import HTTPConnection
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from osmosis_ai.installation import installed_state
from osmosis_ai.ui.assets import assets
from osmosis_ai.ui.policy import THEME_COOKIE, page_headers, theme_of
from osmosis_ai.ui.shell import NavItem, ShellView
from osmosis_ai.viewer.access import LISTS, SECTIONS, RenderedPage, Viewing
from osmosis_ai.viewer.rendering import environment, render
from osmosis_ai.viewer.routes import nothing_here, viewer_router
from osmosis_ai.viewer.serving.entry import ViewerKeys, proof_of
from osmosis_ai.viewer.source import RunSource

OPEN_PATH = "/open"
FRESH_KEY_PATH = "/fresh-key"
_ASSETS = "/assets"
_CHANGED = "Osmosis was reinstalled after this viewer started, and this page has changed."
_SMALLEST_GZIPPED_BYTES = 1_000


def viewer_app(
    source: RunSource,
    keys: ViewerKeys,
    *,
    hosts: frozenset[str],
    secret: str,
    on_opened: Callable[[str], None] = lambda _: None,
) -> FastAPI:
    """Return the server of a source."""
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
        return _said("There is a page at this address, which nothing can be sent to.\n", 405, error.headers)

    @app.exception_handler(Exception)
    def failed(_request: Request, error: Exception) -> Response:
        # What a function imports may be of a newer release by now.
        why = f"This page could not be made ({type(error).__name__})."
        if installed_state() != installed:
            why = _CHANGED
        return _said(f"{why}\nEnd this viewer, and run `osmosis view` again.\n", 500)

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
        return _opened(request, viewing(request), keys, key)

    @app.post(FRESH_KEY_PATH)
    def fresh_key(request: Request, nonce: str = "", to: str = "/") -> Response:
        proof = request.headers.get("authorization", "")
        expected = f"Bearer {proof_of(secret, 'ask', nonce, to)}"
        if not nonce or not hmac.compare_digest(proof.encode("utf-8", "replace"), expected.encode()):
            return JSONResponse({"message": "only the user who started this may ask."}, 403)
        key = keys.make(to)
        given = {"key": key, "proof": proof_of(secret, "give", nonce, key)}
        return JSONResponse(given, headers=page_headers(keep=False))

    app.add_middleware(GZipMiddleware, minimum_size=_SMALLEST_GZIPPED_BYTES)
    app.add_middleware(_Door, keys=keys, hosts=hosts)
    return app


def cookie_name(port: int | None) -> str:
    """Return the name of the session's cookie: those of 127.0.0.1 reach every port of it."""
    return f"osmosis_view_{port}"


def _opened(request: Request, view: Viewing, keys: ViewerKeys, key: str) -> Response:
    """Return the page that redirects to the runs and sets the access cookie."""
    changed = keys.change(key)
    name = cookie_name(request.url.port)
    if changed is None and not keys.is_in(request.cookies.get(name, "")):
        return turned_away("This address has been used, or is of a viewer that has ended.")
    session, path = changed or ("", "/")
    page = RenderedPage("opened.html", {"title": "Opening", "path": path})
    reply = HTMLResponse(render(view, page), headers=page_headers(keep=False))
    if session:
        reply.set_cookie(name, session, httponly=True, samesite="strict")
    return reply


def turned_away(why: str) -> Response:
    """Return the reply to an unauthorized client, which reveals no data."""
    return _said(f"{why}\nRun `osmosis view` again: it prints an address that opens once.\n", 403)


def _said(text: str, status: int, more: Mapping[str, str] | None = None) -> Response:
    headers = {**page_headers(keep=False), **(more or {})}
    return Response(text, status, media_type="text/plain; charset=utf-8", headers=headers)


class _Door:
    """Lets requests in that name this server, and come with a session of it."""

    def __init__(self, app: ASGIApp, *, keys: ViewerKeys, hosts: frozenset[str]) -> None:
        self._app = app
        self._keys = keys
        self._hosts = hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refusal = self._refusal(scope) if scope["type"] == "http" else None
        if refusal is not None:
            await refusal(scope, receive, send)
        elif scope["type"] in ("http", "lifespan"):
            await self._app(scope, receive, send)

    def _refusal(self, scope: Scope) -> Response | None:
        asked = HTTPConnection(scope)
        host, origin = asked.headers.get("host", "").lower(), asked.headers.get("origin")
        if host not in self._hosts:
            return turned_away("This viewer has another address.")
        if scope["method"] not in ("GET", "HEAD") and origin not in (None, f"http://{host}"):
            return turned_away("This request came from another page.")
        path: str = scope["path"]
        if path in (OPEN_PATH, FRESH_KEY_PATH) or path.startswith(f"{_ASSETS}/"):
            return None
        if scope["method"] not in ("GET", "HEAD") and origin is None:
            return turned_away("This request did not come from a page of this viewer.")
        session = asked.cookies.get(cookie_name(asked.url.port), "")
        return (
            None
            if self._keys.is_in(session)
            else turned_away("This browser has not been let in, or it keeps no cookies.")
        )
