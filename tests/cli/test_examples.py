"""Every command's help ends with examples, and every example is a line that the command takes."""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from osmosis_ai.cli.registry import COMMANDS, MODES
from osmosis_ai.cli.root import PROGRAM, build_root
from tests.cli.test_lazy_loading import HEAVY

ROOT = build_root(lambda **_: None)


def commands_below(command: Any, context: Any) -> Iterator[tuple[str, Any]]:
    """Every command that does something, by its words; hidden ones too."""
    if not hasattr(command, "list_commands"):
        yield context.command_path, command
        return
    for name in command.list_commands(context):
        nested = command.get_command(context, name)
        yield from commands_below(nested, nested.context_class(nested, parent=context, info_name=name))


def commands() -> dict[str, Any]:
    """The whole tree, without what tests add to it."""
    root = ROOT.context_class(ROOT, info_name=PROGRAM)
    found: dict[str, Any] = {}
    for name in COMMANDS:
        command = ROOT.get_command(root, name)
        found |= commands_below(command, command.context_class(command, parent=root, info_name=name))
    return found


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


def test_every_example_is_a_line_that_its_command_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_what_an_empty_list_of_runs_suggests_is_a_line_that_its_command_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from osmosis_ai.viewer.pages.runs import LOCAL_COMMANDS, PLATFORM_COMMANDS

    monkeypatch.chdir(tmp_path)
    Path("FILE.jsonl").touch()
    listed = [*LOCAL_COMMANDS.values(), *PLATFORM_COMMANDS.values()]
    for line in {line for lines in listed for line in lines}:
        _, *words = shlex.split(line)
        assert line.startswith(parse(words))


def test_an_example_stands_in_the_help_as_it_is_typed(capsys: pytest.CaptureFixture[str]) -> None:
    from osmosis_ai.cli.main import main

    assert main(["eval", "run", "--help"]) == 0
    shown = capsys.readouterr().out
    assert "\n  Examples:\n      osmosis eval run configs/eval/multiply.toml\n" in shown


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
def test_no_help_loads_what_it_does_not_show() -> None:
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
