"""Runs executed by real worker processes: the engine, the built-in model, the agent's server, kills and stops."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import select

from osmosis_ai.datasets import file_digest, select_rows
from osmosis_ai.evaluation.hooks import RunHooks
from osmosis_ai.evaluation.policy import open_policy
from osmosis_ai.evaluation.runner import LocalEvalRunner
from osmosis_ai.evaluation.spec import DatasetInput, EvalRunSpec, LocalEvalOptions
from osmosis_ai.platform.app import create_app
from osmosis_ai.platform.clock import SystemClock
from osmosis_ai.platform.config import PlatformConfig
from osmosis_ai.platform.db.models import LogLine, Run, Sample
from osmosis_ai.platform.runs.executor import LocalExecutor
from osmosis_ai.platform.services import PlatformServices, build_services
from tests.platform.conftest import Member, World
from tests.platform.evaluations import ROLLOUT, ROWS, Code, add_dataset, experiment, submit_body, wait_until

pytestmark = pytest.mark.e2e

RUNS = "/api/cli/eval-runs"


@pytest.fixture
def services(tmp_path: Path) -> Iterator[PlatformServices]:
    """A platform on the machine's own clock: its workers are other processes."""
    built = build_services(PlatformConfig(home=tmp_path / "platform"), clock=SystemClock())
    yield built
    built.db.dispose()


@pytest.fixture
def code(tmp_path: Path) -> Code:
    return Code(tmp_path / "code")


@pytest.fixture
def member(world: World, code: Code, services: PlatformServices) -> Member:
    found = world.member(clone_url=str(code.path))
    add_dataset(services, found)
    return found


@pytest.fixture
def executor(services: PlatformServices) -> Iterator[LocalExecutor]:
    made = LocalExecutor(services.config, services.db, services.clock, services.logs)
    made.start()
    yield made
    made.close()


def submit(api: TestClient, **changes: Any) -> dict[str, Any]:
    reply = api.post(RUNS, json=submit_body(**changes))
    assert reply.status_code == 200, reply.text
    body: dict[str, Any] = reply.json()
    return body


def ended(api: TestClient, name: str) -> dict[str, Any]:
    """Wait for the run to end and return its detail."""

    def look() -> dict[str, Any] | None:
        detail: dict[str, Any] = api.get(f"{RUNS}/{name}").json()
        return detail if detail["eval_run"]["status"] in ("finished", "failed", "stopped") else None

    found: dict[str, Any] = wait_until(look)
    return found


def fetched(api: TestClient, name: str, types: str, rows: str | None = None) -> dict[str, bytes]:
    """Download files the way a client does."""
    asked = {"types": types} if rows is None else {"types": types, "rows": rows}
    manifest = api.get(f"{RUNS}/{name}/samples/manifest", params=asked).json()
    sizes = {file["path"]: file["size"] for file in manifest["files"]}
    urls = api.post(f"{RUNS}/{name}/samples/download-urls", json={"items": manifest["files"]}).json()
    contents = {item["path"]: api.get(item["url"]).content for item in urls["items"]}
    assert {path: len(content) for path, content in contents.items()} == sizes
    return contents


def log_of(services: PlatformServices, run_id: str) -> list[str]:
    with services.db.session() as session:
        lines = session.scalars(select(LogLine).where(LogLine.subject_id == run_id).order_by(LogLine.id))
        return [f"[{line.step}] {line.message}" for line in lines]


def samples_of(services: PlatformServices, run_id: str) -> dict[tuple[int, int], tuple[Any, ...]]:
    with services.db.session() as session:
        rows = session.scalars(select(Sample).where(Sample.run_id == run_id))
        return {(s.row_index, s.run_index): (s.source_row_index, s.status, s.reward, s.tokens) for s in rows}


def test_a_run_gives_the_samples_of_the_same_evaluation_on_ones_own_machine(
    api: TestClient, services: PlatformServices, executor: LocalExecutor, tmp_path: Path
) -> None:
    submitted = submit(api)
    detail = ended(api, submitted["name"])
    assert detail["eval_run"]["status"] == "finished", detail

    local = LocalEvalRunner(
        spec=EvalRunSpec("multiply", "main.py", "osmosis/tiny", "multiply", n=2, batch_size=4),
        options=LocalEvalOptions(name="local"),
        dataset=DatasetInput(ROWS, "multiply", file_digest(ROWS), "workspace"),
        selection=select_rows(100, limit=3, rows=None),
        rollout_dir=ROLLOUT,
        output_root=tmp_path / "evals",
        hooks=RunHooks(),
        open_model=lambda env, lost: open_policy("osmosis/tiny", env, lost),
    )
    summary = asyncio.run(local.run())
    assert summary is not None

    def essence(lines: bytes) -> list[tuple[Any, ...]]:
        keys = ("row_index", "run_index", "status", "reward", "tokens", "trajectory_filename")
        return [tuple(json.loads(line).get(key) for key in keys) for line in lines.splitlines()]

    files = fetched(api, submitted["name"], "metrics,trajectories")
    assert essence(files["summary.jsonl"]) == essence((summary.run_dir / "summary.jsonl").read_bytes())
    metrics = json.loads(files["metrics.json"])
    assert metrics["summary"] == summary.metrics.summary
    assert metrics["eval_run"]["id"] == submitted["id"]
    assert metrics["eval_run"]["status"] == "finished"
    assert {p for p in files if p.startswith("trajectories/")} == {
        f"trajectories/row_{row}_run_{run}.json" for row in range(3) for run in range(2)
    }
    assert detail["results"]["total_runs"] == 6
    assert detail["results"]["score"] == pytest.approx(summary.metrics.summary["reward_stats"]["mean"])

    only = fetched(api, submitted["name"], "trajectories", rows="1")
    assert sorted(only) == ["summary.jsonl", "trajectories/row_1_run_0.json", "trajectories/row_1_run_1.json"]
    assert not (services.config.runs_dir / submitted["id"]).exists()
    steps = " ".join(log_of(services, submitted["id"]))
    for stage in (
        "checking the model",
        "preparing the rollout's environment",
        "starting the rollout's server",
    ):
        assert stage in steps


def test_a_run_whose_worker_is_killed_again_and_again_comes_to_the_same_result(
    api: TestClient, services: PlatformServices, executor: LocalExecutor
) -> None:
    undisturbed = submit(api, evaluation_config={"limit": 8, "n": 3, "batch_size": 2})
    assert ended(api, undisturbed["name"])["eval_run"]["status"] == "finished"

    disturbed = submit(api, evaluation_config={"limit": 8, "n": 3, "batch_size": 2})
    for wanted in (1, 7, 13):
        wait_until(lambda: len(samples_of(services, disturbed["id"])) >= wanted)  # noqa: B023
        worker = executor._workers.get(disturbed["id"])
        if worker is not None:
            os.killpg(worker.process.pid, signal.SIGKILL)
    detail = ended(api, disturbed["name"])
    assert detail["eval_run"]["status"] == "finished", log_of(services, disturbed["id"])
    assert samples_of(services, disturbed["id"]) == samples_of(services, undisturbed["id"])
    with services.db.session() as session:
        assert session.get_one(Run, disturbed["id"]).attempt > 1
    calm, stormy = (api.get(f"{RUNS}/{run['name']}/metrics").json() for run in (undisturbed, disturbed))
    for numbers in (calm, stormy):
        numbers["overview"].pop("duration_ms")
    assert calm["overview"] == stormy["overview"]
    assert calm["reward_stats"] == stormy["reward_stats"]
    assert calm["pass_at_k"] == stormy["pass_at_k"]
