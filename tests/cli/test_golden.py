"""What each command prints in the three modes, letter by letter (``golden/``).

A change of them is a change that people and scripts see. ``UPDATE_GOLDEN=1`` writes the files anew; read the
difference before it is committed.
"""

from __future__ import annotations

import difflib
import json
import os
import re
from pathlib import Path

import pytest

from osmosis_ai._version import __version__
from tests.cli.golden_cases import CASES, Case
from tests.cli.maze import Maze, Outcome
from tests.cli.test_examples import commands

GOLDEN = Path(__file__).with_name("golden")


def test_every_command_prints_what_it_printed(maze: Maze, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("GOLDEN_KEY", "sk-golden-canary")
    monkeypatch.setenv("OSMOSIS_ROLLOUT_SERVER_KEY", "sk-golden-canary")
    changed = []
    for case in CASES:
        case.prepare(maze)
        shown = "".join(_run(maze, case, mode) for mode in ("", "--plain", "--json"))
        assert "sk-golden-canary" not in shown
        path = GOLDEN / f"{_file_name(case.line)}.txt"
        if os.environ.get("UPDATE_GOLDEN"):
            path.write_text(shown)
        expected = path.read_text() if path.exists() else ""
        changed += difflib.unified_diff(
            expected.splitlines(), shown.splitlines(), path.name, case.line, lineterm=""
        )
    assert not changed, "\n".join(["UPDATE_GOLDEN=1 writes the files anew, if this is meant:", *changed])


def test_no_golden_file_is_left_behind() -> None:
    assert {path.stem for path in GOLDEN.glob("*.txt")} == {_file_name(case.line) for case in CASES}


def _file_name(line: str) -> str:
    return "-".join(word for word in line.split() if re.fullmatch(r"[a-z]+", word))


def _run(maze: Maze, case: Case, mode: str) -> str:
    outcome = maze.osmosis(*case.line.split(), *([mode] if mode else []))
    out = _pretty(outcome) if mode == "--json" and outcome.out else outcome.out
    stderr = "".join(f"! {line}\n" for line in outcome.err.splitlines())
    ended = f"(exit {outcome.status})\n" if outcome.status else ""
    text = f"$ osmosis {case.line}{f' {mode}' if mode else ''}\n{out}{stderr}{ended}\n"
    text = text.replace(str(maze.workspace.root), "<workspace>").replace(f'"{__version__}"', '"<version>"')
    text = re.sub(r'"[0-9a-f]{32}"', '"<id>"', text)
    # How wide a column of paths is depends on where the test runs.
    text = re.sub("─+", "──", re.sub(r"(?<=\S) {2,}(?=│)", " ", text)) if "<workspace>" in text else text
    return "\n".join(line.rstrip() for line in text.splitlines()) + "\n"


def _pretty(outcome: Outcome) -> str:
    """Return the one document of stdout with a line for each key."""
    return json.dumps(outcome.json, indent=2, ensure_ascii=False) + "\n"


# What these print depends on files, processes, a terminal or chance, and is tested beside what they do.
ELSEWHERE = {
    "test_auth.py": "login; logout; auth login; auth logout",
    "test_benchmark_download.py": "benchmark runs download",
    "test_benchmark_submit.py": "benchmark submit",
    "test_dataset_transfer.py": "dataset upload; dataset download",
    "test_demo.py": "demo",
    "test_dev_server.py": "dev server up; dev server down; dev server list; dev server logs",
    "test_env.py": "env allow; env revoke",
    "test_eval_download.py": "eval download",
    "test_eval_rubric_judges.py": "eval rubric",
    "test_eval_rubric_classic.py": "eval-rubric",
    "test_eval_retry.py": "eval retry",
    "test_eval_run.py": "eval run",
    "test_eval_submit.py": "eval submit",
    "test_model_download.py": "model download",
    "test_platform_start.py": "platform start; platform status; platform stop",
    "test_platform_backup.py": "platform backup; platform restore",
    "test_platform_admin.py": "platform connect; platform disconnect; platform repository list; platform member add; "
    "platform member remove; platform secret-key rotate; platform token create; platform token list; "
    "platform token revoke; platform user add; platform user disable; platform user enable; platform user list; "
    "platform user password; platform user remove; platform workspace add; platform workspace list",
    "test_eval_upload.py": "eval upload",
    "test_quickstart.py": "quickstart",
    "test_resubmit.py": "eval resubmit; train resubmit",
    "test_upgrade.py": "upgrade",
    "test_train.py": "train submit; train resume",
    "test_train_compare.py": "train compare",
    "test_train_estimate.py": "train estimate",
    "test_train_watch.py": "train watch",
    "test_workspace.py": "workspace switch",
    "agent_loops/test_eval_classic.py": "eval -m",
    "agent_loops/test_serve.py": "serve",
    "agent_loops/test_test.py": "test",
    "agent_loops/test_validate.py": "validate",
    "rubric/test_preview.py": "preview",
    "workspaces/test_check.py": "check",
}


def test_every_command_is_held_against_golden_output_or_tested_elsewhere() -> None:
    tree = {path.partition(" ")[2] for path in commands()}
    golden = {path for path in tree for case in CASES if f"{case.line} ".startswith(f"{path} ")}
    elsewhere = {path for paths in ELSEWHERE.values() for path in paths.split("; ")}
    assert sorted(tree - golden - elsewhere) == [], "add a case to golden_cases.py"
    assert sorted(elsewhere - tree) == [], "there is no such command"
    assert [name for name in ELSEWHERE if not (GOLDEN.parent / name).is_file()] == []
