"""A platform on PostgreSQL, through real processes.

With ``OSMOSIS_TEST_POSTGRES_URL`` every test of ``tests/platform`` uses a database of that server, too.
"""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import pytest

from osmosis_ai.services.demo import prepare_scratch
from tests.e2e.gate import commit
from tests.e2e.platform_checkout import run, running
from tests.e2e.platform_process import WORKER, processes
from tests.e2e.turnstile import Turnstile
from tests.platform.databases import postgres_database

pytestmark = pytest.mark.e2e
CONFIG = "configs/eval/multiply.toml"


def results(journal: Path) -> int:
    """Return how many results a run has."""
    return journal.read_bytes().count(b"\n") if journal.exists() else 0


def await_results(journal: Path) -> None:
    """Wait until a run has finished something."""
    deadline = time.monotonic() + 300
    while not results(journal):
        assert time.monotonic() < deadline, "the run does not begin"
        time.sleep(0.02)  # another process's file cannot be waited for


@pytest.mark.nightly
def test_an_evaluation_on_postgresql_outlives_its_worker_and_its_platform(tmp_path: Path) -> None:
    scratch = prepare_scratch(tmp_path / "demo")
    turnstile = Turnstile(scratch.workspace)
    commit(scratch.workspace, scratch.own_variables())
    scratch.push()
    turnstile.hold()
    with postgres_database() as url:
        with running(scratch, OSMOSIS_DATABASE_URL=url) as env:
            assert run("platform", "connect", str(scratch.origin), cwd=scratch.workspace, env=env).status == 0
            uploaded = run(
                "dataset", "upload", "data/multiply.jsonl", "--wait", "--yes", cwd=scratch.workspace, env=env
            )
            assert uploaded.status == 0, uploaded.err
            submitted = run("eval", "submit", CONFIG, "--yes", cwd=scratch.workspace, env=env)
            run_id, name = submitted.resource["id"], submitted.resource["name"]
            journal = scratch.root / "data" / "runs" / run_id / "evaluation" / name / "events.jsonl"
            turnstile.hold_after(1, lambda: results(journal))
            await_results(journal)
            (worker,) = [p.pid for p in processes() if WORKER in p.command and run_id in p.command]
            os.kill(worker, signal.SIGKILL)
        with running(scratch, OSMOSIS_DATABASE_URL=url) as env:
            turnstile.open()
            watched = run("eval", "watch", name, cwd=scratch.workspace, env=env)
            assert watched.resource["status"] == "finished", watched.err
            assert run("eval", "download", name, "--yes", cwd=scratch.workspace, env=env).status == 0
            told = run("eval", "list", cwd=scratch.workspace, env=env)
            assert told.status == 0, told.err
            listed = json.loads(told.out)["items"]
    fetched = scratch.workspace / ".osmosis" / "evals" / name
    assert [item["status"] for item in listed] == ["finished"]
    assert len(list((fetched / "trajectories").glob("*.json"))) == 400
    summary = json.loads((fetched / "metrics.json").read_text())["summary"]
    assert (summary["total_samples"], summary["graded"]) == (400, 400)
    assert not (scratch.root / "data" / "platform.db").exists()
    turnstile.close()
