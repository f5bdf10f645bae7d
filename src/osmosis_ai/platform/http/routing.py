"""A path is read as it was sent: ``%2F`` inside a segment is part of a name, not a border.

Web frameworks decode a path before they route it, and then a dataset called ``a/b`` has no address. Here
routes match the encoded path, and each parameter is decoded on its own afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any
from urllib.parse import unquote_to_bytes

import orjson
from fastapi import APIRouter, Request, Response
from fastapi.routing import APIRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from osmosis_ai.platform.http.errors import JSON_BODY, ApiError


def api_router(prefix: str = "") -> APIRouter:
    """Return a router whose routes follow the rules of this module; every resource starts with one.

    Replies are wire models, of which the fields that were set are sent.
    """
    return APIRouter(prefix=prefix, route_class=_ApiRoute, redirect_slashes=False)


class RawPath:
    """Hand the routes the path as it was sent.

    Args:
        app: the application inside.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one connection."""
        raw = scope.get("raw_path")
        if scope["type"] == "http" and raw and b"%" in raw:
            scope = {**scope, "path": raw.partition(b"?")[0].decode("latin-1")}
        await self.app(scope, receive, send)


class _ApiRequest(Request):
    async def json(self) -> Any:
        """Parse the body strictly: no NaN, no infinities, no text that is not Unicode."""
        kept = self.scope.setdefault(JSON_BODY, [])
        if not kept:
            kept.append(orjson.loads(await self.body()))
        return kept[0]


class _ApiRoute(APIRoute):
    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **{**options, "response_model_exclude_unset": True})

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def handle_raw(request: Request) -> Response:
            scope = request.scope
            parameters = {key: _decoded(value) for key, value in scope.get("path_params", {}).items()}
            return await handle(_ApiRequest({**scope, "path_params": parameters}, request.receive))

        return handle_raw


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
