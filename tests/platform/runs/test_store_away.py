"""A run whose store is away for an hour goes on when it is back: nothing of it is counted against the run."""

from __future__ import annotations

import pytest
from fastapi.testclient import TestClient

from osmosis_ai.platform.blobs.local import LocalBlobStore
from osmosis_ai.platform.blobs.store import BlobStoreBusy
from osmosis_ai.platform.runs.desk.claims import ClaimScope
from osmosis_ai.platform.runs.execute.worker_process import STORE_AWAY
from osmosis_ai.platform.services import PlatformServices
from tests.platform.conftest import ManualClock, Member
from tests.platform.evaluations import Submits, submit_body
from tests.platform.runs.desk.desk_workers import DeskWorker, offer, records
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


def test_a_claim_that_the_store_keeps_from_being_answered_is_said_once_and_is_no_attempt(
    api: TestClient, services: PlatformServices, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_id = submitted(api)["id"]
    worker = DeskWorker.claims(services)
    worker.write(records(2))
    worker.sync(journal=worker.part())
    worker.releases()
    access = services.worker_access
    ticket, again = access.issue_ticket(run_id), offer()

    def refuse(*_: object) -> None:
        raise BlobStoreBusy("the bucket cannot be reached.")

    waits = "waits for the store: the bucket cannot be reached."
    for outage in (1, 2):
        with monkeypatch.context() as patch:
            patch.setattr(LocalBlobStore, "put", refuse)
            for _ in range(5):
                with pytest.raises(BlobStoreBusy):
                    services.desk.claim(again, access.authorize_claim(ticket, again))
        assert worker.messages().count(waits) == outage
        if outage == 1:
            found = services.desk.claim(again, access.authorize_claim(ticket, again))
            assert found is not None and found.lease.attempt == 2
            worker.token = found.lease.token
            worker.write(records(1, first=2))
            worker.sync(journal=worker.part(worker.run.journal_bytes))
            worker.releases()
            ticket, again = access.issue_ticket(run_id), offer()
