"""A run, shown while it goes on, wherever it goes on; Ctrl-C stops showing it, not the run."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from osmosis_ai.cli.output import formats
from osmosis_ai.cli.output.context import current

if TYPE_CHECKING:
    from osmosis_ai.cli.output.progress_display import Progress
    from osmosis_ai.evaluation.run_state import ProgressSnapshot
    from osmosis_ai.rubric.session import SessionSnapshot

POLL_S = 1.0

Look = TypeVar("Look")


@dataclass(frozen=True, slots=True)
class RunStanding:
    """What is shown of a run at one moment."""

    name: str
    status: str
    completed: int | None
    total: int | None
    unit: str
    note: str = ""
    below: tuple[str, ...] = ()
    waits: str = ""
    waits_for: object = None

    @property
    def counts(self) -> bool:
        """Whether there is anything to draw a bar of."""
        return self.completed is not None and bool(self.total) and self.status not in _WAITING

    @property
    def said(self) -> str:
        """What is said while there is nothing to draw."""
        told = _SAID.get(self.status, "")
        return f"{told}: {self.waits}" if told and self.waits else told

    @property
    def saying(self) -> tuple[str, object]:
        """What stays the same while a log need not be told again."""
        told = _SAID.get(self.status, "")
        return told, self.waits_for if told else None


_WAITING = ("pending", "queued")
_SAID = {
    **dict.fromkeys(_WAITING, "Waiting for the run to start"),
    "running": "The run is being prepared",
}


def show(looks: Iterable[Look], standing: Callable[[Look], RunStanding], *, again: str) -> None:
    """Show a run until there is nothing more to look at: a spinner while it waits, a bar once something is
    counted."""
    output = current()
    bar: Progress | None = None
    said: object = ""
    waited: object = None
    try:
        with ExitStack() as shown, ExitStack() as waiting:
            for seen in looks:
                now = standing(seen)
                if bar is None and now.counts:
                    waiting.close()
                    bar = shown.enter_context(output.progress(now.name, total=now.total, unit=now.unit))
                if bar is not None and now.completed is not None:
                    bar.update(
                        now.completed, note=now.note, total=now.total, below=now.below, waits=now.waits
                    )
                    # A bar shows it by itself; a log has a line of the bar once in a while.
                    if now.waits and now.waits_for != waited and not output.animated:
                        output.note(f"The run waits: {now.waits}")
                    waited = now.waits_for
                elif bar is None and said != (saying := now.said if output.animated else now.saying):
                    said, waited = saying, now.waits_for
                    waiting.close()
                    if now.said:
                        waiting.enter_context(output.status(now.said))
    except KeyboardInterrupt:
        output.note(f"The run goes on; follow it again with: {again}")
        raise


def pause() -> None:
    """Wait between two looks."""
    time.sleep(POLL_S)


def evaluation_note(snapshot: ProgressSnapshot) -> str:
    """Return the live numbers of an evaluation beside its bar."""
    parts = []
    if snapshot.scored:
        parts.append(f"{formats.count(snapshot.passed)} of {formats.count(snapshot.scored)} samples pass")
        parts.append(f"reward {snapshot.reward_mean:.3f} a sample")
    parts += spent(snapshot)
    if snapshot.in_flight is not None:
        parts.append(f"{snapshot.in_flight} in flight")
    return " · ".join(parts)


def spent(snapshot: ProgressSnapshot | SessionSnapshot) -> Iterator[str]:
    """Yield what was lost and used so far, and how fast the work goes on; what there is none of is left out."""
    if snapshot.failed:
        yield f"{formats.count(snapshot.failed)} failed"
    if snapshot.tokens:
        yield f"{formats.count(snapshot.tokens)} tokens"
    if snapshot.cost_usd:
        yield formats.money(snapshot.cost_usd)
    rate = snapshot.rate_per_s
    if rate:
        yield f"{rate:.1f}/s" if rate >= 1 else f"{rate * 60:.1f}/min"
