"""After kills of the command or its rollout server, the same command finishes the run with the same results."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.agent_workspace import copy_sample_workspace
from tests.e2e.kill_plan import after, plan_of_kills, seed_of_kills, sizes
from tests.e2e.platform_process import ROLLOUT_SERVER, Kill, child_of, processes
from tests.e2e.test_demo_platform import numbers
from tests.e2e.turnstile import Turnstile, held

pytestmark = pytest.mark.e2e

VICTIMS = ("cli", "server")
ROWS, ATTEMPTS = sizes(VICTIMS)
SAMPLES = ROWS * ATTEMPTS
COMMAND = [
    *(sys.executable, "-m", "osmosis_ai", "eval", "run", "configs/eval/multiply.toml"),
    *("--rows", f"0-{ROWS - 1}", "--yes", "--json", "--seed", "7"),
]


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("kill") / "workspace"
    copy_sample_workspace(root)
    config = root / "configs/eval/multiply.toml"
    for key, value in held(ATTEMPTS).items():
        config.write_text(re.sub(rf"(?m)^{key} = \d+", f"{key} = {value}", config.read_text()))
    return root


@pytest.fixture(scope="module")
def turnstile(workspace: Path) -> Iterator[Turnstile]:
    turnstile = Turnstile(workspace)
    yield turnstile
    turnstile.close()


def start(workspace: Path, name: str) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "OSMOSIS_CACHE_DIR": str(workspace.parent / "cache")}
    return subprocess.Popen(
        [*COMMAND, "--name", name],
        cwd=workspace,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def run_directory(workspace: Path, name: str) -> Path:
    return workspace / ".osmosis" / "evals" / name


def committed_lines(workspace: Path, name: str) -> list[bytes]:
    journal = run_directory(workspace, name) / "events.jsonl"
    return journal.read_bytes().split(b"\n")[:-1] if journal.exists() else []


def kill_when(process: subprocess.Popen[bytes], workspace: Path, name: str, kill: Kill) -> bool:
    """Kill the victim after so many records; return False if the run ends before."""
    while process.poll() is None:
        if len(committed_lines(workspace, name)) >= kill.records:
            time.sleep(kill.delay_s)  # the moment itself is what the test varies
            pid = process.pid if kill.victim == "cli" else child_of(process.pid, ROLLOUT_SERVER)
            if pid is None:
                continue
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
            return True
        time.sleep(0.002)
    return False


def finished_numbers(workspace: Path, name: str) -> dict[str, Any]:
    """Return the metrics of a finished run without times and values of its sessions."""
    metrics = json.loads((run_directory(workspace, name) / "metrics.json").read_text())
    assert metrics["eval_run"]["status"] == "finished"
    return numbers(run_directory(workspace, name))


def rewards(workspace: Path, name: str) -> dict[tuple[int, int], tuple[str, float | None]]:
    records = [json.loads(line) for line in committed_lines(workspace, name)]
    return {(r["row_index"], r["run_index"]): (r["status"], r.get("reward")) for r in records}


def leftovers(workspace: Path) -> list[str]:
    return [p.command for p in processes() if str(workspace) in p.command]


def test_kills_lose_and_repeat_no_attempt(workspace: Path, turnstile: Turnstile) -> None:
    calm = start(workspace, "calm")
    out, err = calm.communicate(timeout=900)
    assert calm.returncode == 0, err.decode()
    assert json.loads(out)["resource"]["succeeded"] == SAMPLES

    kills = plan_of_kills(seed_of_kills(), VICTIMS, SAMPLES)
    kills_under_way = 0
    turnstile.hold()
    process = start(workspace, "stormy")
    before: list[bytes] = []
    for kill in kills:
        moment = after(kill, len(committed_lines(workspace, "stormy")))
        turnstile.hold_after(moment.records, lambda: len(committed_lines(workspace, "stormy")))
        hit = kill_when(process, workspace, "stormy", moment)
        done = len(committed_lines(workspace, "stormy"))
        print(f"killed the {kill.victim} at {done} of {SAMPLES} results")
        kills_under_way += hit and done < SAMPLES
        if hit and kill.victim == "server":
            continue  # the run starts another server by itself
        process.communicate(timeout=900)
        now = committed_lines(workspace, "stormy")
        assert now[: len(before)] == before, "a committed result was changed or lost"
        before = now
        process = start(workspace, "stormy")
    turnstile.open()
    out, err = process.communicate(timeout=900)
    assert process.returncode == 0, err.decode()
    assert kills_under_way == len(kills)

    lines = committed_lines(workspace, "stormy")
    assert lines[: len(before)] == before
    assert len(lines) == SAMPLES, "a finished sample ran twice, or one is missing"
    assert rewards(workspace, "stormy") == rewards(workspace, "calm")
    assert finished_numbers(workspace, "stormy") == finished_numbers(workspace, "calm")
    for record in map(json.loads, lines):
        name = f"row_{record['row_index']}_run_{record['run_index']}.json"
        trajectory = json.loads((run_directory(workspace, "stormy") / "trajectories" / name).read_text())
        assert trajectory["session_id"] == record["rollout_id"], (
            "a conversation is missing or of another rollout"
        )

    deadline = time.monotonic() + 300
    while leftovers(workspace) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert leftovers(workspace) == [], "a process outlived the run"
