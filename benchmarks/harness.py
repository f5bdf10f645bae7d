"""What the benchmarks share: options, the table of results, CPU time, a stand-in model, a rollout, and a platform."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import math
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

from osmosis_ai.processes.service import free_port

if TYPE_CHECKING:
    import aiohttp

    from osmosis_ai.training.runs.metrics import StepRecord
    from osmosis_ai.training.runs.spec import TrainingSpec

REPOSITORY = Path(__file__).parents[1]
OSMOSIS = (sys.executable, "-m", "osmosis_ai")
Row = Mapping[str, Any]

# -- options and results -----------------------------------------------------------------------------


def options(doc: str | None, **defaults: Any) -> argparse.Namespace:
    """Parse the command line: ``turns=10`` is ``--turns 10``, a list takes several values, ``False`` is a flag."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in defaults.items():
        how: dict[str, Any] = {"default": default, "help": f"default: {default}"}
        if default is False:
            how["action"] = "store_true"
        elif isinstance(default, list):
            how |= {"type": type(default[0]), "nargs": "*"}
        else:
            how["type"] = type(default)
        parser.add_argument(f"--{name.replace('_', '-')}", **how)
    parser.add_argument("--output", type=Path, help="also write the results to this file")
    parser.add_argument("--compare", type=Path, help="results of an earlier run with the same options")
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    given = parser.parse_args()
    given.load = round(os.getloadavg()[0], 1)
    return given


def report(given: argparse.Namespace, rows: Sequence[Row]) -> None:
    """Print the results as tables and as JSON; with ``--compare``, each number with its ratio to the earlier one."""
    before = json.loads(given.compare.read_text())["rows"] if given.compare else [{}] * len(rows)
    print(f"load {given.load} before, {os.cpu_count()} CPUs")
    tables: dict[tuple[str, ...], list[list[str]]] = {}
    for row, earlier in zip(rows, before, strict=True):
        cells = [_cell(value, earlier.get(name)) for name, value in row.items()]
        tables.setdefault(tuple(row), [list(row)]).append(cells)
    for lines in tables.values():
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        for line in lines:
            print("  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)))
    text = json.dumps({"load": given.load, "cpus": os.cpu_count(), "rows": rows})
    print(text)
    if given.output:
        given.output.write_text(text + "\n")


def _cell(value: Any, earlier: Any) -> str:
    shown = f"{value:,.3f}".rstrip("0").rstrip(".") if isinstance(value, float) else f"{value}"
    return f"{shown} ({value / earlier:.2f}x)" if isinstance(value, float) and earlier else shown


@contextlib.contextmanager
def scratch() -> Iterator[Path]:
    """Give a directory for the time of a benchmark; Ray creates sockets in it, whose paths must be short."""
    with tempfile.TemporaryDirectory(prefix="ob-", dir="/tmp", ignore_cleanup_errors=True) as directory:
        yield Path(directory)


def multiply_training(
    batch: int,
    *,
    dataset: Path = REPOSITORY / "data" / "multiply_train.jsonl",
    rollout: Path = REPOSITORY / "rollouts" / "multiply",
    env: Mapping[str, str] | None = None,
    device: str = "cpu",
    **settings: Any,
) -> TrainingSpec:
    """A run of `osmosis/tiny` on the multiply rollout: ``batch`` prompts per step, with 8 attempts each."""
    from osmosis_ai.config.training import TrainingSettings
    from osmosis_ai.datasets import file_digest
    from osmosis_ai.evaluation.spec import DatasetInput
    from osmosis_ai.training.runs.spec import TrainingSpec

    sizes = {"rollout_batch_size": batch, "n_samples_per_prompt": 8, "validation_rows": 0}
    lengths = {"max_prompt_length": 512, "max_response_length": 512, "eval_interval": 1000}
    return TrainingSpec(
        settings=TrainingSettings(lr=1e-3, **sizes, **lengths, **settings),
        model_path="osmosis/tiny",
        dataset=DatasetInput(dataset, "multiply_train", file_digest(dataset), "workspace"),
        rollout_dir=rollout,
        device=device,
        env=env or {},
    )


def step_medians(records: Sequence[StepRecord], *more: str) -> Row:
    """Return the medians of the steps' times and of ``more`` metrics, without the first step, which fills caches."""
    times = (f"time/{part}_s" for part in ("step", "sampling", "learning", "publishing", "checkpoint"))
    seen = {name: [r.metrics[name] for r in records[1:] if name in r.metrics] for name in (*times, *more)}
    return {name: median(values, 4) for name, values in seen.items() if values}


def percentile(values: Sequence[float], q: int) -> float:
    """Return the q-th percentile by nearest rank."""
    return sorted(values)[max(0, math.ceil(q / 100 * len(values)) - 1)] if values else math.nan


# -- CPU time and memory -----------------------------------------------------------------------------


def cpu_s(pid: int) -> float:
    """Return the CPU time of a process and of its children that have ended; nan if it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return math.nan
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def tree_cpu_s(pid: int) -> float:
    """Return the CPU time of a process and of all its descendants."""
    found, ahead = {pid}, [pid]
    while ahead:
        for task in Path(f"/proc/{ahead.pop()}/task").glob("*/children"):
            with contextlib.suppress(OSError):
                children = {*map(int, task.read_text().split())} - found
                found |= children
                ahead += children
    return sum(seconds for each in found if not math.isnan(seconds := cpu_s(each)))


def children_cpu_s() -> float:
    """Return the CPU time of all processes that this one has started and waited for."""
    return sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2])


def resident_bytes(field: str) -> int:
    """Return a field of this process's memory: ``VmRSS``, or ``VmHWM`` for its peak."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition(f"{field}:")[2].split()[0]) * 1024


def peak_mib() -> float:
    """Return this process's peak memory. A child's ``ru_maxrss`` would start with the peak of its parent."""
    return resident_bytes("VmHWM") / 2**20


# -- a model and a workspace -------------------------------------------------------------------------


@contextlib.contextmanager
def stand_in_model(latency_ms: float, reply: str = "ok") -> Iterator[str]:
    """Start a model with a fixed latency in a process of its own; give its URL."""
    program = [sys.executable, "-m", "tests.standin_model", "--port", "0", "--reply", reply]
    process = subprocess.Popen(
        [*program, "--latency-ms", str(latency_ms)], cwd=REPOSITORY, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    try:
        yield process.stdout.readline().strip()
    finally:
        process.terminate()
        process.wait()


CLIENTS = ("none", "http", "ours", "openai")
ROLLOUT = """
import asyncio, json, os, time
from contextlib import asynccontextmanager
from pathlib import Path

import uvicorn

from osmosis_ai.rollout.agent_workflow import AgentWorkflow
from osmosis_ai.rollout.backend.local import LocalBackend
from osmosis_ai.rollout.context import get_rollout_context
from osmosis_ai.rollout.grader import Grader
from osmosis_ai.rollout.server import create_rollout_server
from osmosis_ai.rollout.types import AgentWorkflowConfig, ConcurrencyConfig

CLIENT = os.environ.get("BENCH_CLIENT", "http")
if CLIENT == "openai":
    import openai
marks = []  # (wall clock, CPU time) at the start of the first attempt and at every grading


async def ask(prompt):
    context = get_rollout_context()
    body = {"model": "policy", "messages": prompt}
    if CLIENT == "none":
        await asyncio.sleep(float(os.environ["BENCH_LATENCY_S"]))
        return {"role": "assistant", "content": "without a model"}
    if CLIENT == "http":
        reply = await context.http().post("/chat/completions", json=body)
        return reply.json()["choices"][0]["message"]
    url, key = context.chat_completions_url, context.api_key
    client = context.openai() if CLIENT == "ours" else openai.AsyncOpenAI(base_url=url, api_key=key)
    completion = await client.chat.completions.create(**body)
    return completion.choices[0].message.model_dump(exclude_none=True)


def mark():
    marks.append((time.perf_counter(), time.process_time()))


class OneCall(AgentWorkflow):
    async def run(self, ctx):
        marks or mark()
        return [*ctx.prompt, await ask(ctx.prompt)]


class AnyAnswer(Grader):
    async def grade(self, ctx):
        ctx.set_reward(1.0 if ctx.sample.messages[-1]["content"] else 0.0)
        mark()


@asynccontextmanager
async def life(app):
    yield
    if "BENCH_REPORT" in os.environ and marks:
        (began, cpu_before), (ended, cpu_after) = marks[0], marks[-1]
        used = {"seconds": ended - began, "cpu_s": cpu_after - cpu_before, "total_cpu_s": time.process_time()}
        Path(os.environ["BENCH_REPORT"]).write_text(json.dumps(used))


if __name__ == "__main__":
    config = AgentWorkflowConfig(name="bench", concurrency=ConcurrencyConfig(max_concurrent=None))
    backend = LocalBackend(workflow=OneCall, workflow_config=config, grader=AnyAnswer)
    app = create_rollout_server(backend=backend, lifespan=life)
    uvicorn.run(app, host="127.0.0.1", port=int(os.environ["_OSMOSIS_ROLLOUT_PORT"]), log_level="error")
"""
PROJECT = '[project]\nname = "bench"\nversion = "1"\nrequires-python = ">=3.10"\ndependencies = ["osmosis-ai[server]"]\n'
CONFIG = """
[experiment]
rollout = "bench"
entrypoint = "main.py"
model_path = "openai/stand-in"
dataset = "bench"
[evaluation]
agent_workflow_timeout_s = 300
grader_timeout_s = 60
[secrets]
required = []
"""


def dataset_bytes(rows: int) -> bytes:
    return b"".join(b'{"user_prompt":"Say %d","ground_truth":"%d"}\n' % (row, row) for row in range(rows))


def make_workspace(root: Path, rows: int) -> Path:
    """Create a Git repository with a rollout of one model call, its config and its dataset."""
    files = {
        "rollouts/bench/main.py": ROLLOUT, "rollouts/bench/pyproject.toml": PROJECT,
        "configs/eval/bench.toml": CONFIG, "configs/training/.keep": "",
        "data/bench.jsonl": dataset_bytes(rows).decode(),
    }  # fmt: skip
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    author = ["-c", "user.name=bench", "-c", "user.email=bench@bench.example"]
    for arguments in (["init", "--quiet"], ["add", "."], [*author, "commit", "--quiet", "-m", "Bench"]):
        subprocess.run(["git", *arguments], cwd=root, check=True)
    return root


def result(row: int, attempt: int = 0, **changes: Any) -> bytes:
    """Return a line of a journal: a successful attempt of realistic size."""
    from osmosis_ai.controller.record import TerminalRecord

    values = {
        "row_index": row, "run_index": attempt, "rollout_id": f"{row:026x}{attempt:06x}", "status": "success",
        "duration_ms": 1000 + row % 700, "source_row_index": row, "reward": float(row % 3 > 0), "tokens": 100 + attempt,
        "prompt_tokens": 60, "completion_tokens": 40 + attempt, "model_calls": 1, "cost_usd": 0.01,
        "model_latency_ms": 500.0, "row_digest": f"{row:032x}", "output": f"The answer is {row * attempt}.",
        "input": f"What is {row} times {attempt}? Answer with the number alone, without any other words.",
    }  # fmt: skip
    return TerminalRecord(**values | changes).to_line()


def model_settings(base_url: str) -> dict[str, str]:
    return {**os.environ, "OPENAI_BASE_URL": base_url, "OPENAI_API_KEY": "not-checked"}


# -- a platform --------------------------------------------------------------------------------------

POOL = "bench"
EVAL_RUNS, DATASETS = "/api/cli/eval-runs", "/api/cli/datasets"
IDENTITY, EMPTY_IDENTITY = "bench/agents", "bench/nothing"


@dataclass(frozen=True)
class Platform:
    """A running platform and the tokens of its users."""

    url: str
    tokens: list[str]
    pid: int
    home: Path
    environment: dict[str, str]

    def headers(self, identity: str = IDENTITY, client: int = 0) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.tokens[client]}", "X-Osmosis-Git": identity}

    def worker_token(self) -> Path:
        """Create a token for workers of the pool ``bench``; return its file."""
        file = self.home.parent / "worker.token"
        command = [*OSMOSIS, "platform", "worker-token", "create", "--pool", POOL, "--output", str(file)]
        subprocess.run(command, env=self.environment, stdout=subprocess.DEVNULL, check=True)
        return file


@contextlib.contextmanager
def platform(
    home: Path, repository: Path, *, users: int = 1, runs: int = 1, samples: int = 0, **settings: str
) -> Iterator[Platform]:
    """Start a platform with users, a workspace with finished runs, and an empty one."""
    from osmosis_ai.platform.config import PlatformConfig

    url = settings.get("OSMOSIS_DATABASE_URL", "")
    config = PlatformConfig(home=home, port=free_port(), database_url=url)
    tokens = _fill(config, repository, users, runs, samples)
    log = home.parent / f"{home.name}.log"
    with _process("platform", "start", "--port", str(config.port), home=home, **settings) as process:
        deadline = time.monotonic() + 120
        while "is ready" not in log.read_text():
            if process.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"the platform did not start:\n{log.read_text()[-2000:]}")
            time.sleep(0.05)
        yield Platform(config.base_url, tokens, process.pid, home, _environment(home) | settings)


@contextlib.contextmanager
def worker_machine(running: Platform) -> Iterator[None]:
    """Run ``osmosis platform worker`` for the pool ``bench``, with one slot."""
    where = ["--url", running.url, "--token-file", str(running.worker_token())]
    home = running.home.parent / "machine"
    with _process("platform", "worker", "--pool", POOL, "--slots", "1", *where, home=home):
        yield


def _environment(home: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("OSMOSIS_")}
    return kept | {"OSMOSIS_HOME": str(home), "OSMOSIS_CACHE_DIR": str(home.parent / "cache")}


@contextlib.contextmanager
def _process(*words: str, home: Path, **settings: str) -> Iterator[subprocess.Popen[bytes]]:
    environment, null = _environment(home) | settings, subprocess.DEVNULL
    with (home.parent / f"{home.name}.log").open("w") as log:
        process = subprocess.Popen([*OSMOSIS, *words], env=environment, stdin=null, stdout=log, stderr=log)
    try:
        yield process
    finally:
        process.terminate()
        process.wait()


def _fill(config: Any, repository: Path, users: int, runs: int, samples: int) -> list[str]:
    """Create users, workspaces and finished runs of realistic size; return a token for each user."""
    from sqlalchemy import insert

    from osmosis_ai.platform.accounts import AccountStore
    from osmosis_ai.platform.clock import SystemClock
    from osmosis_ai.platform.db.engine import Database
    from osmosis_ai.platform.db.tables import DbRun, DbSample
    from osmosis_ai.platform.workspaces import WorkspaceStore

    config.prepare_home()
    clock, db = SystemClock(), Database(config.database_url)
    db.migrate()
    accounts, workspaces = AccountStore(db, clock), WorkspaceStore(db, clock)
    people = [accounts.create_user(f"user{number}@bench.example", name="User") for number in range(users)]
    for name, identity, members in (("bench", IDENTITY, people), ("empty", EMPTY_IDENTITY, people[:1])):
        workspace = workspaces.create(name)
        workspaces.connect_repository(workspace.id, identity, str(repository))
        for member in members:
            workspaces.add_member(workspace.id, member.id, "owner")
        if members is not people:
            continue
        for first in range(0, runs, 5_000):
            numbers = range(first, min(first + 5_000, runs))
            with db.transaction() as session:
                session.execute(insert(DbRun), [_run(workspace.id, people[0].id, each) for each in numbers])
                if attempts := [_sample(each, row) for each in numbers for row in range(samples // runs)]:
                    session.connection().execute(insert(DbSample), attempts)
    tokens = [accounts.create_token(user.id)[1] for user in people]
    db.dispose()
    return tokens


def _run(workspace_id: str, creator_id: str, number: int) -> dict[str, Any]:
    created = datetime(2026, 1, 1, tzinfo=timezone.utc) + timedelta(seconds=number)
    reward = {"mean": 0.5, "std": 0.5, "min": 0.0, "median": 0.5, "max": 1.0}
    results = {
        "pass_rate": 0.5, "pass_threshold": 1.0, "graded": 10, "passed": 5, "failed": 0, "skipped": 0, "total_runs": 10,
        "sampled_rows": 10, "total_tokens": 4000, "total_dataset_rows": 10, "reward_stats": reward,
    }  # fmt: skip
    metrics = {
        "duration_ms": 300_000.0,
        "summary": {"reward_stats": {"mean": 0.5}, "pass_at_k": [{"k": 1, "value": 0.5}]},
        "estimates": {"reward": {"value": 0.5, "stderr": 0.1, "low": 0.3, "high": 0.7, "n": 10}},
    }
    return {
        "id": f"run_{number:024x}", "workspace_id": workspace_id, "kind": "eval", "name": f"quiet-otter-{number}",
        "status": "finished", "creator_id": creator_id, "created_at": created, "started_at": created,
        "completed_at": created + timedelta(minutes=5), "request": _request(10, 4), "commit_sha": "0" * 40,
        "rollout_name": "bench", "dataset_name": "bench", "model_path": "openai/stand-in", "results": results,
        "metrics": metrics,
    }  # fmt: skip


def _sample(run: int, row: int) -> dict[str, Any]:
    return {
        "run_id": f"run_{run:024x}", "row_index": row, "run_index": 0, "source_row_index": row, "status": "success",
        "rollout_id": f"{run:024x}{row:08x}", "reward": float(row % 2), "tokens": 400, "duration_ms": 1234.5,
    }  # fmt: skip


def _request(rows: int, in_flight: int) -> dict[str, Any]:
    experiment = {
        "rollout": "bench", "entrypoint": "main.py", "model_path": "openai/stand-in", "dataset": "bench",
    }  # fmt: skip
    limits = {"agent_workflow_timeout_s": 60, "grader_timeout_s": 60}
    evaluation = {"limit": rows, "n": 1, "batch_size": in_flight, **limits}
    return {"experiment_config": experiment, "evaluation_config": evaluation}


# -- clients of a platform ---------------------------------------------------------------------------


@dataclass
class Client:
    """Sends requests to a platform and measures them: milliseconds by kind of request, and errors."""

    session: aiohttp.ClientSession
    platform: Platform
    ms: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    errors: list[str] = field(default_factory=list)

    async def request(self, kind: str, path: str, method: str = "GET", **how: Any) -> Any:
        """Send a request and read its whole reply; any status but a success is an error."""
        url, how = (
            path if "://" in path else self.platform.url + path,
            {"headers": self.platform.headers(), **how},
        )
        began = time.perf_counter()
        try:
            async with self.session.request(method, url, **how) as reply:
                content = await reply.read()
            if not reply.ok:
                raise RuntimeError(f"{reply.status} {content[:200].decode()}")
        except Exception as error:
            self.errors.append(f"{kind}: {type(error).__name__} {error}")
            raise
        self.ms[kind].append((time.perf_counter() - began) * 1000)
        return json.loads(content) if content else None

    async def submit(
        self, model_url: str, rows: int, in_flight: int, execution: Mapping[str, str] | None = None
    ) -> str:
        """Submit a run of the rollout; return its name."""
        body = _request(rows, in_flight) | {
            "advanced_config": {"execution": execution} if execution else {},
            "env_config": {"OPENAI_BASE_URL": model_url},
            "secrets": {"required": ["OPENAI_API_KEY"], "provided": {"OPENAI_API_KEY": "not-checked"}},
        }
        return str((await self.request("submit", EVAL_RUNS, "POST", json=body))["name"])

    async def until(self, name: str, reached: Callable[[dict[str, Any]], bool], every_s: float) -> None:
        """Poll a run until it reaches a state."""
        deadline = time.monotonic() + 600
        while not reached(run := await self.request("poll a run", f"{EVAL_RUNS}/{name}")):
            if run["eval_run"]["status"] == "failed" or time.monotonic() > deadline:
                raise SystemExit(f"run {name}: {run['eval_run']}")
            await asyncio.sleep(every_s)

    async def upload(self, name: str, content: bytes, headers: dict[str, str], pause_s: float = 0.05) -> None:
        """Upload a dataset like the command does, and wait until it has been checked."""
        meta = {"file_name": name, "file_size": len(content), "extension": "jsonl"}
        created = await self.request("announce an upload", DATASETS, "POST", headers=headers, json=meta)
        await asyncio.sleep(pause_s)
        to = created["upload"]
        await self.request("send", to["presigned_url"], "PUT", headers=to["upload_headers"], data=content)
        await asyncio.sleep(pause_s)
        path, done = f"{DATASETS}/{created['id']}", {"file_extension": "jsonl"}
        dataset = await self.request("complete", f"{path}/complete", "POST", headers=headers, json=done)
        while dataset["status"] == "processing":
            await asyncio.sleep(pause_s)
            dataset = await self.request("poll a dataset", path, headers=headers)
        if dataset["status"] != "uploaded":
            self.errors.append(f"dataset {name}: {dataset['status']}")


def has_rows(run: dict[str, Any]) -> bool:
    return bool((run.get("results") or {}).get("total_runs"))


def has_ended(run: dict[str, Any]) -> bool:
    return has_rows(run) and run["eval_run"]["status"] in ("finished", "stopped")


def median(values: Sequence[float], digits: int = 2) -> float:
    return round(statistics.median(values), digits)
