"""A run of the platform, shown while it goes on; Ctrl-C stops showing it, not the run."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from osmosis_ai.cli.connection import platform_context
from osmosis_ai.cli.output.context import OutputContext, current
from osmosis_ai.cli.output.progress import Progress
from osmosis_ai.cli.output.results import Block, OperationResult
from osmosis_ai.cli.runs.details import NOUNS

if TYPE_CHECKING:
    from osmosis_ai.api.client import PlatformClient
    from osmosis_ai.api.wire.runs import Run
    from osmosis_ai.services.runs.lifecycle import RunKind
    from osmosis_ai.services.runs.watching import SeenT

POLL_S = 1.0

Look = TypeVar("Look")


@dataclass(frozen=True, slots=True)
class Moment:
    """What is shown of a run at one moment.

    Attributes:
        name: of the run.
        status: its status.
        completed: of ``total``; None while nothing is counted.
        unit: what is counted.
        note: what else is worth seeing, on one line.
        below: the same with more room, for terminals.
    """

    name: str
    status: str
    completed: int | None
    total: int | None
    unit: str
    note: str = ""
    below: tuple[str, ...] = ()

    @property
    def counts(self) -> bool:
        """Whether there is anything to draw a bar of."""
        return self.completed is not None and bool(self.total) and self.status not in _WAITING


_WAITING = ("pending", "queued")
_SAID = {
    **dict.fromkeys(_WAITING, "Waiting for the run to start"),
    "running": "The run is being prepared",
}


@dataclass(frozen=True, slots=True)
class Ending:
    """What there is to say of a run that has ended.

    Attributes:
        run: its own fields.
        outcome: what a script wants to know of it.
        blocks: its numbers, for people.
        hints: where to look next.
    """

    kind: RunKind
    run: Run
    outcome: Mapping[str, Any]
    blocks: Sequence[Block]
    hints: Sequence[str]

    def result(
        self,
        verb: str,
        resource: Mapping[str, Any],
        *,
        next_steps_structured: Sequence[Mapping[str, Any]] = (),
    ) -> OperationResult:
        """Return the result of a command that followed the run to its end.

        Args:
            verb: the command, in the run's group.
            resource: what a script is told.
            next_steps_structured: what a script may do now.
        """
        run = self.run
        said = f"{NOUNS[self.kind].title()} run {run.status}: {run.name or run.id}"
        return OperationResult(
            operation=f"{self.kind}.{verb}",
            status="success" if run.status == "finished" else "partial",
            message=f"{said}. {run.error}" if run.error else said,
            resource=resource,
            blocks=self.blocks,
            next_steps=self.hints,
            next_steps_structured=next_steps_structured,
        )


def watch(follow: Callable[[PlatformClient, str], Ending], name: str) -> OperationResult:
    """Follow a run to its end, and return the result of the command that did only that.

    Args:
        follow: shows how far a run is until it has ended.
        name: the run's name or id.
    """
    with platform_context() as context:
        ending = follow(context.client, name)
        own = {"id": ending.run.id, "name": ending.run.name}
        return ending.result("watch", {**own, **ending.outcome, **context.resource()})


def show_to_the_end(
    look: Callable[[], SeenT], moment: Callable[[SeenT], Moment], *, kind: RunKind, name: str
) -> None:
    """Show a run of the platform until it has ended.

    Args:
        look: asks the platform how the run stands.
        moment: what to show of it.
        kind: of the run.
        name: what the user calls it.
    """
    from osmosis_ai.services.runs import watching

    looks = watching.watch(look, pause=pause, tell=current().note)
    show(looks, moment, again=f"osmosis {kind} watch {name}")


def show(looks: Iterable[Look], moment: Callable[[Look], Moment], *, again: str) -> None:
    """Show a run until there is nothing more to look at.

    Args:
        looks: the run as it goes on; asked for the next when the last is shown.
        moment: what to show of a look.
        again: the command that goes on showing the run, for whoever stops with Ctrl-C.
    """
    output = current()
    try:
        with _Display(output) as display:
            for seen in looks:
                display.show(moment(seen))
    except KeyboardInterrupt:
        output.note(f"The run goes on; follow it again with: {again}")
        raise


def pause() -> None:
    """Wait between two looks."""
    time.sleep(POLL_S)


class _Display:
    """A spinner while the run waits, a bar once something is counted."""

    def __init__(self, output: OutputContext) -> None:
        self._output = output
        self._shown = ExitStack()
        self._waiting = ExitStack()
        self._bar: Progress | None = None
        self._status = ""

    def __enter__(self) -> _Display:
        return self

    def __exit__(self, *_: object) -> None:
        self._waiting.close()
        self._shown.close()

    def show(self, now: Moment) -> None:
        """Show how the run stands now."""
        if self._bar is None:
            if not now.counts:
                self._say_status(now.status)
                return
            self._waiting.close()
            self._bar = self._shown.enter_context(
                self._output.progress(now.name, total=now.total, unit=now.unit)
            )
        if now.completed is not None:
            self._bar.update(now.completed, note=now.note, total=now.total, below=now.below)

    def _say_status(self, status: str) -> None:
        if status == self._status:
            return
        self._status = status
        self._waiting.close()
        if status in _SAID:
            self._waiting.enter_context(self._output.status(_SAID[status]))
