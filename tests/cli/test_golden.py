"""What the commands print: a JSON document for every case (``documents/``), about forty screens (``golden/``).

Users and scripts depend on both. ``UPDATE_GOLDEN=1`` rewrites the files; read the diff before you commit it.
"""

from __future__ import annotations

import difflib
import itertools
import json
import os
import re
import shlex
import tempfile
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from osmosis_ai._version import __version__
from osmosis_ai.cli.registry import COMMANDS
from osmosis_ai.sandbox.control_groups import Delegation, MachineControl
from osmosis_ai.sandbox.isolation import SandboxCapability
from tests.cli import (
    golden_accounts,
    golden_agents,
    golden_cases,
    golden_platform,
    golden_refusals,
    golden_runs,
)
from tests.cli.golden_cases import Case
from tests.cli.maze import Maze, open_maze
from tests.cli.outcome import Outcome
from tests.cli.test_root import commands
from tests.logins import ORIGIN

SCREENS = Path(__file__).with_name("golden")
DOCUMENTS = Path(__file__).with_name("documents")
REFUSALS = golden_refusals.CASES
ACCEPTED = (
    *golden_cases.CASES,
    *golden_accounts.CASES,
    *golden_agents.CASES,
    *golden_platform.CASES,
    *golden_runs.CASES,
)
CASES = (*ACCEPTED, *REFUSALS)
CANARIES = ("GOLDEN_KEY", "OSMOSIS_ROLLOUT_SERVER_KEY")
# Values that differ in every run.
MASKS = {
    f'"{re.escape(__version__)}"': '"<version>"',
    r"\b[0-9a-f]{32}\b": "<id>",
    r"\b(usr|wsp|tok|wkt|rep)_[0-9a-f]{24}\b": r"\1_<id>",
    r"\bosmw?_[\w-]+": "<token>",
    r"\bkey=[\w-]{43}(?![\w-])": "key=<key>",
    r'(Password: |"password":")[\w-]{16}': r"\1<password>",
    r"\bmain @ [0-9a-f]{8}": "main @ <sha>",
    r"127\.0\.0\.1:\d{5}\b": "127.0.0.1:<port>",
    r'"port":\d{5}\b': '"port":"<port>"',
    r"files, \d{3}[\d.]+( KB)?": "files, <size>",
    r'"size_bytes":\d{4,}': '"size_bytes":"<size>"',
    r"\b\d{4}-\d\d-\d\dT[\d:]+\+00:00": "<now>",
    r"\bbackup of [\d-]+T[\d:]+Z": "backup of <now>",
    r"\(\d+ ms, ": "(<ms>, ",
    r" [\d.]+/s ": " <n>/s ",
    r'"(\w*duration_ms|elapsed_s)":(?!61500)[\d.]+': r'"\1":"<s>"',
    r"([Dd]uration(?:\t| +│ |: ))[\d.]+ ?m?s\b": r"\1<s>",
    r"(<scratch>/workspace) {2,}": r"\1    ",
}
RunCase = Callable[..., Outcome]


@pytest.fixture
def run_case(capsys: pytest.CaptureFixture[str], logging_as_it_was: None) -> Iterator[RunCase]:
    """Run a case in a new workspace directory and mask its output."""
    numbers = itertools.count()
    # A short path, because tables wrap long ones.
    scratch = tempfile.TemporaryDirectory(prefix="g")

    def run(case: Case, *mode: str) -> Outcome:
        directory = Path(scratch.name) / str(next(numbers))
        with pytest.MonkeyPatch.context() as patch, open_maze(directory, patch, capsys) as maze:
            patch.setenv("COLUMNS", "100")
            # Two Git processes take longer than the rest of most commands.
            root = maze.workspace.root
            patch.setattr("osmosis_ai.workspace.layout.worktree_root", lambda _: root)
            patch.setattr("osmosis_ai.services.context.read_origin", lambda _: ORIGIN)
            bubblewrap = SandboxCapability(Path("/usr/bin/bwrap"))
            patch.setattr("osmosis_ai.sandbox.isolation.check_sandbox", lambda *_: bubblewrap)
            limits = Delegation(Path("/sys/fs/cgroup/osmosis.service"), ("memory", "pids", "cpu"))
            patch.setattr("osmosis_ai.sandbox.control_groups.look_at_control", lambda: MachineControl(limits))
            for name in CANARIES:
                patch.setenv(name, "sk-golden-canary")
            case.prepare(maze)
            outcome = maze.osmosis(*shlex.split(case.line), *mode)
        assert "sk-golden-canary" not in outcome.out + outcome.err
        assert not re.search("this is a bug|internal error", outcome.err), outcome.err
        return outcome._replace(out=_mask(outcome.out, maze), err=_mask(outcome.err, maze))

    with scratch:
        yield run


def _mask(text: str, maze: Maze) -> str:
    text = text.replace(str(maze.workspace.root), "<workspace>").replace(str(maze.scratch), "<scratch>")
    for pattern, replacement in MASKS.items():
        text = re.sub(pattern, replacement, text)
    return text


def _can_run(case: Case) -> bool:
    return not case.needs or find_spec(case.needs) is not None


def _check(path: Path, expected: Any, found: Any, to_text: Callable[[Any], str]) -> None:
    if os.environ.get("UPDATE_GOLDEN"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(to_text(found))
    elif json.dumps(found, sort_keys=True) != json.dumps(expected, sort_keys=True):
        before, after = to_text(expected).splitlines(), to_text(found).splitlines()
        diff = difflib.unified_diff(before, after, path.name, "printed now", lineterm="")
        pytest.fail("\n".join(["UPDATE_GOLDEN=1 accepts this change:", *diff]), pytrace=False)


def test_every_command_has_a_case() -> None:
    tree = {path.partition(" ")[2] for path in commands()}
    tested = {path for path in tree for case in ACCEPTED if f"{case.line} ".startswith(f"{path} ")}
    assert sorted(tree - tested) == [], "add a case to golden_cases.py"


def _document_file(case: Case) -> str:
    """Return a file for each noun, one for commands without a noun, one for refusals."""
    if case in REFUSALS:
        return "refused.json"
    word = case.line.split()[0]
    return f"{word}.json" if COMMANDS[word].kind == "group" else "top-level.json"


@pytest.mark.imports_much
@pytest.mark.parametrize("name", sorted({_document_file(case) for case in CASES}))
def test_json_documents(name: str, run_case: RunCase) -> None:
    path = DOCUMENTS / name
    expected = json.loads(path.read_text()) if path.exists() else {}
    found = {
        case.line: _documents(run_case(case, "--json")) if _can_run(case) else expected.get(case.line)
        for case in CASES
        if _document_file(case) == name
    }
    _check(path, expected, found, lambda documents: _format(documents) + "\n")


def _documents(outcome: Outcome) -> dict[str, Any]:
    assert outcome.out or outcome.status, f"no document on stdout: {outcome.err}"
    return {
        "exit_code": outcome.status,
        "stdout": [_parse(line) for line in outcome.out.splitlines()],
        "stderr": [_parse(line) if line.startswith("{") else line for line in outcome.err.splitlines()],
    }


def _parse(line: str) -> Any:
    """Parse a document; numbers of SciPy's distributions differ between releases from the ninth digit on."""
    return json.loads(line, parse_float=lambda number: float(f"{float(number):.7g}"))


def _format(value: Any, indent: str = "") -> str:
    """Format JSON; objects and lists that fit on a line take one line."""
    line = json.dumps(value, ensure_ascii=False)
    if not isinstance(value, (dict, list)) or len(indent + line) <= 100:
        return line
    inner = indent + "  "
    if isinstance(value, dict):
        items = [f"{json.dumps(key)}: {_format(each, inner)}" for key, each in value.items()]
    else:
        items = [_format(each, inner) for each in value]
    body = ",\n".join(inner + item for item in items)
    return f"{line[0]}\n{body}\n{indent}{line[-1]}"


def test_floats_are_compared_to_seven_digits() -> None:
    found, other = '{"within":0.24209562850650507}', '{"within":0.24209562729775885}'
    assert _parse(found) == _parse(other) == {"within": 0.2420956}
    assert _parse('{"within":0.24209662850650507}') != _parse(found)
    assert _parse('{"p":1.6044920862300638e-05}') == {"p": 1.604492e-05}


def test_cases_and_files_match() -> None:
    assert {path.name for path in DOCUMENTS.iterdir()} == {_document_file(case) for case in CASES}
    assert sorted(path.name for path in SCREENS.iterdir()) == sorted(
        _screen_file(case) for case in CASES if case.screen
    )

    for cases in (ACCEPTED, REFUSALS):
        lines = [case.line for case in cases]
        assert sorted(set(lines)) == sorted(lines)


def _screen_file(case: Case) -> str:
    first, *words = case.line.split()
    words = [word for word in words if re.fullmatch(r"[a-z]+(-token)?", word)]
    return f"{'refused-' if case in REFUSALS else ''}{'-'.join([first.replace('-', '_'), *words])}.txt"


@pytest.mark.imports_much
@pytest.mark.parametrize(
    "case", [case for case in CASES if case.screen], ids=lambda case: _screen_file(case).removesuffix(".txt")
)
def test_screen(case: Case, run_case: RunCase) -> None:
    if not _can_run(case):
        pytest.skip(f"{case.needs} is not installed")
    mode = ["--plain"] if case.screen == "plain" else []
    outcome = run_case(case, *mode)
    stderr = "".join(f"! {line}\n" for line in outcome.err.splitlines())
    exit_code = f"(exit {outcome.status})\n" if outcome.status else ""
    screen = f"$ osmosis {' '.join([case.line, *mode])}\n{outcome.out}{stderr}{exit_code}"
    path = SCREENS / _screen_file(case)
    expected = path.read_text() if path.exists() else ""
    _check(path, expected, _without_variable_padding(screen), str)


def _without_variable_padding(screen: str) -> str:
    """Shorten rules and table padding next to masked values: their widths differ in every run."""
    table_or_line = re.compile(r"^(! )?╭(.|\n)*?\n(! )?╰.*|^.+", re.MULTILINE)
    screen = table_or_line.sub(
        lambda part: _shorten(part[0]) if re.search(r"<\w+>", part[0]) else part[0], screen
    )
    return "".join(f"{line.rstrip()}\n" for line in screen.splitlines())


def _shorten(part: str) -> str:
    lines = (re.sub(" {2,}", " ", line) if "│" in line else line for line in part.splitlines())
    return re.sub("─+", "──", "\n".join(lines))
