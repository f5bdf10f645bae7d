"""The terminal of an interactive session: lines are read without blocking the event loop that the agent runs in."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from typing import TypeVar

from osmosis_ai.cli.output import formats
from osmosis_ai.cli.output.context import OutputContext

Done = TypeVar("Done")

_MOST_BYTES = 4096


class SessionScreen:
    """Asks and shows on the terminal."""

    def __init__(self, output: OutputContext) -> None:
        self._output = output
        self._descriptor = output.stdin.fileno()
        self._typed = b""
        self.left = False
        self._asked: asyncio.Future[None] | None = None
        self._session: asyncio.Task[object] | None = None

    async def show(self, session: Callable[[SessionScreen], Awaitable[Done]]) -> Done:
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
        """Show text as it is, control characters spelled out."""
        self._output.note(text)

    async def _wait_for_input(self) -> None:
        loop = asyncio.get_running_loop()
        self._asked = asked = loop.create_future()
        loop.add_reader(self._descriptor, self._read)
        try:
            await asked
        finally:
            loop.remove_reader(self._descriptor)
            self._asked = None

    def _read(self) -> None:
        typed = os.read(self._descriptor, _MOST_BYTES)
        self._typed += typed
        self.left = self.left or not typed
        self._answer()

    def _leave(self) -> None:
        self.left = True
        if self._asked is not None:
            self._answer()
        elif self._session is not None:
            self._session.cancel()

    def _answer(self) -> None:
        if self._asked is not None and not self._asked.done():
            self._asked.set_result(None)
