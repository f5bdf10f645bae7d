"""Asking for a line: one that must not be seen, or one that is shown as it is typed."""

from __future__ import annotations

import codecs
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from osmosis_ai.cli.output.context import OutputContext

_ENTER, _CANCEL, _ERASE, _ERASE_ALL, _END, _ESCAPE = "\r\n", "\x03", "\x7f\b", "\x15", "\x04", "\x1b"
_TAKE_BACK = "\b \b"
# The bytes of an escape sequence (an arrow, a bracketed paste) come together; a lone Esc is followed by nothing.
_SEQUENCE_WAIT_S = 0.05


def ask_hidden(output: OutputContext, question: str) -> str | None:
    """Ask for a secret on the terminal and return it as it was typed, or None when the user cancelled."""
    if sys.platform == "win32":
        import getpass

        try:
            return getpass.getpass(f"{question}: ", stream=output.stderr)
        except (EOFError, KeyboardInterrupt):
            return None
    return _ask(output, question, echo=lambda _text: None)


def ask_shown(output: OutputContext, question: str) -> str | None:
    """Ask for a line on the terminal and return it without the spaces around it, or None when the user
    cancelled."""
    if sys.platform == "win32":
        try:
            return input(f"{question}: ").strip()
        except (EOFError, KeyboardInterrupt):
            return None

    def echo(text: str) -> None:
        output.stderr.write(text)
        output.stderr.flush()

    typed = _ask(output, question, echo=echo)
    return typed if typed is None else typed.strip()


def _ask(output: OutputContext, question: str, *, echo: Callable[[str], None]) -> str | None:
    # Silent before the question is seen: somebody may answer it at once.
    with _silent(output.stdin.fileno()) as descriptor:
        output.stderr.write(f"{question}: ")
        output.stderr.flush()
        typed = _Line(descriptor, echo).read()
    output.stderr.write("\n")
    output.stderr.flush()
    return typed


@contextmanager
def _silent(descriptor: int) -> Iterator[int]:
    """Keep a terminal from showing, editing and acting on what is typed."""
    import termios

    before = termios.tcgetattr(descriptor)
    silent = termios.tcgetattr(descriptor)
    silent[3] &= ~(termios.ECHO | termios.ICANON | termios.ISIG | termios.IEXTEN)
    termios.tcsetattr(descriptor, termios.TCSADRAIN, silent)
    try:
        yield descriptor
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


class _Line:
    """One line, key by key, from a terminal that neither shows nor edits."""

    def __init__(self, descriptor: int, echo: Callable[[str], None]) -> None:
        self._descriptor = descriptor
        self._echo = echo
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._pending = ""

    def read(self) -> str | None:
        typed = ""
        while True:
            key = self._next()
            if key == _ESCAPE:
                if not self._skip_sequence():
                    return None
            elif key == "" or key == _CANCEL or (key == _END and not typed):
                return None
            elif key in _ENTER:
                return typed
            elif key in _ERASE:
                self._echo(_TAKE_BACK * len(typed[-1:]))
                typed = typed[:-1]
            elif key == _ERASE_ALL:
                self._echo(_TAKE_BACK * len(typed))
                typed = ""
            elif key != _END:
                self._echo(key if key.isprintable() else "")
                typed += key

    def _next(self) -> str:
        """Return the next character; an empty text at the end of input."""
        while not self._pending:
            chunk = os.read(self._descriptor, 4096)
            if not chunk:
                return ""
            self._pending = self._decoder.decode(chunk)
        key, self._pending = self._pending[0], self._pending[1:]
        return key

    def _skip_sequence(self) -> bool:
        """Skip the rest of an escape sequence; False when the Esc stood alone."""
        import select

        if not self._pending and not select.select([self._descriptor], [], [], _SEQUENCE_WAIT_S)[0]:
            return False
        if self._next() in "[O":
            while (key := self._next()) and not "@" <= key <= "~":
                pass
        return True
