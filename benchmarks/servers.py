"""What several rollout servers are worth to rollouts that compute, beside one.

An agent that asks no model computes for a set time, in steps between which others get their turn. `eval run` is started
with one server and with several, in turns, and the rollouts are timed from the first one's start to the last result:
the processes' start is not in it. Shown are the medians, their ratio, and the ideal, which is the number of servers or
of processors, whichever is less. What else the machine does falls on both, and most on those that would use it all.

    python benchmarks/servers.py                              # a minute
    python benchmarks/servers.py --rows 4 --runs 1 --cpu-ms 5   # seconds
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from datetime import datetime
from pathlib import Path

from engine import PYPROJECT, stand_in_model

AGENT = """
import asyncio
import os
import time

import uvicorn

from osmosis_ai.rollout import AgentWorkflow, AgentWorkflowConfig, ConcurrencyConfig, Grader, LocalBackend
from osmosis_ai.rollout.server import create_rollout_server

CPU_S, STEP_S = float(os.environ["BENCH_CPU_S"]), 0.005


class Computes(AgentWorkflow):
    async def run(self, ctx):
        used_s = 0.0
        while used_s < CPU_S:
            begun = time.thread_time()
            while time.thread_time() - begun < STEP_S:
                sum(range(500))
            used_s += time.thread_time() - begun
            await asyncio.sleep(0)
        return [*ctx.prompt, {"role": "assistant", "content": "done"}]


class Passes(Grader):
    async def grade(self, ctx):
        ctx.set_reward(1.0)


if __name__ == "__main__":
    config = AgentWorkflowConfig(name="bench", concurrency=ConcurrencyConfig(max_concurrent=None))
    app = create_rollout_server(backend=LocalBackend(workflow=Computes, workflow_config=config, grader=Passes))
    uvicorn.run(app, host="127.0.0.1", port=int(os.environ["_OSMOSIS_ROLLOUT_PORT"]), log_level="error")
"""
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


def make_workspace(root: Path, rows: int) -> None:
    for directory in ("rollouts/bench", "configs/eval", "configs/training", "data"):
        (root / directory).mkdir(parents=True)
    (root / "rollouts/bench/main.py").write_text(AGENT)
    (root / "rollouts/bench/pyproject.toml").write_text(PYPROJECT)
    (root / "configs/eval/bench.toml").write_text(CONFIG)
    lines = (
        json.dumps({"user_prompt": f"Compute {row}", "ground_truth": "done"}) + "\n" for row in range(rows)
    )
    (root / "data/bench.jsonl").write_text("".join(lines))
    subprocess.run(["git", "init", "--quiet", str(root)], check=True)


def timed(workspace: Path, environment: dict[str, str], servers: int) -> float:
    """Make one run; return the seconds from its first rollout's start to its last result."""
    command = ["eval", "run", "configs/eval/bench.toml", "--name", "bench", "--fresh", "--yes", "--json"]
    done = subprocess.run(
        [sys.executable, "-m", "osmosis_ai", *command, "--servers", str(servers), "--max-in-flight", "8"],
        cwd=workspace,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
    )
    if done.returncode != 0:
        raise SystemExit(f"the run with {servers} servers failed: {done.stderr[-2000:]}")
    times: dict[str, datetime] = {}
    for line in (workspace / ".osmosis/evals/bench/logs.txt").read_text().splitlines():
        moment, _, step, message = line.split(maxsplit=3)
        if step == "[result]" or message.startswith("dispatching"):
            times[step] = datetime.fromisoformat(moment.replace("Z", "+00:00"))
    return (times["[result]"] - times["[schedule]"]).total_seconds()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--servers", type=int, default=2, help="beside one")
    parser.add_argument("--cpu-ms", type=float, default=50.0, help="that each rollout computes")
    parser.add_argument("--rows", type=int, default=120)
    parser.add_argument("--runs", type=int, default=3, help="of each number of servers")
    options = parser.parse_args()
    seconds: dict[int, list[float]] = {1: [], options.servers: []}
    with tempfile.TemporaryDirectory(prefix="osmosis-bench-") as directory:
        workspace = Path(directory)
        make_workspace(workspace, options.rows)
        with stand_in_model(1.0) as base_url:
            environment = {
                "OPENAI_BASE_URL": base_url,
                "OPENAI_API_KEY": "not-checked",
                "BENCH_CPU_S": str(options.cpu_ms / 1000),
            }
            for _ in range(options.runs):
                for servers, taken in seconds.items():
                    taken.append(timed(workspace, environment, servers))
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    medians = {servers: statistics.median(taken) for servers, taken in seconds.items()}
    ratio, ideal = medians[1] / medians[options.servers], min(options.servers, cores)
    print(f"load {os.getloadavg()[0]:.1f} on {cores} cores, medians of {options.runs}")
    for servers, taken_s in medians.items():
        print(f"{servers} servers: {taken_s:.2f} s for {options.rows} rollouts of {options.cpu_ms:g} ms")
    print(f"{options.servers} servers are {ratio:.2f}x one; {ideal} would be ideal")
    print(json.dumps({"seconds": medians, "all_s": seconds, "ratio": round(ratio, 3), "ideal": ideal}))


if __name__ == "__main__":
    main()
