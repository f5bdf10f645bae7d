"""Server-sent events from a platform, each a JSON object."""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from osmosis_ai.api.http_errors import PlatformError

if TYPE_CHECKING:
    import httpx

EVENTS = "text/event-stream"

SILENCE_S = 65.0
"""The longest silence of a stream, in seconds: platforms send a comment at least every 60 s."""

_LARGEST_EVENT_BYTES = 1024 * 1024


class StreamCut(PlatformError):
    """A stream ended before the platform closed it."""


def json_events(
    stream: AbstractContextManager[httpx.Response], *, unreachable: Callable[[Exception], PlatformError]
) -> Generator[dict[str, Any]]:
    """Yield the JSON objects of a stream until the platform ends it; anything else in it is skipped."""
    import httpx
    from httpx_sse import EventSource, SSEError

    with stream as response:
        content = _Bounded(response)
        try:
            for event in EventSource(content.as_response()).iter_sse():
                content.read_bytes = 0
                if (found := _object(event.data)) is not None:
                    yield found
        except SSEError:
            raise PlatformError(
                "Invalid JSON response from platform: the reply is not a stream of events.",
                hint="check the platform's URL",
            ) from None
        except httpx.TransportError as error:
            raise StreamCut(unreachable(error).message) from None


class _Bounded:
    """The bytes of a stream, with the size of each event limited to that of a log line."""

    def __init__(self, response: httpx.Response) -> None:
        self._response = response
        self.read_bytes = 0

    def as_response(self) -> httpx.Response:
        import httpx

        kind = {"Content-Type": self._response.headers.get("Content-Type", "")}
        return httpx.Response(self._response.status_code, headers=kind, content=self._chunks())

    def _chunks(self) -> Iterator[bytes]:
        for chunk in self._response.iter_bytes():
            self.read_bytes += len(chunk)
            if self.read_bytes > _LARGEST_EVENT_BYTES:
                raise PlatformError("the platform's stream does not end its line.")
            yield chunk


def _object(data: str) -> dict[str, Any] | None:
    try:
        found = json.loads(data, parse_constant=lambda _: None)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None
