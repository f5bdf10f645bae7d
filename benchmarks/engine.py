"""What an evaluation costs, through the real processes of `osmosis eval run`.

A stand-in model answers after a set latency; the rollout calls it once with one of five clients; the
journal is fsynced. For each number in flight and each client: rollouts per second, how long the rows
took as a ratio to the first number in flight, and the CPU of engine and rollout server per rollout,
start-up taken off. The runs alternate and the medians are shown, so that what else the machine does
falls on all of them. Memory is the peak of the engine's process, with few and with many rows.

    python benchmarks/engine.py                                        # the whole table, some minutes
    python benchmarks/engine.py --clients shared --rows 10000 --runs 1              # a client that slows down when shared
    python benchmarks/engine.py --clients shared --latency-ms 10000 --rows 2560 --in-flight 512 --runs 1  # a slow model
    python benchmarks/engine.py --in-flight 4 --rows 8 --runs 1 --memory-rows 8     # seconds

clients:
    none      no model call at all: the rollout waits for as long as the model would take
    http      get_rollout_context().http()
    ours      get_rollout_context().openai()
    shared    one httpx.AsyncClient for all rollouts, of up to 512 connections
    httpx     a new httpx.AsyncClient in every rollout
    openai    a new openai.AsyncOpenAI in every rollout
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

REPOSITORY = Path(__file__).parents[1]
CLIENTS = ("none", "http", "ours", "shared", "httpx", "openai")
ROLLOUT = """
import asyncio, functools, json, os, time
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import uvicorn

from osmosis_ai.rollout.agent_workflow import AgentWorkflow
from osmosis_ai.rollout.backend.local import LocalBackend
from osmosis_ai.rollout.context import get_rollout_context
from osmosis_ai.rollout.grader import Grader
from osmosis_ai.rollout.server import create_rollout_server
from osmosis_ai.rollout.types import AgentWorkflowConfig, ConcurrencyConfig

CLIENT, LATENCY_S = os.environ["BENCH_CLIENT"], float(os.environ["BENCH_LATENCY_S"])
if CLIENT == "openai":
    import openai
marks = []  # (wall clock, processor time) at the first rollout's start and at every grading


async def ask(prompt):
    context = get_rollout_context()
    url, key = context.chat_completions_url, context.api_key
    body = {"model": "policy", "messages": prompt}
    if CLIENT == "none":
        await asyncio.sleep(LATENCY_S)
        return {"role": "assistant", "content": "nobody was asked"}
    if CLIENT == "http":
        return (await context.http().post("/chat/completions", json=body)).json()["choices"][0]["message"]
    headers = {"Authorization": f"Bearer {key}"}
    if CLIENT == "shared":
        reply = await shared_client().post(f"{url}/chat/completions", json=body, headers=headers)
        return reply.json()["choices"][0]["message"]
    if CLIENT == "httpx":
        async with httpx.AsyncClient(timeout=300) as client:
            reply = await client.post(f"{url}/chat/completions", json=body, headers=headers)
        return reply.json()["choices"][0]["message"]
    client = context.openai() if CLIENT == "ours" else openai.AsyncOpenAI(base_url=url, api_key=key)
    completion = await client.chat.completions.create(**body)
    return completion.choices[0].message.model_dump(exclude_none=True)


@functools.cache
def shared_client():
    return httpx.AsyncClient(timeout=300, limits=httpx.Limits(max_connections=512))


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
    (began, cpu_before), (ended, cpu_after) = marks[0], marks[-1]
    told = {"seconds": ended - began, "cpu_s": cpu_after - cpu_before, "total_cpu_s": time.process_time()}
    Path(os.environ["BENCH_REPORT"]).write_text(json.dumps(told))


if __name__ == "__main__":
    config = AgentWorkflowConfig(name="bench", concurrency=ConcurrencyConfig(max_concurrent=None))
    backend = LocalBackend(workflow=OneCall, workflow_config=config, grader=AnyAnswer)
    app = create_rollout_server(backend=backend, lifespan=life)
    uvicorn.run(app, host="127.0.0.1", port=int(os.environ["_OSMOSIS_ROLLOUT_PORT"]), log_level="error")
"""
PYPROJECT = '[project]\nname = "bench"\nversion = "1"\nrequires-python = ">=3.10"\ndependencies = ["osmosis-ai[server]"]\n'


@dataclass(frozen=True)
class Measured:
    """One evaluation: seconds from the first rollout's start to the last grading, CPU seconds, MiB."""

    seconds: float
    server_cpu_s: float
    engine_cpu_s: float
    peak_mib: float
    lost: int


@dataclass(frozen=True)
class Cell:
    """Medians over the runs of one client at one number in flight."""

    in_flight: int
    client: str
    rollouts_per_s: float
    ideal_per_s: float
    time_ratio: float
    engine_cpu_ms: float
    server_cpu_ms: float
    lost: int


@dataclass(frozen=True)
class Memory:
    rows: int
    peak_mib: float


def make_workspace(root: Path, rows: int) -> None:
    for directory in ("rollouts/bench", "configs/eval", "configs/training", "data"):
        (root / directory).mkdir(parents=True)
    (root / "rollouts/bench/main.py").write_text(ROLLOUT)
    (root / "rollouts/bench/pyproject.toml").write_text(PYPROJECT)
    with (root / "data/bench.jsonl").open("w") as out:
        for index in range(rows):
            out.write(json.dumps({"user_prompt": f"Say {index}", "ground_truth": str(index)}) + "\n")
    (root / "configs/eval/bench.toml").write_text(
        '[experiment]\nrollout = "bench"\nentrypoint = "main.py"\nmodel_path = "openai/stand-in"\ndataset = "bench"\n'
        "[evaluation]\nagent_workflow_timeout_s = 300\ngrader_timeout_s = 60\n[secrets]\nrequired = []\n"
    )
    subprocess.run(["git", "init", "--quiet", str(root)], check=True)


@contextlib.contextmanager
def stand_in_model(latency_ms: float) -> Iterator[str]:
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.standin_model", "--port", "0", "--latency-ms", str(latency_ms)],
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        base_url = process.stdout.readline().strip()
        if not base_url:
            raise SystemExit("the stand-in model did not start")
        yield base_url
    finally:
        process.terminate()
        process.wait()


class Bench:
    """Evaluations of one workspace against one model."""

    def __init__(self, workspace: Path, base_url: str, latency_ms: float) -> None:
        self._workspace = workspace
        self._report = workspace / "report.json"
        self._environment = {
            **os.environ,
            "OPENAI_BASE_URL": base_url,
            "OPENAI_API_KEY": "not-checked",
            "BENCH_LATENCY_S": str(latency_ms / 1000),
            "BENCH_REPORT": str(self._report),
        }

    def evaluate(self, *, rows: int, in_flight: int, client: str) -> Measured:
        """Run one evaluation to its end."""
        command = [sys.executable, "-m", "osmosis_ai", "eval", "run", "configs/eval/bench.toml", "--yes"]
        command += ["--json", "--rows", f"0-{rows - 1}", "--max-in-flight", str(in_flight), "--servers", "1"]
        command += ["--fresh", "--name", "bench"]
        process = subprocess.Popen(
            command,
            cwd=self._workspace,
            env={**self._environment, "BENCH_CLIENT": client},
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        assert process.stdout is not None
        out = process.stdout.read()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode != 0:
            raise SystemExit(f"the run failed: see {self._workspace}/.osmosis/evals/bench")
        told = json.loads(out)["resource"]
        if told["succeeded"] != rows:
            raise SystemExit(f"{told['succeeded']} of {rows} rows succeeded with `{client}`: {told}")
        server = json.loads(self._report.read_text())
        return Measured(
            seconds=server["seconds"],
            server_cpu_s=server["cpu_s"],
            # What was waited for counts as well, and the server was.
            engine_cpu_s=usage.ru_utime + usage.ru_stime - server["total_cpu_s"],
            peak_mib=usage.ru_maxrss / 1024,
            lost=told.get("lost_attempts", 0),
        )


def measure_clients(bench: Bench, options: argparse.Namespace) -> list[Cell]:
    """Run every client at every number in flight, in turns, ``options.runs`` times."""
    # The first fills caches and bytecode; the second is what an evaluation costs before its rows.
    bench.evaluate(rows=1, in_flight=1, client="openai")
    start_up_s = bench.evaluate(rows=1, in_flight=1, client="none").engine_cpu_s
    measured: dict[tuple[str, int], list[Measured]] = {}
    for _ in range(options.runs):
        for client in options.clients:
            for in_flight in options.in_flight:
                runs = measured.setdefault((client, in_flight), [])
                runs.append(bench.evaluate(rows=options.rows, in_flight=in_flight, client=client))
    cells = []
    for (client, in_flight), runs in measured.items():
        seconds = statistics.median(run.seconds for run in runs)
        first = statistics.median(run.seconds for run in measured[client, options.in_flight[0]])
        engine_s = statistics.median(run.engine_cpu_s for run in runs) - start_up_s
        server_s = statistics.median(run.server_cpu_s for run in runs)
        cells.append(
            Cell(
                in_flight=in_flight,
                client=client,
                rollouts_per_s=round(options.rows / seconds, 1),
                ideal_per_s=round(min(in_flight, options.rows) / (options.latency_ms / 1000), 1),
                time_ratio=round(seconds / first, 2),
                engine_cpu_ms=round(max(engine_s, 0.0) * 1000 / options.rows, 2),
                server_cpu_ms=round(server_s * 1000 / options.rows, 2),
                lost=sum(run.lost for run in runs),
            )
        )
    return cells


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--latency-ms", type=float, default=50.0, help="of the model")
    parser.add_argument("--in-flight", type=int, nargs="+", default=[32, 128, 512])
    parser.add_argument("--clients", nargs="+", choices=CLIENTS, default=list(CLIENTS))
    parser.add_argument("--rows", type=int, default=1000, help="of each run")
    parser.add_argument("--runs", type=int, default=5, help="of each client at each number in flight")
    parser.add_argument("--memory-rows", type=int, nargs="*", default=[1_000, 10_000])
    options = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    with tempfile.TemporaryDirectory(prefix="osmosis-bench-") as directory:
        workspace = Path(directory)
        make_workspace(workspace, max([*options.memory_rows, options.rows]))
        with stand_in_model(options.latency_ms) as base_url:
            cells = measure_clients(Bench(workspace, base_url, options.latency_ms), options)
        with stand_in_model(1.0) as base_url:
            bench = Bench(workspace, base_url, 1.0)
            memory = [
                Memory(rows, round(bench.evaluate(rows=rows, in_flight=64, client="http").peak_mib, 1))
                for rows in options.memory_rows
            ]
    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores, medians of {options.runs}")
    for cell in cells:
        print(
            f"{cell.client:>6} {cell.in_flight:>4} in flight: {cell.rollouts_per_s:>7.1f} rollouts/s "
            f"(ideal {cell.ideal_per_s:.0f}), time {cell.time_ratio:.2f}x, CPU a rollout: engine "
            f"{cell.engine_cpu_ms:.2f} ms, server {cell.server_cpu_ms:.2f} ms, lost {cell.lost}"
        )
    for point in memory:
        print(f"{point.rows:>7} rows: peak {point.peak_mib:.1f} MiB")
    print(json.dumps({"clients": [*map(asdict, cells)], "memory": [*map(asdict, memory)]}))


if __name__ == "__main__":
    main()
