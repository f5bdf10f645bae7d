"""What it costs that an agent is a program of its own, and whether anything of a hundred of them is left.

The same question to the same stand-in model, through the real processes of `osmosis eval run`: by an agent in the
rollout's server, and by a `CommandWorkflow` whose program is a script of the standard library that leaves a process
behind, forked twice, in another session and with an empty environment. For each: rollouts per second, the CPU per
rollout of engine, rollout server and programs, start-up taken off, and the processes that are still there afterwards.

    python benchmarks/command_agents.py                              # 100 at once, 300 rollouts, a minute
    python benchmarks/command_agents.py --in-flight 4 --rows 8       # seconds
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from engine import make_workspace, stand_in_model

AGENTS = ("in the server", "a program")
# Long enough to be told from any other `sleep` of this machine.
LEFT_BEHIND_S = "98760129"
ROLLOUT = """
import json, os, resource, time
from contextlib import asynccontextmanager
from pathlib import Path

import uvicorn

from osmosis_ai.rollout import AgentWorkflow, CommandWorkflow, Grader, LocalBackend, get_rollout_context
from osmosis_ai.rollout.server import create_rollout_server
from osmosis_ai.rollout.types import AgentWorkflowConfig, ConcurrencyConfig


class InTheServer(AgentWorkflow):
    async def run(self, ctx):
        body = {"model": "any", "messages": ctx.prompt}
        reply = await get_rollout_context().http().post("/chat/completions", json=body)
        return [*ctx.prompt, reply.json()["choices"][0]["message"]]


marks = []


class AnyAnswer(Grader):
    async def grade(self, ctx):
        ctx.set_reward(1.0 if ctx.sample.messages[-1]["content"] else 0.0)
        marks.append(time.perf_counter())


def cpu_s(whose):
    used = resource.getrusage(whose)
    return used.ru_utime + used.ru_stime


@asynccontextmanager
async def life(app):
    began = cpu_s(resource.RUSAGE_SELF)
    yield
    total = cpu_s(resource.RUSAGE_SELF)
    told = {"seconds": marks[-1] - marks[0], "server": total - began, "total": total}
    told["programs"] = cpu_s(resource.RUSAGE_CHILDREN)
    Path("report.json").write_text(json.dumps(told))


if __name__ == "__main__":
    config = AgentWorkflowConfig(name="bench", concurrency=ConcurrencyConfig(max_concurrent=None))
    agent = CommandWorkflow(["python", "agent.py"]) if Path("program").exists() else InTheServer
    backend = LocalBackend(workflow=agent, workflow_config=config, grader=AnyAnswer)
    app = create_rollout_server(backend=backend, lifespan=life)
    uvicorn.run(app, host="127.0.0.1", port=int(os.environ["_OSMOSIS_ROLLOUT_PORT"]), log_level="error")
"""
PROGRAM = f"""
import http.client, json, os, sys
from urllib.parse import urlsplit

if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.execve("/bin/sleep", ["sleep", "{LEFT_BEHIND_S}"], {{}})
    os._exit(0)
os.wait()
address = urlsplit(os.environ["OPENAI_BASE_URL"])
body = json.dumps({{"model": "any", "messages": [{{"role": "user", "content": sys.stdin.read()}}]}})
headers = {{"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "Content-Type": "application/json"}}
connection = http.client.HTTPConnection(address.hostname, address.port)
connection.request("POST", address.path + "/chat/completions", body, headers)
print(json.load(connection.getresponse())["choices"][0]["message"]["content"])
"""


def left_behind() -> int:
    """How many processes of the programs are there."""
    commands = [path / "cmdline" for path in Path("/proc").iterdir() if path.name.isdigit()]
    found = 0
    for command in commands:
        try:
            words = command.read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue
        found += words[:2] == ["sleep", LEFT_BEHIND_S] or any(
            word.endswith(("/reaper.py", "/rollouts/bench/agent.py")) for word in words
        )
    return found


def evaluate(workspace: Path, base_url: str, *, rows: int, in_flight: int) -> dict[str, Any]:
    """Run one evaluation to its end; CPU in seconds, by who used it."""
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
    command += [
        "--rows",
        f"0-{rows - 1}",
        "--max-in-flight",
        str(in_flight),
        "--fresh",
        "--name",
        "bench",
        "--servers",
        "1",
    ]
    environment = {**os.environ, "OPENAI_BASE_URL": base_url, "OPENAI_API_KEY": "not-checked"}
    process = subprocess.Popen(
        command, cwd=workspace, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    assert process.stdout is not None
    out = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    told = json.loads(out)["resource"] if process.returncode == 0 else {}
    if told.get("succeeded") != rows:
        raise SystemExit(f"{told.get('succeeded')} of {rows} succeeded: see {workspace}/.osmosis/evals/bench")
    report: dict[str, Any] = json.loads((workspace / "rollouts/bench/report.json").read_text())
    # What was waited for counts as well: the server was, and its programs.
    engine = usage.ru_utime + usage.ru_stime - report["total"] - report["programs"]
    return {**report, "engine": engine, "left": left_behind()}


def measure(workspace: Path, base_url: str, agent: str, options: argparse.Namespace) -> dict[str, Any]:
    marker = workspace / "rollouts/bench/program"
    marker.unlink(missing_ok=True)
    if agent == "a program":
        marker.touch()
    start_up = evaluate(workspace, base_url, rows=1, in_flight=1)
    run = evaluate(workspace, base_url, rows=options.rows, in_flight=options.in_flight)
    rows = options.rows - 1
    return {
        "agent": agent,
        "rollouts_per_s": round(rows / run["seconds"], 1),
        **{
            f"{who}_cpu_ms": round((run[who] - start_up[who]) * 1000 / rows, 2)
            for who in ("engine", "server", "programs")
        },
        "left_behind": run["left"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--latency-ms", type=float, default=50.0, help="of the model")
    parser.add_argument("--in-flight", type=int, default=100)
    parser.add_argument("--rows", type=int, default=300)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="osmosis-bench-") as directory:
        workspace = Path(directory)
        make_workspace(workspace, options.rows)
        (workspace / "rollouts/bench/main.py").write_text(ROLLOUT)
        (workspace / "rollouts/bench/agent.py").write_text(PROGRAM)
        with stand_in_model(options.latency_ms) as base_url:
            evaluate(workspace, base_url, rows=1, in_flight=1)  # fills caches and bytecode
            measured = [measure(workspace, base_url, agent, options) for agent in AGENTS]
    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores, {options.in_flight} in flight")
    for found in measured:
        print(
            f"{found['agent']:>13}: {found['rollouts_per_s']:>6.1f} rollouts/s, CPU a rollout: engine "
            f"{found['engine_cpu_ms']:.2f} ms, server {found['server_cpu_ms']:.2f} ms, programs "
            f"{found['programs_cpu_ms']:.2f} ms; processes left behind: {found['left_behind']}"
        )
    print(json.dumps(measured))


if __name__ == "__main__":
    main()
