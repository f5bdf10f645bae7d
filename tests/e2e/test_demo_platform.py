"""The demo through a platform, whose samples equal those of `osmosis eval run`."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import home_of_a_module
from tests.warm_osmosis import run_osmosis

pytestmark = pytest.mark.e2e


def exports(directory: Path) -> dict[str, str]:
    """Return the environment with the variables of the demo's `env.sh`."""
    found = re.findall(r"^export (\w+)='?(.*?)'?$", (directory / "env.sh").read_text(), re.MULTILINE)
    return {**os.environ, **dict(found)}


def samples(results: Path) -> dict[str, Any]:
    """Return the conversation and reward of each attempt, without values that differ between executions."""
    found = {}
    for path in (results / "trajectories").glob("*.json"):
        trajectory = json.loads(path.read_text())
        steps = [
            {
                "source": step["source"],
                "message": step.get("message"),
                "calls": [
                    (call["function_name"], call["arguments"]) for call in step.get("tool_calls") or []
                ],
                "answers": [
                    result["content"] for result in (step.get("observation") or {}).get("results", [])
                ],
                "tokens": {k: v for k, v in (step.get("metrics") or {}).items() if k.endswith("_tokens")},
            }
            for step in trajectory["steps"]
        ]
        facts = trajectory["extra"]["osmosis"]
        found[path.name] = (steps, facts["reward"], facts["label"], trajectory["final_metrics"])
    return found


# A kill or a busy machine changes these: the repeated attempts, and the bottleneck.
OF_THE_SESSIONS = ("lost_attempts", "limited_by")


def timeless(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            key: timeless(item)
            for key, item in value.items()
            if "latency" not in key and "duration" not in key and key not in OF_THE_SESSIONS
        }
    return value


def numbers(results: Path) -> dict[str, Any]:
    metrics = json.loads((results / "metrics.json").read_text())
    return {name: timeless(metrics[name]) for name in ("summary", "estimates")}


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, subprocess.CompletedProcess[str]]]:
    """The directory of a demo whose platform is running, and its command."""
    directory = tmp_path_factory.mktemp("kept") / "demo"
    with home_of_a_module(tmp_path_factory.mktemp("user")) as home:
        here = Path.cwd()
        (home / ".gitconfig").write_text("[user]\n\tname = Somebody\n[commit]\n\tgpgsign = true\n")
        demo = run_osmosis("demo", "--keep", "--plain", "--keep-dir", str(directory))
        try:
            assert demo.returncode == 0, demo.stderr
            yield directory, demo
        finally:
            stopped = run_osmosis("platform", "stop", env=exports(directory))
        assert stopped.returncode == 0
        assert run_osmosis("platform", "status", env=exports(directory)).returncode == 1
        assert [path.name for path in home.rglob("*")] == [".gitconfig"]
        assert list(here.iterdir()) == []


def test_kept_platform(kept: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    directory, demo = kept
    assert "pass@4" in demo.stdout and "multiply(a=11, b=46) → 506" in demo.stdout
    for command in ("platform start", "platform connect", "dataset upload", "secret set", "eval submit"):
        assert f"osmosis {command}" in demo.stderr
    assert "400/400 attempts" in demo.stderr and demo.stderr.count("✓") == 6
    env = exports(directory)
    listed = run_osmosis("eval", "list", "--json", cwd=directory / "workspace", env=env)
    (run,) = json.loads(listed.stdout)["items"]
    assert run["status"] == "finished"
    assert run_osmosis("platform", "status", env=env).returncode == 0
    named = run_osmosis("secret", "list", "--json", cwd=directory / "workspace", env=env)
    assert "DEMO_API_KEY" in named.stdout


def test_demo_with_and_without_platform(
    kept: tuple[Path, subprocess.CompletedProcess[str]], tmp_path: Path, home: Path
) -> None:
    (home / ".gitconfig").write_text("[user]\n\tname = Somebody\n[commit]\n\tgpgsign = true\n")
    (home / ".config" / "osmosis").mkdir(parents=True)
    (home / ".config" / "osmosis" / "credentials.json").write_text("{}")
    before = sorted(home.rglob("*"))
    local = run_osmosis("demo", "--local", "--plain", "--keep-dir", str(tmp_path / "local"))
    assert local.returncode == 0, local.stderr
    assert "multiply(a=11, b=46) → 506" in local.stdout
    assert "400/400 attempts" in local.stderr
    assert sorted(home.rglob("*")) == before
    assert list(Path.cwd().iterdir()) == []

    (through,) = (kept[0] / "workspace" / ".osmosis" / "evals").iterdir()
    here = tmp_path / "local" / "workspace" / ".osmosis" / "evals" / "demo"
    assert len(samples(here)) == 400
    assert samples(through) == samples(here)
    assert numbers(through) == numbers(here)
