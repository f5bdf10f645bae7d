"""Claims over HTTP: which worker gets which run, when, and with what."""

from __future__ import annotations

import gzip
import hashlib
import io
import tarfile
from collections.abc import Callable
from typing import Any, NoReturn

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import update

from tests.platform.conftest import ManualClock, Member, World
from tests.platform.evaluations import Code
from tests.platform.platform_parts import (
    BlobStoreBusy,
    DatabaseBusyError,
    DbDataset,
    DbRun,
    LocalBlobStore,
    LogStore,
    PlatformServices,
)
from tests.platform.runs.desk.desk_workers import (
    GPU,
    LEASE_S,
    RUNS,
    DeskWorker,
    Refused,
    claim,
    has_expired,
    offer,
    pool_token,
    records,
    submitted,
)

HOUR_S = 3600
SECRET = {"required": ["API_KEY"], "provided": {"API_KEY": "sk-one-two-three"}}


def busy(*_asked: object, **_more: object) -> NoReturn:
    raise DatabaseBusyError("the database is busy.")


def away(*_: object) -> NoReturn:
    raise BlobStoreBusy("the bucket cannot be reached.")


def test_a_worker_is_handed_all_that_its_run_needs(worker: DeskWorker) -> None:
    given = worker.assignment
    assert given.source is not None
    packed = worker.blob(given.source.url)
    assert (len(packed), hashlib.sha256(packed).hexdigest()) == (given.source.size, given.source.sha256)
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        members = archive.getmembers()
    assert "rollouts/multiply/main.py" in [member.name for member in members]
    assert {(member.mtime, member.uid, member.uname) for member in members} == {(0, 0, "")}
    rows = worker.blob(given.dataset.url)
    assert hashlib.sha256(rows).hexdigest() == given.dataset.sha256
    assert given.run.request["experiment_config"]["rollout"] == "multiply"
    assert (given.lease.attempt, given.lease.term_s) == (1, 30.0)
    assert (given.journal.bytes, given.journal.segments, given.secrets) == (0, [], {})


def test_a_repeated_claim_gets_the_same_answer(api: TestClient, services: PlatformServices) -> None:
    submitted(api, secrets=SECRET, advanced_config=GPU)
    asked, token = offer(), pool_token(services)
    first, again = (claim(services, token, asked) for _ in range(2))
    assert first is not None and again is not None and again.lease == first.lease
    assert again.secrets["API_KEY"].get_secret_value() == "sk-one-two-three"
    worker = DeskWorker(services, first, token)
    assert [message for message in worker.messages() if "API_KEY" in message] == [
        "handed the worker of attempt 1 these secrets: API_KEY"
    ]
    worker.sync()
    with pytest.raises(Refused, match="CONFLICT: this claim has been answered"):
        claim(services, token, asked)


def test_secrets_are_handed_to_no_worker_of_which_the_runs_log_does_not_say_it(
    api: TestClient, services: PlatformServices, monkeypatch: pytest.MonkeyPatch
) -> None:
    submitted(api, secrets=SECRET, advanced_config=GPU)
    asked, token = offer(machine="basement"), pool_token(services)
    with monkeypatch.context() as broken:
        broken.setattr(LogStore, "_rows", busy)
        with pytest.raises(Refused, match="DATABASE_BUSY"):
            claim(services, token, asked)
    given = [claim(services, token, asked) for _ in range(2)]
    assert given[0] is not None and given[0].secrets
    logged = services.logs.page(given[0].run.id).logs
    [line] = [line for line in logged if "API_KEY" in line.message]
    assert line.details == {"machine": "basement", "pool": "gpu"}


def test_a_pool_has_its_own_runs(api: TestClient, services: PlatformServices, stranger: Member) -> None:
    submitted(api, advanced_config={"execution": {"pool": "gpu", "gpus": 2}})
    assert claim(services, pool_token(services, "cpu"), offer(gpus=2)) is None
    assert claim(services, pool_token(services), offer(gpus=1)) is None, "it has not what the run asks for"
    theirs = pool_token(services, workspace_ids=[stranger.workspace.id])
    assert claim(services, theirs, offer(gpus=2)) is None
    assert DeskWorker.claims(services, "gpu", gpus=2).run.status == "running"


def test_the_workspace_with_the_fewest_at_work_goes_first(
    api: TestClient, services: PlatformServices, clock: ManualClock, world: World
) -> None:
    for _ in range(3):
        clock.advance(1)
        last = submitted(api, advanced_config=GPU)["id"]
    ivo = world.member("ivo", workspace="moss")
    DeskWorker.claims(services, "gpu")
    with services.db.transaction() as session:
        session.get_one(DbRun, last).workspace_id = ivo.workspace.id
    assert DeskWorker.claims(services, "gpu").run_id == last, (
        "the newest, but no worker is at its workspace's"
    )


def test_the_next_worker_gets_the_journal_and_fences_the_last(worker: DeskWorker, clock: ManualClock) -> None:
    worker.records(3)
    worker.write(records(1, first=3))  # never sent
    has_expired(clock)
    successor = DeskWorker.claims(worker.services)
    journal = successor.assignment.journal
    assert (successor.assignment.lease.attempt, successor.run_id) == (2, worker.run_id)
    stored = b"".join(gzip.decompress(successor.blob(segment.url)) for segment in journal.segments)
    assert stored == worker.journal[: journal.bytes] and journal.bytes < len(worker.journal)
    assert [segment.sha256 for segment in journal.segments] == [hashlib.sha256(stored).hexdigest()]
    for late in (lambda: worker.sync(journal=worker.part()), worker.ends, worker.releases):
        with pytest.raises(Refused, match="LEASE_LOST"):
            late()
    successor.journal = stored
    successor.write(records(1, first=3, reward=0.5))
    successor.sync(journal=successor.part(journal.bytes, resumed=journal.bytes))
    assert [each.reward for each in successor.samples()] == [1.0, 1.0, 1.0, 0.5]


def test_a_run_that_is_let_go_is_for_the_next_worker(worker: DeskWorker) -> None:
    for _ in range(2):
        assert worker.releases().status == "running"
    with pytest.raises(Refused, match="LEASE_LOST"):
        worker.sync()
    assert DeskWorker.claims(worker.services).assignment.lease.attempt == 2


def test_every_owner_gets_a_whole_lease_after_a_restart(worker: DeskWorker, clock: ManualClock) -> None:
    has_expired(clock)
    worker.services.desk.renew_all()
    ticket = worker.services.worker_access.issue_ticket(worker.run_id)
    assert claim(worker.services, ticket) is None
    worker.sync()


Change = Callable[[ManualClock, DeskWorker], object]


@pytest.mark.parametrize(
    ("happens", "is_free"),
    [
        (lambda clock, _: clock.advance(LEASE_S - 1), False),
        (lambda clock, _: clock.advance(LEASE_S), True),
        (lambda clock, worker: (clock.advance(8 * HOUR_S), worker.sync()), False),
        (lambda clock, _: clock.jump(-24 * HOUR_S), True),
        (lambda clock, worker: (clock.jump(-24 * HOUR_S), worker.sync()), False),
        (lambda clock, _: (clock.jump(-1), clock.advance(LEASE_S)), False),
        (lambda clock, _: (clock.jump(-1), clock.advance(LEASE_S + 1)), True),
    ],
    ids=[
        "silent",
        "silent for a lease",
        "slept",
        "set back",
        "set back and heard",
        "set back a second",
        "later",
    ],
)
def test_a_run_is_free_when_its_owner_is_silent_for_a_lease_whatever_the_clock_says(
    worker: DeskWorker, clock: ManualClock, happens: Change, is_free: bool
) -> None:
    happens(clock, worker)
    ticket = worker.services.worker_access.issue_ticket(worker.run_id)
    assert (claim(worker.services, ticket) is not None) is is_free


@pytest.mark.parametrize("jump_s", [-24 * HOUR_S, HOUR_S])
def test_a_clock_that_jumps_keeps_no_run_that_was_put_off_from_its_next_worker(
    api: TestClient, services: PlatformServices, clock: ManualClock, jump_s: float
) -> None:
    submitted(api, advanced_config=GPU)
    DeskWorker.claims(services, "gpu").releases(setback="its disk is full")
    assert claim(services, pool_token(services)) is None, "not at once"
    clock.jump(jump_s)
    assert DeskWorker.claims(services, "gpu").assignment.lease.attempt == 2


def test_a_replaced_dataset_fails_a_run_that_waits(api: TestClient, services: PlatformServices) -> None:
    run = submitted(api, advanced_config=GPU)
    with services.db.transaction() as session:
        session.execute(update(DbDataset).values(sha256="0" * 64))
    assert claim(services, pool_token(services)) is None
    ended = api.get(f"{RUNS}/{run['id']}").json()["eval_run"]
    assert ended["status"] == "failed"
    assert ended["error"] == "the dataset 'multiply' was replaced before the run began; submit the run again."


@pytest.mark.parametrize("failure", [BlobStoreBusy("the bucket answered 503."), OSError("the disk is full")])
def test_a_run_that_can_not_be_handed_out_now_keeps_no_other_from_its_worker(
    api: TestClient,
    services: PlatformServices,
    clock: ManualClock,
    code: Code,
    monkeypatch: pytest.MonkeyPatch,
    failure: Exception,
) -> None:
    first, broken = submitted(api, advanced_config=GPU)["id"], code.head
    code.commit("another one")
    clock.advance(1.0)
    second = submitted(api, advanced_config=GPU)["id"]
    find = services.sources.find

    def refused(workspace_id: str, repository: Any, commit: str) -> Any:
        if commit == broken:
            raise failure
        return find(workspace_id, repository, commit)

    with monkeypatch.context() as patch:
        patch.setattr(services.sources, "find", refused)
        with pytest.raises((Refused, OSError)):
            claim(services, pool_token(services))
        assert DeskWorker.claims(services, "gpu").run_id == second
    clock.advance(60.0)
    assert DeskWorker.claims(services, "gpu").run_id == first


# -- machines that could not work on a run -------------------------------------------------------

FULL = "the disk of the worker's machine (full) is full"
PAUSE_S = 5.0


class Pool:
    """The machines of a pool, which ask with one token for a GPU each."""

    def __init__(self, services: PlatformServices, clock: ManualClock) -> None:
        self.services, self.clock = services, clock
        self.token = pool_token(services)

    def asks(self, machine: str, gpus: int = 1) -> DeskWorker | None:
        asked = offer(pool="gpu", machine=machine, gpus=gpus)
        given = claim(self.services, self.token, asked)
        return None if given is None else DeskWorker(self.services, given, self.token)

    def gives_back(self, machine: str, **said: Any) -> None:
        """Have a machine take the run and give it back, so that its pause is over."""
        worker = self.asks(machine)
        assert worker is not None
        worker.releases(setback=FULL, **{"of_machine": True, **said})
        self.clock.advance(PAUSE_S)


@pytest.fixture
def pool(services: PlatformServices, clock: ManualClock) -> Pool:
    return Pool(services, clock)


def test_a_full_machine_gives_way_to_another(api: TestClient, pool: Pool, clock: ManualClock) -> None:
    assert pool.asks("full") is pool.asks("healthy") is None
    submitted(api, advanced_config=GPU)
    pool.gives_back("full")
    assert pool.asks("full") is None
    assert pool.asks("healthy") is not None


def test_two_full_machines_do_not_wait_for_each_other(api: TestClient, pool: Pool) -> None:
    assert pool.asks("one") is pool.asks("two") is None
    submitted(api, advanced_config=GPU)
    pool.gives_back("one")
    pool.gives_back("two")
    assert pool.asks("one") is not None


@pytest.mark.parametrize("others", ["that have left", "too small", "not of this workspace", "at fault"])
def test_a_machine_that_no_other_can_stand_in_for_tries_again_as_soon_as_it_may(
    api: TestClient, services: PlatformServices, pool: Pool, others: str
) -> None:
    assert pool.asks("other", gpus=0 if others == "too small" else 1) is None
    if others == "that have left":
        claim(services, pool.token, offer(pool="gpu", machine="other", gpus=1, leaves=True))
    elif others == "not of this workspace":
        claim(services, pool.token, offer(pool="gpu", machine="other", gpus=1, leaves=True))
        theirs = pool_token(services, workspace_ids=["wsp_x"])
        assert claim(services, theirs, offer(pool="gpu", machine="not ours", gpus=1)) is None
    submitted(api, advanced_config={"execution": {"pool": "gpu", "gpus": 1}})
    pool.gives_back("full", of_machine=others != "at fault")
    assert pool.asks("full") is not None


def test_a_busy_machine_is_waited_for_but_not_forever(
    api: TestClient, pool: Pool, clock: ManualClock
) -> None:
    submitted(api, advanced_config=GPU)
    busy = pool.asks("busy")
    assert busy is not None
    submitted(api, advanced_config=GPU)
    pool.gives_back("full")
    waited_s = PAUSE_S
    while pool.asks("full") is None:
        clock.advance(PAUSE_S)
        waited_s += PAUSE_S
        busy.sync()
    assert 300.0 <= waited_s <= 900.0


# -- a store or a database that is away ----------------------------------------------------------


def test_a_run_waits_for_its_store(api: TestClient, services: PlatformServices, clock: ManualClock) -> None:
    submitted(api, advanced_config=GPU)
    why = "the connection to https://bucket.example/ failed: refused"
    for _ in range(40):
        worker = DeskWorker.claims(services, "gpu")
        clock.advance(20)
        assert worker.releases(setback=f"{why}.", store_away=True).status == "running"
        assert claim(services, pool_token(services)) is None, "not at once"
        clock.advance(60)
    assert worker.messages()[-1] == f"{why} (trying again in 60 s)"
    assert DeskWorker.claims(services, "gpu").ends().status == "finished", "none of that counted against it"


def test_a_claim_without_a_store_is_no_attempt(worker: DeskWorker, monkeypatch: pytest.MonkeyPatch) -> None:
    services, waits = worker.services, "waits for the store: the bucket cannot be reached."
    worker.records(2)
    for outage in (1, 2):
        worker.releases()
        ticket, again = services.worker_access.issue_ticket(worker.run_id), offer()
        with monkeypatch.context() as patch:
            patch.setattr(LocalBlobStore, "put", away)
            for _ in range(5):
                with pytest.raises(Refused, match="BLOBS_UNAVAILABLE"):
                    claim(services, ticket, again)
        assert worker.messages().count(waits) == outage
        found = claim(services, ticket, again)
        assert found is not None and found.lease.attempt == outage + 1
        stored, worker = worker.journal, DeskWorker(services, found, ticket)
        worker.journal = stored
        worker.records(1)


@pytest.mark.parametrize(("silent_s", "is_kept"), [(5.0, False), (12.0, True)])
def test_a_database_that_was_silent_for_long_costs_no_owner_its_lease(
    worker: DeskWorker, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, silent_s: float, is_kept: bool
) -> None:
    worker.sync()
    ticket = worker.services.worker_access.issue_ticket(worker.run_id)
    clock.advance(LEASE_S - silent_s + 1)
    with monkeypatch.context() as patch:
        patch.setattr(worker.services.db, "transaction", busy)
        with pytest.raises(Refused, match="DATABASE_BUSY"):
            worker.sync()
    clock.advance(silent_s)
    assert (claim(worker.services, ticket) is None) is is_kept


def test_a_run_that_is_to_stop_is_not_ended_over_an_owner_that_the_database_kept_from_being_heard(
    api: TestClient, services: PlatformServices, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = submitted(api, advanced_config=GPU)
    worker = DeskWorker.claims(services, "gpu")
    assert api.post(f"{RUNS}/{run['id']}/stop", json={}).json()["status"] == "stopping"
    with monkeypatch.context() as patch:
        patch.setattr(services.db, "transaction", busy)
        with pytest.raises(Refused, match="DATABASE_BUSY"):
            worker.sync()
    has_expired(clock)
    services.desk.close_stopped()
    worker.records(2)
    assert len(worker.samples()) == 2
    has_expired(clock)
    services.desk.close_stopped()
    assert worker.run.status == "stopped", "now it is its owner that is silent"
