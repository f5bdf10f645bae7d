from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence

import pytest

from osmosis_ai import __version__
from osmosis_ai.errors import OsmosisError
from tests.cli.conftest import Cli


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


def test_details_that_json_cannot_say_are_dropped(cli: Cli) -> None:
    outcome = cli("fleet", "missing", "--odd", "--json")
    assert json.loads(outcome.err)["error"]["details"] == {"details_omitted": "NotFoundError"}


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
    assert json.loads(cli("fleet", "list", "--limt", "--json").err)["error"] == {
        "code": "VALIDATION",
        "message": "No such option: --limt. Did you mean --limit?",
        "details": {"suggestions": ["--limit"]},
    }
    assert cli("fleet", "list", "--jsno").err.startswith(
        "Error: No such option: --jsno. Did you mean --json?\n"
    )
    assert (
        json.loads(cli("fleet", "list", "--xyz", "--json").err)["error"]["message"] == "No such option: --xyz"
    )


def test_a_mistyped_mode_is_not_taken_for_an_option_that_is_further_off(cli: Cli) -> None:
    # `--yes`, which answers questions, is the nearest that the parser itself knows.
    assert "Did you mean --against?" in cli("eval", "gate", "a", "--baseline", "b").err
    assert cli("eval", "run", "--jsn").err.startswith("Error: No such option: --jsn. Did you mean --json?\n")
    details = json.loads(cli("eval", "run", "--jsn", "--json").err)["error"]["details"]
    assert details == {"suggestions": ["--json"]}


@pytest.mark.parametrize(
    "arguments", [("compare", "a", "b", "--baseline", "c"), ("gate", "a", "--frobnicate", "b")]
)
def test_an_option_unlike_all_others_gets_no_suggestion(cli: Cli, arguments: Sequence[str]) -> None:
    assert "Did you mean" not in cli("eval", *arguments).err


def test_a_mistyped_option_of_another_command_is_recognised(cli: Cli) -> None:
    assert "Did you mean --against?" in cli("eval", "gate", "a", "--baselin", "b").err


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


def test_a_number_out_of_range_names_the_option_and_the_range(cli: Cli) -> None:
    assert json.loads(cli("fleet", "list", "--limit", "51", "--json").err)["error"] == {
        "code": "VALIDATION",
        "message": "51 is not in the range 1<=x<=50.",
        "details": {"parameter": "--limit"},
    }
    assert (
        "Error: Invalid value for '--limit': 51 is not in the range 1<=x<=50.\n"
        in cli("fleet", "list", "--limit", "51").err
    )


def test_a_root_option_after_the_command_is_told_its_place(cli: Cli) -> None:
    outcome = cli("fleet", "list", "--platform", "x")
    assert outcome.status == 2
    assert outcome.err.endswith("hint: --platform goes before the command: `osmosis --platform … list`\n")


def test_an_unknown_error_code_is_refused_where_it_is_written() -> None:
    with pytest.raises(ValueError, match="unknown error code 'ODD'"):
        OsmosisError("x", code="ODD")  # type: ignore[arg-type]


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
        ("eval", "upload", "~nobody-here/run"),
        ("eval", "rubric", "-d", "~nobody-here/data.jsonl", "-r", "good", "--model", "openai/x"),
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
