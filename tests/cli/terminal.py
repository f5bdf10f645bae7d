"""A program on a terminal of its own."""

from __future__ import annotations

import codecs
import fcntl
import os
import pty
import select
import subprocess
import sys
import termios
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

PROGRAM = """
import sys
from osmosis_ai.cli.main import main
from osmosis_ai.cli.registry import COMMANDS, CommandEntry
COMMANDS["fleet"] = CommandEntry("group", "tests.cli.fleet:app", "")
sys.exit(main(sys.argv[1:]))
"""


class Terminal:
    """A terminal with one program on it, and what it has shown so far."""

    def __init__(self, process: subprocess.Popen[bytes], descriptor: int) -> None:
        self.process = process
        self.shown = ""
        # A read may end in the middle of a character.
        self._decoder = codecs.getincrementaldecoder("utf-8")()
        self._descriptor = descriptor
        self._returned = 0

    def _takes_single_keys(self) -> bool:
        """Tell whether the program has switched the terminal; before, Ctrl-C would end it instead of answering."""
        return not termios.tcgetattr(self._descriptor)[3] & termios.ICANON

    def type(self, text: str) -> None:
        """Type what a question that shows is answered with."""
        os.write(self._descriptor, text.encode())

    def wait_for(self, expected: str, *, typing: bytes = b"", behind: int = 0) -> None:
        """Read until ``expected`` shows. Type ``typing`` as soon as the program takes single keys.

        What is typed before the program switches the terminal to single keys is thrown away by design.
        """
        deadline = time.monotonic() + 300
        while expected not in self.shown[behind:]:
            assert time.monotonic() < deadline, f"never saw {expected!r} in {self.shown!r}"
            if typing and self._takes_single_keys():
                os.write(self._descriptor, typing)
                typing = b""
            ready, _, _ = select.select([self._descriptor], [], [], 0.05 if typing else 0.5)
            if ready:
                read = self._decoder.decode(os.read(self._descriptor, 4096))
                self.shown = (self.shown + read).replace("\r\n", "\n")

    def until(self, expected: str) -> str:
        """Return what shows behind what was returned before, up to the end of ``expected``."""
        begin = self._returned
        self.wait_for(expected, behind=begin)
        self._returned = self.shown.index(expected, begin) + len(expected)
        return self.shown[begin : self._returned]

    def end(self) -> int:
        """Return the program's exit status."""
        return self.process.wait(timeout=300)


@contextmanager
def terminal(
    *arguments: str,
    program: Sequence[str] = (sys.executable, "-c", PROGRAM),
    controls: bool = False,
    **environment: str,
) -> Iterator[Terminal]:
    """Start a program on a new terminal; ``controls`` lets Ctrl-C reach it as a signal."""
    parent, child = pty.openpty()
    process = subprocess.Popen(
        [*program, *arguments],
        stdin=child,
        stdout=child,
        stderr=child,
        env={**os.environ, "COLUMNS": "80", "PYTHONPATH": os.pathsep.join(sys.path), **environment},
        start_new_session=True,
        preexec_fn=(lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0)) if controls else None,
    )
    os.close(child)
    try:
        yield Terminal(process, parent)
    finally:
        process.kill()
        process.wait()
        os.close(parent)
