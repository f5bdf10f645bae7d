"""Throughput and memory of `osmosis eval run`, through the real processes.

A stand-in model answers after a set latency; the rollout makes one model call over HTTP; the
journal is fsynced. Throughput is the slope between a short and a long run, so that start-up
does not count, given as a ratio to the ideal (rows x latency / in flight). Memory is the peak of
the process that runs the engine, with few and with many rows.

    python benchmarks/engine.py [--latency-ms 200] [--in-flight 1 32 256] [--memory-rows 1000 50000]
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

REPOSITORY = Path(__file__).parents[1]
ROLLOUT = """
import os

import aiohttp
import uvicorn

from osmosis_ai.rollout.agent_workflow import AgentWorkflow
from osmosis_ai.rollout.backend.local import LocalBackend
from osmosis_ai.rollout.context import get_rollout_context
from osmosis_ai.rollout.grader import Grader
from osmosis_ai.rollout.server import create_rollout_server
from osmosis_ai.rollout.types import AgentWorkflowConfig, ConcurrencyConfig

sessions = []


class OneCall(AgentWorkflow):
    async def run(self, ctx):
        if not sessions:
            sessions.append(aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)))
        model = get_rollout_context()
        async with sessions[0].post(
            f"{model.chat_completions_url}/chat/completions",
            headers={"Authorization": f"Bearer {model.api_key}"},
            json={"model": "policy", "messages": ctx.prompt},
        ) as reply:
            reply.raise_for_status()
            body = await reply.json()
        return [*ctx.prompt, body["choices"][0]["message"]]


class AnyAnswer(Grader):
    async def grade(self, ctx):
        ctx.set_reward(1.0 if ctx.sample.messages[-1]["content"] else 0.0)


if __name__ == "__main__":
    config = AgentWorkflowConfig(name="bench", concurrency=ConcurrencyConfig(max_concurrent=None))
    app = create_rollout_server(backend=LocalBackend(workflow=OneCall, workflow_config=config, grader=AnyAnswer))
    uvicorn.run(app, host="127.0.0.1", port=int(os.environ["_OSMOSIS_ROLLOUT_PORT"]), log_level="error")
"""
PYPROJECT = '[project]\nname = "bench"\nversion = "1"\nrequires-python = ">=3.10"\ndependencies = ["osmosis-ai[server]"]\n'


@dataclass(frozen=True)
class Throughput:
    in_flight: int
    latency_ms: float
    rollouts_per_s: float
    ideal_per_s: float
    ratio_to_ideal: float


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


def evaluate(workspace: Path, base_url: str, *, rows: int, in_flight: int) -> tuple[float, float]:
    """Run one evaluation; return (wall seconds, peak MiB of the engine's process)."""
    command = [
        sys.executable,
        "-m",
        "osmosis_ai",
        "eval",
        "run",
        "configs/eval/bench.toml",
        "--yes",
        "--json",
    ]
    command += ["--rows", f"0-{rows - 1}", "--max-in-flight", str(in_flight), "--fresh", "--name", "bench"]
    environment = {**os.environ, "OPENAI_BASE_URL": base_url, "OPENAI_API_KEY": "not-checked"}
    start = time.perf_counter()
    process = subprocess.Popen(
        command, cwd=workspace, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stderr is not None
    out, err = process.stdout.read(), process.stderr.read()
    _, status, usage = os.wait4(process.pid, 0)
    elapsed = time.perf_counter() - start
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise SystemExit(f"the run failed: {err.decode()[-2000:]}")
    resource_ = json.loads(out)["resource"]
    assert resource_["succeeded"] == rows, resource_
    return elapsed, usage.ru_maxrss / 1024


def measure_throughput(workspace: Path, latency_ms: float, in_flight: int, seconds: float) -> Throughput:
    ideal = in_flight / (latency_ms / 1000)
    expected = min(ideal, 400.0)
    short, long = max(1, int(expected * 1)), max(2, int(expected * (1 + seconds)))
    with stand_in_model(latency_ms) as base_url:
        evaluate(workspace, base_url, rows=short, in_flight=in_flight)  # warms caches and bytecode
        first, _ = evaluate(workspace, base_url, rows=short, in_flight=in_flight)
        second, _ = evaluate(workspace, base_url, rows=long, in_flight=in_flight)
    rate = (long - short) / (second - first)
    return Throughput(in_flight, latency_ms, round(rate, 1), round(ideal, 1), round(rate / ideal, 3))


def measure_memory(workspace: Path, rows: int) -> Memory:
    with stand_in_model(1.0) as base_url:
        _, peak = evaluate(workspace, base_url, rows=rows, in_flight=64)
    return Memory(rows, round(peak, 1))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--latency-ms", type=float, default=200.0)
    parser.add_argument("--in-flight", type=int, nargs="*", default=[1, 32, 256])
    parser.add_argument(
        "--seconds", type=float, default=10.0, help="length of the long run beyond the short one"
    )
    parser.add_argument("--memory-rows", type=int, nargs="*", default=[1_000, 10_000])
    options = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    with tempfile.TemporaryDirectory(prefix="osmosis-bench-") as directory:
        workspace = Path(directory)
        make_workspace(workspace, max([*options.memory_rows, 20_000]))
        throughput = [
            measure_throughput(workspace, options.latency_ms, n, options.seconds) for n in options.in_flight
        ]
        memory = [measure_memory(workspace, rows) for rows in options.memory_rows]
    for row in throughput:
        print(
            f"{row.in_flight:>4} in flight: {row.rollouts_per_s:>7.1f} rollouts/s, ideal {row.ideal_per_s:>7.1f}, ratio {row.ratio_to_ideal:.2f}"
        )
    for point in memory:
        print(f"{point.rows:>7} rows: peak {point.peak_mib:.1f} MiB")
    print(
        json.dumps(
            {"throughput": [asdict(row) for row in throughput], "memory": [asdict(row) for row in memory]}
        )
    )


if __name__ == "__main__":
    main()
