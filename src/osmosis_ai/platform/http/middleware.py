"""The middleware of every request: it is counted and named, old clients are refused, and bodies are limited."""

from __future__ import annotations

import logging
import secrets
import time
from contextvars import ContextVar

import anyio
from packaging.version import InvalidVersion, Version
from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from osmosis_ai.api.capabilities import CAPABILITIES_HEADER, Capability, capabilities_header
from osmosis_ai.platform.http.errors import ApiError, response_of
from osmosis_ai.platform.operations import PlatformMetrics

logger = logging.getLogger("osmosis_ai.platform.http.requests")

REQUEST_ID: ContextVar[str] = ContextVar("osmosis_request_id", default="")
"""The id of the request being answered, in log lines and in the header ``X-Request-ID`` of its reply."""
_BLOBS = "/blobs/"
# The rest of the body is not read.
_CLOSE = {"Connection": "close"}
_MAX_JSON_BYTES = 8 * 1024 * 1024
BODY_WITHIN_S = 60.0
"""How long a body may take from the moment at which it is asked for."""
_API_PREFIX = "/api/cli/"
OFFERED = frozenset(Capability) - {Capability.BENCHMARKS, Capability.DEV_SERVERS}
"""Optional features that this platform offers."""
_OFFERED_HEADER = capabilities_header(OFFERED)


class RequestMeter:
    """Count, name and log every request."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        counts: PlatformMetrics = scope["app"].state.services.metrics
        began, request_id = time.monotonic(), secrets.token_hex(8)
        named = REQUEST_ID.set(request_id)

        async def send_and_count(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)["X-Request-ID"] = request_id
                seconds = time.monotonic() - began
                counts.replied(scope["method"], message["status"], seconds)
                # A signed URL is a permission, and must not be logged.
                path = f"{_BLOBS}…" if scope["path"].startswith(_BLOBS) else scope["path"]
                elapsed_ms = seconds * 1000
                logger.info("%s %s -> %d in %.0f ms", scope["method"], path, message["status"], elapsed_ms)
            await send(message)

        counts.begun()
        try:
            await self.app(scope, receive, send_and_count)
        finally:
            counts.ended()
            REQUEST_ID.reset(named)


class ClientVersions:
    """Add version and capability headers to API replies, and refuse clients that are too old."""

    def __init__(self, app: ASGIApp, *, minimum: str, recommended: str = "") -> None:
        self.app = app
        self._minimum = Version(minimum)
        self._recommended = Version(recommended) if recommended else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not scope["path"].startswith(_API_PREFIX):
            await self.app(scope, receive, send)
            return
        status, text = self._judge(Headers(scope=scope).get("x-osmosis-cli-version", ""))

        async def send_with_version(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers[CAPABILITIES_HEADER] = _OFFERED_HEADER
                headers["X-Osmosis-Version-Status"] = status
                if text:
                    headers["X-Osmosis-Version-Message"] = text
            await send(message)

        if status == "unsupported":
            body = {"status": status, "message": text, "error": text, "code": "UPGRADE_REQUIRED"}
            await JSONResponse(body, status_code=426)(scope, receive, send_with_version)
        else:
            await self.app(scope, receive, send_with_version)

    def _judge(self, stated: str) -> tuple[str, str]:
        try:
            version = Version(stated)
        except InvalidVersion:
            return "current", ""
        if version < self._minimum:
            required = f"This platform requires version {self._minimum} or newer"
            return "unsupported", f"{required}; the client has {version}."
        if self._recommended is not None and version < self._recommended:
            return "upgrade_available", f"Version {self._recommended} is available; the client has {version}."
        return "current", ""


class BodyLimit:
    """Refuse bodies over 8 MiB with 413, and those that take too long with 408."""

    def __init__(self, app: ASGIApp, *, streamed: tuple[str, ...]) -> None:
        self.app = app
        self._within_s = BODY_WITHIN_S
        self._streamed = streamed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"].startswith(self._streamed):
            await self.app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        announced = headers.get("content-length", "")
        if announced.isdigit() and int(announced) > _MAX_JSON_BYTES:
            await response_of(_too_large())(scope, receive, send)
            return
        received, deadline = 0, 0.0
        # After the body, only a disconnect can follow, which has no deadline.
        complete = announced in ("", "0") and "transfer-encoding" not in headers

        async def receive_counted() -> Message:
            nonlocal received, deadline, complete
            if complete:
                return await receive()
            deadline = deadline or time.monotonic() + self._within_s
            try:
                with anyio.fail_after(deadline - time.monotonic()):
                    message = await receive()
            except TimeoutError:
                slow = f"the body of the request did not arrive within {self._within_s:g} seconds."
                raise ApiError(408, "BODY_TOO_SLOW", slow, headers=_CLOSE) from None
            complete = not message.get("more_body", False)
            received += len(message.get("body", b""))
            if received > _MAX_JSON_BYTES:
                raise _too_large()
            return message

        await self.app(scope, receive_counted, send)


def _too_large() -> ApiError:
    message = f"the body of the request is larger than {_MAX_JSON_BYTES // 1024**2} MiB."
    return ApiError(413, "BODY_TOO_LARGE", message, headers=_CLOSE)
