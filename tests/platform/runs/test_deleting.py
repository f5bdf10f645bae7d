"""Deleting runs and datasets over HTTP: permissions, refusals, and that nothing is left after a crash either."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from fastapi.testclient import TestClient

from tests.platform.conftest import ManualClock, Member, World, assert_flat_error
from tests.platform.evaluations import add_dataset, submit_body
from tests.platform.fake_worker import EVALS as SUBMITS
from tests.platform.viewer.runs_world import (
    add_file,
    add_model,
    add_points,
    add_rows,
    add_run,
    add_samples,
    add_shard,
    change_run,
    left_of_runs,
)

EVALS, TRAININGS, DATASETS = "/api/cli/eval-runs", "/api/cli/training-runs", "/api/cli/datasets"


def left_behind(world: World, member: Member, name: str, kind: str = "eval", **changes: Any) -> Any:
    """Add a run that has left one of everything, files included."""
    run = add_run(world, member, name, kind=kind, **changes)
    add_samples(world, run, [{"row": 0, "attempt": 0, "reward": 1.0, "error_type": None}])
    add_file(world, run, "artifacts/row_0_run_0/x", b"something")
    add_shard(world, run, status="finished")
    add_points(world, run, "train/loss", {1: 1.0})
    add_rows(world, run)
    world.log(run.id, "said", step="run")
    return run


@pytest.mark.parametrize(("kind", "route"), [("eval", EVALS), ("training", TRAININGS)])
def test_a_deleted_run_leaves_nothing(
    kind: str, route: str, api: TestClient, world: World, member: Member, clock: ManualClock
) -> None:
    left_behind(world, member, "kept-one", kind, created_at=clock.now() + timedelta(hours=1))
    before = left_of_runs(world)
    run = left_behind(world, member, "copper-finch", kind)
    if kind == "training":
        add_model(world, run)
    assert api.get(route).json()["total_count"] == 2
    assert api.delete(f"{route}/copper-finch").json() == {}
    assert left_of_runs(world) == before
    listed = api.get(route).json()
    assert [row["name"] for row in listed[f"{kind}_runs"]] == ["kept-one"]
    assert listed["total_count"] == 1
    assert_flat_error(api.delete(f"{route}/copper-finch"), 404, "NOT_FOUND")
    assert_flat_error(api.delete(f"{route}/{run.id}"), 404, "NOT_FOUND")


def test_a_start_finishes_interrupted_deletions(
    api: TestClient, world: World, member: Member, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = left_of_runs(world)
    run = left_behind(world, member, "copper-finch")

    def full(_: str) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as broken:
        # As if it were killed between the transaction and the files.
        broken.setattr(world.services.blobs, "delete_below", full)
        assert api.delete(f"{EVALS}/{run.id}").status_code == 200
    assert_flat_error(api.get(f"{EVALS}/{run.id}"), 404, "NOT_FOUND")
    assert left_of_runs(world) == {**before, "blobs": 1}
    with TestClient(api.app):
        assert left_of_runs(world) == before


@pytest.mark.parametrize("status", ["pending", "running"])
def test_open_runs_are_not_deleted(status: str, api: TestClient, world: World, member: Member) -> None:
    left_behind(world, member, "copper-finch", status=status)
    refused = assert_flat_error(api.delete(f"{EVALS}/copper-finch"), 409, "CONFLICT")
    for words in (f"'copper-finch' is {status}", "osmosis eval stop copper-finch"):
        assert words in refused["error"]
    assert api.get(f"{EVALS}/copper-finch").status_code == 200


def test_models_in_use(api: TestClient, world: World, member: Member) -> None:
    run = left_behind(world, member, "copper-finch", "training")
    model, other = add_model(world, run), add_model(world, run, 9)
    users = [
        add_run(world, member, name, status=status, model_path=f"osmosis/tiny:{used}")
        for name, status, used in (("amber", "running", model), ("beryl", "pending", other))
    ]
    told = assert_flat_error(api.delete(f"{TRAININGS}/{run.id}"), 409, "CONFLICT")["error"]
    assert f"its model '{model}' is used by the evaluation run 'amber', which is running" in told
    assert f"its model '{other}' is used by the evaluation run 'beryl', which is pending" in told
    assert "osmosis eval stop amber; osmosis eval stop beryl" in told
    for user in users:
        change_run(world, user.id, status="finished")
    for name in (model, other):
        assert api.post(f"/api/cli/models/{name}/deploy", json={}).status_code == 200
    told = assert_flat_error(api.delete(f"{TRAININGS}/{run.id}"), 409, "CONFLICT")["error"]
    assert f"its models '{model}', '{other}' are deployed" in told
    for name in (model, other):
        assert f"osmosis model undeploy {name}" in told
        assert api.post(f"/api/cli/models/{name}/undeploy", json={}).status_code == 200
    assert api.delete(f"{TRAININGS}/{run.id}").status_code == 200
    # What was evaluated still says what it was of.
    assert api.get(f"{EVALS}/amber").json()["config"]["model_path"] == f"osmosis/tiny:{model}"


def test_permissions(client: TestClient, world: World, member: Member, stranger: Member) -> None:
    joined = world.member("ivo", role="member", identity="fern/more")
    run = left_behind(world, member, "maras")
    left_behind(world, joined, "ivos")
    dataset = client.get(f"{DATASETS}/multiply", headers=member.headers).json()["id"]
    for path in (f"{EVALS}/{run.id}", f"{TRAININGS}/{run.id}", f"{DATASETS}/{dataset}"):
        assert_flat_error(client.delete(path, headers=stranger.headers), 404, "NOT_FOUND")
    for path in (f"{EVALS}/maras", f"{DATASETS}/multiply"):
        told = assert_flat_error(client.delete(path, headers=joined.headers), 403, "ROLE_REQUIRED")
        assert "only an admin of the workspace 'fern' can delete" in told["error"]
    assert client.delete(f"{EVALS}/ivos", headers=joined.headers).status_code == 200
    left_behind(world, joined, "ivos")
    for path in (f"{EVALS}/ivos", f"{EVALS}/maras", f"{DATASETS}/multiply"):
        assert client.delete(path, headers=member.headers).status_code == 200


def test_datasets(api: TestClient, world: World, member: Member) -> None:
    run = SUBMITS.taken(api)
    told = assert_flat_error(api.delete(f"{DATASETS}/multiply"), 409, "CONFLICT")["error"]
    assert f"the evaluation run '{run['name']}', which is pending, uses it" in told
    assert api.post(f"{EVALS}/{run['id']}/stop", json={}).status_code == 200
    assert api.delete(f"{DATASETS}/multiply").json() == {}
    assert world.stored("datasets") == []
    assert_flat_error(api.delete(f"{DATASETS}/multiply"), 404, "NOT_FOUND")
    assert api.get(f"{EVALS}/{run['id']}").json()["dataset"]["name"] == "multiply"
    refused = api.post(EVALS, json=submit_body())
    assert_flat_error(refused, 404, "DATASET_NOT_FOUND")
    add_dataset(world, member)
    assert api.post(EVALS, json=submit_body()).status_code == 200
