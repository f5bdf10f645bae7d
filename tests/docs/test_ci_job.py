"""The job of docs/guides/ci.md does what the page says: it lets through what is good, and nothing that is not."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from tests.e2e.agent_workspace import copy_sample_workspace
from tests.evaluation.recorded_runs import Outcome, passing, write_run

from osmosis_ai.cli.main import main

PAGE = Path(__file__).parents[2] / "docs" / "guides" / "ci.md"


def steps() -> list[str]:
    """Return the commands of the documented job that has them by hand."""
    return re.findall(r"^\s+- run: (osmosis .*)$", PAGE.read_text(), re.MULTILINE)


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The sample workspace, as a CI has it."""
    workspace = copy_sample_workspace(tmp_path / "checkout")
    monkeypatch.chdir(workspace.root)
    return workspace.root


@pytest.mark.integration
def test_the_job_checks_the_workspace(checkout: Path) -> None:
    (command,) = (step for step in steps() if step.startswith("osmosis check"))
    assert main(shlex.split(command)[1:]) == 0
    config = checkout / "configs" / "eval" / "multiply.toml"
    config.write_text(config.read_text().replace("entrypoint", "entrypiont"))
    assert main(shlex.split(command)[1:]) == 1


def gate(run: Path) -> int:
    (command,) = (step for step in steps() if step.startswith("osmosis eval gate"))
    named = re.sub(r'"\$\(jq [^"]*\)"', str(run), command)
    assert named != command
    return main(shlex.split(named)[1:])


@pytest.mark.parametrize(
    ("outcomes", "status"),
    [
        pytest.param(passing(100, 4, 364), 0, id="91% of 100 rows"),
        pytest.param(passing(10, 4, 28), 3, id="70% of 10 rows"),
        pytest.param(passing(10, 4, 34), 3, id="70% and lucky, of 10 rows"),
        pytest.param(passing(100, 4, 280), 1, id="70% of 100 rows"),
        pytest.param([[1.0, 1.0, None, None] for _ in range(100)], 1, id="half unscored"),
        pytest.param([[1.0]] * 100, 0, id="all of 100 rows"),
        pytest.param([[""]] + [[1.0]] * 99, 3, id="not finished"),
    ],
)
def test_the_job_lets_a_run_through_by_what_it_proves(
    checkout: Path, tmp_path: Path, outcomes: list[list[Outcome]], status: int
) -> None:
    assert gate(write_run(tmp_path / "run", outcomes)) == status
