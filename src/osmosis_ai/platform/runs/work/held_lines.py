"""Journal lines that wait for their attempts' files, so that every counted sample has its conversation."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace

from osmosis_ai.platform.runs.work.journal_tail import PART_BYTES, TailPart
from osmosis_ai.platform.runs.work.sample_files import LONGEST_AGE_S, SampleFiles

_MOST_BYTES = 8 << 20
_LONGEST_WAIT_S = 2 * LONGEST_AGE_S


@dataclass(frozen=True, slots=True)
class _Held:
    part: TailPart
    since: float


class HeldLines:
    """Journal parts in order, from being read until they are sent."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._held: deque[_Held] = deque()

    def __bool__(self) -> bool:
        return bool(self._held)

    @property
    def waits_s(self) -> float:
        """For how long the first of them has been held, in seconds."""
        return self._clock() - self._held[0].since if self._held else 0.0

    @property
    def is_full(self) -> bool:
        """Whether no more is to be read for now: it lies on the disk as well."""
        return bool(self._held) and self._held[-1].part.end - self._held[0].part.offset > _MOST_BYTES

    def add(self, part: TailPart) -> None:
        """Hold the part that follows the last one."""
        self._held.append(_Held(part, self._clock()))

    def due(self, files: SampleFiles | None, *, telling: bool = False) -> TailPart | None:
        """Return the next part to send. Until it is sent, later calls return the same part or a longer one."""
        due: TailPart | None = None
        for held in self._held:
            part = held.part
            if files is not None and self._waits(held, files, telling):
                break
            if due is None:
                due = part
            elif due.is_sent != part.is_sent or due.size + part.size > PART_BYTES:
                return replace(due, is_full=True)
            else:
                lines = due.lines + part.lines
                due = replace(due, end=part.end, lines=lines, items=[*due.items, *part.items])
        return due

    def told(self, part: TailPart) -> None:
        """Take note that the platform has everything up to the end of ``part``."""
        while self._held and self._held[0].part.end <= part.end:
            self._held.popleft()

    def forget(self) -> None:
        """Let go of all: it is read again."""
        self._held.clear()

    def _waits(self, held: _Held, files: SampleFiles, telling: bool) -> bool:
        late_too = self._clock() - held.since < _LONGEST_WAIT_S
        return files.are_awaited(held.part.items, telling=telling, late_too=late_too)
