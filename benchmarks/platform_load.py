"""How the platform answers under load, and how soon it starts working; through the real processes.

Three measurements, each against a freshly started `osmosis platform start`:

- lists: a page of runs with many runs and samples in the database, against a page from a database that holds
  no more than that page, and against an empty one. One client, the three asked in turn, so that load on the
  machine hits all alike.
- first row: from sending a submit to seeing the first finished row, on a warm environment.
- load: many clients that list, poll and upload, each with its own token and a pause after every request,
  while some runs execute, paced by a stand-in model with a set latency.

    python benchmarks/platform_load.py [--quick] [--clients 200] [--seconds 60] [--runs 100000] [--samples 1000000]
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import math
import os
import random
import resource
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import aiohttp
from engine import PYPROJECT, stand_in_model
from sqlalchemy import insert

from osmosis_ai.api import routes
from osmosis_ai.platform.accounts import AccountStore
from osmosis_ai.platform.clock import SystemClock
from osmosis_ai.platform.config import PlatformConfig
from osmosis_ai.platform.db.engine import Database
from osmosis_ai.platform.db.tables import DbRun, DbSample, DbUser
from osmosis_ai.platform.workspaces import WorkspaceStore

IDENTITY, EMPTY_IDENTITY = "bench/agents", "bench/nothing"
PAGE = 50
WARM_UP = 5
BENCH_ROWS = 100_000
START_LIMIT_S = 120.0
WAIT_LIMIT_S = 600.0
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
AIMS = {"list_p95_ms": 150.0, "list_ratio": 2.0, "first_row_s": 3.0}


@dataclass(frozen=True)
class Platform:
    """A running platform and who may use it; ``tokens`` are of one user each."""

    url: str
    tokens: list[str]
    pid: int

    def cpu_s(self) -> float:
        """Return the processor time its own process has used; nan where the system does not tell."""
        try:
            fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            return math.nan
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def headers(self, identity: str = IDENTITY, client: int = 0) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.tokens[client]}", "X-Osmosis-Git": identity}


@dataclass
class Latencies:
    """What clients experienced: milliseconds by kind of request, and what went wrong."""

    by_kind: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    errors: list[str] = field(default_factory=list)

    def table(self) -> dict[str, dict[str, float]]:
        return {
            kind: {"count": len(values), **{f"p{q}": percentile(values, q) for q in (50, 95, 99)}}
            for kind, values in sorted(self.by_kind.items())
        }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--pause-s", type=float, default=1.0, help="mean pause of a client after a request")
    parser.add_argument("--seconds", type=float, help="length of the load (default: 60)")
    parser.add_argument("--latency-ms", type=float, default=200.0, help="of the stand-in model")
    parser.add_argument("--in-flight", type=int, default=4, help="rollouts at once of each run")
    parser.add_argument("--runs", type=int, help="in the large database (default: 100,000)")
    parser.add_argument("--samples", type=int, help="in the large database (default: 1,000,000)")
    parser.add_argument("--turns", type=int, help="how often each list is asked for (default: 300)")
    parser.add_argument("--first-rows", type=int, help="how often a first row is waited for (default: 5)")
    parser.add_argument("--executing", type=int, default=4, help="runs at once under load (default: 4)")
    parser.add_argument("--quick", action="store_true", help="a tenth of it all, in half a minute")
    options = parser.parse_args()
    share = 10 if options.quick else 1
    options.seconds = options.seconds or 60 / share
    options.turns = options.turns or (50 if options.quick else 300)
    options.first_rows = options.first_rows or (3 if options.quick else 5)
    options.runs = options.runs or 100_000 // share
    options.samples = options.samples or 1_000_000 // share
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    with tempfile.TemporaryDirectory(prefix="osmosis-bench-") as directory:
        figures = measure(Path(directory), options)
    print_tables(figures, options)
    print(json.dumps(figures))


def measure(directory: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Take all measurements; everything that was started has ended afterwards."""
    repository = make_repository(directory / "repository")
    with (
        stand_in_model(options.latency_ms) as model_url,
        platform(
            directory / "small", repository, options.clients, runs=PAGE, samples=0, slots=options.executing
        ) as small,
    ):
        with platform(
            directory / "large", repository, 1, runs=options.runs, samples=options.samples
        ) as large:
            lists = asyncio.run(measure_lists(small, large, options))
        job = Job(model_url, options.in_flight)
        first_rows = asyncio.run(measure_first_row(small, job, options.first_rows))
        load = asyncio.run(measure_load(small, job, options))
    return {
        "cpus": os.cpu_count(),
        "lists": lists,
        "first_row_s": {"median": statistics.median(first_rows), "all": first_rows},
        "load": load,
    }


# -- lists of a large database -----------------------------------------------------------------------


async def measure_lists(small: Platform, large: Platform, options: argparse.Namespace) -> dict[str, Any]:
    """Ask for the same page of different databases in turn; one request at a time."""
    asked = {
        "empty": (small, EMPTY_IDENTITY, 0),
        "one_page": (small, IDENTITY, 0),
        "large": (large, IDENTITY, 0),
        "large_last_page": (large, IDENTITY, options.runs - PAGE),
    }
    seen = Latencies()
    async with aiohttp.ClientSession() as session:
        for turn in range(WARM_UP + options.turns):
            for name, (where, identity, offset) in asked.items():
                page = await request(
                    session,
                    Latencies() if turn < WARM_UP else seen,
                    name,
                    where.url + routes.EVAL_RUNS,
                    headers=where.headers(identity),
                    params={"limit": PAGE, "offset": offset},
                )
                assert len(page["eval_runs"]) == (0 if name == "empty" else PAGE), name
    medians = {name: percentile(values, 50) for name, values in seen.by_kind.items()}
    return {
        "median_ms": medians,
        "runs": options.runs,
        "samples": options.samples,
        "ratio_to_one_page": round(medians["large"] / medians["one_page"], 2),
        "ratio_to_empty": round(medians["large"] / medians["empty"], 2),
    }


# -- the first finished row --------------------------------------------------------------------------


@dataclass(frozen=True)
class Job:
    """Submits runs of the benchmark's rollout."""

    model_url: str
    in_flight: int

    async def submit(self, session: aiohttp.ClientSession, platform: Platform, rows: int) -> str:
        """Submit a run and return its name."""
        body = {
            "experiment_config": {
                "rollout": "bench",
                "entrypoint": "main.py",
                "model_path": "openai/stand-in",
                "dataset": "bench",
            },
            "evaluation_config": {
                "limit": rows,
                "n": 1,
                "batch_size": self.in_flight,
                "agent_workflow_timeout_s": 60,
                "grader_timeout_s": 60,
            },
            "env_config": {"OPENAI_BASE_URL": self.model_url},
            "secrets": {"required": ["OPENAI_API_KEY"], "provided": {"OPENAI_API_KEY": "not-checked"}},
        }
        submitted = await must(
            session, "POST", platform.url + routes.EVAL_RUNS, platform.headers(), json=body
        )
        return str(submitted["name"])


async def measure_first_row(platform: Platform, job: Job, repeats: int) -> list[float]:
    """Return the seconds from a submit to its first finished row, a few times, on a warm environment."""
    seconds: list[float] = []
    async with aiohttp.ClientSession() as session:
        await upload(
            Latencies(), session, platform.url, platform.headers(), "bench", dataset_bytes(BENCH_ROWS)
        )
        for turn in range(repeats + 1):
            started = time.perf_counter()
            name = await job.submit(session, platform, rows=4)
            await until(session, platform, name, has_finished_row, every_s=0.02)
            if turn:  # the first one warms the environment
                seconds.append(round(time.perf_counter() - started, 2))
            await until(session, platform, name, has_ended, every_s=0.05)
    return seconds


def has_finished_row(detail: dict[str, Any]) -> bool:
    if detail["eval_run"]["status"] == "failed":
        raise SystemExit(f"the run failed: {detail['eval_run'].get('error')}")
    return bool((detail.get("results") or {}).get("total_runs"))


def has_ended(detail: dict[str, Any]) -> bool:
    return has_finished_row(detail) and detail["eval_run"]["status"] in ("finished", "stopped")


# -- many clients while runs execute -----------------------------------------------------------------


async def measure_load(platform: Platform, job: Job, options: argparse.Namespace) -> dict[str, Any]:
    """Let all clients work for the set time while some runs execute, then stop the runs."""
    seen = Latencies()
    async with aiohttp.ClientSession() as session:
        runs = [await job.submit(session, platform, rows=BENCH_ROWS) for _ in range(options.executing)]
        for name in runs:
            await until(session, platform, name, has_finished_row, every_s=0.1)
        before = await finished_rows(session, platform, runs)
        cpu_before, others = platform.cpu_s(), os.getloadavg()[0]
        async with clients(platform, runs, seen, options):
            await asyncio.sleep(options.seconds)
            cpu_s = platform.cpu_s() - cpu_before
        details = [await get_run(session, platform, name) for name in runs]
        for name in runs:
            await must(
                session, "POST", platform.url + routes.run_stop(routes.EVAL_RUNS, name), platform.headers()
            )
        for name in runs:
            await until(session, platform, name, has_ended, every_s=0.1)
    seen.errors += [
        f"run {detail['eval_run']['name']}: {detail['eval_run']['status']}, {detail['results']}"
        for detail in details
        if detail["eval_run"]["status"] != "running" or detail["results"].get("failed")
    ]
    requests = sum(map(len, seen.by_kind.values()))
    return {
        "clients": options.clients,
        "pause_s": options.pause_s,
        "requests_per_s": round(requests / options.seconds, 1),
        "rollouts_per_s": round((sum(map(rows_of, details)) - before) / options.seconds, 1),
        "cpu_ms_per_request": round(cpu_s / requests * 1000, 2),
        "load_average_before": round(others, 1),
        "requests": requests,
        "errors": len(seen.errors),
        "first_errors": seen.errors[:5],
        "list_p95_ms": percentile([*seen.by_kind["list runs"], *seen.by_kind["list datasets"]], 95),
        "ms": seen.table(),
    }


@contextlib.asynccontextmanager
async def clients(
    platform: Platform, runs: list[str], seen: Latencies, options: argparse.Namespace
) -> AsyncIterator[None]:
    """Run all clients: half list, four in ten follow runs, one in ten uploads datasets."""
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(30)) as session:

        async def live(number: int) -> None:
            rng = random.Random(number)
            headers = platform.headers(client=number)
            await asyncio.sleep(rng.uniform(0, options.pause_s))

            async def pause() -> None:
                await asyncio.sleep(rng.uniform(0.5, 1.5) * options.pause_s)

            async def get(kind: str, path: str, **params: int) -> None:
                await request(session, seen, kind, platform.url + path, headers=headers, params=params)
                await pause()

            turn = 0
            while True:
                turn += 1
                if number % 10 < 5:
                    await get("list runs", routes.EVAL_RUNS, limit=PAGE, offset=0)
                    await get("list datasets", routes.DATASETS, limit=PAGE, offset=0)
                elif number % 10 < 9:
                    name = rng.choice(runs)
                    await get("poll a run", routes.run(routes.EVAL_RUNS, name))
                    await get("poll metrics", routes.run_metrics(routes.EVAL_RUNS, name))
                    await get("poll logs", routes.run_logs(routes.EVAL_RUNS, name), limit=PAGE)
                else:
                    content = dataset_bytes(rng.randrange(100, 2000))
                    await upload(seen, session, platform.url, headers, f"d-{number}-{turn}", content, pause)

        living = [asyncio.create_task(guarded(live(number), seen)) for number in range(options.clients)]
        try:
            yield
        finally:
            for task in living:
                task.cancel()
            await asyncio.gather(*living, return_exceptions=True)


async def guarded(client: Awaitable[None], seen: Latencies) -> None:
    """Note what ends a client before its time."""
    try:
        await client
    except Exception as error:
        seen.errors.append(f"a client ended: {type(error).__name__}: {error}")


async def upload(
    seen: Latencies,
    session: aiohttp.ClientSession,
    url: str,
    headers: dict[str, str],
    name: str,
    content: bytes,
    pause: Callable[[], Awaitable[None]] = lambda: asyncio.sleep(0.05),
) -> None:
    """Upload a dataset as the command line does, and wait until it has been checked."""
    announced = {"file_name": name, "file_size": len(content), "extension": "jsonl"}
    created = await request(
        session, seen, "upload: announce", url + routes.DATASETS, "POST", headers=headers, json=announced
    )
    await pause()
    instructions = created["upload"]
    await request(
        session,
        seen,
        "upload: send",
        instructions["presigned_url"],
        "PUT",
        headers=instructions["upload_headers"],
        data=content,
    )
    await pause()
    path = routes.dataset_complete(created["id"])
    dataset = await request(
        session,
        seen,
        "upload: complete",
        url + path,
        "POST",
        headers=headers,
        json={"file_extension": "jsonl"},
    )
    while dataset["status"] == "processing":
        await pause()
        path = routes.dataset(created["id"])
        dataset = await request(session, seen, "poll a dataset", url + path, headers=headers)
    if dataset["status"] != "uploaded":
        seen.errors.append(f"dataset {name}: {dataset['status']}")


# -- requests ----------------------------------------------------------------------------------------


async def request(
    session: aiohttp.ClientSession, seen: Latencies, kind: str, url: str, method: str = "GET", **options: Any
) -> Any:
    """Send one request and note how long its whole reply took; anything but a success is an error."""
    started = time.perf_counter()
    try:
        async with session.request(method, url, **options) as reply:
            content = await reply.read()
    except (aiohttp.ClientError, asyncio.TimeoutError) as error:
        seen.errors.append(f"{kind}: {type(error).__name__} {error}")
        raise
    seen.by_kind[kind].append((time.perf_counter() - started) * 1000)
    if not reply.ok:
        seen.errors.append(f"{kind}: {reply.status} {content[:200].decode()}")
        raise RuntimeError(f"{kind}: {reply.status} {content[:200].decode()}")
    return json.loads(content) if content else None


async def must(
    session: aiohttp.ClientSession, method: str, url: str, headers: dict[str, str], **options: Any
) -> Any:
    return await request(session, Latencies(), "control", url, method, headers=headers, **options)


async def get_run(session: aiohttp.ClientSession, platform: Platform, name: str) -> dict[str, Any]:
    detail: dict[str, Any] = await must(
        session, "GET", platform.url + routes.run(routes.EVAL_RUNS, name), platform.headers()
    )
    return detail


async def until(
    session: aiohttp.ClientSession,
    platform: Platform,
    name: str,
    reached: Callable[[dict[str, Any]], bool],
    *,
    every_s: float,
) -> None:
    deadline = time.monotonic() + WAIT_LIMIT_S
    while not reached(await get_run(session, platform, name)):
        if time.monotonic() > deadline:
            raise SystemExit(f"run {name} did not get there in {WAIT_LIMIT_S:.0f} s")
        await asyncio.sleep(every_s)


async def finished_rows(session: aiohttp.ClientSession, platform: Platform, runs: list[str]) -> int:
    return sum([rows_of(await get_run(session, platform, name)) for name in runs])


def rows_of(detail: dict[str, Any]) -> int:
    return int(detail["results"].get("total_runs") or 0)


# -- platforms and what is in them -------------------------------------------------------------------


@contextlib.contextmanager
def platform(
    home: Path, repository: Path, users: int, *, runs: int, samples: int, slots: int = 1
) -> Iterator[Platform]:
    """Make a platform with users, a workspace with runs and one without, and start it on a free port.

    It executes as many runs at once as it has ``slots``.
    """
    config = PlatformConfig(home=home, port=free_port())
    tokens = fill(config, repository, users, runs, samples)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("OSMOSIS_")}
    environment |= {
        "OSMOSIS_HOME": str(home),
        "OSMOSIS_CACHE_DIR": str(home.parent / "cache"),
        "OSMOSIS_EXECUTOR_SLOTS": str(slots),
    }
    log = home.parent / f"{home.name}.log"
    with log.open("w") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "osmosis_ai", "platform", "start", "--port", str(config.port)],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )
    try:
        wait_until_it_answers(config.port, process, log)
        yield Platform(config.base_url, tokens, process.pid)
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
    """Write accounts and finished runs into a new database; return a token of every user."""
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
    """Write finished runs, the samples shared out evenly."""
    each = math.ceil(samples / runs)
    for first in range(0, runs, 5_000):
        numbers = range(first, min(first + 5_000, runs))
        with db.transaction() as session:
            session.execute(insert(DbRun), [run_row(workspace_id, creator.id, number) for number in numbers])
            if each:
                rows = [sample_row(number, row) for number in numbers for row in range(each)]
                session.connection().execute(insert(DbSample), rows)


def run_row(workspace_id: str, creator_id: str, number: int) -> dict[str, Any]:
    """Return a run of the size that real ones have."""
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
    """Make a Git repository with a rollout of one model call."""
    rollout = root / "rollouts" / "bench"
    rollout.mkdir(parents=True)
    (rollout / "main.py").write_text(ROLLOUT)
    (rollout / "pyproject.toml").write_text(PYPROJECT)
    author = ["-c", "user.name=bench", "-c", "user.email=bench@bench.example"]
    for arguments in (["init", "--quiet"], ["add", "."], [*author, "commit", "--quiet", "-m", "Bench"]):
        subprocess.run(["git", *arguments], cwd=root, check=True)
    return root


def dataset_bytes(rows: int) -> bytes:
    return b"".join(b'{"user_prompt":"Say %d","ground_truth":"%d"}\n' % (row, row) for row in range(rows))


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


# -- figures -----------------------------------------------------------------------------------------


def percentile(values: list[float], q: int) -> float:
    """Return the q-th percentile (nearest rank), rounded to 0.1."""
    ordered = sorted(values)
    return round(ordered[max(0, math.ceil(q / 100 * len(ordered)) - 1)], 1) if ordered else math.nan


def print_tables(figures: dict[str, Any], options: argparse.Namespace) -> None:
    lists, load, first_row = figures["lists"], figures["load"], figures["first_row_s"]
    print(f"{figures['cpus']} CPUs; a list of {PAGE} runs, one client, median ms:")
    for name, median in lists["median_ms"].items():
        print(f"  {name.replace('_', ' '):<18}{median:>8.1f}")
    print(
        f"  {lists['runs']:,} runs and {lists['samples']:,} samples against one page: "
        f"{lists['ratio_to_one_page']}x (aim <= {AIMS['list_ratio']:g}x); against empty: {lists['ratio_to_empty']}x"
    )
    print(
        f"submit to first finished row, warm: median {first_row['median']:.2f} s "
        f"(aim < {AIMS['first_row_s']:g} s), all {first_row['all']}"
    )
    print(
        f"{load['clients']} clients, {load['pause_s']:g} s pause, {options.executing} runs x {options.in_flight} rollouts "
        f"on a {options.latency_ms:g} ms model: {load['requests_per_s']} requests/s, "
        f"{load['rollouts_per_s']} rollouts/s, {load['errors']} errors in {load['requests']} requests\n"
        f"  {load['cpu_ms_per_request']} ms of the platform's processor time a request; load average before: "
        f"{load['load_average_before']}"
    )
    print(f"  {'ms':<18}{'count':>8}{'p50':>8}{'p95':>8}{'p99':>8}")
    for kind, row in load["ms"].items():
        print(f"  {kind:<18}{row['count']:>8}{row['p50']:>8}{row['p95']:>8}{row['p99']:>8}")
    print(f"  lists: p95 {load['list_p95_ms']} ms (aim < {AIMS['list_p95_ms']:g} ms)")
    for error in load["first_errors"]:
        print(f"  error: {error}")


if __name__ == "__main__":
    main()
