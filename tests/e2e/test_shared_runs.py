"""Runs that several workers share: one of them is killed, and the run is stopped."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator

import pytest

from tests.e2e.platform_checkout import Scratch, prepare_scratch
from tests.e2e.platform_process import WORKER, Platform, Run, child_of, connected_platform, write_config
from tests.e2e.test_same_results import results_of, run_locally
from tests.e2e.turnstile import Turnstile, commit
from tests.platform.evaluations import wait_until
from tests.warm_osmosis import process_of

pytestmark = pytest.mark.e2e

ROWS, ATTEMPTS, WORKERS, AT_ONCE = 30, 2, 3, 4
SAMPLES = ROWS * ATTEMPTS
CONFIG = "configs/eval/shared.toml"


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Scratch:
    return prepare_scratch(tmp_path_factory.mktemp("shared") / "demo")


@pytest.fixture(scope="module")
def turnstile(scratch: Scratch) -> Iterator[Turnstile]:
    turnstile = Turnstile(scratch.workspace)
    section = f"\n[advanced.execution]\nworkers = {WORKERS}\nservers = 1\n"
    changes = {"n": ATTEMPTS, "batch_size": AT_ONCE, "agent_workflow_timeout_s": 3600}
    write_config(scratch, CONFIG, rows=ROWS, more=section, **changes)
    commit(scratch.workspace, scratch.own_variables())
    yield turnstile
    turnstile.close()


@pytest.fixture(scope="module")
def platform(scratch: Scratch, turnstile: Turnstile) -> Iterator[Platform]:
    settings = {"OSMOSIS_EXECUTOR_SLOTS": str(WORKERS)}
    with connected_platform(scratch, settings=settings) as platform:
        yield platform


def hold_in_the_middle(platform: Platform, turnstile: Turnstile) -> Run:
    """Submit a run, and hold it after some results, when each worker has as many attempts in flight as it may."""
    turnstile.hold()
    turnstile.asked = turnstile.passed = 0
    run = platform.submit(CONFIG)
    run = Run(platform, run.id, run.name, shards=WORKERS)
    wait_until(lambda: turnstile.asked == WORKERS * AT_ONCE)
    turnstile.may_pass = lambda: len(run.journal()) < SAMPLES // 4
    wait_until(lambda: len(run.journal()) >= SAMPLES // 4)
    turnstile.hold()
    wait_until(
        lambda: (
            len(run.journal()) == turnstile.passed
            and turnstile.asked == turnstile.passed + WORKERS * AT_ONCE
            and len(run.journals()) == WORKERS
        )
    )
    return run


def test_only_the_attempts_in_flight_of_a_killed_worker_run_again(
    platform: Platform, turnstile: Turnstile
) -> None:
    turnstile.open()
    expected = results_of(run_locally(platform.workspace, platform.env, CONFIG))
    run = hold_in_the_middle(platform, turnstile)
    before = run.journals()
    worker = child_of(process_of(platform.process.pid), WORKER)
    assert worker is not None
    os.kill(worker, signal.SIGKILL)
    turnstile.open()
    assert run.finish()["status"] == "finished"
    assert turnstile.asked == SAMPLES + AT_ONCE
    after = run.journals()
    assert after.keys() == before.keys()
    for shard, lines in before.items():
        assert after[shard][: len(lines)] == lines, "a recorded result was changed or lost"
    records = [json.loads(line) for line in run.journal()]
    assert len({(each["row_index"], each["run_index"]) for each in records}) == len(records) == SAMPLES
    assert results_of(run.results) == expected


def test_a_stop_ends_all_workers_of_a_run(platform: Platform, turnstile: Turnstile) -> None:
    run = hold_in_the_middle(platform, turnstile)
    platform.command("eval", "stop", run.name, "--yes")
    requested = time.monotonic()
    wait_until(run.ended)
    took_s = time.monotonic() - requested
    assert took_s < 15, "the workers learn of it with their next call, long before their leases expire"
    wait_until(lambda: platform.command("eval", "info", run.name)["data"]["eval_run"]["status"] == "stopped")
    platform.command("eval", "download", run.name)
    assert len(results_of(run.results).published) == len(run.journal()), "everything recorded is kept"
