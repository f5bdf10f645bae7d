"""Claims: which worker gets which shard, when, and with what."""

from __future__ import annotations

import hashlib
import io
import tarfile
from typing import Any

import pytest
from fastapi.testclient import TestClient
from pydantic import ValidationError
from sqlalchemy import select, update

from osmosis_ai.api.models.workers import AssignedRun
from osmosis_ai.platform.blobs.store import BlobStoreBusy
from osmosis_ai.platform.db.engine import DatabaseBusyError
from osmosis_ai.platform.db.tables import DbDataset, DbRun, DbSecretAccess
from osmosis_ai.platform.logs import LogStore
from osmosis_ai.platform.worker.client import StoredBytesError, WorkerClient
from tests.platform.conftest import ManualClock, Member, World
from tests.platform.evaluations import Code, add_dataset
from tests.platform.fake_worker import (
    EVALS,
    GPU,
    FakeWorker,
    Refused,
    claim,
    claim_request,
    expire_leases,
    pool_token,
    raising,
    settle,
)

SECRET = {"required": ["API_KEY"], "provided": {"API_KEY": "sk-one-two-three"}}
PROBLEM = "the kernel allows no user namespaces"


def submit(api: TestClient, world: World, **execution: Any) -> str:
    """Submit an evaluation to the pool ``gpu``, and let the platform prepare it; return its id."""
    execution = {"pool": "gpu", **execution}
    run_id: str = EVALS.taken(api, advanced_config={"execution": execution})["id"]
    settle(world)
    return run_id


def waits(api: TestClient, run_id: str) -> str | None:
    found: str | None = api.get(f"{EVALS.route}/{run_id}").json().get("waits")
    return found


def test_an_assignment_has_everything_that_the_worker_needs(worker: FakeWorker) -> None:
    given = worker.assignment
    assert given.source is not None
    packed = worker.download(given.source.url)
    assert (len(packed), hashlib.sha256(packed).hexdigest()) == (given.source.size, given.source.sha256)
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        members = archive.getmembers()
    assert "rollouts/multiply/main.py" in [member.name for member in members]
    assert {(member.mtime, member.uid, member.uname) for member in members} == {(0, 0, "")}
    assert hashlib.sha256(worker.download(given.dataset.url)).hexdigest() == given.dataset.sha256
    assert given.run.request["experiment_config"]["rollout"] == "multiply"
    assert (given.lease.attempt, given.lease.term_s, given.next_poll_s) == (1, 30.0, 2.0)
    assert (given.shard.number, given.shard.count, given.shard.journal_bytes, given.secrets) == (0, 1, 0, {})
    assert worker.run.status == "running"


@pytest.mark.parametrize(
    ("asks", "has", "described"),
    [
        ({"cpus": 8}, {"cpus": 4}, "4 of 8 CPUs"),
        ({"gpus": 1}, {"gpus": 0}, "0 of 1 GPU"),
        ({"memory_gb": 64}, {"memory_gb": 16}, "16 of 64 GiB of memory"),
        (
            {"isolation": "required"},
            {"sandbox": False, "sandbox_problem": PROBLEM},
            f"no sandbox ({PROBLEM})",
        ),
        ({"network": "none"}, {"sandbox": False, "sandbox_problem": PROBLEM}, f"no sandbox ({PROBLEM})"),
        ({"labels": ["a100", "eu"]}, {"labels": ["a100"]}, None),
    ],
)
def test_a_run_waits_for_a_machine_that_has_all_it_requires(
    api: TestClient, world: World, asks: dict[str, Any], has: dict[str, Any], described: str | None
) -> None:
    run_id = submit(api, world, **asks)
    token = pool_token(world)
    assert claim(world, token, claim_request(machine="box-1", **has)) is None
    assert waits(api, run_id) == (
        f"no known worker of the pool 'gpu' has everything this run requires: box-1 has {described}."
        if described
        else "no known worker of the pool 'gpu' has the label `eu`."
    )
    enough = {"cpus": 8, "gpus": 1, "memory_gb": 64, "sandbox": True, "labels": ["eu", "nvme", "a100"]}
    assert claim(world, token, claim_request(machine="box-2", **enough)) is not None
    assert waits(api, run_id) is None


def test_a_run_says_that_no_machine_that_fits_is_available(
    api: TestClient, world: World, clock: ManualClock
) -> None:
    token, large = pool_token(world), claim_request(machine="box-1", gpus=1)
    assert claim(world, token, large) is None
    run_id = submit(api, world, gpus=1)
    assert waits(api, run_id) is None
    clock.advance(300)
    assert claim(world, token, claim_request(machine="box-2", gpus=0)) is None
    start = "it waits for a worker of the pool 'gpu': the"
    assert waits(api, run_id) == f"{start} only one that fits was last seen 5 min ago."
    world.services.worker_access.known.note(
        claim_request(machine="box-3", gpus=1), world.services.worker_access.tokens()[0]
    )
    assert waits(api, run_id) is None
    world.services.worker_access.note_left(token, claim_request(machine="box-3", gpus=1))
    clock.advance(20)
    assert waits(api, run_id) == f"{start} 2 that fit were last seen 20 s ago or earlier."
    assert claim(world, token, claim_request(machine="box-1", gpus=1)) is not None
    clock.advance(3600)
    submit(api, world, gpus=1)
    assert waits(api, run_id) == f"{start} 2 that fit were last seen 60 min ago or earlier."


def test_a_claim_gets_no_run_of_another_pool_or_workspace(
    api: TestClient, world: World, member: Member, stranger: Member
) -> None:
    run_id = submit(api, world)
    for bearer in (
        pool_token(world, "cpu"),
        pool_token(world, workspace_ids=[stranger.workspace.id]),
        world.services.worker_access.local_token,
    ):
        assert claim(world, bearer) is None
    mine = pool_token(world, workspace_ids=[member.workspace.id])
    assert (found := claim(world, mine)) is not None and found.run.id == run_id


def test_the_workspace_with_the_fewest_active_shards_goes_first(
    api: TestClient, world: World, clock: ManualClock
) -> None:
    ids = []
    for _ in range(4):
        clock.advance(1)
        ids.append(submit(api, world))
    others = world.member("ivo", workspace="moss").workspace.id
    with world.services.db.transaction() as session:
        for run_id in ids[2:]:
            session.get_one(DbRun, run_id).workspace_id = others
    order = [FakeWorker.claims(world, "gpu").run_id for _ in range(4)]
    assert order == [ids[0], ids[2], ids[1], ids[3]]


def test_runs_that_no_machine_fits_keep_no_other_of_their_workspace(
    api: TestClient, world: World, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("osmosis_ai.platform.queue.queue._MOST_CANDIDATES", 1)
    for _ in range(3):
        submit(api, world, labels=["h200"])
        clock.advance(1)
    run_id = submit(api, world)
    assert FakeWorker.claims(world, "gpu", labels=["a100"]).run_id == run_id


def test_a_host_may_ask_for_one_run_only(api: TestClient, world: World) -> None:
    first, second = submit(api, world), submit(api, world)
    assert FakeWorker.claims(world, "gpu", run_id=second).run_id == second
    assert claim(world, pool_token(world), claim_request(run_id=second)) is None
    assert FakeWorker.claims(world, "gpu").run_id == first


# -- repeated claims and secrets -------------------------------------------------------------------


def test_a_repeated_claim_gets_the_same_lease_and_each_answer_with_secrets_is_logged(
    api: TestClient, world: World
) -> None:
    EVALS.taken(api, secrets=SECRET, advanced_config=GPU)
    settle(world)
    request, token = claim_request(machine="basement"), pool_token(world)
    first, again = (claim(world, token, request) for _ in range(2))
    assert first is not None and again is not None
    assert (again.lease, again.shard) == (first.lease, first.shard)
    assert again.secrets["API_KEY"].get_secret_value() == "sk-one-two-three"
    worker = FakeWorker(world, first)
    message = "the worker of attempt 1 received these secrets: API_KEY"
    assert worker.messages().count(message) == 2
    [line, _] = [each for each in world.services.logs.page(worker.run_id).logs if each.message == message]
    assert line.details == {"machine": "basement", "pool": "gpu"}
    for name, body in (("sync", {}), ("release", {})):
        assert "sk-one" not in worker.call(name, body).text, "secrets are in the answer of a claim only"
    with pytest.raises(Refused, match="409 CONFLICT: this claim has been answered"):
        claim(world, token, request)


def test_no_secret_leaves_the_platform_before_it_is_logged(
    api: TestClient, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    EVALS.taken(api, secrets=SECRET, advanced_config=GPU)
    settle(world)
    request, token = claim_request(), pool_token(world)
    busy = raising(DatabaseBusyError("the database is busy."))
    with monkeypatch.context() as broken:
        broken.setattr(LogStore, "add", busy)
        with pytest.raises(Refused, match="503 DATABASE_BUSY") as refused:
            claim(world, token, request)
    assert "sk-one" not in str(refused.value.body)
    with world.services.db.session() as session:
        assert session.scalars(select(DbSecretAccess)).all() == []
    assert (found := claim(world, token, request)) is not None
    assert found.secrets["API_KEY"].get_secret_value() == "sk-one-two-three"


def test_a_lease_that_another_worker_has_is_given_to_no_repeated_claim(
    worker: FakeWorker, clock: ManualClock, world: World
) -> None:
    world, request = worker.world, claim_request()
    worker.releases()
    assert claim(world, worker.bearer, request) is not None
    for foreign in (
        *(pool_token(world, pool) for pool in ("cpu", "gpu")),
        world.services.worker_access.local_token,
    ):
        with pytest.raises(Refused, match="409 CONFLICT"):
            claim(world, foreign, request)
    expire_leases(clock)
    second = FakeWorker.claims(world, "gpu")
    assert second.assignment.lease.attempt == 3
    # The former claim is a new one by now, and there is nothing for it.
    assert claim(world, worker.bearer, request) is None
    second.sync()


# -- the next worker -------------------------------------------------------------------------------


FULL = "the disk of the machine 'full' is full"


def test_a_machine_that_is_unfit_lets_others_go_first(
    api: TestClient, world: World, clock: ManualClock
) -> None:
    token, run_id = pool_token(world), submit(api, world)

    def asks(machine: str) -> FakeWorker | None:
        found = claim(world, token, claim_request(machine=machine))
        return None if found is None else FakeWorker(world, found)

    first = asks("full")
    assert first is not None
    first.releases(FULL, counts=True, unfit=True)
    assert waits(api, run_id) == f"it waits for a worker: {FULL}."
    assert f"{FULL} (trying again in 0.5 s)" in first.messages()
    clock.advance(5)
    assert asks("full") is None
    other = asks("healthy")
    assert other is not None
    assert waits(api, run_id) is None
    other.releases()  # it was asked to end, and no machine but the first is left
    again = asks("full")
    assert again is not None
    again.releases(FULL, counts=True, unfit=True)
    clock.advance(30)
    assert asks("full") is None
    clock.advance(31)
    again = asks("full")
    assert again is not None, "there may be no other machine"
    again.releases(unfit=True)
    assert asks("full") is None
    clock.advance(61)
    assert asks("full") is not None


@pytest.mark.parametrize("change", ["removed", "replaced"])
def test_a_run_whose_dataset_is_gone_fails_and_the_claim_gets_the_next_run(
    api: TestClient, world: World, member: Member, clock: ManualClock, change: str
) -> None:
    gone = submit(api, world)
    other = add_dataset(world, member, "other", rows=[{"a": 1}]).id if change == "replaced" else None
    with world.services.db.transaction() as session:
        session.execute(update(DbRun).values(dataset_id=other))
    clock.advance(1)
    following = submit(api, world)
    found = claim(world, pool_token(world))
    assert found is not None and found.run.id == following
    settle(world)
    run = api.get(f"{EVALS.route}/{gone}").json()["eval_run"]
    error = f"the dataset 'multiply' was {change} before the run began; submit the run again."
    assert (run["status"], run["error"]) == ("failed", error)


def test_a_worker_that_continues_a_run_whose_dataset_is_gone_uses_its_own_copy(worker: FakeWorker) -> None:
    worker.records(1)
    worker.releases()
    with worker.world.services.db.transaction() as session:
        session.execute(update(DbDataset).values(sha256="0" * 64))
    given = FakeWorker.claims(worker.world, "gpu").assignment
    assert (given.dataset.url, given.dataset.sha256) == ("", worker.assignment.dataset.sha256)


@pytest.mark.parametrize("failure", [BlobStoreBusy("the bucket answered 503."), OSError("the disk is full")])
def test_a_run_that_cannot_be_assigned_now_keeps_no_other_waiting(
    api: TestClient,
    world: World,
    clock: ManualClock,
    code: Code,
    monkeypatch: pytest.MonkeyPatch,
    failure: Exception,
) -> None:
    first, broken = submit(api, world), code.head
    code.commit("another one")
    clock.advance(1.0)
    second, find = submit(api, world), world.services.sources.find

    def fails(workspace_id: str, repository: Any, commit: str) -> Any:
        if commit == broken:
            raise failure
        return find(workspace_id, repository, commit)

    with monkeypatch.context() as patch:
        patch.setattr(world.services.sources, "find", fails)
        with pytest.raises((Refused, OSError)):
            claim(world, pool_token(world))
        assert FakeWorker.claims(world, "gpu").run_id == second
    clock.advance(10.0)
    found = FakeWorker.claims(world, "gpu")
    assert (found.run_id, found.assignment.lease.attempt) == (first, 1), "that was no attempt"


# -- pace ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("workers", "expected_s"), [(1, 2.0), (200, 2.0), (300, 3.0), (5000, 10.0)])
def test_workers_poll_less_often_the_more_there_are(
    worker: FakeWorker, workers: int, expected_s: float
) -> None:
    for number in range(workers - 1):
        worker.world.services.queue._syncs.next_s(f"shd_{number}")
    assert worker.sync().next_poll_s == expected_s


def test_a_platform_cannot_name_places_of_the_workers_machine(worker: FakeWorker, tmp_path: Any) -> None:
    described = worker.assignment.run.model_dump(by_alias=True)
    with pytest.raises(ValidationError, match="workspace_id"):
        AssignedRun.model_validate({**described, "workspace_id": "/var/cache"})
    client = WorkerClient("https://platform.example", "osmw_x")
    download = worker.assignment.dataset.model_copy(update={"url": "http://127.0.0.1:9/admin"})
    with pytest.raises(StoredBytesError, match="named an address of this machine"):
        client.fetch(download, tmp_path / "rows", lasting_s=1)
    client.close()
