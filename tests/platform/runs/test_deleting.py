"""Deleting runs and datasets over HTTP: permissions, refusals, and that nothing is left after a crash either."""

from __future__ import annotations

from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import func, select, update

from osmosis_ai.platform.db.tables import DbConversation, DbJournalChunk, DbWorkerTicket
from tests.platform import fake_worker
from tests.platform.conftest import ManualClock, Member, World, assert_flat_error
from tests.platform.evaluations import Code, Submits, add_dataset, submit_body
from tests.platform.fake_worker import FakeWorker
from tests.platform.platform_parts import (
    Base,
    BlobStoreBusy,
    DbDataset,
    DbLogLine,
    DbLoraModel,
    DbMetricPoint,
    DbRun,
    DbRunFile,
    DbRunShard,
    DbRunUpload,
    DbSample,
    LogLine,
    PlatformServices,
    new_id,
)
from tests.platform.viewer import runs_world

EVALS, TRAININGS, DATASETS = "/api/cli/eval-runs", "/api/cli/training-runs", "/api/cli/datasets"
_TABLES: tuple[type[Base], ...] = (
    *(DbRun, DbRunShard, DbJournalChunk, DbWorkerTicket, DbConversation, DbRunUpload),
    *(DbSample, DbRunFile, DbMetricPoint, DbLogLine, DbLoraModel),
)


def add_run(
    services: PlatformServices, member: Member, name: str, kind: str = "eval", **changes: Any
) -> DbRun:
    """Add a run that has left one of everything, files included."""
    run = runs_world.add_run(services, member, name, kind=kind, **changes)
    runs_world.add_samples(services, run, [{"row": 0, "attempt": 0, "reward": 1.0, "error_type": None}])
    runs_world.add_file(services, run, "artifacts/row_0_run_0/x", b"something")
    shard = runs_world.add_shard(services, run, status="finished")
    now = services.clock.now()
    of_run, of_shard = {"run_id": run.id}, {"shard_id": shard.id}
    with services.db.transaction() as session:
        session.add(DbMetricPoint(**of_run, key="train/loss", step=1, value=1.0, timestamp=now))
        session.add(DbConversation(**of_run, path="artifacts/row_0_run_0/x", content=b"small"))
        session.add(DbRunUpload(**of_run, name="x", upload_id="u", size=1, sha256="0" * 64))
        session.add(DbJournalChunk(**of_shard, offset=0, content=b"{}"))
        session.add(DbWorkerTicket(**of_shard, id=shard.id, attempt=1, token_hash=shard.id, created_at=now))
        services.logs.add(session, run.id, [LogLine("said", step="run")])
    return run


def add_adapter(services: PlatformServices, run: DbRun) -> DbLoraModel:
    model = DbLoraModel(
        id=new_id("lora"),
        workspace_id=run.workspace_id,
        run_id=run.id,
        name=f"{run.name}-step-5",
        base_model="osmosis/tiny",
        step=5,
        files={},
        created_at=services.clock.now(),
    )
    with services.db.transaction() as session:
        session.add(model)
    return model


def left(services: PlatformServices) -> dict[str, int]:
    """Return how much there is of what runs leave."""
    with services.db.session() as session:
        rows = {
            table.__tablename__: session.scalar(select(func.count()).select_from(table)) or 0
            for table in _TABLES
        }
    return {**rows, "blobs": len(list(services.blobs.keys("runs")))}


@pytest.mark.parametrize(("kind", "route"), [("eval", EVALS), ("training", TRAININGS)])
def test_a_deleted_run_leaves_nothing_and_others_are_as_they_were(
    kind: str, route: str, api: TestClient, services: PlatformServices, member: Member
) -> None:
    add_run(services, member, "kept-one", kind)
    before = left(services)
    run = add_run(services, member, "copper-finch", kind)
    if kind == "training":
        add_adapter(services, run)
    assert api.get(route).json()["total_count"] == 2
    assert api.delete(f"{route}/copper-finch").json() == {}
    assert left(services) == before
    assert [
        row["name"] for row in api.get(route).json()["training_runs" if kind == "training" else "eval_runs"]
    ] == ["kept-one"]
    assert api.get(route).json()["total_count"] == 1
    assert_flat_error(api.delete(f"{route}/copper-finch"), 404, "NOT_FOUND")
    assert_flat_error(api.delete(f"{route}/{run.id}"), 404, "NOT_FOUND")


def test_nothing_is_left_of_what_several_workers_reported(
    api: TestClient, services: PlatformServices
) -> None:
    before = left(services)
    run = fake_worker.EVALS.taken(api, advanced_config={"execution": {"workers": 3}})
    for row in range(3):
        worker = FakeWorker.claims(services)
        sent = [worker.uploads(f"files/{row}", b"large")]
        artifact = {
            "path": f"artifacts/row_{row}_run_0/x",
            "kind": "artifacts",
            "size": 5,
            "blob": f"files/{row}",
        }
        worker.sync(sent=sent, files=[worker.conversation(row), artifact])
        worker.wants("files/never-sent", b"x")
        worker.records(1)
        worker.logs("done")
        worker.finishes()
    found = api.get(
        f"{EVALS}/{run['id']}/samples/manifest", params={"types": "artifacts,trajectories,journal"}
    )
    assert len(found.json()["files"]) == 8, "summary.jsonl, the journal, and two files of each row"
    assert left(services)["blobs"] >= 5
    assert api.delete(f"{EVALS}/{run['id']}").json() == {}
    assert left(services) == before


def test_files_that_a_killed_platform_left_are_gone_after_its_next_start(
    api: TestClient, services: PlatformServices, member: Member, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = left(services)
    run = add_run(services, member, "copper-finch")

    def full(_: str) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as broken:
        # As if it were killed between the transaction and the files.
        broken.setattr(services.blobs, "delete_below", full)
        assert api.delete(f"{EVALS}/{run.id}").status_code == 200
    assert_flat_error(api.get(f"{EVALS}/{run.id}"), 404, "NOT_FOUND")
    assert left(services) == {**before, "blobs": 1}
    with TestClient(api.app):
        assert left(services) == before


def test_files_that_the_store_did_not_let_go_are_deleted_while_the_platform_runs_and_keep_no_others(
    api: TestClient, services: PlatformServices, member: Member, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = left(services)
    runs = sorted((add_run(services, member, name) for name in ("finch", "heron")), key=lambda run: run.id)
    delete_below, stuck = services.blobs.delete_below, {runs[0].id, runs[1].id}

    def refused(prefix: str) -> None:
        if prefix.removeprefix("runs/") in stuck:
            raise BlobStoreBusy("the bucket answered 500; it is asked again later.")
        delete_below(prefix)

    monkeypatch.setattr(services.blobs, "delete_below", refused)
    for run in runs:
        assert api.delete(f"{EVALS}/{run.id}").status_code == 200
    assert left(services)["blobs"] == before["blobs"] + 2
    chore = services.maintenance._chores["files of deleted runs"]
    stuck.remove(runs[1].id)
    chore()
    assert {key.split("/")[1] for key in services.blobs.keys("runs")} == {runs[0].id}
    stuck.clear()
    chore()
    assert left(services) == before


@pytest.mark.parametrize("status", ["pending", "running"])
def test_a_run_that_has_not_ended_is_to_be_stopped_first(
    status: str, api: TestClient, services: PlatformServices, member: Member
) -> None:
    add_run(services, member, "copper-finch", status=status)
    refused = assert_flat_error(api.delete(f"{EVALS}/copper-finch"), 409, "CONFLICT")
    assert (
        f"'copper-finch' is {status}" in refused["error"]
        and "osmosis eval stop copper-finch" in refused["error"]
    )
    assert api.get(f"{EVALS}/copper-finch").status_code == 200


def test_a_model_in_use_is_kept(api: TestClient, services: PlatformServices, member: Member) -> None:
    run = add_run(services, member, "copper-finch", "training")
    model = add_adapter(services, run)
    user = add_run(services, member, "amber", status="running", model_path=f"osmosis/tiny:{model.name}")
    told = assert_flat_error(api.delete(f"{TRAININGS}/{run.id}"), 409, "CONFLICT")["error"]
    assert f"its model '{model.name}' is that of the evaluation run 'amber', which is running" in told
    with services.db.transaction() as session:
        session.execute(update(DbRun).where(DbRun.id == user.id).values(status="finished"))
        session.execute(update(DbLoraModel).values(deployment_status="active"))
    told = assert_flat_error(api.delete(f"{TRAININGS}/{run.id}"), 409, "CONFLICT")["error"]
    assert f"osmosis model undeploy {model.name}" in told
    assert api.post(f"/api/cli/models/{model.name}/undeploy", json={}).status_code == 200
    assert api.delete(f"{TRAININGS}/{run.id}").status_code == 200
    # What was evaluated still says what it was of.
    assert api.get(f"{EVALS}/amber").json()["config"]["model_path"] == f"osmosis/tiny:{model.name}"


def test_members_delete_what_is_theirs_and_admins_everything(
    client: TestClient, services: PlatformServices, world: World, member: Member
) -> None:
    joined = world.member("ivo", role="member", identity="fern/more")
    add_run(services, member, "maras")
    add_run(services, joined, "ivos")
    for path in (f"{EVALS}/maras", f"{DATASETS}/multiply"):
        told = assert_flat_error(client.delete(path, headers=joined.headers), 403, "ROLE_REQUIRED")
        assert "of somebody else can only be deleted by an admin of the workspace 'fern'" in told["error"]
    assert client.delete(f"{EVALS}/ivos", headers=joined.headers).status_code == 200
    add_run(services, joined, "ivos")
    for path in (f"{EVALS}/ivos", f"{EVALS}/maras", f"{DATASETS}/multiply"):
        assert client.delete(path, headers=member.headers).status_code == 200


def test_what_is_another_workspaces_is_not_there(
    client: TestClient, services: PlatformServices, member: Member, stranger: Member
) -> None:
    run = add_run(services, member, "copper-finch")
    with services.db.session() as session:
        dataset = session.scalars(select(DbDataset)).one()
    for path in (f"{EVALS}/{run.id}", f"{TRAININGS}/{run.id}", f"{DATASETS}/{dataset.id}"):
        assert_flat_error(client.delete(path, headers=stranger.headers), 404, "NOT_FOUND")
    assert client.get(f"{EVALS}/{run.id}", headers=member.headers).status_code == 200


def test_a_dataset_goes_when_no_run_needs_it_and_runs_keep_its_name(
    api: TestClient, services: PlatformServices, member: Member, code: Code, clock: ManualClock
) -> None:
    run = Submits(EVALS, submit_body).taken(api)
    told = assert_flat_error(api.delete(f"{DATASETS}/multiply"), 409, "CONFLICT")["error"]
    assert f"the evaluation run '{run['name']}', which is pending, uses it" in told
    assert api.post(f"{EVALS}/{run['id']}/stop", json={}).status_code == 200
    assert api.delete(f"{DATASETS}/multiply").json() == {}
    assert list(services.blobs.keys("datasets")) == []
    assert_flat_error(api.delete(f"{DATASETS}/multiply"), 404, "NOT_FOUND")
    assert api.get(f"{EVALS}/{run['id']}").json()["dataset"]["name"] == "multiply"
    refused = api.post(EVALS, json=submit_body())
    assert_flat_error(refused, 404, "DATASET_NOT_FOUND")
    add_dataset(services, member)
    assert api.post(EVALS, json=submit_body()).status_code == 200
