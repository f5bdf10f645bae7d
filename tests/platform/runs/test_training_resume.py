"""Training runs that ended early are resumed over HTTP, from archives that are kept for a month."""

from __future__ import annotations

from typing import Any

import pytest
from fastapi.testclient import TestClient

from tests.lazily import needs
from tests.platform.conftest import ManualClock, World, assert_flat_error
from tests.platform.datasets_world import Uploads, rows
from tests.platform.fake_worker import TRAININGS, FakeTrainer

needs("torch")

RUNS = TRAININGS.route


def ended(
    api: TestClient, world: World, outcome: str = "failed", *, step: int | None = 7, **changes: Any
) -> dict[str, Any]:
    """Return a run that has ended, with archives up to a step if its worker has sent any."""
    run = TRAININGS.taken(api, **changes)
    worker = FakeTrainer.claims(world, run_id=run["id"])
    for number in (step - 1, step) if step is not None else ():
        worker.add_archive(number)
    if outcome == "stopped":
        assert api.post(f"{RUNS}/{run['id']}/stop", json={}).status_code == 200
    worker.finishes("failed" if outcome == "stopped" else outcome, error="the disk is full")
    return run


def detail(api: TestClient, run: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = api.get(f"{RUNS}/{run['name']}").json()["training_run"]
    return found


def resume(api: TestClient, run: dict[str, Any]) -> Any:
    return api.post(f"{RUNS}/{run['name']}/resume", json={})


def archives(world: World, run: dict[str, Any]) -> int:
    return len(world.stored(f"runs/{run['id']}/resume"))


@pytest.mark.parametrize("outcome", ["failed", "stopped"])
def test_resume(api: TestClient, world: World, outcome: str) -> None:
    run = ended(api, world, outcome)
    assert api.get(RUNS).json()["training_runs"][0]["status"] == outcome
    assert detail(api, run)["resumable"] is True
    assert archives(world, run) == 1, "only the newest archive is kept"
    assert resume(api, run).json() == {"id": run["id"], "name": run["name"], "status": "pending", "step": 7}
    found = detail(api, run)
    assert found["status"] == "pending"
    assert not {"error", "completed_at", "resumable"} & found.keys()
    assert api.get(RUNS).json()["training_runs"][0]["status"] == "pending"
    lines = api.get(f"{RUNS}/{run['name']}/logs").json()["logs"]
    assert "resumed the run from the checkpoint of step 7" in lines[-1]["message"]

    world.services.reopener.forget_old()
    worker = FakeTrainer.claims(world, run_id=run["id"])
    training = worker.assignment.training
    assert training is not None and training.resume is not None
    assert (training.resume_step, worker.download(training.resume.url)) == (7, b"archive")


def test_runs_that_cannot_be_resumed(api: TestClient, world: World, clock: ManualClock) -> None:
    def refused(run: dict[str, Any], words: str) -> None:
        body = assert_flat_error(resume(api, run), 409, "CONFLICT")
        assert words in body["error"]
        assert not detail(api, run).get("resumable")

    waiting = TRAININGS.taken(api)
    refused(waiting, "is pending: it continues by itself")
    FakeTrainer.claims(world, run_id=waiting["id"])
    refused(waiting, "is running: it continues by itself")
    assert api.post(f"{RUNS}/{waiting['name']}/stop", json={}).status_code == 200
    refused(waiting, "is stopping: it can be resumed once it has stopped")
    refused(ended(api, world, "finished"), "has finished")
    refused(ended(api, world, step=None), "has no checkpoint")
    old = ended(api, world)
    clock.advance(31 * 86_400)
    refused(old, "more than 30 days ago")
    assert_flat_error(api.post(f"{RUNS}/missing/resume", json={}), 404, "NOT_FOUND")


@pytest.mark.parametrize("name", ["multiply", "held"])
@pytest.mark.parametrize("change", ["replaced", "deleted"])
def test_missing_dataset(api: TestClient, world: World, uploads: Uploads, name: str, change: str) -> None:
    uploads.upload("held", rows(4))
    run = ended(api, world, advanced_config={"validation_dataset": "held"})
    dataset_id, former = uploads.get(name)["id"], uploads.fetch(name)
    if change == "deleted":
        assert api.delete(f"/api/cli/datasets/{name}").status_code == 200
    else:
        uploads.upload(name, rows(9, "another"), overwrite_dataset_id=dataset_id)
    body = assert_flat_error(resume(api, run), 409, "CONFLICT")
    what = "dataset 'multiply'" if name == "multiply" else "validation dataset"
    assert body["error"] == (
        f"the run '{run['name']}' cannot be resumed: its {what} was {change}; "
        f"submit it again: osmosis train resubmit {run['name']}."
    )
    assert (detail(api, run)["status"], detail(api, run).get("resumable")) == ("failed", None)
    if change == "replaced":
        uploads.upload(name, former, overwrite_dataset_id=dataset_id)
        assert resume(api, run).status_code == 200


def test_missing_secrets(api: TestClient, world: World) -> None:
    secrets = {"required": ["HF_TOKEN"], "provided": {"HF_TOKEN": "hf_0123456789"}}
    run = ended(api, world, secrets=secrets)
    body = assert_flat_error(resume(api, run), 404, "SECRETS_NOT_FOUND")
    assert body["missing"] == ["HF_TOKEN"]
    assert detail(api, run)["status"] == "failed"


def test_archives_are_kept_for_a_month(api: TestClient, world: World, clock: ManualClock) -> None:
    failed, finished = (ended(api, world, outcome) for outcome in ("failed", "finished"))
    world.services.reopener.forget_old()
    assert [archives(world, run) for run in (failed, finished)] == [1, 0]
    clock.advance(31 * 86_400)
    world.services.reopener.forget_old()
    assert archives(world, failed) == 0
    assert not detail(api, failed).get("resumable")
