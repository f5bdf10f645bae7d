"""`osmosis secret`: everything but the values is shown."""

from __future__ import annotations

import io
import os
import pty
import threading
from pathlib import Path
from typing import Any

import pytest

from osmosis_ai.cli.output.context import OutputContext
from tests.cli.golden_cases import SECRET
from tests.cli.maze import Maze, sent
from tests.cli.outcome import Outcome, TerminalInput
from tests.logins import REFUSALS, TOKEN, files_holding

SECRETS = "/environment-secrets"
VALUE = "sk-canary-value"


@pytest.fixture
def maze(maze: Maze) -> Maze:
    maze.patch.setenv("FROM_HERE", VALUE)
    maze.get(SECRETS).respond(json={"environment_secrets": [SECRET], "total_count": 1})
    maze.post(SECRETS).respond(json=SECRET)
    maze.delete(SECRETS).respond(204)
    return maze


def set_secret(maze: Maze, *arguments: str) -> Outcome:
    return maze.osmosis("secret", "set", "API_KEY", *arguments)


def test_list_options_and_pages(maze: Maze) -> None:
    def listed(*options: str) -> Outcome:
        return maze.osmosis("secret", "list", *options)

    listed("--scope", "personal", "--limit", "3")
    params = dict(maze.get(SECRETS).calls.last.request.url.params)
    assert params == {"limit": "3", "offset": "0", "scope": "user"}
    assert listed("--scope", "mine", "--json").error["code"] == "VALIDATION"
    assert "mutually exclusive" in listed("--all", "--limit", "3", "--json").error["message"]
    assert listed("--limit", "51").status == 2
    maze.get(SECRETS).respond(json={"environment_secrets": [SECRET], "total_count": 2, "next_offset": 1})
    page = listed("--limit", "1", "--json").json
    assert (page["has_more"], page["next_offset"], page["total_count"]) == (True, 1, 2)


def test_set_from_variable(maze: Maze, home: Path) -> None:
    outcome = set_secret(maze, "--env", "FROM_HERE", "--json")
    assert (outcome.err, outcome.resource["scope"]) == ("", "personal")
    assert sent(maze.post(SECRETS)) == {"name": "API_KEY", "value": VALUE, "scope": "user"}
    assert VALUE not in outcome.out
    assert files_holding(VALUE, home) == files_holding(VALUE, maze.workspace.root) == []


@pytest.mark.parametrize(
    "arguments, code",
    [
        *(
            ([name, "--env", "FROM_HERE"], "VALIDATION")
            for name in ("", "a", "2A", "_A", "A-B", "A\n", "Ä", "A" * 256)
        ),
        (["OSMOSIS_TOKEN", "--env", "FROM_HERE"], "VALIDATION"),
        (["API_KEY", "--scope", "user", "--env", "FROM_HERE"], "VALIDATION"),
        *((["API_KEY", "--env", name], "VALIDATION") for name in ("FROM_NOWHERE", "EMPTY", "NO_UTF8")),
        (["API_KEY"], "INTERACTIVE_REQUIRED"),
    ],
)
def test_set_invalid_arguments(maze: Maze, arguments: list[str], code: str) -> None:
    maze.patch.setenv("EMPTY", "")
    maze.patch.setenv("NO_UTF8", "\udcff")
    maze.patch.chdir(maze.workspace.root.parent)  # the arguments are checked before the workspace
    error = maze.osmosis("secret", "set", *arguments, "--json").error
    assert (error["code"], maze.router.calls.call_count) == (code, 0)
    if code == "INTERACTIVE_REQUIRED":
        assert error["details"]["flags"] == ["--env"]
        for mode in ([], ["--plain"]):
            assert "Value of API_KEY is missing" in maze.osmosis("secret", "set", *arguments, *mode).err


@pytest.mark.parametrize("mode", [["--json"], ["--plain"], []])
def test_set_value_on_command_line(maze: Maze, mode: list[str]) -> None:
    for arguments in (["API_KEY", VALUE], [VALUE, "--env", "FROM_HERE"], ["API_KEY", f"--value={VALUE}"]):
        outcome = maze.osmosis("secret", "set", *arguments, *mode)
        assert outcome.status in (1, 2)
        assert VALUE not in outcome.out + outcome.err


def test_set_prompt(maze: Maze) -> None:
    maze.patch.setattr("sys.stdin", TerminalInput())
    questions: list[str] = []
    answers: list[str | None] = [f" {VALUE} ", None, ""]

    def answer(output: OutputContext, question: str) -> str | None:
        questions.append(question)
        return answers.pop(0)

    maze.patch.setattr("osmosis_ai.cli.output.context.OutputContext.ask_hidden", answer)
    assert 'Secret "API_KEY" saved' in set_secret(maze).out
    assert sent(maze.post(SECRETS))["value"] == f" {VALUE} "
    assert set_secret(maze)[:2] == (0, "Cancelled.\n")
    empty = set_secret(maze)
    assert (empty.status, "is empty" in empty.err) == (1, True)
    assert maze.router.calls.call_count == 1
    assert questions == ["Value of API_KEY (not shown)"] * 3


@pytest.mark.parametrize("reply, code", REFUSALS)
def test_set_refused(maze: Maze, reply: dict[str, Any], code: str) -> None:
    if "json" in reply:
        reply = {**reply, "json": {**reply["json"], "echo": [VALUE], "value": "x", "token": TOKEN}}
    else:
        reply = {**reply, "text": f"{reply['text']} {VALUE} {TOKEN}"}
    maze.post(SECRETS).respond(**reply)
    assert VALUE not in set_secret(maze, "--env", "FROM_HERE", "--plain").err
    refused = set_secret(maze, "--env", "FROM_HERE", "--json")
    assert VALUE not in refused.err and refused.error["code"] == code


@pytest.mark.parametrize(
    ("value", "why"), [("null", "JSON"), ("12345", "6 characters"), ("123456", "number")]
)
def test_value_that_cannot_be_hidden(maze: Maze, value: str, why: str) -> None:
    maze.patch.setenv("FROM_HERE", value)
    outcome = set_secret(maze, "--env", "FROM_HERE", "--plain")
    assert outcome.status == 0
    (warning,) = [line for line in outcome.err.splitlines() if line.startswith("warning: ")]
    assert warning.startswith("warning: the value of API_KEY cannot be hidden in logs and results: ")
    assert why in warning


def test_delete_asks_first(maze: Maze) -> None:
    assert maze.osmosis("secret", "delete", "OTHER_KEY", "--json").error["code"] == "NOT_FOUND"
    error = maze.osmosis("secret", "delete", "API_KEY", "--json").error
    assert error["code"] == "INTERACTIVE_REQUIRED"
    assert error["details"]["prompt"] == 'Delete personal secret "API_KEY"? This cannot be undone.'
    maze.patch.setattr("sys.stdin", TerminalInput())
    maze.patch.setattr("typer.getchar", lambda: "\r")
    assert maze.osmosis("secret", "delete", "API_KEY")[:2] == (0, "Cancelled.\n")
    assert not maze.delete(SECRETS).called
    assert maze.osmosis("secret", "delete", "API_KEY", "--yes", "--json").status == 0
    assert sent(maze.delete(SECRETS)) == {"name": "API_KEY", "scope": "user"}


@pytest.mark.parametrize(
    "typed, got",
    [
        (b"sk-canary\r", "sk-canary"),
        ("ünï kept \n".encode(), "ünï kept "),
        (b"wrong\x7f\x7f\x7f\x7f\x7fright\r", "right"),
        (b"ri\x1b[D\x1bOAght\r", "right"),
        (b"\x1b[200~pasted\x1b[201~\r", "pasted"),
        (b"half\x04\r", "half"),
        (b"x" * 20_000 + b"\r", "x" * 20_000),
        (b"\r", ""),
        (b"half\x03", None),
        (b"half\x1b", None),
        (b"\x04", None),
    ],
)
def test_hidden_prompt_input(typed: bytes, got: str | None) -> None:
    person, program = pty.openpty()
    asking = threading.Event()

    class Screen(io.StringIO):
        def flush(self) -> None:
            asking.set()

    screen = Screen()

    with os.fdopen(program, encoding="utf-8", closefd=False) as stdin:
        output = OutputContext("rich", stdin=stdin, stdout=io.StringIO(), stderr=screen)
        answers: list[str | None] = []
        thread = threading.Thread(target=lambda: answers.append(output.ask_hidden("Value")))
        thread.start()
        assert asking.wait(60)
        _write(person, typed)
        thread.join(60)
        assert not thread.is_alive()
    os.set_blocking(person, False)
    try:
        echoed = os.read(person, 65536)
    except BlockingIOError:
        echoed = b""
    os.close(person)
    os.close(program)
    assert answers == [got]
    assert echoed == b""
    assert screen.getvalue() == "Value: \n"


def _write(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data[:1024]) :]
