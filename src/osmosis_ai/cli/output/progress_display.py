"""What every display of progress is told, whatever it makes of it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ProgressState:
    """How far something is: the arguments of :meth:`Progress.update`."""

    completed: float
    note: str
    total: float | None
    below: Sequence[str]
    waits: str


class Progress(ABC):
    """Shows how far something is."""

    def update(
        self,
        completed: float,
        *,
        note: str = "",
        total: float | None = None,
        below: Sequence[str] = (),
        waits: str = "",
    ) -> None:
        """Say how much is done."""
        self.show(ProgressState(completed, note, total, below, waits))

    @abstractmethod
    def show(self, now: ProgressState) -> None:
        """Show it in this display's way."""
