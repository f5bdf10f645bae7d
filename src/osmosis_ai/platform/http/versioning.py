"""What client and platform tell each other of themselves: which clients are served, and what is offered."""

from __future__ import annotations

from packaging.version import InvalidVersion, Version
from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from osmosis_ai.api.capabilities import CAPABILITIES_HEADER, Capability, capabilities_header

API_PREFIX = "/api/cli/"
OFFERED = frozenset(
    {
        Capability.DELETION,
        Capability.EVAL_IMPORTS,
        Capability.EVAL_JOURNALS,
        Capability.EVAL_RETRIES,
        Capability.EVAL_SAMPLES,
        Capability.MODEL_DOWNLOADS,
        Capability.QUICKSTART,
        Capability.RUN_EVENTS,
        Capability.SECRET_AUDIT,
        Capability.SERVED_AGENTS,
        Capability.TRAINING_RESUME,
        Capability.TRAINING_VALIDATION,
    }
)
"""What this platform has beyond the routes that every platform has."""
_OFFERED_HEADER = capabilities_header(OFFERED)


class ClientVersions:
    """Add version and capability headers to API replies, and refuse clients that are too old."""

    def __init__(self, app: ASGIApp, *, minimum: str, recommended: str = "") -> None:
        self.app = app
        self._minimum = Version(minimum)
        self._recommended = Version(recommended) if recommended else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one connection."""
        if scope["type"] != "http" or not scope["path"].startswith(API_PREFIX):
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
            return "unsupported", f"This platform needs version {self._minimum} or newer; this is {version}."
        if self._recommended is not None and version < self._recommended:
            return "upgrade_available", f"Version {self._recommended} is available; this is {version}."
        return "current", ""
