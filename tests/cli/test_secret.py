"""What a person and a script see of secrets: everything but their values."""

from __future__ import annotations

import io
import json
import os
import pty
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import respx

from osmosis_ai.cli.output.context import OutputContext
from osmosis_ai.cli.typed_line import ask_hidden
from tests.cli.conftest import Cli, Outcome
from tests.cli.golden_cases import SECRET
from tests.logins import (
    FERN,
    IDENTITY,
    REFUSALS,
    TOKEN,
    files_holding,
    make_checkout,
    save_login,
    use_platform,
)

PATH = "/api/cli/environment-secrets"
VALUE = "sk-canary-value"


class Person(io.StringIO):
    """Stdin with a person at it, whose answers are given by the test."""

    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def platform(monkeypatch: pytest.MonkeyPatch) -> Iterator[respx.MockRouter]:
    use_platform(monkeypatch)
    save_login()
    monkeypatch.setenv("FROM_HERE", VALUE)
    with respx.mock(base_url=FERN, assert_all_called=False) as router:
        router.get(PATH).respond(json={"environment_secrets": [SECRET], "total_count": 1})
        router.post(PATH).respond(json=SECRET)
        router.delete(PATH).respond(204)
        yield router


@pytest.fixture
def scope(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What results say of the checkout that is the current directory."""
    root = make_checkout(tmp_path / "w").root
    monkeypatch.chdir(root)
    return {
        "git": {"identity": IDENTITY, "remote_url": "ssh://git@github.com/Fern/Maze.git"},
        "workspace_directory": str(root),
    }


def _error(outcome: Outcome) -> dict[str, Any]:
    assert (outcome.status, outcome.out) == (1, "")
    error: dict[str, Any] = json.loads(outcome.err)["error"]
    return error


# list


def test_scopes_and_pages_are_chosen_and_what_is_missing_is_said(
    cli: Cli, scope: dict[str, Any], platform: respx.MockRouter
) -> None:
    assert _error(cli("secret", "delete", "OTHER_KEY", "--json"))["code"] == "NOT_FOUND"
    assert {call.request.method for call in platform.calls} == {"GET"}

    cli("secret", "list", "--scope", "personal", "--limit", "3")
    assert dict(platform.calls.last.request.url.params) == {"limit": "3", "offset": "0", "scope": "user"}
    assert _error(cli("secret", "list", "--scope", "mine", "--json"))["code"] == "VALIDATION"
    assert "mutually exclusive" in _error(cli("secret", "list", "--all", "--limit", "3", "--json"))["message"]
    assert cli("secret", "list", "--limit", "51").status == 2
    page = {"environment_secrets": [SECRET], "total_count": 2, "next_offset": 1}
    platform.get(PATH).respond(json=page)
    listed = json.loads(cli("secret", "list", "--limit", "1", "--json").out)
    assert (listed["has_more"], listed["next_offset"], listed["total_count"]) == (True, 1, 2)


# set


def test_a_value_comes_from_a_variable(
    cli: Cli, scope: dict[str, Any], platform: respx.MockRouter, home: Path
) -> None:
    outcome = cli("secret", "set", "API_KEY", "--env", "FROM_HERE", "--json")
    assert outcome.err == ""
    assert json.loads(outcome.out)["resource"]["scope"] == "personal"
    assert json.loads(platform.calls.last.request.content) == {
        "name": "API_KEY",
        "value": VALUE,
        "scope": "user",
    }
    assert VALUE not in outcome.out
    assert files_holding(VALUE, home) == files_holding(VALUE, Path(scope["workspace_directory"])) == []


@pytest.mark.parametrize(
    "arguments, code",
    [
        (["api_key", "--env", "FROM_HERE"], "VALIDATION"),
        (["API_KEY", "--scope", "user", "--env", "FROM_HERE"], "VALIDATION"),
        (["API_KEY", "--env", "FROM_NOWHERE"], "VALIDATION"),
        (["API_KEY"], "INTERACTIVE_REQUIRED"),
    ],
)
def test_what_is_wrong_with_the_line_is_said_before_the_workspace_is_looked_at(
    cli: Cli, platform: respx.MockRouter, arguments: list[str], code: str
) -> None:
    error = _error(cli("secret", "set", *arguments, "--json"))
    assert error["code"] == code
    assert platform.calls.call_count == 0
    if code == "INTERACTIVE_REQUIRED":
        assert error["details"]["flags"] == ["--env"]
        for mode in ([], ["--plain"]):
            assert "There is nobody to ask" in cli("secret", "set", *arguments, *mode).err


@pytest.mark.parametrize("mode", ["--json", "--plain", None])
def test_a_value_on_the_line_is_refused_and_not_repeated(cli: Cli, mode: str | None) -> None:
    for arguments in (["API_KEY", VALUE], [VALUE, "--env", "FROM_HERE"], ["API_KEY", f"--value={VALUE}"]):
        outcome = cli("secret", "set", *arguments, *([mode] if mode else []))
        assert outcome.status in (1, 2)
        assert VALUE not in outcome.out + outcome.err


def test_a_person_types_the_value_unseen(
    cli: Cli, scope: dict[str, Any], platform: respx.MockRouter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", Person())
    asked: list[str] = []

    def answer(output: OutputContext, question: str) -> str | None:
        asked.append(question)
        return answers.pop(0)

    answers: list[str | None] = [f" {VALUE} ", None, ""]
    monkeypatch.setattr("osmosis_ai.cli.typed_line.ask_hidden", answer)
    assert 'Secret "API_KEY" saved' in cli("secret", "set", "API_KEY").out
    assert json.loads(platform.calls.last.request.content)["value"] == f" {VALUE} "
    assert cli("secret", "set", "API_KEY")[:2] == (0, "Cancelled.\n")
    outcome = cli("secret", "set", "API_KEY")
    assert (outcome.status, "is empty" in outcome.err) == (1, True)
    assert platform.calls.call_count == 1
    assert asked == ["Value of API_KEY (not shown)"] * 3


@pytest.mark.parametrize("reply, code", REFUSALS)
def test_a_refusal_holds_neither_the_value_nor_the_token(
    cli: Cli, scope: dict[str, Any], platform: respx.MockRouter, reply: dict[str, Any], code: str
) -> None:
    if "json" in reply:
        reply = {**reply, "json": {**reply["json"], "echo": [VALUE], "value": "x", "token": TOKEN}}
    else:
        reply = {**reply, "text": f"{reply['text']} {VALUE} {TOKEN}"}
    platform.post(PATH).respond(**reply)
    for mode in ("--json", "--plain"):
        outcome = cli("secret", "set", "API_KEY", "--env", "FROM_HERE", mode)
        assert VALUE not in outcome.err
        assert TOKEN not in outcome.err
    assert _error(cli("secret", "set", "API_KEY", "--env", "FROM_HERE", "--json"))["code"] == code


# delete


def test_deleting_asks_and_names_the_scope(
    cli: Cli, scope: dict[str, Any], platform: respx.MockRouter, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = _error(cli("secret", "delete", "API_KEY", "--json"))
    assert error["code"] == "INTERACTIVE_REQUIRED"
    assert error["details"]["prompt"] == 'Delete personal secret "API_KEY"? This cannot be undone.'
    monkeypatch.setattr(sys, "stdin", Person())
    monkeypatch.setattr("typer.getchar", lambda: "\r")
    assert cli("secret", "delete", "API_KEY")[:2] == (0, "Cancelled.\n")
    assert {call.request.method for call in platform.calls} == {"GET"}
    outcome = cli("secret", "delete", "API_KEY", "--yes", "--json")
    assert outcome.status == 0
    assert json.loads(platform.calls.last.request.content) == {"name": "API_KEY", "scope": "user"}


# the prompt


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
def test_what_is_typed_is_read_whole_and_never_shown(typed: bytes, got: str | None) -> None:
    person, program = pty.openpty()
    asking = threading.Event()

    class Screen(io.StringIO):
        def flush(self) -> None:
            asking.set()

    screen = Screen()

    with os.fdopen(program, encoding="utf-8", closefd=False) as stdin:
        output = OutputContext("rich", stdin=stdin, stdout=io.StringIO(), stderr=screen)
        answers: list[str | None] = []
        thread = threading.Thread(target=lambda: answers.append(ask_hidden(output, "Value")))
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


@pytest.mark.parametrize(
    ("value", "why"), [("null", "JSON"), ("12345", "6 characters"), ("123456", "number")]
)
def test_a_value_that_can_not_be_hidden_is_stored_and_warned_about(
    cli: Cli, scope: dict[str, Any], monkeypatch: pytest.MonkeyPatch, value: str, why: str
) -> None:
    monkeypatch.setenv("FROM_HERE", value)
    outcome = cli("secret", "set", "API_KEY", "--env", "FROM_HERE", "--plain")
    assert outcome.status == 0
    (warning,) = [line for line in outcome.err.splitlines() if line.startswith("warning: ")]
    assert warning.startswith("warning: the value of API_KEY cannot be hidden in logs and results: ")
    assert why in warning
