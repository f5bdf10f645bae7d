"""A run whose store is away for an hour goes on when it is back: nothing of it is counted against the run."""

from __future__ import annotations

import pytest
from fastapi.testclient import TestClient

from osmosis_ai.platform.runs.desk.claims import ClaimScope
from osmosis_ai.platform.runs.execute.worker_process import STORE_AWAY
from osmosis_ai.platform.services import PlatformServices
from tests.platform.conftest import ManualClock, Member
from tests.platform.evaluations import Submits, submit_body
from tests.platform.runs.desk.desk_workers import DeskWorker, offer
from tests.platform.runs.pretended_workers import Bench, messages

AWAY = "the connection to https://bucket.example/ failed: refused."
HOUR_S = 3600
submitted = Submits("/api/cli/eval-runs", submit_body).taken


@pytest.mark.parametrize("kind", ["eval", "training"])
def test_a_run_of_the_platforms_own_machine_is_tried_until_its_store_is_back(
    bench: Bench, member: Member, clock: ManualClock, kind: str
) -> None:
    run_id = bench.add("a", member, kind=kind)
    until = clock.monotonic() + HOUR_S
    while clock.monotonic() < until:
        bench.executor.round()
        worker = bench.started[-1]
        if worker.status is None:
            bench.claim(worker)
            clock.advance(30)  # as long as a worker waits
            bench.directory(run_id).note_setback(AWAY)
            bench.leases.release(run_id, worker.token)
            worker.status = STORE_AWAY
        clock.advance(10)
    assert 10 < len(bench.started) < 30
    assert bench.run(run_id).status == "running"
    said = messages(bench, run_id)
    assert len(said) == len(bench.started)
    assert all(line.startswith(f"{AWAY.rstrip('.')}; trying again in ") for line in said)
    clock.advance(300)
    bench.executor.round()
    bench.executor.round()
    bench.end(bench.started[-1])
    bench.executor.round()
    assert bench.run(run_id).status == "finished"


def test_a_run_of_a_pool_is_tried_each_minute_until_its_store_is_back(
    api: TestClient, services: PlatformServices, clock: ManualClock
) -> None:
    submitted(api, advanced_config={"execution": {"pool": "gpu"}})
    pool = ClaimScope(pool="gpu")
    for _ in range(40):
        worker = DeskWorker.claims(services, pool)
        clock.advance(20)
        assert worker.releases(setback=AWAY, store_away=True).status == "running"
        assert services.desk.claim(offer(), pool) is None, "not at once"
        clock.advance(60)
    assert worker.run.fruitless == 0
    assert worker.messages()[-1] == f"{AWAY.rstrip('.')} (trying again in 60 s)"
    assert DeskWorker.claims(services, pool).ends().status == "finished"
