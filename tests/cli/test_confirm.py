from __future__ import annotations

import json
import os
import pty
import select
import subprocess
import sys
import time

import pytest
import typer

from osmosis_ai.cli.output.prompts import ask_yes_no
from tests.cli.conftest import Cli


def test_yes_skips_the_question(cli: Cli) -> None:
    assert cli("fleet", "sink", "--yes", "--json") == (0, '{"schema_version":1,"message":"Sunk."}\n', "")


def test_json_tells_what_would_have_been_asked(cli: Cli) -> None:
    outcome = cli("fleet", "sink", "--json")
    assert (outcome.status, outcome.out) == (1, "")
    assert json.loads(outcome.err)["error"] == {
        "code": "INTERACTIVE_REQUIRED",
        "message": "Use --yes to confirm in non-interactive mode.",
        "details": {
            "prompt": "Sink the Argo?",
            "summary": {"Ship": "Argo"},
            "notes": ["It is old."],
            "warnings": ["It is full."],
        },
    }


def test_plain_writes_it_to_stderr(cli: Cli) -> None:
    assert cli("fleet", "sink", "--plain") == (
        1,
        "",
        "Confirmation required: Sink the Argo?\n"
        "  Ship: Argo\n"
        "Notes:\n  It is old.\n"
        "Warnings:\n  It is full.\n"
        "Error: Use --yes to confirm in non-interactive mode.\n",
    )


def test_rich_without_a_terminal_does_not_ask(cli: Cli) -> None:
    assert cli("fleet", "sink") == (1, "", "Error: Use --yes to confirm in non-interactive mode.\n")


@pytest.mark.parametrize(
    "keys, default, answer",
    [
        ("y", False, True),
        ("Y", False, True),
        ("n", True, False),
        ("\r", True, True),
        ("\n", False, False),
        ("\x1b", True, False),
        ("\x04", True, False),
        (["x", "\x1b[A", "y"], False, True),
    ],
)
def test_one_key_answers_and_escape_means_no(
    monkeypatch: pytest.MonkeyPatch, keys: str | list[str], default: bool, answer: bool
) -> None:
    typed = iter(keys)
    monkeypatch.setattr(typer, "getchar", lambda: next(typed))
    assert ask_yes_no(sys.stderr, "Sure?", default=default) is answer


def test_ctrl_c_at_the_question_means_no(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt() -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr(typer, "getchar", interrupt)
    assert ask_yes_no(sys.stderr, "Sure?", default=True) is False


@pytest.mark.e2e
@pytest.mark.parametrize("key, said", [(b"\x1b", "Cancelled."), (b"y", "Sunk.")])
def test_on_a_terminal_the_question_is_asked(key: bytes, said: str) -> None:
    program = (
        "import sys; from osmosis_ai.cli.registry import COMMANDS, Entry;"
        "COMMANDS['fleet'] = Entry('group', 'tests.cli.fleet:app', '');"
        "from osmosis_ai.cli.main import main; sys.exit(main(['fleet', 'sink']))"
    )
    parent, child = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=child,
        stdout=child,
        stderr=child,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        start_new_session=True,
    )
    os.close(child)
    shown = _read_until(parent, "[y/N] ")
    shown += _read_until(parent, said, typing=key)
    assert process.wait(timeout=30) == 0
    os.close(parent)
    assert "Sink the Argo? [y/N] " in shown


def _read_until(descriptor: int, expected: str, *, typing: bytes = b"") -> str:
    """Read the terminal until ``expected`` shows; ``typing`` is typed again while nothing happens.

    What is typed before the program switches the terminal to single keys is thrown away by design.
    """
    shown, deadline = "", time.monotonic() + 30
    while expected not in shown:
        assert time.monotonic() < deadline, f"never saw {expected!r} in {shown!r}"
        if typing:
            os.write(descriptor, typing)
        ready, _, _ = select.select([descriptor], [], [], 0.5)
        if ready:
            shown += os.read(descriptor, 4096).decode()
    return shown
