"""A run's journal, as it is sent: whole lines, in parts that fit an exchange, from where the platform has it on."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from pathlib import Path

import orjson

from osmosis_ai.api.wire.workers import StoredJournal
from osmosis_ai.evaluation.journal import JournalCorruptionError, replay
from osmosis_ai.platform.runs.work.sample_files import RecordedItem

# As JSON in an exchange, a line of JSON grows by its quotes: to twice its length where it has nothing else.
PART_BYTES = 384 * 1024


@dataclass(frozen=True, slots=True)
class TailPart:
    """Lines of the journal from byte ``offset`` to ``end``."""

    offset: int
    end: int
    lines: str
    items: list[RecordedItem]
    is_resumed: bool
    is_full: bool

    @property
    def size(self) -> int:
        """Bytes of the journal."""
        return self.end - self.offset

    @property
    def is_sent(self) -> bool:
        """Whether the platform does not have it yet."""
        return bool(self.lines)


class JournalTail:
    """Reads a journal that another thread adds to."""

    def __init__(self, events: Path, stored: StoredJournal) -> None:
        self._events = events
        self._stored = stored.bytes
        self._taken = 0
        self.resumed = events.stat().st_size if events.exists() else 0
        self.damage: JournalCorruptionError | None = None

    def read(self) -> TailPart | None:
        """Return the next part; the same, or more of it, until it is taken. None where nothing is new."""
        start = self._taken
        content = self._lines(start, self._boundary(start)) if self.damage is None else b""
        items = self._items(content, start)
        if self.damage is not None:
            content = b"".join(_split(content)[: len(items)])
        if not content:
            return None
        end = start + len(content)
        is_sent = start >= self._stored
        lines = content.decode() if is_sent else ""
        return TailPart(start, end, lines, items, start < self.resumed, len(content) > PART_BYTES // 2)

    def take(self, part: TailPart) -> None:
        """Go on behind a part."""
        self._taken = part.end

    def go_to(self, stored: int) -> None:
        """Go on at byte ``stored``: the platform has less than it had."""
        self._stored = self._taken = stored

    def _boundary(self, start: int) -> int:
        """Return where a part that begins at ``start`` ends at the latest: what is behind is treated otherwise."""
        ahead = [bound for bound in (self._stored, self.resumed) if bound > start]
        return min([start + PART_BYTES, *ahead])

    def _lines(self, start: int, end: int) -> bytes:
        """Return the whole lines between two bytes; one that is longer whole."""
        try:
            with self._events.open("rb") as file:
                file.seek(start)
                content = file.read(end - start)
                whole = content[: content.rfind(b"\n") + 1]
                if content and not whole:
                    rest = file.readline()
                    whole = content + rest if rest.endswith(b"\n") else b""
        except FileNotFoundError:
            return b""
        return whole

    def _items(self, content: bytes, start: int) -> list[RecordedItem]:
        items: list[RecordedItem] = []
        for line in _split(content):
            try:
                line.decode()
                said = orjson.loads(line)
                item = said["row_index"], said["run_index"], said["rollout_id"], said.get("source_row_index")
                items.append(RecordedItem(*item))
            except (ValueError, KeyError, TypeError, AttributeError):
                self.damage = self._why(start) or JournalCorruptionError(
                    f"{self._events} holds a line that is not a record."
                )
                break
        return items

    def _why(self, start: int) -> JournalCorruptionError | None:
        try:
            deque(replay(self._events, start), maxlen=0)
        except JournalCorruptionError as error:
            return error
        return None


def _split(content: bytes) -> list[bytes]:
    return [line + b"\n" for line in content.split(b"\n")[:-1]]
