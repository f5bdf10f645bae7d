"""One progress display: a bar on a terminal, otherwise lines at every 10% and after changes, and nothing in JSON mode."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from osmosis_ai.cli.output import formats

STEPS = 10
QUIET_LIMIT_S = 5.0
UNCHANGED_LIMIT_S = 60.0


@dataclass(frozen=True, slots=True)
class ProgressState:
    """How far something is: the arguments of :meth:`Progress.update`."""

    completed: float
    note: str
    total: float | None
    below: Sequence[str]
    waits: str


class Progress:
    """Shows how far something is; this one shows nothing."""

    def update(
        self,
        completed: float,
        *,
        note: str = "",
        total: float | None = None,
        below: Sequence[str] = (),
        waits: str = "",
    ) -> None:
        self.show(ProgressState(completed, note, total, below, waits))

    def show(self, now: ProgressState) -> None:
        """Show it in this display's way."""


class LineProgress(Progress):
    """Progress for logs: a line at each tenth, and one after a while without output."""

    def __init__(
        self, write: Callable[[str], Any], description: str, *, total: float | None, unit: str
    ) -> None:
        self._write = write
        self._description = description
        self._total = total
        self._unit = unit
        self._said = ""
        self._said_step = 0
        self._said_at = time.monotonic()
        self._said_completed = 0.0
        self._unsaid: str | None = None

    def show(self, now: ProgressState) -> None:
        """Note how much is done; write a line after a tenth or a quiet time, which is longer if nothing changed."""
        if now.total is not None:
            self._total = now.total
        step = int(now.completed * STEPS / self._total) if self._total else 0
        line = self._line(now.completed, now.waits or now.note)
        limit = UNCHANGED_LIMIT_S if line == self._said else QUIET_LIMIT_S
        if step > self._said_step or time.monotonic() - self._said_at >= limit:
            self._say(line, step)
            self._said_completed = now.completed
        elif now.completed != self._said_completed:
            self._unsaid = line

    def finish(self) -> None:
        """Write the last state if it was not written yet."""
        if self._unsaid is not None:
            self._say(self._unsaid, self._said_step)

    def _say(self, line: str, step: int) -> None:
        self._write(formats.one_line(line))
        self._said = line
        self._said_step, self._said_at, self._unsaid = step, time.monotonic(), None

    def _line(self, completed: float, note: str) -> str:
        parts = [f"{self._description}: {formats.amount(completed, self._total, self._unit)}"]
        if self._total:
            parts.append(f"({min(1.0, completed / self._total):.0%})")
        if note:
            parts.append(note)
        return " ".join(parts)
