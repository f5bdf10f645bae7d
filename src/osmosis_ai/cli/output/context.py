"""The one place a command speaks through while it runs: status, progress, warnings, questions."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal, TextIO

from osmosis_ai._version import __version__
from osmosis_ai.cli.output import formats, prompts
from osmosis_ai.cli.output.progress import LineProgress, Progress
from osmosis_ai.cli.output.results import SCHEMA_VERSION, Block, Result, StreamResult, dumps, joined
from osmosis_ai.errors import InteractiveRequiredError
from osmosis_ai.redaction import Redactor

if TYPE_CHECKING:
    from rich.console import Console

Mode = Literal["rich", "plain", "json"]
_BOLD_RED, _YELLOW, _DIM = "1;31", "33", "2"
_SECRET_NAME = re.compile(
    r"(KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIALS?)$|^(DATABASE_URL|PGPASSWORD)$", re.IGNORECASE
)
# Shorter values ("1", "true", "none") are no secrets, and hiding them would garble the message.
_SHORTEST_SECRET = 8


class Declined(Exception):
    """The user answered no; the frame prints ``Cancelled.`` and exits with 0."""


class OutputContext:
    """Output mode, streams and the terminal of this process."""

    def __init__(
        self,
        mode: Mode = "rich",
        *,
        stdin: TextIO | None = None,
        stdout: TextIO | None = None,
        stderr: TextIO | None = None,
    ) -> None:
        self.mode: Mode = mode
        self.verbose = False
        self.stdin = stdin if stdin is not None else sys.stdin
        self.stdout = stdout if stdout is not None else sys.stdout
        self.stderr = stderr if stderr is not None else sys.stderr
        self.interactive = mode == "rich" and formats.is_terminal(self.stdin)
        self.animated = (
            mode == "rich" and formats.is_terminal(self.stderr) and os.environ.get("TERM") != "dumb"
        )
        self._console: Console | None = None

    # -- while the command runs ------------------------------------------------------------

    @contextmanager
    def status(self, message: str) -> Iterator[None]:
        """Show a spinner on a terminal, otherwise print nothing."""
        if not self.animated:
            yield
            return
        from osmosis_ai.cli.output import terminal

        with terminal.spinner(self.error_console(), formats.one_line(message)):
            yield

    def note(self, message: str) -> None:
        """Write one line to stderr, except in JSON mode."""
        if self.mode != "json":
            self.say(formats.literal(message))

    @contextmanager
    def progress(self, description: str, *, total: float | None, unit: str = "") -> Iterator[Progress]:
        """Show progress: a bar on a terminal, otherwise a line from time to time."""
        if self.mode == "json":
            yield Progress()
        elif self.animated:
            from osmosis_ai.cli.output import terminal

            with terminal.bar(self.error_console(), description, total=total, unit=unit) as bar:
                yield bar
        else:
            lines = LineProgress(self.note, description, total=total, unit=unit)
            yield lines
            lines.finish()

    @contextmanager
    def transfer(self, description: str, size: int | None) -> Iterator[Callable[[int], None]]:
        """Show the progress of a transfer; the function takes the number of bytes so far."""
        with self.progress(description, total=size, unit="bytes") as shown:
            yield shown.update

    def warn(self, message: str, code: str | None = None) -> None:
        if self.mode == "json":
            warning = {"code": code, "message": message}
            self.say_json({"schema_version": SCHEMA_VERSION, "cli_version": __version__, "warning": warning})
        elif self.mode == "plain":
            self.say(f"warning: {formats.literal(message)}")
        else:
            self.say(f"⚠ {formats.literal(message)}", style=_YELLOW)

    def show(self, *blocks: Block) -> None:
        """Show tables or text before the result (a plan, a summary): rich mode only, on stderr."""
        if self.mode == "rich" and blocks:
            from osmosis_ai.cli.output import terminal

            terminal.print_blocks(self.error_console(), blocks)

    def confirm(
        self,
        message: str,
        *,
        yes: bool,
        default: bool = False,
        summary: Mapping[str, str] | None = None,
        notes: Sequence[str] = (),
        warnings: Sequence[str] = (),
    ) -> None:
        """Return when the user agrees, by ``yes`` or at the prompt."""
        if yes:
            return
        if self.interactive:
            if not prompts.ask_yes_no(self.stderr, message, default=default):
                raise Declined(message)
            return
        facts: dict[str, Any] = {"summary": dict(summary or {}), "notes": [*notes], "warnings": [*warnings]}
        if self.mode != "json":
            lines = [f"Confirmation required: {message}"]
            if self.mode == "plain":  # In rich mode, tables above show the facts.
                lines += [f"  {label}: {value}" for label, value in facts["summary"].items()]
                for title, entries in (("Notes:", notes), ("Warnings:", warnings)):
                    if entries:
                        lines += [title, *(f"  {entry}" for entry in entries)]
            self.say(formats.literal("\n".join(lines)))
        raise InteractiveRequiredError(
            "Use --yes to confirm in non-interactive mode.",
            details={"prompt": message, **{key: value for key, value in facts.items() if value}},
        )

    def ask_hidden(self, question: str) -> str | None:
        """Ask for a secret on the terminal and return it as it was typed, or None if the user cancelled."""
        return self._ask(question, lambda _text: None)

    def ask_shown(self, question: str) -> str | None:
        """Ask for a line and return it without the spaces around it, or None if the user cancelled."""
        typed = self._ask(question, self._write)
        return typed if typed is None else typed.strip()

    def _ask(self, question: str, echo: Callable[[str], None]) -> str | None:
        # Silent before the question is seen: somebody may answer it at once.
        with prompts.silent_terminal(self.stdin.fileno()) as descriptor:
            self._write(f"{question}: ")
            typed = prompts.LineReader(descriptor, echo).read()
        self._write("\n")
        return typed

    def _write(self, text: str) -> None:
        self.stderr.write(text)
        self.stderr.flush()

    # -- at the end -------------------------------------------------------------------------

    def emit(self, result: Result) -> int:
        """Write the result to stdout, once, and return the exit status that follows from it."""
        if self.mode == "rich":
            from osmosis_ai.cli.output import terminal

            terminal.print_result(terminal.open_console(self.stdout), result)
        else:
            for line in self._lines(result):
                self.stdout.write(f"{line}\n")
                if isinstance(result, StreamResult):
                    self.stdout.flush()
        self.stdout.flush()
        return result.exit_code

    def _lines(self, result: Result) -> Iterator[str]:
        if isinstance(result, StreamResult):
            for item in result.items:
                yield (
                    dumps(dict(item)) if self.mode == "json" else joined(c.cell(item) for c in result.columns)
                )
        elif self.mode == "json":
            yield dumps(result.envelope())
        else:
            yield from result.plain_lines()

    def error(self, message: str, *, hint: str | None = None) -> None:
        """Write an error for people: the sentence in red, then one dim hint."""
        first, _, rest = formats.literal(message).partition("\n")
        self.say(f"Error: {first}", style=_BOLD_RED)
        if rest:
            self.say(rest)
        if hint:
            self.say(f"hint: {formats.literal(hint)}", style=_DIM)

    # -- the terminal -----------------------------------------------------------------------

    def error_console(self) -> Console:
        """Return the console on stderr; other output appears above its animation."""
        if self._console is None:
            from osmosis_ai.cli.output import terminal

            self._console = terminal.open_console(self.stderr)
        return self._console

    def say(self, text: str, *, style: str | None = None) -> None:
        """Write ``text`` to stderr with secrets redacted; ``style`` is an ANSI style."""
        self._write_error(_redactor().text(text), style)

    def say_json(self, envelope: dict[str, Any]) -> None:
        """Write a line of JSON to stderr, secret values taken out of its texts."""
        self._write_error(dumps(_redactor().tree(envelope)))

    def _write_error(self, text: str, style: str | None = None) -> None:
        if style and self.mode == "rich" and formats.has_colour(self.stderr):
            text = f"\x1b[{style}m{text}\x1b[0m"
        if self._console is not None:
            from osmosis_ai.cli.output import terminal

            terminal.print_line(self._console, text)
        else:
            self._write(text + "\n")


def _redactor() -> Redactor:
    secrets = (value for name, value in os.environ.items() if _SECRET_NAME.search(name))
    return Redactor(secrets, shortest=_SHORTEST_SECRET)


_current: OutputContext | None = None


def use(context: OutputContext | None) -> None:
    """Make ``context`` the one that :func:`current` returns; None forgets it."""
    global _current
    _current = context


def current() -> OutputContext:
    """Return the context of this process; a plain one on first use outside the command line."""
    global _current
    if _current is None:
        _current = OutputContext("plain")
    return _current
