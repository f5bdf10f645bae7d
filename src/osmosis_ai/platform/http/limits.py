"""No request can fill the memory: a body larger than its limit is refused, announced or not."""

from __future__ import annotations

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from osmosis_ai.platform.http.errors import ApiError

MAX_JSON_BYTES = 8 * 1024 * 1024


class BodyLimit:
    """Refuse bodies over ``max_bytes`` with 413.

    Args:
        app: the application inside.
        max_bytes: the largest body.
        streamed: prefixes of paths whose handlers read the body in pieces and count them themselves.
    """

    def __init__(
        self, app: ASGIApp, *, max_bytes: int = MAX_JSON_BYTES, streamed: tuple[str, ...] = ()
    ) -> None:
        self.app = app
        self._max_bytes = max_bytes
        self._streamed = streamed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one connection."""
        if scope["type"] != "http" or scope["path"].startswith(self._streamed):
            await self.app(scope, receive, send)
            return
        announced = Headers(scope=scope).get("content-length", "")
        if announced.isdigit() and int(announced) > self._max_bytes:
            await self._refusal().response()(scope, receive, send)
            return
        received = 0

        async def receive_counted() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > self._max_bytes:
                raise self._refusal()
            return message

        await self.app(scope, receive_counted, send)

    def _refusal(self) -> ApiError:
        return ApiError(
            413,
            "BODY_TOO_LARGE",
            f"the body of the request is larger than {self._max_bytes // 1024**2} MiB.",
            # What the client is still sending is not read.
            headers={"Connection": "close"},
        )
