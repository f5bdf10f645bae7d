from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from osmosis_ai.evaluation.grader_digest import grader_digest

GRADER = "from osmosis_ai.rollout.grader import Grader\nfrom checks.numbers import equal\n\nclass Mine(Grader):\n    same = equal\n"
PROJECT = """[project]
name = "mine"
version = "0.1.0"
description = "Mine."
requires-python = ">=3.10"
dependencies = ["sympy>=1.12"]
released = 2026-01-31

[tool.uv.sources]
sympy = { git = "https://git.fern.example/sympy" }
"""
FILES = {
    "main.py": "from grading import Mine\nprint('agent')\n",
    "prompts.py": "SYSTEM = 'be brief'\n",
    "grading.py": GRADER,
    "checks/__init__.py": "",
    "checks/numbers.py": "from . import text\ndef equal(a, b): return a == b\n",
    "checks/text.py": "",
    "rubric.md": "be right",
    "pyproject.toml": PROJECT,
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


@pytest.mark.parametrize("name", ["grading.py", "checks/numbers.py", "checks/text.py", "rubric.md"])
def test_what_a_grader_is_made_of_changes_its_digest(rollout: Path, name: str) -> None:
    before = digest(rollout)
    (rollout / name).write_text(FILES[name].replace("same = equal", "same = None or equal") + "# other\n")
    assert digest(rollout) != before


def with_project(rollout: Path, said: str, instead: str) -> str:
    assert said in PROJECT
    (rollout / "pyproject.toml").write_text(PROJECT.replace(said, instead))
    return digest(rollout)


@pytest.mark.parametrize(
    ("said", "instead"),
    [
        ('name = "mine"', 'name = "ours"'),
        ('version = "0.1.0"', 'version = "0.2.0"'),
        ('version = "0.1.0"\n', ""),
        ('description = "Mine."', 'description = """\nOurs,\nin two lines."""'),
        ("[project]", "# a comment\n[project]"),
    ],
)
def test_what_a_project_is_called_does_not_count(rollout: Path, said: str, instead: str) -> None:
    before = digest(rollout)
    assert with_project(rollout, said, instead) == before


@pytest.mark.parametrize(
    ("said", "instead"),
    [
        ("sympy>=1.12", "sympy>=1.13"),
        ('dependencies = ["sympy>=1.12"]', 'dependencies = ["sympy>=1.12", "numpy"]'),
        ('">=3.10"', '">=3.11"'),
        ("git.fern.example", "git.moss.example"),
        ("released = 2026-01-31", "released = 2026-02-01"),
        ("[tool.uv.sources]", '[tool.mine]\nname = "strict"\n\n[tool.uv.sources]'),
        ("[project]", "[project"),
        ("[project]", "project = 1\n[other]"),
    ],
)
def test_all_else_that_a_project_says_counts(rollout: Path, said: str, instead: str) -> None:
    before = digest(rollout)
    assert with_project(rollout, said, instead) != before


@pytest.mark.parametrize("content", [b"[project]\nname = '\xff'\n", b"a = " + b"[" * 5000, b"a = nan\n"])
def test_a_project_that_can_not_be_read_counts_as_it_is(rollout: Path, content: bytes) -> None:
    (rollout / "pyproject.toml").write_bytes(content)
    before = digest(rollout)
    (rollout / "pyproject.toml").write_bytes(content.replace(b"a", b"e"))
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


ONE_FILE = """import re
import json
from prompts import SYSTEM
from osmosis_ai.rollout.agent_workflow import AgentWorkflow
from osmosis_ai.rollout.grader import Grader

TURNS = 4
ANSWER = re.compile("####")


class Mine(AgentWorkflow):
    async def run(self, ctx):
        return SYSTEM * TURNS, call_tool(ctx)


class Right(Grader):
    async def grade(self, ctx):
        ctx.set_reward(score(ANSWER, ctx))


def call_tool(ctx):
    return json.dumps(ctx)


def score(pattern, ctx):
    return THRESHOLD


THRESHOLD = 0.5


def main():
    serve(workflow=Mine, grader=Right)


if __name__ == "__main__":
    main()
"""


@pytest.fixture
def one_file(rollout: Path) -> Path:
    for name in ("grading.py", "main.py"):
        (rollout / name).unlink()
    (rollout / "main.py").write_text(ONE_FILE)
    return rollout


@pytest.mark.parametrize(
    ("said", "instead"),
    [
        ("SYSTEM * TURNS", "SYSTEM"),
        ("TURNS = 4", "TURNS = 8"),
        ("json.dumps(ctx)", "'no tool'"),
        ("import json", "import json, random"),
        ("class Mine", "# the agent\n\n\nclass Mine"),
    ],
)
def test_an_agent_beside_its_grader_changes_and_the_grader_stays(
    one_file: Path, said: str, instead: str
) -> None:
    before = digest(one_file)
    assert said in ONE_FILE
    (one_file / "main.py").write_text(ONE_FILE.replace(said, instead))
    (one_file / "prompts.py").write_text("SYSTEM = 'be long'\n")
    assert digest(one_file) == before


@pytest.mark.parametrize(
    ("said", "instead"),
    [
        ("set_reward(score", "set_reward(1 - score"),
        ("return THRESHOLD", "return 1"),
        ("THRESHOLD = 0.5", "THRESHOLD = 0.6"),
        ('compile("####")', 'compile("===")'),
        ("import re", "import regex as re"),
        ("grader=Right", "grader=Other"),
        ("    main()", "    Right.grade = print"),
        ("class Right(Grader)", "@patched\nclass Right(Grader)"),
        ("score(ANSWER, ctx)", "score(ANSWER, globals())"),
    ],
)
def test_what_grades_beside_an_agent_changes_the_digest(one_file: Path, said: str, instead: str) -> None:
    before = digest(one_file)
    assert said in ONE_FILE
    (one_file / "main.py").write_text(ONE_FILE.replace(said, instead))
    assert digest(one_file) != before


READS = "os.environ.get('{}', '1')"


@pytest.mark.parametrize(
    ("agent", "grader", "counts"),
    [
        (READS.format("HEAT"), "0", False),
        (READS.format("HEAT"), READS.format("STRICT"), False),
        ("0", READS.format("HEAT"), True),
        (READS.format("HEAT"), READS.format("HEAT"), True),
        ("0", "0", True),
        (READS.format("HEAT"), "os.environ[prefix + 'AT']", True),
        (READS.format("HEAT"), 'os.environ.get(f"{prefix}AT")', True),
        (READS.format("HEAT"), "os.environ['HE' 'AT']", True),
        (READS.format("HEAT"), "os.getenv(name)", True),
        (READS.format("HEAT"), "run(env=os.environ)", True),
    ],
)
def test_a_variable_that_only_the_agent_names_does_not_count(
    one_file: Path, agent: str, grader: str, counts: bool
) -> None:
    source = ONE_FILE.replace("SYSTEM * TURNS", agent).replace("return THRESHOLD", f"return {grader}")
    (one_file / "main.py").write_text(source)
    assert (digest(one_file, env={"HEAT": "1"}) != digest(one_file, env={"HEAT": "2"})) is counts


def test_an_agent_that_its_grader_names_counts(one_file: Path) -> None:
    graded = ONE_FILE.replace("score(ANSWER, ctx)", "Mine.reward(ctx)")
    (one_file / "main.py").write_text(graded)
    before = digest(one_file)
    (one_file / "main.py").write_text(graded.replace("TURNS = 4", "TURNS = 8"))
    assert digest(one_file) != before
