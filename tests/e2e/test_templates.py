"""Each template is applied and evaluated with the built-in model, without a key or an account."""

from __future__ import annotations

import json
import os
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.samples.served_rollout import ServedRollout
from tests.standin_model import Reply, StandInModel
from tests.warm_osmosis import run_osmosis
from tests.workspace.builders import make_repository

pytestmark = pytest.mark.e2e

NEEDS = {"multiply-local-openai": "agents", "multiply-local-strands": "strands"}


def run(root: Path, *words: str) -> Any:
    environment = {name: value for name, value in os.environ.items() if not name.endswith("_API_KEY")}
    done = run_osmosis(*words, "--json", cwd=root, env={**environment, "UV_OFFLINE": "1"})
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize(
    "name",
    [
        "multiply-command",
        "multiply-local-openai",
        # Importing a framework takes seconds, and tests/e2e/test_framework_examples.py runs this one, too.
        pytest.param("multiply-local-strands", marks=pytest.mark.nightly),
        "sums-rubric",
    ],
)
def test_template(tmp_path: Path, name: str) -> None:
    if name in NEEDS and find_spec(NEEDS[name]) is None:
        pytest.skip(f"needs the extra of {NEEDS[name]}, which `make test` installs")
    root = make_repository(tmp_path / "work")
    applied = run(root, "template", "apply", name)
    (config,) = [step["config"] for step in applied["next_steps_structured"]]
    result = run(root, "eval", "run", config, "--rows", "0", "--yes")["resource"]
    metrics = result["metrics"]
    assert (metrics["total_samples"], metrics["graded"], metrics["failed"]) == (4, 4, 0)
    assert metrics["tokens_used"] > 0


def test_example_of_a_new_rollout(tmp_path: Path) -> None:
    root = make_repository(tmp_path / "work")
    for directory in ("rollouts", "configs/eval", "configs/training", "data"):
        (root / directory).mkdir(parents=True)
    config = run(root, "rollout", "init", "my-agent", "--example")["resource"]["configs"]["eval"]
    metrics = run(root, "eval", "run", config, "--rows", "0", "--yes")["resource"]["metrics"]
    assert (metrics["total_samples"], metrics["graded"], metrics["failed"]) == (4, 4, 0)


async def test_rubric_template_uses_the_configured_judge(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = make_repository(tmp_path / "work")
    run(root, "template", "apply", "sums-rubric")
    async with StandInModel() as judge, StandInModel(api_key="rollout-key") as model:
        monkeypatch.setenv("JUDGE_MODEL", "openai/judge")
        monkeypatch.setenv("OPENAI_BASE_URL", judge.base_url)
        monkeypatch.setenv("OPENAI_API_KEY", "key-of-the-judge")
        model.script(Reply(content="It is 46."))
        judge.script(Reply(content='{"score": 0.5, "explanation": "It does not end as asked."}'))
        async with ServedRollout(root / "rollouts" / "sums-rubric", tmp_path / "artifacts") as rollout:
            graded = await rollout.attempt("What is 12 + 34?", "46", model.base_url, name="one")
        (asked,) = judge.requests
    assert graded["grader"]["sample"]["reward"] == 0.5
    assert "#### and" not in json.dumps(asked.body)
    assert "0.5: it holds the reference answer" in json.dumps(asked.body)
