"""Parse server-sent events from model servers; only ``event`` and ``data`` matter.

Accepts bytes in pieces of any size and lines of any length, because a chunk with logprobs or token ids can be long.
WHATWG HTML, section 9.2.6.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterator


class EventParser:
    """Parses the bytes of an event stream into (event name, data) pairs."""

    def __init__(self) -> None:
        self._rest = bytearray()  # of a line, which can have megabytes: appending must not copy it
        self._event = ""
        self._data: list[bytes] = []
        self._byte_order_mark = codecs.BOM_UTF8  # until the first line

    def feed(self, piece: bytes) -> Iterator[tuple[str, bytes]]:
        """Yield every event that ``piece`` completes."""
        *lines, rest = piece.split(b"\n")
        if lines:
            lines[0] = bytes(self._rest) + lines[0]
            self._rest.clear()
        self._rest += rest
        for line in lines:
            if (event := self._line(line.rstrip(b"\r"))) is not None:
                yield event

    def end(self) -> Iterator[tuple[str, bytes]]:
        """Yield the last event of a stream that ended without a blank line."""
        yield from self.feed(b"\n\n")

    def _line(self, line: bytes) -> tuple[str, bytes] | None:
        line = line.removeprefix(self._byte_order_mark)
        self._byte_order_mark = b""
        if not line:
            if not self._data:
                self._event = ""
                return None
            event = self._event, b"\n".join(self._data)
            self._event, self._data = "", []
            return event
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"data":
            self._data.append(value)
        elif name == b"event":
            self._event = value.decode("utf-8", "replace")
        return None
