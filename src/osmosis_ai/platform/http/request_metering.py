"""The outermost layer: every request is counted, and gets the word by which it is found again in a log."""

from __future__ import annotations

import logging
import secrets
import time
from contextvars import ContextVar

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from osmosis_ai.platform.request_counts import RequestCounts

logger = logging.getLogger(__name__)

REQUEST_ID: ContextVar[str] = ContextVar("osmosis_request_id", default="")
"""Names the request that is being answered, in log lines and in the header ``X-Request-ID`` of its reply."""
_BLOBS = "/blobs/"


class RequestMeter:
    """Count every request, name it, and write a line about it for who reads the log of ``requests``."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one connection."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        counts: RequestCounts = scope["app"].state.services.request_counts
        began, request_id = time.monotonic(), secrets.token_hex(8)
        named = REQUEST_ID.set(request_id)

        async def send_and_count(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)["X-Request-ID"] = request_id
                seconds = time.monotonic() - began
                counts.replied(scope["method"], message["status"], seconds)
                logger.info(
                    "%s %s -> %d in %.0f ms",
                    scope["method"],
                    _shown(scope),
                    message["status"],
                    seconds * 1000,
                )
            await send(message)

        counts.begun()
        try:
            await self.app(scope, receive, send_and_count)
        finally:
            counts.ended()
            REQUEST_ID.reset(named)


def _shown(scope: Scope) -> str:
    """Return a path as a log may have it: what stands in a signed URL is a permission."""
    path: str = scope["path"]
    return f"{_BLOBS}…" if path.startswith(_BLOBS) else path
