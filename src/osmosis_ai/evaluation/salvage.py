"""A damaged journal, made whole again out of the lines that are intact; the damaged one is kept beside it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from osmosis_ai.evaluation.journal import committed_lines
from osmosis_ai.evaluation.journal_chain import BEFORE_THE_FIRST, Chain, opened, sealed
from osmosis_ai.evaluation.record import TerminalRecord
from osmosis_ai.files import replacing

_SHOWN_LINES = 10
Belongs = Callable[[TerminalRecord], bool]


@dataclass(frozen=True, slots=True)
class Salvage:
    """What became of a journal."""

    kept: int
    dropped: tuple[int, ...]
    damaged: Path | None

    def sentences(self) -> list[str]:
        """Return what to tell about it."""
        if self.damaged is None:
            return [f"nothing in the journal is damaged; all {self.kept} results are kept."]
        shown = ", ".join(map(str, self.dropped[:_SHOWN_LINES])) + (
            ", …" if len(self.dropped) > _SHOWN_LINES else ""
        )
        lines = "line" if len(self.dropped) == 1 else "lines"
        return [
            f"{self.kept} results are intact and kept; {lines} {shown} of the journal could not be trusted, "
            f"and what is missing is done again. The damaged journal is kept as {self.damaged.name}."
        ]


def salvage(path: Path, belongs: Belongs) -> Salvage:
    """Replace a damaged journal by one of its intact lines, in their order; no other process may be writing
    it."""
    kept, dropped = 0, []
    for number, _, intact in _judged(path, belongs):
        kept += intact
        if not intact:
            dropped.append(number)
    if not dropped:
        return Salvage(kept, (), None)
    aside = _free_name(path)
    with replacing(path) as new:
        last = BEFORE_THE_FIRST
        for _, body, intact in _judged(path, belongs):
            if intact:
                line, last = sealed(body, last)
                new.write(line)
        _keep(path, aside)
    return Salvage(kept, tuple(dropped), aside)


def _judged(path: Path, belongs: Belongs) -> Iterator[tuple[int, bytes, bool]]:
    """Yield (number, body, whether it is intact) of every line."""
    chain = Chain()
    for number, (_, line) in enumerate(committed_lines(path), start=1):
        body, _ = opened(line)
        try:
            chain.follow(line)
            intact = belongs(TerminalRecord.from_line(body))
        except ValueError:
            intact = False
        yield number, body, intact


def _free_name(path: Path) -> Path:
    aside, number = path.with_name(f"{path.name}.damaged"), 2
    while aside.exists():
        aside, number = path.with_name(f"{path.name}.damaged-{number}"), number + 1
    return aside


def _keep(path: Path, aside: Path) -> None:
    """Give the old journal a second name, before the new one takes the first."""
    try:
        os.link(path, aside)
    except OSError:  # a file system without links
        shutil.copy2(path, aside)
