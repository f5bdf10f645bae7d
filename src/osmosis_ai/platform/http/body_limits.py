"""No request can fill the memory or stay for ever: a body that is too large, announced or not, or too slow is refused."""

from __future__ import annotations

import time

import anyio
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from osmosis_ai.platform.http.errors import ApiError

MAX_JSON_BYTES = 8 * 1024 * 1024
BODY_WITHIN_S = 60.0
"""How long a body may take from the moment at which it is asked for."""


class BodyLimit:
    """Refuse bodies over ``max_bytes`` with 413, and those that take longer than ``within_s`` with 408."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        max_bytes: int = MAX_JSON_BYTES,
        within_s: float | None = None,
        streamed: tuple[str, ...] = (),
    ) -> None:
        self.app = app
        self._max_bytes = max_bytes
        self._within_s = BODY_WITHIN_S if within_s is None else within_s
        self._streamed = streamed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one connection."""
        if scope["type"] != "http" or scope["path"].startswith(self._streamed):
            await self.app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        announced = headers.get("content-length", "")
        if announced.isdigit() and int(announced) > self._max_bytes:
            await self._refusal().response()(scope, receive, send)
            return
        received, deadline = 0, 0.0
        # Once it is here, what is still waited for is the client's going away, however long that takes.
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
                raise self._too_slow() from None
            complete = not message.get("more_body", False)
            received += len(message.get("body", b""))
            if received > self._max_bytes:
                raise self._refusal()
            return message

        await self.app(scope, receive_counted, send)

    def _too_slow(self) -> ApiError:
        return ApiError(
            408,
            "BODY_TOO_SLOW",
            f"the body of the request had not arrived after {self._within_s:g} seconds.",
            headers={"Connection": "close"},
        )

    def _refusal(self) -> ApiError:
        return ApiError(
            413,
            "BODY_TOO_LARGE",
            f"the body of the request is larger than {self._max_bytes // 1024**2} MiB.",
            # What the client is still sending is not read.
            headers={"Connection": "close"},
        )
