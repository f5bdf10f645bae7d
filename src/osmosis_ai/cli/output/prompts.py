"""Questions on the terminal: one key answers, and Esc or Ctrl-C always mean no."""

from __future__ import annotations

from typing import TextIO

_YES, _NO, _ENTER, _ESCAPE = "yY", "nN", "\r\n", "\x1b"


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
        answer = _answer_of(key, default)
        if answer is not None:
            stream.write("yes\n" if answer else "no\n")
            stream.flush()
            return answer


def _answer_of(key: str, default: bool) -> bool | None:
    # Pasted, or typed by a program, an answer and its Enter come at once.
    key = key.rstrip(_ENTER) or key[:1]
    if key in ("", _ESCAPE, "\x04"):  # end of input, Esc, Ctrl-D
        return False
    if key in _ENTER:
        return default
    if key in _YES:
        return True
    if key in _NO:
        return False
    return None  # an arrow or another letter is a slip, not an answer
