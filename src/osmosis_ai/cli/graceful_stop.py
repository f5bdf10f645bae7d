"""Ctrl-C while work is under way: the first one stops it gracefully, the second one at once."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from types import TracebackType
from typing import TYPE_CHECKING

from osmosis_ai.cli.application import INTERRUPTED_STATUS, report
from osmosis_ai.cli.output.context import OutputContext
from osmosis_ai.cli.output.progress import Progress
from osmosis_ai.errors import OsmosisError

if TYPE_CHECKING:
    from typing_extensions import Self

_HANDLED = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def signals_raise(numbers: Sequence[int], error: Callable[[int], BaseException]) -> Iterator[None]:
    """Let the first of these signals end the block by an exception, and ignore later ones until it has ended."""

    def end(number: int, _frame: object) -> None:
        for each in before:
            signal.signal(each, signal.SIG_IGN)
        raise error(number)

    before = {each: signal.signal(each, end) for each in numbers}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


class GracefulStop:
    """The side of an engine's hooks that stops it; a context manager around what is shown meanwhile."""

    quit_status = INTERRUPTED_STATUS
    """Exit status after the second Ctrl-C. The first one ends the command with a partial result, whose status is 1."""

    def __init__(self, output: OutputContext, words: list[str], *, quit_at_once: str) -> None:
        self._output = output
        self._words = words
        self._quit_at_once = quit_at_once
        self._shown = ExitStack()
        self._bar: Progress | None = None
        self._interrupt: Callable[[], None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._shown.close()

    def started(self, interrupt: Callable[[], None]) -> None:
        """From now on Ctrl-C calls ``interrupt``, and a second one ends the process."""
        self._interrupt = interrupt
        self._loop = asyncio.get_running_loop()
        for number in _HANDLED:
            self._loop.add_signal_handler(number, self._on_signal)

    def ended(self) -> None:
        """Give Ctrl-C back its usual meaning, and close what is shown."""
        if self._loop is not None:
            for number in _HANDLED:
                self._loop.remove_signal_handler(number)
            self._loop = None
        self._shown.close()

    def _show_stage(self, message: str) -> None:
        """Show a spinner until the next stage or the bar."""
        if self._bar is None:
            self._shown.close()
            self._shown.enter_context(self._output.status(message))

    def _move_bar(self, title: str, completed: int, total: int, unit: str, note: str) -> None:
        """Show how much is done; the bar appears with its first move."""
        if self._bar is None:
            self._shown.close()
            self._bar = self._shown.enter_context(self._output.progress(title, total=total, unit=unit))
        self._bar.update(completed, note=note, below=[note])

    def _on_signal(self) -> None:
        if self._interrupt is None:
            self._shown.close()
            report(self._output, OsmosisError(self._quit_at_once, code="INTERNAL"), self._words)
            self._output.stderr.flush()
            # Every result is on the disk already, and every child has a lifeline to this process.
            os._exit(self.quit_status)
        interrupt, self._interrupt = self._interrupt, None
        self._output.note("stopping: attempts in flight are cancelled; press Ctrl-C again to quit at once")
        interrupt()
