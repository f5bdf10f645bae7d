"""Deleting runs and datasets over HTTP: permissions, refusals, and that nothing is left after a crash either."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import func, select, update

from osmosis_ai.platform.db.tables import (
    Base,
    DbConversation,
    DbDataset,
    DbJournalChunk,
    DbLogLine,
    DbLoraModel,
    DbMetricPoint,
    DbRun,
    DbRunFile,
    DbRunShard,
    DbRunUpload,
    DbSample,
    new_id,
)
from osmosis_ai.platform.log_lines import LogLine
from osmosis_ai.platform.services import PlatformServices
from tests.platform import fake_worker
from tests.platform.conftest import Member, World, assert_flat_error
from tests.platform.evaluations import add_dataset, submit_body
from tests.platform.viewer import runs_world

EVALS, TRAININGS, DATASETS = "/api/cli/eval-runs", "/api/cli/training-runs", "/api/cli/datasets"
_TABLES: tuple[type[Base], ...] = (
    *(DbRun, DbRunShard, DbJournalChunk, DbConversation, DbRunUpload),
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
        services.logs.add(session, run.id, [LogLine("said", step="run")])
    return run


def add_adapter(services: PlatformServices, run: DbRun, *, step: int = 5) -> DbLoraModel:
    model = DbLoraModel(
        id=new_id("lora"),
        workspace_id=run.workspace_id,
        run_id=run.id,
        name=f"{run.name}-step-{step}",
        base_model="osmosis/tiny",
        step=step,
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
def test_a_deleted_run_leaves_nothing(
    kind: str, route: str, api: TestClient, services: PlatformServices, member: Member
) -> None:
    add_run(services, member, "kept-one", kind, created_at=services.clock.now() + timedelta(hours=1))
    before = left(services)
    run = add_run(services, member, "copper-finch", kind)
    if kind == "training":
        add_adapter(services, run)
    assert api.get(route).json()["total_count"] == 2
    assert api.delete(f"{route}/copper-finch").json() == {}
    assert left(services) == before
    listed = api.get(route).json()
    assert [row["name"] for row in listed[f"{kind}_runs"]] == ["kept-one"]
    assert listed["total_count"] == 1
    assert_flat_error(api.delete(f"{route}/copper-finch"), 404, "NOT_FOUND")
    assert_flat_error(api.delete(f"{route}/{run.id}"), 404, "NOT_FOUND")


def test_a_start_finishes_interrupted_deletions(
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


@pytest.mark.parametrize("status", ["pending", "running"])
def test_open_runs_are_not_deleted(
    status: str, api: TestClient, services: PlatformServices, member: Member
) -> None:
    add_run(services, member, "copper-finch", status=status)
    refused = assert_flat_error(api.delete(f"{EVALS}/copper-finch"), 409, "CONFLICT")
    for words in (f"'copper-finch' is {status}", "osmosis eval stop copper-finch"):
        assert words in refused["error"]
    assert api.get(f"{EVALS}/copper-finch").status_code == 200


def test_models_in_use(api: TestClient, services: PlatformServices, member: Member) -> None:
    run = add_run(services, member, "copper-finch", "training")
    model = add_adapter(services, run)
    add_run(services, member, "amber", status="running", model_path=f"osmosis/tiny:{model.name}")
    other = add_adapter(services, run, step=9)
    add_run(services, member, "beryl", status="pending", model_path=f"osmosis/tiny:{other.name}")
    told = assert_flat_error(api.delete(f"{TRAININGS}/{run.id}"), 409, "CONFLICT")["error"]
    assert f"its model '{model.name}' is used by the evaluation run 'amber', which is running" in told
    assert f"its model '{other.name}' is used by the evaluation run 'beryl', which is pending" in told
    assert "osmosis eval stop amber; osmosis eval stop beryl" in told
    with services.db.transaction() as session:
        session.execute(
            update(DbRun).where(DbRun.status.in_(["running", "pending"])).values(status="finished")
        )
        session.execute(update(DbLoraModel).values(deployment_status="active"))
    told = assert_flat_error(api.delete(f"{TRAININGS}/{run.id}"), 409, "CONFLICT")["error"]
    assert f"its models '{model.name}', '{other.name}' are deployed" in told
    for name in (model.name, other.name):
        assert f"osmosis model undeploy {name}" in told
        assert api.post(f"/api/cli/models/{name}/undeploy", json={}).status_code == 200
    assert api.delete(f"{TRAININGS}/{run.id}").status_code == 200
    # What was evaluated still says what it was of.
    assert api.get(f"{EVALS}/amber").json()["config"]["model_path"] == f"osmosis/tiny:{model.name}"


def test_permissions(
    client: TestClient, services: PlatformServices, world: World, member: Member, stranger: Member
) -> None:
    joined = world.member("ivo", role="member", identity="fern/more")
    run = add_run(services, member, "maras")
    add_run(services, joined, "ivos")
    with services.db.session() as session:
        dataset = session.scalars(select(DbDataset)).one()
    for path in (f"{EVALS}/{run.id}", f"{TRAININGS}/{run.id}", f"{DATASETS}/{dataset.id}"):
        assert_flat_error(client.delete(path, headers=stranger.headers), 404, "NOT_FOUND")
    for path in (f"{EVALS}/maras", f"{DATASETS}/multiply"):
        told = assert_flat_error(client.delete(path, headers=joined.headers), 403, "ROLE_REQUIRED")
        assert "only an admin of the workspace 'fern' can delete" in told["error"]
    assert client.delete(f"{EVALS}/ivos", headers=joined.headers).status_code == 200
    add_run(services, joined, "ivos")
    for path in (f"{EVALS}/ivos", f"{EVALS}/maras", f"{DATASETS}/multiply"):
        assert client.delete(path, headers=member.headers).status_code == 200


def test_datasets(api: TestClient, services: PlatformServices, member: Member) -> None:
    run = fake_worker.EVALS.taken(api)
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
