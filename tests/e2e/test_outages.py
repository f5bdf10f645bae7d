"""The database, the network and the file store of a platform fail in the middle of a run, which loses nothing.

`test_platform_kill.py` kills the platform, its worker and the rollout server.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.e2e.platform_checkout import prepare_scratch
from tests.e2e.platform_process import Kill, Platform, Run, connected_platform, write_config
from tests.e2e.relay import Relay
from tests.e2e.test_same_results import results_of, run_locally
from tests.e2e.test_workers_elsewhere import TOKEN, Machine
from tests.e2e.turnstile import Turnstile, commit, held
from tests.platform.postgres_server import PostgresCluster
from tests.platform.s3_server import CREDENTIALS, S3Server

pytestmark = pytest.mark.e2e

ROWS, ATTEMPTS, LEASE_S = 30, 2, 4
SAMPLES = ROWS * ATTEMPTS
CONFIG = "configs/eval/outages.toml"


@pytest.fixture
def database() -> Iterator[PostgresCluster]:
    cluster = PostgresCluster()
    cluster.start()
    yield cluster
    cluster.close()


@pytest.fixture
def store() -> Iterator[S3Server]:
    server = S3Server()
    server.start()
    yield server
    server.close()


def test_outages_lose_no_attempt_and_count_none_twice(
    database: PostgresCluster, store: S3Server, tmp_path: Path
) -> None:
    scratch = prepare_scratch(tmp_path / "demo")
    turnstile = Turnstile(scratch.workspace)
    write_config(scratch, CONFIG, rows=ROWS, more='\n[advanced.execution]\npool = "gpu"\n', **held(ATTEMPTS))
    commit(scratch.workspace, scratch.own_variables())
    settings = {
        "OSMOSIS_DATABASE_URL": database.url,
        "OSMOSIS_BLOBS_URL": store.bucket,
        "OSMOSIS_LEASE_SECONDS": str(LEASE_S),
        **CREDENTIALS,
    }
    with ExitStack() as stack:
        stack.callback(turnstile.close)
        platform = stack.enter_context(connected_platform(scratch, settings=settings))
        platform.command("platform", "worker-token", "create", "--pool", "gpu", "--output", TOKEN)
        expected = results_of(run_locally(platform.workspace, platform.env, CONFIG))
        relay = Relay(int(platform.port))
        stack.callback(relay.close)
        turnstile.hold()
        submitted = platform.submit(CONFIG)
        machine = Machine(platform, "remote", "--once", OSMOSIS_PLATFORM_URL=relay.url)
        run = Run(platform, submitted.id, submitted.name, machine.home)

        reach(turnstile, run, 5)
        database.kill()
        reach(turnstile, run, 12)  # recorded without the database
        time.sleep(LEASE_S)
        database.start()

        reach(turnstile, run, 25)
        relay.cut()
        time.sleep(1.5 * LEASE_S)
        relay.heal(forgets=True)

        reach(turnstile, run, 40)
        store.kill()
        turnstile.open()
        status, _, err = machine.end()
        assert status == 0, err
        assert status_of(platform, run) == "running", "it cannot be finalized without the store"
        store.start()
        assert run.finish()["status"] == "finished"

    records = [json.loads(line) for line in run.journal()]
    assert len({(each["row_index"], each["run_index"]) for each in records}) == len(records) == SAMPLES
    assert results_of(submitted.results) == expected


def reach(turnstile: Turnstile, run: Run, records: int) -> None:
    """Let the run continue to so many results."""
    turnstile.hold_after(records, lambda: len(run.journal()))
    assert run.await_moment(Kill(records, "none", 0.0))


def status_of(platform: Platform, run: Run) -> str:
    found: str = platform.command("eval", "info", run.name)["data"]["eval_run"]["status"]
    return found
