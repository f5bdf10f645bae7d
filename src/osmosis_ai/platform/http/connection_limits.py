"""Limits on connections: headers have a deadline, and idle connections are closed when there are too many."""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import dataclass
from typing import Any

import orjson
from uvicorn.protocols.http.auto import AutoHTTPProtocol

from osmosis_ai.platform.blobs.signing import BLOBS_PATH

_MAX_HEADER_BYTES = 64 * 1024
# Orders waiting connections; the loop's time does not advance during a burst of connections.
_turns = itertools.count(1)


@dataclass(frozen=True)
class ConnectionLimits:
    headers_within_s: float = 20.0
    read_within_s: float = 120.0
    most: int = 4096


def limited_protocol(limits: ConnectionLimits) -> type[asyncio.Protocol]:
    """Return uvicorn's HTTP protocol with ``limits``."""
    return type("LimitedHttp", (_LimitedHttp,), {"limits": limits})


class _LimitedHttp(AutoHTTPProtocol):  # type: ignore[valid-type, misc]
    limits: ConnectionLimits
    _headers_due: asyncio.TimerHandle | None = None
    _reading_due: asyncio.TimerHandle | None = None
    _unread_bytes = 0
    _waiting_bytes = 0
    _waits_since = 0

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._begin_to_wait()
        if len(self.connections) > self.limits.most and not self._make_room():
            self._refuse(503, "TOO_MANY_CONNECTIONS", "the platform has too many connections; try again.")

    def data_received(self, data: bytes) -> None:
        was_serving = self._is_serving()
        super().data_received(data)
        if self._is_serving():
            if not was_serving:
                self._waits_since = next(_turns)  # for the rest of its body, if there is more
            self._stop_waiting()
            return
        if self._headers_due is None:
            self._begin_to_wait()
        self._waiting_bytes += len(data)
        if self._waiting_bytes > _MAX_HEADER_BYTES:
            self._refuse(431, "HEADERS_TOO_LARGE", "the headers of the request are too large.")

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        self._stop_watching()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._waits_since = next(_turns)
        self._watch_reader()

    def resume_writing(self) -> None:
        self._stop_watching()
        super().resume_writing()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._waits_since = next(_turns)

    def _is_serving(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _waits_for_client(self) -> bool:
        """Whether the client must act next; downloads do not count, since only members get their URLs."""
        if not self._is_serving():
            return True
        # With pipelining, the cycle belongs to the last request and the reply to an earlier one.
        several = bool(getattr(self, "pipeline", ()))
        is_file = not several and self.cycle.scope["path"].startswith(BLOBS_PATH)
        return not is_file and (self.cycle.more_body or self.flow.write_paused)

    def _watch_reader(self) -> None:
        self._unread_bytes = self.transport.get_write_buffer_size()
        self._reading_due = self.loop.call_later(self.limits.read_within_s, self._reader_is_late)

    def _stop_watching(self) -> None:
        if self._reading_due is not None:
            self._reading_due.cancel()
            self._reading_due = None

    def _reader_is_late(self) -> None:
        if self.transport.get_write_buffer_size() < self._unread_bytes:
            self._watch_reader()
        else:
            self.transport.abort()

    def _begin_to_wait(self) -> None:
        self._waits_since = next(_turns)
        self._headers_due = self.loop.call_later(self.limits.headers_within_s, self._headers_are_late)

    def _stop_waiting(self) -> None:
        self._waiting_bytes = 0
        if self._headers_due is not None:
            self._headers_due.cancel()
            self._headers_due = None

    def _headers_are_late(self) -> None:
        if self._is_serving():
            return
        if self._waiting_bytes:
            self._refuse(408, "HEADERS_TOO_SLOW", "the headers of the request did not arrive in time.")
        else:
            # A browser that connects without sending a request gets no reply.
            self._stop_waiting()
            self.transport.close()

    def _make_room(self) -> bool:
        """Close the connection that has waited longest; False if none waits."""
        waiting = [other for other in self.connections if other is not self and other._can_be_closed()]
        if not waiting:
            return False
        longest = min(waiting, key=lambda other: other._waits_since)
        # Unsent data would keep it open.
        longest.transport.abort()
        return True

    def _can_be_closed(self) -> bool:
        # A closing connection ends by itself, unless its client does not read the rest.
        is_leaving = self.transport.is_closing() and not self.transport.get_write_buffer_size()
        return self._waits_for_client() and not is_leaving

    def _refuse(self, status: int, code: str, message: str) -> None:
        self._stop_waiting()
        if self.transport.is_closing():
            return
        body = orjson.dumps({"error": message, "code": code})
        head = f"HTTP/1.1 {status} {code.replace('_', ' ').title()}\r\nContent-Type: application/json\r\n"
        retry = "Retry-After: 5\r\n" if status == 503 else ""
        length = f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        self.transport.write((head + retry + length).encode("ascii") + body)
        self.transport.close()
