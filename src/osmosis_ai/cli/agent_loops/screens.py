"""Output of `osmosis test`: its rows, an interactive session and logs."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Any, TypeVar

from osmosis_ai.cli.graceful_stop import GracefulStop
from osmosis_ai.cli.output import formats
from osmosis_ai.cli.output.context import OutputContext
from osmosis_ai.errors import OsmosisError
from osmosis_ai.evaluation.agent_loop.interactive import SessionTerminal

if TYPE_CHECKING:
    from osmosis_ai.evaluation.agent_loop.runner import LocalRunResult


QUIT_AT_ONCE = "Interrupted."
_MAX_HEARTBEAT_S = 1.0
_INTERRUPTS = (signal.SIGINT, signal.SIGTERM)


class BlockedLoopError(OsmosisError):
    """An agent blocks the event loop."""


class LiveRows(GracefulStop):
    """Writes a line for each row, in order; a context manager around the test."""

    def __init__(self, output: OutputContext, *, quiet: bool, timeout_s: float) -> None:
        super().__init__(output, ["test"], quit_at_once=QUIT_AT_ONCE)
        self._quiet = quiet
        self._timeout_s = timeout_s
        self._pressed = False
        self._beat: asyncio.TimerHandle | None = None
        self._before: dict[int, Any] = {}

    def started(self, interrupt: Callable[[], None]) -> None:
        """Let Ctrl-C call ``interrupt``, let a second one end the process, and start the alarm."""
        self._interrupt = interrupt
        self._running = asyncio.get_running_loop()
        handlers = {**dict.fromkeys(_INTERRUPTS, self._on_ctrl_c), signal.SIGALRM: self._blocked}
        self._before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
        self._postpone_alarm()

    def ended(self) -> None:
        """Restore the signal handlers and close the output."""
        if self._beat is not None:
            self._beat.cancel()
            self._beat = None
            signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}
        super().ended()

    def row_ended(self, number: int, total: int, result: LocalRunResult) -> None:
        """Write one row's line."""
        if self._quiet:
            return
        took = formats.duration(result.duration_ms / 1000)
        is_known = result.total_tokens or not result.token_usage.get("num_llm_calls")
        tokens = formats.count(result.total_tokens) if is_known else "unknown"
        line = (
            f"[{number}/{total}] Row {result.row_index}: {'OK' if result.success else 'FAILED'} "
            f"({', '.join([took, f'{tokens} tokens', *result.flagged_finishes])})"
        )
        why = "" if result.success else f" - {formats.one_line(result.raised or result.error or '')}"
        self._output.note(line + why)

    def _postpone_alarm(self) -> None:
        signal.setitimer(signal.ITIMER_REAL, self._timeout_s)
        every_s = min(_MAX_HEARTBEAT_S, self._timeout_s / 4)
        self._beat = self._running.call_later(every_s, self._postpone_alarm)

    def _blocked(self, *_: int | FrameType | None) -> None:
        # Outside a task the agent is not the cause: this process itself was suspended.
        if asyncio.current_task(self._running) is not None:
            raise BlockedLoopError(
                f"The agent blocked the event loop for {self._timeout_s:g} s. In `run`, use `await` to wait and "
                "`asyncio.to_thread` for blocking calls."
            )

    def _on_ctrl_c(self, *_: int | FrameType | None) -> None:
        if self._pressed:
            self._interrupt = None
            self._on_signal()
        self._pressed = True
        self._running.call_soon_threadsafe(self._on_signal)


Result = TypeVar("Result")

_READ_BYTES = 4096


class SessionScreen(SessionTerminal):
    """Prompts and prints on the terminal."""

    def __init__(self, output: OutputContext) -> None:
        self._output = output
        self._descriptor = output.stdin.fileno()
        self._typed = b""
        self.left = False
        self._input: asyncio.Future[None] | None = None
        self._session: asyncio.Task[object] | None = None

    async def show(self, session: Callable[[SessionScreen], Awaitable[Result]]) -> Result:
        """Run a session; Ctrl-C ends it."""
        loop = asyncio.get_running_loop()
        task = asyncio.ensure_future(session(self))
        self._session = task
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._leave)
        try:
            return await task
        finally:
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.remove_signal_handler(number)

    async def ask(self, prompt: str) -> str | None:
        """Return the line that the user types; None at the end of input and after Ctrl-C."""
        stream = self._output.stderr
        stream.write(formats.literal(prompt))
        stream.flush()
        while b"\n" not in self._typed and not self.left:
            await self._wait_for_input()
        if self.left:
            stream.write("\n")
            return None
        line, _, self._typed = self._typed.partition(b"\n")
        return line.decode("utf-8", "replace")

    def say(self, text: str) -> None:
        """Show text unchanged, with control characters escaped."""
        self._output.note(text)

    async def _wait_for_input(self) -> None:
        loop = asyncio.get_running_loop()
        self._input = line = loop.create_future()
        loop.add_reader(self._descriptor, self._read)
        try:
            await line
        finally:
            loop.remove_reader(self._descriptor)
            self._input = None

    def _read(self) -> None:
        typed = os.read(self._descriptor, _READ_BYTES)
        self._typed += typed
        self.left = self.left or not typed
        self._answer()

    def _leave(self) -> None:
        self.left = True
        if self._input is not None:
            self._answer()
        elif self._session is not None:
            self._session.cancel()

    def _answer(self) -> None:
        if self._input is not None and not self._input.done():
            self._input.set_result(None)


# At their lowest levels these libraries log every byte, and some log keys.
_LIBRARIES = ("LiteLLM", "aiohttp", "asyncio", "httpcore", "httpx", "openai", "urllib3")


@contextmanager
def show_logs(output: OutputContext, *, enabled: bool) -> Iterator[None]:
    """Show logs on stderr until the block ends, with secrets redacted."""
    if not enabled:
        yield
        return
    root, handler = logging.getLogger(), _LogHandler(output)
    before = {logger: logger.level for logger in (root, *map(logging.getLogger, _LIBRARIES))}
    for logger in before:
        logger.setLevel(logging.DEBUG if logger is root else logging.WARNING)
    root.addHandler(handler)
    try:
        yield
    finally:
        root.removeHandler(handler)
        for logger, level in before.items():
            logger.setLevel(level)


class _LogHandler(logging.Handler):
    def __init__(self, output: OutputContext) -> None:
        super().__init__()
        self._output = output
        self.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        self._output.say(formats.literal(self.format(record)))
