"""Keys typed on the terminal: one that answers a question, or a line of them. Esc and Ctrl-C always cancel."""

from __future__ import annotations

import codecs
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

_YES, _NO = "yY", "nN"
_ENTER, _CANCEL, _ERASE, _ERASE_ALL, _END, _ESCAPE = "\r\n", "\x03", "\x7f\b", "\x15", "\x04", "\x1b"
_TAKE_BACK = "\b \b"
# The bytes of an escape sequence (an arrow, a bracketed paste) come together; a lone Esc is followed by nothing.
_SEQUENCE_WAIT_S = 0.05


def ask_yes_no(stream: TextIO, question: str, *, default: bool) -> bool:
    """Ask on ``stream`` and read one key from the terminal."""
    import typer

    stream.write(f"{question} [{'Y/n' if default else 'y/N'}] ")
    stream.flush()
    while True:
        try:
            key = typer.getchar()
        except (KeyboardInterrupt, EOFError):
            key = _ESCAPE
        # Pasted, or typed by a program, an answer and its Enter come at once.
        key = key.rstrip(_ENTER) or key[:1]
        if key in ("", _ESCAPE, _END, *_NO):
            answer = False
        elif key in (*_ENTER, *_YES):
            answer = default if key in _ENTER else True
        else:
            continue  # an arrow or another letter is a slip, not an answer
        stream.write("yes\n" if answer else "no\n")
        stream.flush()
        return answer


@contextmanager
def silent_terminal(descriptor: int) -> Iterator[int]:
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


class LineReader:
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
