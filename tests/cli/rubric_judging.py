"""Judged answers, for the tests of `osmosis eval rubric` and `osmosis eval-rubric`: files to judge, and commands."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.rubric.judge_server import JudgeServer, running_judge

if TYPE_CHECKING:
    from tests.cli.conftest import Cli
    from tests.cli.outcome import Outcome

KEY = "sk-canary-5f2d9c81a7"
GOOD = {"solution_str": "fine"}


@contextmanager
def open_judge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[JudgeServer]:
    """Start a judge that the environment names, in an empty directory."""
    with running_judge() as judge:
        monkeypatch.setenv("OPENAI_BASE_URL", judge.base_url)
        monkeypatch.setenv("OPENAI_API_KEY", KEY)
        monkeypatch.setenv("OSMOSIS_CACHE_DIR", str(tmp_path / "cache"))
        monkeypatch.chdir(tmp_path)
        yield judge


def write(*lines: Any, name: str = "data.jsonl") -> Path:
    """Write lines, each as JSON unless it is text already."""
    path = Path(name)
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
    return path


def texts(*solutions: str) -> Path:
    """Write texts to be judged, as records r1, r2 …"""
    return write(*({"id": f"r{place}", "solution_str": text} for place, text in enumerate(solutions, 1)))


def score(cli: Cli, *arguments: str, model: str = "openai/judge") -> Outcome:
    """Judge what was written."""
    chosen = ["--model", model] if model else []
    return cli("eval", "rubric", "-d", "data.jsonl", "-r", "Be good and clear.", *chosen, *arguments)


def result_of(path: str = "out.json") -> dict[str, Any]:
    """Return a result file."""
    found: dict[str, Any] = json.loads(Path(path).read_text())
    return found


def configure(**changes: Any) -> Path:
    """Write a file of one rubric, `clarity`."""
    entry = {
        "id": "clarity",
        "rubric": "Judge the clarity.",
        "model_info": {"provider": "openai", "model": "from-yaml"},
        "score_max": 10,
        **changes,
    }
    path = Path("rubric_configs.yaml")
    path.write_text(json.dumps({"version": 1, "rubrics": [entry]}))
    return path


def refused(
    cli: Cli, judge: JudgeServer, *arguments: str, status: int = 1, model: str = "openai/judge"
) -> str:
    """Run a command that must fail before any call, and return its one line of error."""
    outcome = score(cli, *arguments, model=model)
    assert (outcome.status, outcome.out, judge.calls) == (status, "", 0)
    error, *hints = outcome.err.rstrip("\n").split("\n")
    assert all(hint.startswith("hint: ") for hint in hints) and error.startswith("Error: ")
    return error.removeprefix("Error: ")
