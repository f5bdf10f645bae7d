"""Commands about what only a self-hosted platform has, against a platform that does not have it."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from osmosis_ai import __version__
from tests.cli.conftest import Cli
from tests.cli.maze import Maze


def test_an_error_for_scripts_is_one_envelope_on_stderr(cli: Cli) -> None:
    assert cli("fleet", "missing", "--json") == (
        1,
        "",
        f'{{"schema_version":1,"command":"fleet missing","cli_version":"{__version__}",'
        '"error":{"code":"NOT_FOUND","message":"No ship named \'Argo\'.\\nLook in the harbour.",'
        '"details":{"name":"Argo"},"hint":"list them with `osmosis fleet list`"}}\n',
    )


@pytest.mark.parametrize("mode", [(), ("--plain",)])
def test_an_error_for_people_keeps_its_lines_and_ends_with_what_mends_it(
    cli: Cli, mode: tuple[str, ...]
) -> None:
    assert cli("fleet", "missing", *mode) == (
        1,
        "",
        "Error: No ship named 'Argo'.\nLook in the harbour.\nhint: list them with `osmosis fleet list`\n",
    )


def test_no_value_of_a_secret_makes_an_error_for_scripts_unreadable(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number, value in enumerate(['"code":"NOT_FOUND"', '"schema_version":1,"c', "list them"]):
        monkeypatch.setenv(f"CANARY_{number}_TOKEN", value)
    error = json.loads(cli("fleet", "missing", "--json").err)["error"]
    assert (error["code"], error["hint"]) == ("NOT_FOUND", "[REDACTED] with `osmosis fleet list`")


def test_a_bug_is_one_sentence(cli: Cli) -> None:
    assert cli("fleet", "crash") == (
        1,
        "",
        "Error: KeyError: 'boom'\n"
        "hint: this is a bug in Osmosis; set OSMOSIS_DEBUG=1 and run it again to see where\n",
    )
    assert json.loads(cli("fleet", "crash", "--json").err)["error"] == {
        "code": "INTERNAL",
        "message": "An unexpected internal error occurred.",
        "details": {"exception_type": "KeyError"},
    }


def test_a_traceback_is_shown_for_bugs_alone_and_only_when_debugging(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OSMOSIS_DEBUG", "1")
    assert "Traceback (most recent call last)" in cli("fleet", "crash").err
    first, *rest = cli("fleet", "crash", "--json").err.splitlines()
    assert json.loads(first)["error"]["code"] == "INTERNAL"
    assert rest[0] == "Traceback (most recent call last):"
    assert "Traceback" not in cli("fleet", "missing").err


def test_secret_values_are_taken_out_of_errors_and_tracebacks(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-1234567890")
    monkeypatch.setenv("LONGER_TOKEN", 'sk-1234567890-"quoted"')
    monkeypatch.setenv("OSMOSIS_DEBUG", "1")
    err = cli("fleet", "crash", "--text", 'a sk-1234567890-"quoted" b sk-1234567890 c').err
    assert "sk-1234567890" not in err
    assert "a [REDACTED] b [REDACTED] c" in err


def test_ctrl_c_exits_with_130_and_without_a_traceback(cli: Cli) -> None:
    assert cli("fleet", "interrupt") == (130, "", "Interrupted.\n")
    assert cli("fleet", "interrupt", "--json") == (130, "", "")


def test_an_unknown_option_gets_a_suggestion(cli: Cli) -> None:
    assert cli("fleet", "list", "--limt", "3") == (
        2,
        "",
        "Error: No such option: --limt. Did you mean --limit?\nhint: see `osmosis fleet list --help`\n",
    )
    assert cli("fleet", "list", "--jsno").err.startswith(
        "Error: No such option: --jsno. Did you mean --json?\n"
    )
    assert (
        json.loads(cli("fleet", "list", "--xyz", "--json").err)["error"]["message"] == "No such option: --xyz"
    )


def test_a_missing_argument_names_it(cli: Cli) -> None:
    outcome = cli("fleet", "info", "--json")
    assert outcome.status == 2
    assert json.loads(outcome.err)["command"] == "fleet info"
    assert json.loads(outcome.err)["error"] == {
        "code": "VALIDATION",
        "message": "Missing parameter: name",
        "details": {"parameter": "name"},
    }
    assert (
        cli("fleet", "info").err == "Error: Missing argument 'NAME'.\nhint: see `osmosis fleet info --help`\n"
    )


@pytest.mark.e2e
@pytest.mark.parametrize("arguments", [["--version"], ["--help"], ["dataset", "--help"]])
def test_a_reader_that_leaves_gets_no_traceback(arguments: list[str]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "wb") as stdout:
        done = subprocess.run(
            [sys.executable, "-m", "osmosis_ai", *arguments],
            stdout=stdout,
            stderr=subprocess.PIPE,
            timeout=300,
        )
    assert (done.returncode, done.stderr) == (141, b"")


@pytest.mark.e2e
def test_a_full_disk_behind_stdout_is_said_in_one_line() -> None:
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "osmosis_ai", "--version"],
            stdout=full,
            stderr=subprocess.PIPE,
            timeout=300,
        )
    assert (done.returncode, done.stderr) == (1, b"Error: cannot write the result: No space left on device\n")


@pytest.mark.e2e
def test_the_version_can_be_asked_with_stdout_closed() -> None:
    done = subprocess.run(
        ["sh", "-c", f"{sys.executable} -m osmosis_ai --version >&-"], stderr=subprocess.PIPE, timeout=300
    )
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.parametrize(
    "command",
    [
        ("eval", "info", "~nobody-here/run"),
        ("view", "~nobody-here/run"),
        ("test", "-m", "m:a", "-d", "~nobody-here/data.jsonl"),
    ],
)
def test_the_home_of_a_user_whom_this_machine_does_not_have_is_no_bug_of_ours(
    cli: Cli, command: tuple[str, ...]
) -> None:
    outcome = cli(*command)
    assert (outcome.status, outcome.out) == (1, "")
    assert "~nobody-here" in outcome.err and "bug in Osmosis" not in outcome.err


COMMANDS = {
    "rollout server list": ("get", "/rollout-servers", "served agents"),
    "rollout server register calculator 10.1.2.3:9000": ("post", "/rollout-server/register", "served agents"),
    "rollout server probe calculator": ("post", "/rollout-servers/calculator/probe", "served agents"),
    "rollout server remove calculator --yes": ("delete", "/rollout-servers/calculator", "served agents"),
    "train resume copper": ("post", "/training-runs/copper/resume", "resuming training runs"),
    "model download keen-owl-2-step-40": (
        "get",
        "/models/keen-owl-2-step-40/download",
        "downloading models",
    ),
}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_missing_route_is_reported_as_unsupported(maze: Maze, command: str) -> None:
    method, path, what = COMMANDS[command]
    getattr(maze, method)(path).respond(status_code=404, html="<html>This page does not exist.</html>")
    error = maze.osmosis(*command.split(), "--json").error
    assert error["message"].startswith(f"This platform does not support {what}: https://")
    assert "osmosis platform start" in error["hint"]
