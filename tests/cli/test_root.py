from __future__ import annotations

import json
import textwrap

import pytest

import osmosis_ai
from osmosis_ai import __version__
from osmosis_ai.cli.registry import COMMANDS, OPTIONS
from osmosis_ai.cli.root import build_root
from tests.cli.conftest import Cli

GROUP_HELP = """
Usage: osmosis fleet crew [OPTIONS] COMMAND [ARGS]...

  Who sails.

Options:
  -h, --help  Show this message and exit.

Commands:
  list  List the crew.
"""


@pytest.mark.parametrize("arguments", [("--version",), ("-V",), ("--json", "--version"), ("-V", "--plain")])
def test_the_version_is_plain_text_in_every_mode(cli: Cli, arguments: tuple[str, ...]) -> None:
    assert cli(*arguments) == (0, f"osmosis-ai {__version__}\n", "")


def test_help_lists_every_command_by_panel_and_hides_hidden_ones(cli: Cli) -> None:
    outcome = cli("--help")
    assert outcome.status == 0
    assert outcome.out.startswith(
        "Usage: osmosis [OPTIONS] COMMAND [ARGS]...\n\n  Evaluate and train LLM agents"
    )
    assert "\nWorkflow commands:\n  demo             Watch a small agent" in outcome.out
    for name, entry in COMMANDS.items():
        assert (f"\n  {name} " in outcome.out) is not entry.hidden
    assert max(map(len, outcome.out.splitlines())) <= 80


@pytest.mark.parametrize(
    "arguments", [(), ("-h",), ("--json",), ("--plain", "--help"), ("--platform", "localhost", "-h")]
)
def test_help_is_the_same_text_however_it_is_asked_for(cli: Cli, arguments: tuple[str, ...]) -> None:
    assert cli(*arguments) == cli("--help")


@pytest.mark.parametrize("arguments", [(), ("--help",), ("-h", "--json")])
def test_a_group_alone_shows_its_help_and_succeeds(cli: Cli, arguments: tuple[str, ...]) -> None:
    assert cli("fleet", "crew", *arguments) == (0, textwrap.dedent(GROUP_HELP).lstrip("\n"), "")


def test_the_help_names_every_root_option_that_is_parsed() -> None:
    parsed = {name for param in build_root(lambda **_: None).params for name in param.opts}
    written = {word.strip(",") for name, _ in OPTIONS for word in name.split() if word.startswith("-")}
    assert written - {"--json", "--plain", "-h", "--help"} == parsed


@pytest.mark.parametrize(
    "arguments, message, hint",
    [
        (["flet"], "No such command 'flet'. Did you mean 'fleet'?", "osmosis"),
        (["zzz"], "No such command 'zzz'.", "osmosis"),
        (["status"], "No such command 'status'.", "osmosis"),
        (["train", "nope"], "No such command 'nope'.", "osmosis train"),
        (["evaluate"], "No such command 'evaluate'. Did you mean 'eval'?", "osmosis"),
        (["fleet", "lst"], "No such command 'lst'. Did you mean 'list'?", "osmosis fleet"),
        (["fleet", "crew", "lits"], "No such command 'lits'. Did you mean 'list'?", "osmosis fleet crew"),
        (
            ["rollout", "server", "add"],
            "No such command 'add'. Did you mean 'register'?",
            "osmosis rollout server",
        ),
        (
            ["rollout", "server", "rm"],
            "No such command 'rm'. Did you mean 'remove'?",
            "osmosis rollout server",
        ),
        (
            ["rollout", "server", "ping"],
            "No such command 'ping'. Did you mean 'probe'?",
            "osmosis rollout server",
        ),
        (["help"], "No such command 'help'. Use 'osmosis --help' or 'osmosis <command> --help'.", "osmosis"),
    ],
)
def test_an_unknown_command_gets_a_suggestion_at_every_level(
    cli: Cli, arguments: list[str], message: str, hint: str
) -> None:
    assert cli(*arguments) == (2, "", f"Error: {message}\nhint: see `{hint} --help`\n")
    envelope = json.loads(cli(*arguments, "--json").err)
    assert envelope["error"] == {"code": "VALIDATION", "message": message, "details": {}}
    assert envelope["command"] == (" ".join(arguments[:-1]) or "<root>")


def test_a_hidden_command_is_never_suggested(cli: Cli) -> None:
    assert "fleece" not in cli("fleec").err


def test_json_and_plain_together_are_refused_as_an_envelope(cli: Cli) -> None:
    outcome = cli("--plain", "fleet", "list", "--json")
    assert (outcome.status, outcome.out) == (1, "")
    assert json.loads(outcome.err)["command"] == "fleet"
    assert json.loads(outcome.err)["error"]["message"] == (
        "--json and --plain are mutually exclusive: choose one of them."
    )


def test_every_registered_command_can_be_loaded(cli: Cli) -> None:
    for name in COMMANDS:
        outcome = cli(name, "--help")
        assert (outcome.status, outcome.err) == (0, ""), name
        assert outcome.out.startswith(f"Usage: osmosis {name}")


def test_the_package_offers_its_names_on_first_use() -> None:
    for name in osmosis_ai.__all__:
        assert name in dir(osmosis_ai)
        assert getattr(osmosis_ai, name) is not None
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        osmosis_ai.nothing  # noqa: B018


@pytest.mark.parametrize(
    ("words", "instead"),
    [
        ("init", "osmosis rollout init NAME"),
        ("link", "osmosis workspace current"),
        ("unlink", "osmosis workspace current"),
        ("deploy", "osmosis model deploy MODEL"),
        ("undeploy", "osmosis model undeploy MODEL"),
        ("deployment", "osmosis model list"),
        ("train metrics", "osmosis train info RUN"),
        ("train graph", "osmosis train info RUN"),
        ("train export", "osmosis train info RUN --output FILE"),
        ("train traces", "osmosis train logs RUN"),
        ("model delete", "osmosis train delete RUN"),
        ("rollout validate", "osmosis check"),
    ],
)
def test_a_command_of_earlier_lines_is_answered_with_what_took_its_place(
    cli: Cli, words: str, instead: str
) -> None:
    outcome = cli(*words.split(), "x", "--json")
    envelope = json.loads(outcome.err)
    assert (outcome.status, outcome.out, envelope["command"]) == (2, "", words)
    assert envelope["error"]["code"] == "VALIDATION" and f"`{instead}`" in envelope["error"]["message"]
    assert f"No such command '{words.split()[-1]}': " in cli(*words.split()).err
    # What is named instead is there, with its options.
    command, *options = [word for word in instead.split()[1:] if not word.isupper() or word == "--output"]
    shown = cli(command, *[word for word in options if not word.startswith("-")], "--help")
    assert shown.status == 0 and all(word in shown.out for word in options if word.startswith("-"))
