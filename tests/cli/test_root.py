"""The root command: help, suggestions, examples, and a start that is fast because of what is not imported."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import osmosis_ai
from osmosis_ai.cli.registry import COMMANDS, MODES, OPTIONS
from osmosis_ai.cli.root import PROGRAM, build_root
from tests.cli.conftest import Cli


def test_help_lists_commands(cli: Cli) -> None:
    outcome = cli("--help")
    assert outcome.status == 0
    for name, entry in COMMANDS.items():
        assert (f"\n  {name} " in outcome.out) is not entry.hidden
    assert max(map(len, outcome.out.splitlines())) <= 80


def test_help_lists_root_options() -> None:
    parsed = {name for param in build_root(lambda **_: None).params for name in param.opts}
    written = {word.strip(",") for name, _ in OPTIONS for word in name.split() if word.startswith("-")}
    assert written - {"--json", "--plain", "-h", "--help"} == parsed


@pytest.mark.parametrize(
    "arguments, message, hint",
    [
        (["zzz"], "No such command 'zzz'.", "osmosis"),
        (["evaluate"], "No such command 'evaluate'. Did you mean 'eval'?", "osmosis"),
        (["fleet", "crew", "lits"], "No such command 'lits'. Did you mean 'list'?", "osmosis fleet crew"),
        (
            ["rollout", "server", "ping"],
            "No such command 'ping'. Did you mean 'probe'?",
            "osmosis rollout server",
        ),
        (["platform", "stat"], "No such command 'stat'. Did you mean 'status'?", "osmosis platform"),
        (["dataset", "check"], "No such command 'check'. Did you mean 'validate'?", "osmosis dataset"),
        (["model", "export"], "No such command 'export'. Did you mean 'download'?", "osmosis model"),
        (["secret", "add"], "No such command 'add'. Did you mean 'set'?", "osmosis secret"),
        (["help"], "No such command 'help'. Use 'osmosis --help' or 'osmosis <command> --help'.", "osmosis"),
    ],
)
def test_unknown_command(cli: Cli, arguments: list[str], message: str, hint: str) -> None:
    assert cli(*arguments) == (2, "", f"Error: {message}\nhint: see `{hint} --help`\n")
    outcome = cli(*arguments, "--json")
    assert outcome.error == {"code": "VALIDATION", "message": message, "details": {}}
    assert json.loads(outcome.err)["command"] == (" ".join(arguments[:-1]) or "<root>")


def test_root_option_after_command(cli: Cli) -> None:
    outcome = cli("fleet", "crew", "list", "--env-file", "keys.env")
    assert "hint: --env-file goes before the command: `osmosis --env-file … fleet crew list`" in outcome.err


def test_json_and_plain_conflict(cli: Cli) -> None:
    outcome = cli("--plain", "fleet", "crew", "list", "--json")
    assert (outcome.status, outcome.out) == (1, "")
    assert json.loads(outcome.err)["command"] == "fleet crew list"
    assert outcome.error["message"] == ("--json and --plain are mutually exclusive.")


@pytest.mark.parametrize(
    "options", [("--platform", "http://eval.example"), ("--env-file", "eval"), ("--platform", "https://[")]
)
def test_error_before_the_command_names_it(cli: Cli, options: tuple[str, ...]) -> None:
    outcome = cli(*options, "dataset", "list", "--limit", "3", "--json")
    assert json.loads(outcome.err.splitlines()[-1])["command"] == "dataset list"


def test_package_attributes() -> None:
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
        ("deploy", "osmosis model deploy MODEL"),
        ("train metrics", "osmosis train info RUN"),
        ("train export", "osmosis train info RUN --output FILE"),
        ("rollout validate", "osmosis check"),
        ("eval check", "osmosis eval submit CONFIG --check"),
    ],
)
def test_removed_commands(cli: Cli, words: str, instead: str) -> None:
    outcome = cli(*words.split(), "x", "--json")
    envelope = json.loads(outcome.err)
    assert (outcome.status, outcome.out, envelope["command"]) == (2, "", words)
    assert envelope["error"]["code"] == "VALIDATION" and f"`{instead}`" in envelope["error"]["message"]
    assert f"No such command '{words.split()[-1]}': " in cli(*words.split()).err
    # What is named instead is there, with its options.
    command, *options = [word for word in instead.split()[1:] if not word.isupper() or word == "--output"]
    shown = cli(command, *[word for word in options if not word.startswith("-")], "--help")
    assert shown.status == 0 and all(word in shown.out for word in options if word.startswith("-"))


ROOT = build_root(lambda **_: None)


def tree(command: Any, context: Any) -> Iterator[tuple[Any, Any]]:
    """A command and every command below it, hidden ones too, each with its context."""
    yield command, context
    if hasattr(command, "list_commands"):
        for name in command.list_commands(context):
            nested = command.get_command(context, name)
            yield from tree(nested, nested.context_class(nested, parent=context, info_name=name))


def groups_and_commands() -> dict[str, tuple[Any, Any]]:
    """The whole tree below the root by its words, without what tests add to it."""
    root = ROOT.context_class(ROOT, info_name=PROGRAM)
    found: dict[str, tuple[Any, Any]] = {}
    for name in COMMANDS:
        command = ROOT.get_command(root, name)
        start = command.context_class(command, parent=root, info_name=name)
        found |= {context.command_path: (each, context) for each, context in tree(command, start)}
    return found


def commands() -> dict[str, Any]:
    """Every command that does something, by its words."""
    return {
        path: command
        for path, (command, _) in groups_and_commands().items()
        if not hasattr(command, "list_commands")
    }


def summary_of(command: Any) -> str:
    return " ".join((command.help or "").split("\n\n")[0].split())


def test_summaries_are_short_sentences() -> None:
    summaries = {path: summary_of(command) for path, (command, _) in groups_and_commands().items()}
    wrong = {path: text for path, text in summaries.items() if not re.fullmatch(r"[A-Z][^:;.]{1,58}\.", text)}
    assert not wrong, "a summary is one imperative verb phrase of at most 60 characters"
    for name, entry in COMMANDS.items():
        assert summaries[f"{PROGRAM} {name}"] == entry.help


def test_group_help_shows_whole_summaries() -> None:
    for path, (group, context) in groups_and_commands().items():
        if not hasattr(group, "list_commands"):
            continue
        context.terminal_width = 100
        shown = " ".join(group.get_help(context).split())
        assert "..." not in shown.replace("[ARGS]...", ""), path
        for name in group.list_commands(context):
            command = group.get_command(context, name)
            assert name == "-m" or command.hidden or f"{name} {summary_of(command)}" in shown, (path, name)


def test_options_explain_themselves() -> None:
    """A line of a help is understood without the others."""
    riddles = re.compile(
        r"\b(nobody|somebody|alone|told|said|whose|theirs|stands|it is there)\b", re.IGNORECASE
    )
    wrong = {
        (path, param.name): text
        for path, command in commands().items()
        for param in command.params
        if not param.hidden
        and (
            not re.fullmatch(r"[A-Z`.][^\n]+[.)]", text := " ".join((param.help or "").split()))
            or riddles.search(text)
        )
    }
    assert not wrong


def test_classic_evaluation_is_shown_after_the_commands(cli: Cli) -> None:
    shown = cli("eval", "--help").out
    assert "\n  -m " not in shown
    assert "osmosis eval -m MODULE:AGENT" in shown.partition("\nCommands:\n")[2]


def examples_of(command: Any) -> list[str]:
    return [line.strip() for line in (command.epilog or "").splitlines()[2:]]


def test_every_command_has_an_example() -> None:
    without = [path for path, command in commands().items() if not examples_of(command)]
    assert not without, (
        f"end their docstrings with an empty line, `Examples:` and a command line each: {without}"
    )


def parse(words: list[str]) -> str:
    """Parse a command line without running it; return the command that it means."""
    context = ROOT.make_context(PROGRAM, words)
    while hasattr(context.command, "resolve_command"):
        name, command, rest = context.command.resolve_command(
            context, [*context._protected_args, *context.args]
        )
        context = command.make_context(name, rest, parent=context)
    return str(context.command_path)


def test_examples_are_valid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    wrong = []
    for path, command in commands().items():
        for line in examples_of(command):
            program, *words = shlex.split(line)
            for word in words:
                # Some commands want a file that is there.
                if Path(word).suffix and not word.startswith("-") and "/" not in word:
                    Path(word).touch()
            said = parse([word for word in words if word not in MODES])
            # `auth login` is `login` itself, whose examples it shows.
            if program != PROGRAM or said not in (path, path.replace(" auth ", " ")):
                wrong.append((path, line))
    assert not wrong


PROBE = """
import sys
from osmosis_ai.cli.main import main
sys.stdout, real = sys.stderr, sys.stdout
for line in sys.stdin:
    before = set(sys.modules)
    status = main([*line.split(), "--help"])
    print(status, line.strip(), "|", *set(sys.modules) - before, file=real)
"""


@pytest.mark.integration
def test_help_imports_nothing_heavy() -> None:
    lines = "\n".join(sorted(path.removeprefix(f"{PROGRAM} ") for path in commands()))
    done = subprocess.run(
        [sys.executable, "-c", PROBE], input=lines, capture_output=True, text=True, timeout=300, check=True
    )
    slow = {}
    for line in done.stdout.splitlines():
        command, _, modules = line.partition(" | ")
        assert command.startswith("0 "), line
        # Each of these costs more than a bare start of Python; `--help` is to stay within twelve.
        if found := (HEAVY | {"asyncio", "hashlib"}) & set(modules.split()):
            slow[command.removeprefix("0 ")] = found
    assert not slow


MODULES_PROBE = """
import sys
import osmosis_ai.cli.main
sys.stdout, real = sys.stderr, sys.stdout
status = osmosis_ai.cli.main.main(sys.argv[1:])
print(status, *sys.modules, file=real)
"""
HEAVY = {
    *("aiohttp", "fastapi", "git", "httpx", "jinja2", "keyring", "litellm", "mcp", "numpy", "openai"),
    *("orjson", "pyarrow", "pydantic", "rich", "safetensors", "scipy", "stamina", "tokenizers"),
    *("uvicorn", "yaml"),
}
MODULES = {
    "eval": "osmosis_ai.cli.eval_runs",
    "dataset": "osmosis_ai.cli.datasets",
    "rollout": "osmosis_ai.cli.rollouts",
    "doctor": "osmosis_ai.cli.workspaces",
}
GROUPS = set(MODULES.values())


def modules_after(*arguments: str) -> tuple[int, set[str]]:
    done = subprocess.run(
        [sys.executable, "-c", MODULES_PROBE, *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        stdin=subprocess.DEVNULL,
    )
    status, *modules = done.stdout.split()
    return int(status), set(modules)


def ours(modules: set[str]) -> set[str]:
    return {name for name in modules if name.startswith("osmosis_ai")}


@pytest.mark.integration
def test_version_and_help_imports() -> None:
    status, modules = modules_after("--version")
    assert status == 0
    assert ours(modules) == {"osmosis_ai", "osmosis_ai._version", "osmosis_ai.cli", "osmosis_ai.cli.main"}
    assert not {"typing", "dataclasses", "typer", "inspect", "re"} & modules

    status, modules = modules_after("--help")
    assert status == 0
    assert not (HEAVY | {"typer", "click", "asyncio", "logging", *GROUPS}) & modules


@pytest.mark.integration
@pytest.mark.parametrize(
    "arguments, status",
    [
        (["rollout", "--help"], 0),
        (["evl"], 2),
        (["dataset", "validate"], 2),
        (["dataset", "validate", "--limt", "--json"], 2),
    ],
)
def test_group_imports(arguments: list[str], status: int) -> None:
    found, modules = modules_after(*arguments)
    assert found == status
    assert not HEAVY & modules
    assert GROUPS & modules == GROUPS & {MODULES.get(arguments[0])}


@pytest.mark.integration
@pytest.mark.parametrize("module", ["osmosis_ai", "osmosis_ai.cli", "osmosis_ai.cli.main"])
def test_runs_as_a_module(module: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", module, "--version"], capture_output=True, text=True, timeout=300
    )
    assert (done.returncode, done.stdout) == (0, f"osmosis-ai {osmosis_ai.__version__}\n")
