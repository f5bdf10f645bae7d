"""What evaluating an agent loop costs, beside a workflow that does the same, through the real processes.

A stand-in model answers after a set latency; the agent calls it once. It is run in three ways:

    workflow  `eval run` of a rollout directory whose agent is an AgentWorkflow with a grader
    hosted    `eval run` of a rollout directory whose agent is an agent loop with an eval function
    classic   `eval -m agent:agent_loop` in a directory of that loop, with `--batch-size`

For each of them and each number in flight: rollouts per second from the first one's start to the last grading, and
their ratio to the ideal, which is what the latency alone allows; the same ratio for what was graded in the middle half
of that time, when neither the first wave nor the last one counts; and the CPU of all processes of the run per rollout,
start-up taken off, which other work on the machine changes least. The processes' start is in none of them. The ways
alternate and medians are shown, so that what else the machine does falls on all of them. At last one row waits for long
among many: how long the others took with it, as a ratio to how long they took without.

    python benchmarks/agent_loops.py                                                    # some minutes
    python benchmarks/agent_loops.py --in-flight 16 --slow-row-s 0                      # one minute and a half
    python benchmarks/agent_loops.py --in-flight 2 --rows 4 --runs 1 --slow-row-s 0     # seconds
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

from engine import PYPROJECT, stand_in_model

WAYS = ("workflow", "hosted", "classic")
MARKS = """
import json, os, time
from pathlib import Path

marks = []  # (row, wall clock) at the first rollout's start and at every grading


def mark(row):
    marks.append((row, time.perf_counter()))
    if len(marks) == 1 + int(os.environ["BENCH_ROWS"]):
        began = marks[0][1]
        graded = sorted(at - began for row, at in marks[1:] if row != os.environ.get("BENCH_SLOW_ROW"))
        Path(os.environ["BENCH_REPORT"]).write_text(json.dumps({"graded_s": graded}))
"""
WORKFLOW = """
import os

import uvicorn

from marks import mark, marks
from osmosis_ai.rollout import AgentWorkflow, AgentWorkflowConfig, ConcurrencyConfig, Grader, LocalBackend
from osmosis_ai.rollout import get_rollout_context
from osmosis_ai.rollout.server import create_rollout_server


class OneCall(AgentWorkflow):
    async def run(self, ctx):
        marks or mark(None)
        body = {"model": "policy", "messages": ctx.prompt}
        reply = await get_rollout_context().http().post("/chat/completions", json=body)
        return [*ctx.prompt, reply.json()["choices"][0]["message"]]


class AnyAnswer(Grader):
    async def grade(self, ctx):
        ctx.set_reward(1.0 if ctx.sample.messages[-1]["content"] else 0.0)
        mark(ctx.label)


if __name__ == "__main__":
    config = AgentWorkflowConfig(name="bench", concurrency=ConcurrencyConfig(max_concurrent=None))
    app = create_rollout_server(
        backend=LocalBackend(workflow=OneCall, workflow_config=config, grader=AnyAnswer)
    )
    uvicorn.run(app, host="127.0.0.1", port=int(os.environ["_OSMOSIS_ROLLOUT_PORT"]), log_level="error")
"""
LOOP = """
import asyncio, os

from marks import mark, marks
from osmosis_ai.rollout import RolloutAgentLoop


class OneCall(RolloutAgentLoop):
    name = "bench"

    def get_tools(self, request):
        return []

    async def run(self, ctx):
        marks or mark(None)
        if ctx.request.metadata["ground_truth"] == os.environ.get("BENCH_SLOW_ROW"):
            await asyncio.sleep(float(os.environ["BENCH_SLOW_S"]))
        reply = await ctx.chat(ctx.request.messages)
        return ctx.complete([*ctx.request.messages, reply.message])


async def any_answer(messages, ground_truth, metadata):
    mark(ground_truth)
    return 1.0 if messages[-1]["content"] else 0.0


agent_loop = OneCall()
eval_fns = [any_answer]
"""


@dataclass(frozen=True)
class Cell:
    """Medians over the runs of one way at one number in flight."""

    way: str
    in_flight: int
    rollouts_per_s: float
    of_ideal: float
    steady_of_ideal: float
    of_workflow: float
    cpu_ms: float


def make_workspace(root: Path, rows: int) -> None:
    for directory in ("rollouts/workflow", "rollouts/hosted", "configs/eval", "configs/training", "data"):
        (root / directory).mkdir(parents=True)
    for way, source in (("workflow", WORKFLOW), ("hosted", LOOP)):
        rollout = root / "rollouts" / way
        (rollout / ("main.py" if way == "workflow" else "agent.py")).write_text(source)
        (rollout / "marks.py").write_text(MARKS)
        (rollout / "pyproject.toml").write_text(PYPROJECT)
        entrypoint = "main.py" if way == "workflow" else "agent.py"
        (root / f"configs/eval/{way}.toml").write_text(
            f'[experiment]\nrollout = "{way}"\nentrypoint = "{entrypoint}"\nmodel_path = "openai/stand-in"\n'
            'dataset = "bench"\n[evaluation]\nagent_workflow_timeout_s = 300\ngrader_timeout_s = 60\n'
            "[secrets]\nrequired = []\n"
        )
    with (root / "data/bench.jsonl").open("w") as out:
        for index in range(rows):
            row = {"system_prompt": "Be brief.", "user_prompt": f"Say {index}", "ground_truth": str(index)}
            out.write(json.dumps(row) + "\n")
    subprocess.run(["git", "init", "--quiet", str(root)], check=True)


@dataclass(frozen=True)
class Measured:
    """One evaluation.

    Attributes:
        graded_s: when each rollout was graded, in seconds from the first one's start; the slow row's is left out.
        cpu_s: of all processes.
    """

    graded_s: list[float]
    cpu_s: float

    @property
    def seconds(self) -> float:
        """From the first rollout's start to the last grading."""
        return self.graded_s[-1]

    @property
    def steady_per_s(self) -> float:
        """Rollouts graded per second in the middle half of that time."""
        from_s, to_s = self.seconds / 4, self.seconds * 3 / 4
        return sum(from_s <= at < to_s for at in self.graded_s) / (to_s - from_s)


class Bench:
    """Evaluations of one workspace against one model."""

    def __init__(self, workspace: Path, base_url: str) -> None:
        self._workspace = workspace
        self._report = workspace / "report.json"
        self._environment = {
            **os.environ,
            "OPENAI_BASE_URL": base_url,
            "OPENAI_API_KEY": "not-checked",
            "BENCH_REPORT": str(self._report),
        }

    def run(self, way: str, *, rows: int, in_flight: int, slow_s: float | None = None) -> Measured:
        """Run one evaluation to its end."""
        # The report is one process's.
        run = ["--fresh", "--name", f"bench-{way}", "--servers", "1"]
        if way == "classic":
            directory = self._workspace / "rollouts" / "hosted"
            command = ["-m", "agent:agent_loop", "-d", str(self._workspace / "data/bench.jsonl"), "--quiet"]
            command += ["--model", "openai/stand-in", "--base-url", self._environment["OPENAI_BASE_URL"]]
            command += ["--eval-fn", "agent:any_answer", "--batch-size", str(in_flight), "--limit", str(rows)]
        else:
            directory = self._workspace
            command = ["run", f"configs/eval/{way}.toml", "--yes", "--json"]
            command += ["--rows", f"0-{rows - 1}", "--max-in-flight", str(in_flight)]
        slow = {} if slow_s is None else {"BENCH_SLOW_ROW": "0", "BENCH_SLOW_S": str(slow_s)}
        self._report.unlink(missing_ok=True)
        before_s = _cpu_of_children_s()
        done = subprocess.run(
            [sys.executable, "-m", "osmosis_ai", "eval", *command, *run],
            cwd=directory,
            env={**self._environment, **slow, "BENCH_ROWS": str(rows)},
            capture_output=True,
            text=True,
        )
        if done.returncode != 0:
            raise SystemExit(f"`{way}` failed: {done.stderr[-2000:]}")
        return Measured(json.loads(self._report.read_text())["graded_s"], _cpu_of_children_s() - before_s)


def _cpu_of_children_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def measure(bench: Bench, options: argparse.Namespace) -> list[Cell]:
    """Run every way at every number in flight, in turns, ``options.runs`` times."""
    # The first of each way fills caches and bytecode; the second is what it costs before its rows.
    start_up_s = {}
    for way in WAYS:
        for _ in range(2):
            start_up_s[way] = bench.run(way, rows=1, in_flight=1).cpu_s
    measured: dict[tuple[str, int], list[Measured]] = {}
    for _ in range(options.runs):
        for in_flight in options.in_flight:
            rows = min(options.rows, in_flight * options.waves)
            for way in WAYS:
                measured.setdefault((way, in_flight), []).append(
                    bench.run(way, rows=rows, in_flight=in_flight)
                )
    cells = []
    for (way, in_flight), runs in measured.items():
        rows, ideal_per_s = (
            min(options.rows, in_flight * options.waves),
            in_flight / options.latency_ms * 1000,
        )
        seconds = statistics.median(run.seconds for run in runs)
        workflow = statistics.median(run.seconds for run in measured["workflow", in_flight])
        cpu_s = statistics.median(run.cpu_s for run in runs) - start_up_s[way]
        cells.append(
            Cell(
                way=way,
                in_flight=in_flight,
                rollouts_per_s=round(rows / seconds, 1),
                of_ideal=round(rows / seconds / ideal_per_s, 3),
                steady_of_ideal=round(statistics.median(run.steady_per_s for run in runs) / ideal_per_s, 3),
                of_workflow=round(workflow / seconds, 3),
                cpu_ms=round(max(cpu_s, 0.0) * 1000 / rows, 2),
            )
        )
    return cells


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--latency-ms", type=float, default=100.0, help="of the model")
    parser.add_argument("--in-flight", type=int, nargs="+", default=[1, 16, 256])
    parser.add_argument("--rows", type=int, default=2000, help="of each run, at most")
    parser.add_argument("--waves", type=int, default=50, help="rows of a run for each that is in flight")
    parser.add_argument("--runs", type=int, default=3, help="of each way at each number in flight")
    parser.add_argument("--slow-row-s", type=float, default=30.0, help="0 leaves the slow row out")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="osmosis-bench-") as directory:
        workspace = Path(directory)
        make_workspace(workspace, options.rows)
        with stand_in_model(options.latency_ms) as base_url:
            bench = Bench(workspace, base_url)
            cells = measure(bench, options)
            print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores, medians of {options.runs}")
            for cell in cells:
                print(
                    f"{cell.way:>8} {cell.in_flight:>4} in flight: {cell.rollouts_per_s:>7.1f} rollouts/s, "
                    f"{cell.of_ideal:.2f} of the ideal ({cell.steady_of_ideal:.2f} steadily), {cell.of_workflow:.2f} of the workflow, "
                    f"CPU a rollout {cell.cpu_ms:.2f} ms"
                )
            told: dict[str, object] = {"ways": [*map(asdict, cells)]}
            if options.slow_row_s:
                rows = min(options.rows, 1000)
                plain_s = bench.run("classic", rows=rows, in_flight=16).seconds
                others_s = bench.run("classic", rows=rows, in_flight=16, slow_s=options.slow_row_s).seconds
                print(
                    f"one row of {options.slow_row_s:g} s among {rows}: the others {others_s / plain_s:.2f}x"
                )
                told["slow_row"] = {"rows": rows, "others_ratio": round(others_s / plain_s, 3)}
    print(json.dumps(told))


if __name__ == "__main__":
    main()
