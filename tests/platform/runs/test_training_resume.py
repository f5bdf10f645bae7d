"""Training runs that ended early are resumed over HTTP, from archives that are kept for a month."""

from __future__ import annotations

from typing import Any, NoReturn

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import select

from osmosis_ai.platform.runs import reopening
from tests.lazily import needs
from tests.platform.conftest import ManualClock, assert_flat_error
from tests.platform.fake_worker import TRAININGS, FakeTrainer, Refused
from tests.platform.platform_parts import BlobError, BlobStoreSilent, DbDataset, DbRun, PlatformServices

needs("torch")

RUNS = TRAININGS.route


def ended(
    api: TestClient,
    services: PlatformServices,
    outcome: str = "failed",
    *,
    step: int | None = 7,
    **changes: Any,
) -> dict[str, Any]:
    """Return a run that has ended, with archives up to a step if its worker has sent any."""
    run = TRAININGS.taken(api, **changes)
    worker = FakeTrainer.claims(services, run_id=run["id"])
    for number in (step - 1, step) if step is not None else ():
        worker.add_archive(number)
    if outcome == "stopped":
        services.runs.stop(worker.run.workspace_id, "training", worker.run_id, by="mara")
    worker.finishes("failed" if outcome == "stopped" else outcome, error="the disk is full")
    return run


def detail(api: TestClient, run: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = api.get(f"{RUNS}/{run['name']}").json()["training_run"]
    return found


def resume(api: TestClient, run: dict[str, Any]) -> Any:
    return api.post(f"{RUNS}/{run['name']}/resume", json={})


def archives(services: PlatformServices, run: dict[str, Any]) -> int:
    return len(list(services.blobs.keys(f"runs/{run['id']}/resume")))


@pytest.mark.parametrize("outcome", ["failed", "stopped"])
def test_resume(api: TestClient, services: PlatformServices, outcome: str) -> None:
    run = ended(api, services, outcome)
    assert api.get(RUNS).json()["training_runs"][0]["status"] == outcome
    assert detail(api, run)["resumable"] is True
    assert archives(services, run) == 1, "only the newest archive is kept"
    assert resume(api, run).json() == {"id": run["id"], "name": run["name"], "status": "pending", "step": 7}
    found = detail(api, run)
    assert found["status"] == "pending"
    assert not {"error", "completed_at", "resumable"} & found.keys()
    assert api.get(RUNS).json()["training_runs"][0]["status"] == "pending"
    lines = api.get(f"{RUNS}/{run['name']}/logs").json()["logs"]
    assert "resumed the run from the checkpoint of step 7" in lines[-1]["message"]

    services.reopener.forget_old()
    worker = FakeTrainer.claims(services, run_id=run["id"])
    training = worker.assignment.training
    assert training is not None and training.resume is not None
    assert (training.resume_step, worker.download(training.resume.url)) == (7, b"archive")


def test_runs_that_cannot_be_resumed(api: TestClient, services: PlatformServices, clock: ManualClock) -> None:
    def refused(run: dict[str, Any], words: str) -> None:
        body = assert_flat_error(resume(api, run), 409, "CONFLICT")
        assert words in body["error"]
        assert not detail(api, run).get("resumable")

    waiting = TRAININGS.taken(api)
    refused(waiting, "is pending: it continues by itself")
    FakeTrainer.claims(services, run_id=waiting["id"])
    refused(waiting, "is running: it continues by itself")
    assert api.post(f"{RUNS}/{waiting['name']}/stop", json={}).status_code == 200
    refused(waiting, "is stopping: it can be resumed once it has stopped")
    refused(ended(api, services, "finished"), "has finished")
    refused(ended(api, services, step=None), "has no checkpoint")
    old = ended(api, services)
    clock.advance(31 * 86_400)
    refused(old, "more than 30 days ago")
    assert_flat_error(api.post(f"{RUNS}/missing/resume", json={}), 404, "NOT_FOUND")


@pytest.mark.parametrize("change", ["replaced", "deleted"])
def test_missing_dataset(api: TestClient, services: PlatformServices, change: str) -> None:
    run = ended(api, services)
    with services.db.transaction() as session:
        dataset = session.scalars(select(DbDataset)).one()
        if change == "deleted":
            session.delete(dataset)
        else:
            former, dataset.sha256 = dataset.sha256, "0" * 64
    body = assert_flat_error(resume(api, run), 409, "CONFLICT")
    assert body["error"] == (
        f"the run '{run['name']}' cannot be resumed: its dataset 'multiply' was {change}; "
        f"submit it again: osmosis train resubmit {run['name']}."
    )
    assert (detail(api, run)["status"], detail(api, run).get("resumable")) == ("failed", None)
    if change == "replaced":
        with services.db.transaction() as session:
            session.scalars(select(DbDataset)).one().sha256 = former
        assert resume(api, run).status_code == 200


def test_missing_secrets(api: TestClient, services: PlatformServices) -> None:
    secrets = {"required": ["HF_TOKEN"], "provided": {"HF_TOKEN": "hf_0123456789"}}
    run = ended(api, services, secrets=secrets)
    body = assert_flat_error(resume(api, run), 404, "SECRETS_NOT_FOUND")
    assert body["missing"] == ["HF_TOKEN"]
    assert detail(api, run)["status"] == "failed"


def test_archives_are_kept_for_a_month(
    api: TestClient, services: PlatformServices, clock: ManualClock
) -> None:
    failed, finished = (ended(api, services, outcome) for outcome in ("failed", "finished"))
    services.reopener.forget_old()
    assert [archives(services, run) for run in (failed, finished)] == [1, 0]
    clock.advance(31 * 86_400)
    services.reopener.forget_old()
    assert archives(services, failed) == 0
    assert not detail(api, failed).get("resumable")


def test_archive_deleted_during_a_resume(
    api: TestClient, services: PlatformServices, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = ended(api, services)
    resolve = reopening.resolve_scopes

    def resolve_late(*args: Any) -> Any:
        clock.advance(31 * 86_400)
        services.reopener.forget_old()
        return resolve(*args)

    monkeypatch.setattr(reopening, "resolve_scopes", resolve_late)
    assert_flat_error(resume(api, run), 409, "CONFLICT")
    with services.db.session() as session:
        assert session.get_one(DbRun, run["id"]).status == "failed"


def test_failed_deletion_of_an_archive(
    api: TestClient, services: PlatformServices, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = [ended(api, services) for _ in range(2)]
    clock.advance(31 * 86_400)
    delete, asked = services.blobs.delete_below, []

    def refuse_first(prefix: str) -> None:
        asked.append(prefix)
        if len(asked) == 1:
            raise BlobError("the file is locked.")
        delete(prefix)

    with monkeypatch.context() as patched:
        patched.setattr(services.blobs, "delete_below", refuse_first)
        services.reopener.forget_old()
    assert sorted(archives(services, run) for run in runs) == [0, 1]
    services.reopener.forget_old()
    assert [archives(services, run) for run in runs] == [0, 0]


def test_files_of_a_replaced_validation(
    api: TestClient, services: PlatformServices, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unavailable(*_: Any) -> NoReturn:
        raise BlobStoreSilent("the store does not answer.")

    def stored() -> set[str]:
        return {*services.blobs.keys(f"runs/{worker.run_id}/validation")}

    worker = FakeTrainer.claims(services, run_id=TRAININGS.taken(api)["id"])
    worker.begins(total_steps=8)
    worker.add_validation(2)
    replaced = worker.add_validation(4)
    assert stored() == {replaced}
    with monkeypatch.context() as patched:
        patched.setattr(services.blobs, "delete_below", unavailable)
        with pytest.raises(Refused, match="BLOBS_UNAVAILABLE"):
            worker.add_validation(6)
    newest = worker.add_validation(6)  # repeated, as by a worker
    services.reopener.forget_old()
    assert stored() == {replaced, newest}, "the run is open, and its worker may send more"
    worker.finishes()
    with monkeypatch.context() as patched:
        patched.setattr(services.blobs, "delete", unavailable)
        with pytest.raises(BlobStoreSilent):
            services.reopener.forget_old()
    services.reopener.forget_old()
    assert stored() == {newest}
    assert worker.run.training_state is None
