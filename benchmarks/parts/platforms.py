"""Platforms and workers for benchmarks: real processes, with users, a repository and finished runs."""

from __future__ import annotations

import contextlib
import json
import math
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

from engine import PYPROJECT
from sqlalchemy import insert

from osmosis_ai.platform.accounts import AccountStore
from osmosis_ai.platform.clock import SystemClock
from osmosis_ai.platform.config import PlatformConfig
from osmosis_ai.platform.db.engine import Database
from osmosis_ai.platform.db.tables import DbRun, DbSample, DbUser
from osmosis_ai.platform.workspaces import WorkspaceStore

OSMOSIS = (sys.executable, "-m", "osmosis_ai")
POOL = "bench"
EVAL_RUNS, DATASETS = "/api/cli/eval-runs", "/api/cli/datasets"
IDENTITY, EMPTY_IDENTITY = "bench/agents", "bench/nothing"
START_LIMIT_S = 120.0
ROLLOUT = """
import os

import uvicorn

from osmosis_ai.rollout.agent_workflow import AgentWorkflow
from osmosis_ai.rollout.backend.local import LocalBackend
from osmosis_ai.rollout.context import get_rollout_context
from osmosis_ai.rollout.grader import Grader
from osmosis_ai.rollout.server import create_rollout_server
from osmosis_ai.rollout.types import AgentWorkflowConfig, ConcurrencyConfig


class OneCall(AgentWorkflow):
    async def run(self, ctx):
        body = {"model": "policy", "messages": ctx.prompt}
        reply = await get_rollout_context().http().post("/chat/completions", json=body)
        return [*ctx.prompt, reply.json()["choices"][0]["message"]]


class AnyAnswer(Grader):
    async def grade(self, ctx):
        ctx.set_reward(1.0 if ctx.sample.messages[-1]["content"] else 0.0)


if __name__ == "__main__":
    config = AgentWorkflowConfig(name="bench", concurrency=ConcurrencyConfig(max_concurrent=None))
    app = create_rollout_server(backend=LocalBackend(workflow=OneCall, workflow_config=config, grader=AnyAnswer))
    uvicorn.run(app, host="127.0.0.1", port=int(os.environ["_OSMOSIS_ROLLOUT_PORT"]), log_level="error")
"""


@dataclass(frozen=True)
class Platform:
    """A running platform and its users' tokens."""

    url: str
    tokens: list[str]
    pid: int
    home: Path
    settings: dict[str, str]

    def headers(self, identity: str = IDENTITY, client: int = 0) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.tokens[client]}", "X-Osmosis-Git": identity}


@contextlib.contextmanager
def platform(
    home: Path,
    repository: Path,
    users: int,
    *,
    runs: int,
    samples: int,
    slots: int = 1,
    checkout: Path | None = None,
    **settings: str,
) -> Iterator[Platform]:
    """Create a platform with users, a workspace with runs and an empty one, and start it on a free port.

    It executes ``slots`` shards at once. With a ``checkout``, the code of that directory creates the database and runs
    the platform.
    """
    database = settings.get("OSMOSIS_DATABASE_URL", "")
    config = PlatformConfig(home=home, port=free_port(), database_url=database)
    if checkout is None:
        tokens = fill(config, repository, users, runs, samples)
    else:
        arguments = map(str, (home, config.port, repository, users, runs, samples))
        filled = subprocess.run(
            [sys.executable, "-m", "parts.platforms", *arguments],
            cwd=checkout / "benchmarks",
            env=environment_of(checkout),
            stdout=subprocess.PIPE,
            check=True,
        )
        tokens = json.loads(filled.stdout)
    settings["OSMOSIS_EXECUTOR_SLOTS"] = str(slots)
    with started(home, config.port, checkout, **settings) as pid:
        yield Platform(config.base_url, tokens, pid, home, settings)


def worker_token(running: Platform) -> Path:
    """Create a token for workers of the pool ``bench``; return its file."""
    file = running.home.parent / "worker.token"
    subprocess.run(
        [*OSMOSIS, "platform", "worker-token", "create", "--pool", POOL, "--output", str(file)],
        env={**environment_of(None), "OSMOSIS_HOME": str(running.home), **running.settings},
        stdout=subprocess.DEVNULL,
        check=True,
    )
    return file


@contextlib.contextmanager
def machines(running: Platform, count: int) -> Iterator[None]:
    """Run ``osmosis platform worker`` for the pool ``bench``, with one slot and a data directory each."""
    token, directory = worker_token(running), running.home.parent
    command = [*OSMOSIS, "platform", "worker", "--pool", POOL, "--slots", "1"]
    with contextlib.ExitStack() as stack:
        for number in range(count):
            home = directory / f"machine-{number}"
            process = subprocess.Popen(
                [*command, "--url", running.url, "--token-file", str(token)],
                env={
                    **environment_of(None),
                    "OSMOSIS_HOME": str(home),
                    "OSMOSIS_CACHE_DIR": str(directory / "cache"),
                },
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=stack.enter_context((directory / f"{home.name}.log").open("w")),
            )
            stack.callback(process.wait)
            stack.callback(process.terminate)
        yield


def environment_of(checkout: Path | None) -> dict[str, str]:
    """Return the environment without Osmosis settings; with a checkout, Python imports its code."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("OSMOSIS_")}
    return kept if checkout is None else kept | {"PYTHONPATH": str(checkout / "src")}


@contextlib.contextmanager
def started(home: Path, port: int, checkout: Path | None = None, **settings: str) -> Iterator[int]:
    """Run a platform on a data directory; gives its process id once it answers."""
    environment = environment_of(checkout) | {
        "OSMOSIS_HOME": str(home),
        "OSMOSIS_CACHE_DIR": str(home.parent / "cache"),
        **settings,
    }
    log = home.parent / f"{home.name}.log"
    with log.open("w") as output:
        process = subprocess.Popen(
            [*OSMOSIS, "platform", "start", "--port", str(port)],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )
    try:
        wait_until_it_answers(port, process, log)
        yield process.pid
    finally:
        process.terminate()
        process.wait()


def wait_until_it_answers(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_LIMIT_S
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        time.sleep(0.05)
    raise SystemExit(f"the platform did not start:\n{log.read_text()[-2000:]}")


def fill(config: PlatformConfig, repository: Path, users: int, runs: int, samples: int) -> list[str]:
    """Write accounts and finished runs into a new database; return a token for each user."""
    config.prepare_home()
    clock = SystemClock()
    db = Database(config.database_url)
    db.migrate()
    accounts, workspaces = AccountStore(db, clock), WorkspaceStore(db, clock)
    home, empty = workspaces.create("bench"), workspaces.create("empty")
    workspaces.connect_repository(home.id, IDENTITY, str(repository))
    workspaces.connect_repository(empty.id, EMPTY_IDENTITY, str(repository))
    people = [accounts.create_user(f"user{number}@bench.example", name="User") for number in range(users)]
    for user in people:
        workspaces.add_member(home.id, user.id, "owner")
    workspaces.add_member(empty.id, people[0].id, "owner")
    write_runs(db, home.id, people[0], runs, samples)
    tokens = [accounts.create_token(user.id)[1] for user in people]
    db.dispose()
    return tokens


def write_runs(db: Database, workspace_id: str, creator: DbUser, runs: int, samples: int) -> None:
    """Write finished runs with an equal number of samples each."""
    each = math.ceil(samples / runs)
    for first in range(0, runs, 5_000):
        numbers = range(first, min(first + 5_000, runs))
        with db.transaction() as session:
            session.execute(insert(DbRun), [run_row(workspace_id, creator.id, number) for number in numbers])
            if each:
                rows = [sample_row(number, row) for number in numbers for row in range(each)]
                session.connection().execute(insert(DbSample), rows)


def run_row(workspace_id: str, creator_id: str, number: int) -> dict[str, Any]:
    """Return a row of realistic size."""
    created = datetime(2026, 1, 1, tzinfo=timezone.utc) + timedelta(seconds=number)
    return {
        "id": f"run_{number:024x}",
        "workspace_id": workspace_id,
        "kind": "eval",
        "name": f"quiet-otter-{number}",
        "status": "finished",
        "creator_id": creator_id,
        "created_at": created,
        "started_at": created,
        "completed_at": created + timedelta(minutes=5),
        "request": {
            "experiment_config": {
                "rollout": "bench",
                "entrypoint": "main.py",
                "model_path": "openai/stand-in",
                "dataset": "bench",
            },
            "evaluation_config": {"limit": 10, "n": 1, "batch_size": 4, "pass_threshold": 1.0},
        },
        "commit_sha": "0" * 40,
        "rollout_name": "bench",
        "dataset_name": "bench",
        "model_path": "openai/stand-in",
        "results": {
            "pass_rate": 0.5,
            "pass_threshold": 1.0,
            "graded": 10,
            "passed": 5,
            "failed": 0,
            "skipped": 0,
            "total_runs": 10,
            "sampled_rows": 10,
            "total_tokens": 4000,
            "total_dataset_rows": 10,
            "reward_stats": {"mean": 0.5, "std": 0.5, "min": 0.0, "median": 0.5, "max": 1.0},
        },
        "metrics": {
            "duration_ms": 300_000.0,
            "summary": {"reward_stats": {"mean": 0.5}, "pass_at_k": [{"k": 1, "value": 0.5}]},
            "estimates": {"reward": {"value": 0.5, "stderr": 0.1, "low": 0.3, "high": 0.7, "n": 10}},
        },
    }


def sample_row(run: int, row: int) -> dict[str, Any]:
    return {
        "run_id": f"run_{run:024x}",
        "row_index": row,
        "run_index": 0,
        "source_row_index": row,
        "rollout_id": f"{run:024x}{row:08x}",
        "status": "success",
        "reward": float(row % 2),
        "tokens": 400,
        "duration_ms": 1234.5,
    }


def make_repository(root: Path) -> Path:
    """Create a Git repository with a rollout of one model call."""
    rollout = root / "rollouts" / "bench"
    rollout.mkdir(parents=True)
    (rollout / "main.py").write_text(ROLLOUT)
    (rollout / "pyproject.toml").write_text(PYPROJECT)
    author = ["-c", "user.name=bench", "-c", "user.email=bench@bench.example"]
    for arguments in (["init", "--quiet"], ["add", "."], [*author, "commit", "--quiet", "-m", "Bench"]):
        subprocess.run(["git", *arguments], cwd=root, check=True)
    return root


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


if __name__ == "__main__":
    place, port, repository, *counts = sys.argv[1:]
    users, runs, samples = map(int, counts)
    config = PlatformConfig(home=Path(place), port=int(port))
    print(json.dumps(fill(config, Path(repository), users, runs, samples)))
