from __future__ import annotations

import json
import sys

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
    said = "Confirmation required: Sink the Argo?\nError: Use --yes to confirm in non-interactive mode.\n"
    assert cli("fleet", "sink") == (1, "", said)


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
        (["y\r"], False, True),
        (["n\n"], True, False),
        (["\r\n"], True, True),
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
