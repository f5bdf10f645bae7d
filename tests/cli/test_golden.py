"""What each command prints in the three modes, letter by letter (``golden/``).

A change of them is a change that people and scripts see. ``UPDATE_GOLDEN=1`` writes the files anew; read the
difference before it is committed.
"""

from __future__ import annotations

import difflib
import json
import os
import re
import shlex
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path

import pytest

from osmosis_ai._version import __version__
from osmosis_ai.sandbox import MachineControl, SandboxCapability
from osmosis_ai.sandbox.control_groups import Delegation
from tests.cli import (
    golden_accounts,
    golden_agents,
    golden_cases,
    golden_platform,
    golden_refusals,
    golden_runs,
)
from tests.cli.golden_cases import Case
from tests.cli.maze import Maze, Outcome
from tests.cli.test_examples import commands

GOLDEN = Path(__file__).with_name("golden")
GROUPS = {
    module.__name__.rpartition("_")[2]: module.CASES
    for module in (
        golden_cases,
        golden_accounts,
        golden_agents,
        golden_platform,
        golden_runs,
        golden_refusals,
    )
}
CASES = [case for cases in GROUPS.values() for case in cases]
CANARIES = ("GOLDEN_KEY", "OSMOSIS_ROLLOUT_SERVER_KEY")
CHANCE = {
    f'"{re.escape(__version__)}"': '"<version>"',
    r"\b[0-9a-f]{32}\b": "<id>",
    r"\b(usr|wsp|tok|wkt|rep)_[0-9a-f]{24}\b": r"\1_<id>",
    r"\bosmw?_[\w-]+": "<token>",
    r"\bkey=[\w-]{43}(?![\w-])": "key=<key>",
    r'(Password: |"password": ")[\w-]{16}': r"\1<password>",
    r"\bmain @ [0-9a-f]{8}": "main @ <sha>",
    r"(127\.0\.0\.1:|\"port\": )\d{5}\b": r"\1<port>",
    r'(files, |size_bytes": )\d{3}[\d.]+( KB)?': r"\1<size>",
    r'("created_at": |backup of )"?2026-1[12][^",]+"?': r"\1<now>",
    r"\(\d+ ms, ": "(<ms>, ",
    r" [\d.]+/s ": " <n>/s ",
    r'((?:duration_ms|elapsed_s)": )(?!61500)[\d.]+': r"\1<s>",
    r"([Dd]uration(?:\t| +│ |: ))[\d.]+ ?m?s\b": r"\1<s>",
}


@pytest.mark.imports_much
@pytest.mark.parametrize("group", GROUPS)
def test_every_command_prints_what_it_printed(
    group: str, maze: Maze, monkeypatch: pytest.MonkeyPatch, logging_as_it_was: None
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(
        "osmosis_ai.sandbox.check_sandbox", lambda *_: SandboxCapability(Path("/usr/bin/bwrap"))
    )
    limited = MachineControl(Delegation(Path("/sys/fs/cgroup/osmosis.service"), ("memory", "pids", "cpu")))
    monkeypatch.setattr("osmosis_ai.sandbox.look_at_control", lambda: limited)
    for name in CANARIES:
        monkeypatch.setenv(name, "sk-golden-canary")
    changed = []
    for case in filter(_can_run, GROUPS[group]):
        shown = "".join(_run(maze, case, mode) for mode in ("", "--plain", "--json"))
        assert "sk-golden-canary" not in shown
        path = GOLDEN / _file_name(case)
        if os.environ.get("UPDATE_GOLDEN"):
            path.write_text(shown)
        expected = path.read_text() if path.exists() else ""
        changed += difflib.unified_diff(
            _rounded(expected).splitlines(), _rounded(shown).splitlines(), path.name, case.line, lineterm=""
        )
    assert not changed, "\n".join(["UPDATE_GOLDEN=1 writes the files anew, if this is meant:", *changed])


def test_every_case_has_a_golden_file_of_its_own() -> None:
    assert sorted(path.name for path in GOLDEN.iterdir()) == sorted(map(_file_name, CASES))


def _can_run(case: Case) -> bool:
    return not case.needs or find_spec(case.needs) is not None


def _rounded(text: str) -> str:
    """Keep the digits that say the same with every SciPy: its distributions differ from the ninth one on."""
    return re.sub(r"\b\d+\.\d{8,}(e-?\d+)?\b", lambda number: f"{float(number[0]):.7g}", text)


def _file_name(case: Case) -> str:
    first, *words = case.line.split()
    named = "-".join(
        [first.replace("-", "_"), *(word for word in words if re.fullmatch(r"[a-z]+(-token)?", word))]
    )
    return f"{'refused-' if case in golden_refusals.CASES else ''}{named}.txt"


def _run(maze: Maze, case: Case, mode: str) -> str:
    with ExitStack() as maze.stack, pytest.MonkeyPatch.context() as maze.patch:
        maze.patch.chdir(maze.workspace.root)
        case.prepare(maze)
        outcome = maze.osmosis(*shlex.split(case.line), *([mode] if mode else []))
    if mode == "--json":
        # A log is a document for each line of it, as on the hosted platform.
        outcome = _pretty_lines(outcome) if case.line.startswith("dev server logs") else _pretty(outcome)
    stderr = "".join(f"! {line}\n" for line in outcome.err.splitlines())
    ended = f"(exit {outcome.status})\n" if outcome.status else ""
    text = f"$ osmosis {case.line}{f' {mode}' if mode else ''}\n{outcome.out}{stderr}{ended}\n"
    return _without_chance(text, maze)


def _pretty(outcome: Outcome) -> Outcome:
    """Give every document a line for each key; stdout has one, or the command has failed and stderr ends with it."""
    assert outcome.out or outcome.status, f"no document on stdout: {outcome.err}"
    out = f"{_indented(outcome.json)}\n" if outcome.out else ""
    *said, last = outcome.err.splitlines() or [""]
    if not outcome.out:
        last = _indented({**json.loads(last), "error": outcome.error})
    return outcome._replace(out=out, err="\n".join([*said, last]))


def _pretty_lines(outcome: Outcome) -> Outcome:
    documents = [_indented(json.loads(line)) for line in outcome.out.splitlines()]
    return outcome._replace(out="".join(f"{document}\n" for document in documents))


def _indented(document: object) -> str:
    return json.dumps(document, indent=2, ensure_ascii=False)


def _without_chance(text: str, maze: Maze) -> str:
    """Replace what is another in every run: places, ids, moments, durations."""
    shown = text.replace(str(maze.workspace.root), "<workspace>").replace(str(maze.scratch), "<scratch>")
    for pattern, stands_for in CHANCE.items():
        shown = re.sub(pattern, stands_for, shown, flags=re.MULTILINE)
    if shown != text:  # columns are as wide as what stood there
        shown = re.sub(r"^.*│.*$", lambda line: re.sub(" {2,}", " ", line[0]), shown, flags=re.MULTILINE)
        shown = re.sub("─+", "──", shown)
    return "\n".join(line.rstrip() for line in shown.splitlines()) + "\n"


def test_every_command_is_held_against_golden_output() -> None:
    tree = {path.partition(" ")[2] for path in commands()}
    shown = [case for case in CASES if case not in golden_refusals.CASES]
    golden = {path for path in tree for case in shown if f"{case.line} ".startswith(f"{path} ")}
    assert sorted(tree - golden) == [], "add a case to golden_cases.py"


def test_numbers_are_held_to_seven_digits() -> None:
    found, elsewhere = '"within": 0.24209562850650507,', '"within": 0.24209562729775885,'
    assert _rounded(found) == _rounded(elsewhere) == '"within": 0.2420956,'
    assert _rounded('"within": 0.24209662850650507,') != _rounded(found)
    assert _rounded("1.6044920862300638e-05 of 0.3.20, 12.5 s") == "1.604492e-05 of 0.3.20, 12.5 s"
