from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from osmosis_ai.evaluation.grader_digest import grader_digest

GRADER = "from osmosis_ai.rollout.grader import Grader\nfrom checks.numbers import equal\n\nclass Mine(Grader): ...\n"
FILES = {
    "main.py": "from grading import Mine\nprint('agent')\n",
    "prompts.py": "SYSTEM = 'be brief'\n",
    "grading.py": GRADER,
    "checks/__init__.py": "",
    "checks/numbers.py": "from . import text\ndef equal(a, b): return a == b\n",
    "checks/text.py": "",
    "rubric.md": "be right",
    "pyproject.toml": "[project]\nname = 'mine'\n",
}


@pytest.fixture
def rollout(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        path = tmp_path / "mine" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path / "mine"


def digest(rollout: Path, *, timeout_s: float | None = 30.0, env: dict[str, str] | None = None) -> str:
    return grader_digest(rollout, grader_timeout_s=timeout_s, env=env or {})


@pytest.mark.parametrize("name", ["main.py", "prompts.py"])
def test_an_agent_in_a_file_of_its_own_changes_and_the_grader_stays(rollout: Path, name: str) -> None:
    before = digest(rollout)
    (rollout / name).write_text(FILES[name] + "# another agent\n")
    (rollout / "uv.lock").write_text("left by a tool")
    assert digest(rollout) == before


@pytest.mark.parametrize(
    "name", ["grading.py", "checks/numbers.py", "checks/text.py", "rubric.md", "pyproject.toml"]
)
def test_what_a_grader_is_made_of_changes_its_digest(rollout: Path, name: str) -> None:
    before = digest(rollout)
    (rollout / name).write_text(FILES[name] + "# another grader\n")
    assert digest(rollout) != before


def test_its_time_limit_and_the_configs_variables_count(rollout: Path) -> None:
    assert len({digest(rollout), digest(rollout, timeout_s=5.0), digest(rollout, env={"JUDGE": "x"})}) == 3


def test_where_the_directory_lies_and_what_it_is_called_do_not_count(rollout: Path) -> None:
    before = digest(rollout)
    assert digest(rollout.rename(rollout.parent / "renamed")) == before


def drop_grader(rollout: Path) -> None:
    (rollout / "grading.py").write_text("Mine = object\n")


def import_by_name(rollout: Path) -> None:
    (rollout / "grading.py").write_text(
        GRADER + "import importlib\nimportlib.import_module('pro' + 'mpts')\n"
    )


def break_syntax(rollout: Path) -> None:
    (rollout / "grading.py").write_text("class (Grader):\n")


@pytest.mark.parametrize("change", [drop_grader, import_by_name, break_syntax])
def test_where_it_cannot_be_told_what_grades_everything_counts(
    rollout: Path, change: Callable[[Path], None]
) -> None:
    change(rollout)
    before = digest(rollout)
    (rollout / "prompts.py").write_text("SYSTEM = 'be long'\n")
    assert digest(rollout) != before


def test_functions_that_are_rewards_are_graders(rollout: Path) -> None:
    (rollout / "grading.py").write_text(
        "import osmosis_ai\n@osmosis_ai.osmosis_reward\ndef score(a, b, c): ...\n"
    )
    before = digest(rollout)
    (rollout / "prompts.py").write_text("SYSTEM = 'be long'\n")
    assert digest(rollout) == before


@pytest.mark.parametrize("source", ["eval_fns = [equal]\n", "agent_loop = Agent()\n"])
def test_what_scores_an_agent_loop_counts_beside_graders_elsewhere(rollout: Path, source: str) -> None:
    (rollout / "loop.py").write_text(source)
    before = digest(rollout)
    (rollout / "loop.py").write_text(source + "# another score\n")
    assert digest(rollout) != before
