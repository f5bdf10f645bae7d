"""A machine that could not work on a run for reasons of its own gives way to others, where there are any."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from fastapi.testclient import TestClient

from osmosis_ai.platform.runs.desk.claims import ClaimScope
from osmosis_ai.platform.runs.desk.unfit_machines import GIVES_WAY_S
from osmosis_ai.platform.runs.desk.watching import Idler
from osmosis_ai.platform.services import PlatformServices
from tests.platform.conftest import ManualClock
from tests.platform.evaluations import Submits, submit_body
from tests.platform.runs.desk.desk_workers import DeskWorker, offer

FULL = "the disk of the worker's machine (full) is full"
LONGER_THAN_A_PAUSE_S = 5.0
submitted = Submits("/api/cli/eval-runs", submit_body).taken


@dataclass
class Pool:
    """The machines of a pool, which ask with one token."""

    services: PlatformServices
    token: str

    def asks(self, machine: str, **has: Any) -> ClaimScope:
        """Have a machine come and ask, and return what it may claim."""
        asked = offer(pool="gpu", machine=machine, **has)
        return self.services.worker_access.authorize_claim(self.token, asked)

    def gets(self, scope: ClaimScope, **has: Any) -> DeskWorker | None:
        """Return the run that a machine gets; None where it gets none, and would be left to wait."""
        is_served = bool(self.services.desk.watch.served([Idler(offer(**has), scope)]))
        assignment = self.services.desk.claim(offer(**has), scope)
        assert is_served == (assignment is not None), "it asks when, and only when, there is a run for it"
        return None if assignment is None else DeskWorker(self.services, assignment)


@pytest.fixture
def pool(services: PlatformServices) -> Pool:
    return Pool(services, services.worker_access.create_token("gpu")[1])


@pytest.fixture
def run(api: TestClient) -> None:
    submitted(api, advanced_config={"execution": {"pool": "gpu", "gpus": 1}})


def gives_back(pool: Pool, clock: ManualClock, scope: ClaimScope, **said: Any) -> None:
    """Have a machine take the run and give it back, so that its pause is over."""
    worker = pool.gets(scope, gpus=1)
    assert worker is not None
    worker.releases(setback=FULL, **{"of_machine": True, **said})
    clock.advance(LONGER_THAN_A_PAUSE_S)


@pytest.mark.usefixtures("run")
def test_a_run_that_a_full_machine_gave_back_goes_to_another_one_first(
    pool: Pool, services: PlatformServices, clock: ManualClock
) -> None:
    full, healthy = pool.asks("full", gpus=1), pool.asks("healthy", gpus=1)
    gives_back(pool, clock, full)
    assert pool.gets(full, gpus=1) is None
    waiting = [Idler(offer(gpus=1), scope) for scope in (full, healthy)]
    assert services.desk.watch.served(waiting) == waiting[1:], "it takes nobody's turn either"
    assert pool.gets(healthy, gpus=1) is not None


@pytest.mark.usefixtures("run")
def test_a_machine_that_has_left_is_not_waited_for(pool: Pool, clock: ManualClock) -> None:
    full = pool.asks("full", gpus=1)
    pool.asks("healthy", gpus=1)
    gives_back(pool, clock, full)
    assert pool.gets(full, gpus=1) is None
    leaves = offer(pool="gpu", machine="healthy", gpus=1)
    pool.services.worker_access.note_left(pool.token, leaves)
    assert pool.gets(full, gpus=1) is not None


@pytest.mark.usefixtures("run")
def test_a_machine_alone_tries_again_as_soon_as_it_may(
    pool: Pool, services: PlatformServices, clock: ManualClock
) -> None:
    other, revoked = services.worker_access.create_token("gpu")
    Pool(services, revoked).asks("revoked", gpus=1)
    services.worker_access.revoke_token(other.id)
    Pool(services, services.worker_access.create_token("gpu", workspace_ids=["wsp_x"])[1]).asks(
        "not ours", gpus=1
    )
    pool.asks("gone", gpus=1)
    clock.advance(GIVES_WAY_S)
    pool.asks("small", gpus=0)
    full = pool.asks("full", gpus=1)
    gives_back(pool, clock, full)
    assert pool.gets(full, gpus=1) is not None


@pytest.mark.usefixtures("run")
def test_two_full_machines_do_not_wait_for_each_other(pool: Pool, clock: ManualClock) -> None:
    one, two = pool.asks("one", gpus=1), pool.asks("two", gpus=1)
    gives_back(pool, clock, one)
    gives_back(pool, clock, two)
    assert pool.gets(one, gpus=1) is not None


def test_a_machine_at_work_on_something_else_is_waited_for_and_not_for_ever(
    api: TestClient, pool: Pool, clock: ManualClock
) -> None:
    on_pool = {"execution": {"pool": "gpu", "gpus": 1}}
    submitted(api, advanced_config=on_pool)
    busy = pool.gets(pool.asks("busy", gpus=1), gpus=1)
    assert busy is not None
    submitted(api, advanced_config=on_pool)
    full = pool.asks("full", gpus=1)
    gives_back(pool, clock, full)
    began = clock.monotonic()
    while clock.monotonic() - began < GIVES_WAY_S - 2 * LONGER_THAN_A_PAUSE_S:
        assert pool.gets(full, gpus=1) is None
        clock.advance(LONGER_THAN_A_PAUSE_S)
        busy.sync()
    clock.advance(2 * LONGER_THAN_A_PAUSE_S)
    busy.sync()
    assert pool.gets(full, gpus=1) is not None


@pytest.mark.usefixtures("run")
def test_what_may_be_of_the_run_or_of_the_platform_is_tried_again_by_anybody(
    pool: Pool, clock: ManualClock
) -> None:
    some = pool.asks("some", gpus=1)
    pool.asks("other", gpus=1)
    gives_back(pool, clock, some, of_machine=False)
    assert pool.gets(some, gpus=1) is not None


@pytest.mark.usefixtures("run")
def test_who_lost_the_run_can_not_keep_its_new_owner_from_it(pool: Pool, clock: ManualClock) -> None:
    slow, quick = pool.asks("slow", gpus=1), pool.asks("quick", gpus=1)
    former = pool.gets(slow, gpus=1)
    assert former is not None
    former.releases()
    owner = pool.gets(quick, gpus=1)
    assert owner is not None
    former.services.desk._unfit.note(former.run_id, former.token.get_secret_value())
    owner.releases()
    clock.advance(LONGER_THAN_A_PAUSE_S)
    assert pool.gets(quick, gpus=1) is not None
