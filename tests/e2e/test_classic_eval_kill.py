"""After kills of `osmosis eval -m`, the same command finishes the run with the same results."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cli.agent_loops.classic_project import Project, project_with
from tests.e2e.kill_plan import seed_of_kills
from tests.standin_model import Reply, StandInModel

pytestmark = pytest.mark.e2e

# What an order makes of a run: a score of 1, the agent's own as well, one function without a score, a failure.
ORDERS = ("one", "reward", "unscored", "raise")
MODEL_LATENCY_S = 0.03


async def start(project: Project, name: str, n: int) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "osmosis_ai"),
        *project.words("--n", str(n), "--batch-size", "8", "--seed", "7", fns=("exact", "length", "picky")),
        *("--name", name, "-q", "-o", f"{name}.json"),
        cwd=project.root,
        env={name: value for name, value in os.environ.items() if name != "OPENAI_API_KEY"},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )


def committed(project: Project, name: str) -> list[bytes]:
    journal = project.root / ".osmosis" / "evals" / name / "events.jsonl"
    return journal.read_bytes().split(b"\n")[:-1] if journal.exists() else []


def results(project: Project, name: str) -> dict[str, Any]:
    """Return a results file without times and the run's name."""
    found: dict[str, Any] = json.loads((project.root / f"{name}.json").read_text())
    for key in ("total_duration_ms", "run_name", "run_dir"):
        del found["summary"][key]
    for row in found["rows"]:
        for run in row["runs"]:
            del run["duration_ms"]
    return found


async def finished(process: asyncio.subprocess.Process) -> None:
    _, err = await asyncio.wait_for(process.communicate(), 900)
    assert process.returncode == 0, err.decode()


async def killed_at(process: asyncio.subprocess.Process, project: Project, records: int) -> bool:
    """Kill the command after so many durable results; return False if it ends before."""
    while process.returncode is None:
        if len(committed(project, "stormy")) >= records:
            process.send_signal(signal.SIGKILL)
            await process.communicate()
            return process.returncode == -signal.SIGKILL
        await asyncio.sleep(0.005)
    return False


@pytest.mark.parametrize("rows, kills", [(16, 1), pytest.param(200, 10, marks=pytest.mark.nightly)])
async def test_kills_lose_and_repeat_no_attempt(tmp_path: Path, rows: int, kills: int) -> None:
    n = 4
    draw = random.Random(seed_of_kills())
    # Up to 16 further attempts may have their answer when a kill is due, and the run must not end.
    moments = sorted(draw.randrange(0, rows * n - 20) for _ in range(kills))
    last, over = rows * n, asyncio.Event()

    def respond(_: dict[str, Any]) -> Reply:
        """Hold all attempts once the kill is due."""
        return Reply(wait_for=over if len(committed(project, "stormy")) >= last else None)

    async with StandInModel(respond, latency_s=MODEL_LATENCY_S, record=False) as model:
        project = project_with(tmp_path, model)
        project.rows(*({"user_prompt": ORDERS[row % len(ORDERS)], "bonus": row} for row in range(rows)))
        await finished(await start(project, "calm", n))

        before: list[bytes] = []
        for moment in moments:
            last = max(moment, len(before))
            hit = await killed_at(await start(project, "stormy", n), project, last)
            now = committed(project, "stormy")
            print(f"killed at {len(now)} of {rows * n} results")
            assert hit and now[: len(before)] == before, "a committed result was changed or lost"
            before = now
        over.set()
        await finished(await start(project, "stormy", n))

    lines = committed(project, "stormy")
    assert lines[: len(before)] == before
    items = [(record["row_index"], record["run_index"]) for record in map(json.loads, lines)]
    assert sorted(items) == [(row, run) for row in range(rows) for run in range(n)]
    assert results(project, "stormy") == results(project, "calm")
