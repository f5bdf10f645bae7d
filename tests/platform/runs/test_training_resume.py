"""Training runs that ended early go on over HTTP; what they go on from is kept for as long as they may, and then goes."""

from __future__ import annotations

from typing import Any, NoReturn

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import select

from osmosis_ai.platform.runs.execute.leftovers import remove_leftovers
from osmosis_ai.platform.runs.submit import resuming
from osmosis_ai.platform.runs.working_directory import WorkingDirectory
from tests.lazily import needs
from tests.platform.conftest import ManualClock, assert_flat_error
from tests.platform.platform_parts import BlobError, BlobStoreSilent, DbDataset, DbRun, PlatformServices
from tests.platform.runs.desk.desk_workers import Refused
from tests.platform.runs.told_training import RUNS, Told, claimed, submitted

needs("torch")


def end(worker: Told, outcome: Any) -> None:
    if outcome == "stopped":
        worker.services.training_runs.stop(worker.run.workspace_id, worker.run_id, by="mara")
    worker.ends("failed" if outcome == "stopped" else outcome, error="the disk is full")


def ended_with_checkpoint(
    api: TestClient,
    services: PlatformServices,
    outcome: Any = "failed",
    *,
    step: int | None = 7,
    **changes: Any,
) -> dict[str, Any]:
    """A run that ended, and what its worker left behind."""
    run = submitted(api, **changes)
    worker = claimed(services, run["id"])
    directory = WorkingDirectory(services.config.runs_dir, run["id"])
    directory.create()
    (directory.path / "worker.log").write_text("words")
    directory.source.mkdir()
    for number in (step - 1, step) if step is not None else ():
        (directory.training.checkpoints / f"step-{number:08d}").mkdir(parents=True)
    end(worker, outcome)
    directory.keep_what_resumes()
    return run


@pytest.mark.parametrize("outcome", ["failed", "stopped"])
def test_a_resumed_run_is_the_same_run(api: TestClient, services: PlatformServices, outcome: str) -> None:
    run = ended_with_checkpoint(api, services, outcome)
    assert api.get(RUNS).json()["training_runs"][0]["status"] == outcome
    assert api.get(f"{RUNS}/{run['name']}").json()["training_run"]["resumable"] is True
    reply = api.post(f"{RUNS}/{run['name']}/resume", json={})
    assert reply.json() == {"id": run["id"], "name": run["name"], "status": "pending", "step": 7}
    found = api.get(f"{RUNS}/{run['name']}").json()["training_run"]
    assert found["status"] == "pending"
    assert not {"error", "completed_at", "resumable"} & found.keys()
    assert api.get(RUNS).json()["training_runs"][0]["status"] == "pending", "lists do not remember its end"
    lines = api.get(f"{RUNS}/{run['name']}/logs").json()["logs"]
    assert "resumed the run from the checkpoint of step 7" in lines[-1]["message"]
    assert claimed(services, run["id"]).run.attempt == 2


def test_what_cannot_be_resumed(api: TestClient, services: PlatformServices, clock: ManualClock) -> None:
    def refused(run: dict[str, Any], words: str) -> None:
        reply = api.post(f"{RUNS}/{run['name']}/resume", json={})
        assert_flat_error(reply, 409, "CONFLICT")
        assert words in reply.json()["error"]
        assert not api.get(f"{RUNS}/{run['name']}").json()["training_run"].get("resumable")

    waiting = submitted(api)
    refused(waiting, "is pending: it continues by itself")
    claimed(services, waiting["id"])
    refused(waiting, "is running: it continues by itself")
    assert api.post(f"{RUNS}/{waiting['name']}/stop", json={}).status_code == 200
    refused(waiting, "is stopping: it can be resumed once it has stopped")
    refused(ended_with_checkpoint(api, services, "finished"), "has finished")
    refused(ended_with_checkpoint(api, services, step=None), "has no checkpoint")
    old = ended_with_checkpoint(api, services)
    clock.advance(31 * 86_400)
    refused(old, "more than 30 days ago")
    assert_flat_error(api.post(f"{RUNS}/nobody/resume", json={}), 404, "NOT_FOUND")


@pytest.mark.parametrize("what", ["replaced", "deleted"])
def test_a_resume_needs_its_dataset(api: TestClient, services: PlatformServices, what: str) -> None:
    run = ended_with_checkpoint(api, services)
    with services.db.transaction() as session:
        dataset = session.scalars(select(DbDataset)).one()
        if what == "deleted":
            session.delete(dataset)
        else:
            former, dataset.sha256 = dataset.sha256, "0" * 64
    reply = api.post(f"{RUNS}/{run['name']}/resume", json={})
    assert_flat_error(reply, 409, "CONFLICT")
    assert reply.json()["error"] == (
        f"the run '{run['name']}' cannot be resumed: its dataset 'multiply' was {what}; "
        f"submit it again: osmosis train resubmit {run['name']}."
    )
    detail = api.get(f"{RUNS}/{run['name']}").json()["training_run"]
    assert (detail["status"], detail.get("resumable")) == ("failed", None)
    if what == "replaced":
        with services.db.transaction() as session:
            session.scalars(select(DbDataset)).one().sha256 = former
        assert api.post(f"{RUNS}/{run['name']}/resume", json={}).status_code == 200


def ended_elsewhere(api: TestClient, services: PlatformServices, outcome: Any = "failed") -> dict[str, Any]:
    """A run that ended on a machine that is gone, which had sent what another goes on from."""
    run = submitted(api)
    worker = claimed(services, run["id"])
    worker.add_archive(5)
    end(worker, outcome)
    return run


def test_a_run_is_resumed_without_its_machine(api: TestClient, services: PlatformServices) -> None:
    run = ended_elsewhere(api, services)
    assert not (services.config.runs_dir / run["id"]).exists()
    assert api.get(f"{RUNS}/{run['name']}").json()["training_run"]["resumable"] is True
    assert api.post(f"{RUNS}/{run['name']}/resume", json={}).json()["step"] == 5
    services.resumption.forget_old()
    assert len(list(services.blobs.keys(f"runs/{run['id']}/resume"))) == 1, "it is needed now"


def test_archives_are_kept_a_month(api: TestClient, services: PlatformServices, clock: ManualClock) -> None:
    failed, finished = (ended_elsewhere(api, services, outcome) for outcome in ("failed", "finished"))

    def kept() -> list[bool]:
        return [any(services.blobs.keys(f"runs/{run['id']}/resume")) for run in (failed, finished)]

    services.resumption.forget_old()
    assert kept() == [True, False]
    clock.advance(31 * 86_400)
    services.resumption.forget_old()
    assert kept() == [False, False]
    assert not api.get(f"{RUNS}/{failed['name']}").json()["training_run"].get("resumable")


def test_a_run_whose_time_was_over_while_it_was_about_to_be_resumed_stays_ended(
    api: TestClient, services: PlatformServices, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = ended_elsewhere(api, services)
    resolve = resuming.resolve_scopes

    def slowly(*args: Any) -> Any:
        clock.advance(31 * 86_400)
        services.resumption.forget_old()
        return resolve(*args)

    monkeypatch.setattr(resuming, "resolve_scopes", slowly)
    assert_flat_error(api.post(f"{RUNS}/{run['name']}/resume", json={}), 409, "CONFLICT")
    with services.db.session() as session:
        assert session.get_one(DbRun, run["id"]).status == "failed"


def test_archives_of_one_run_that_do_not_go_keep_no_other_run_from_losing_its_own(
    api: TestClient, services: PlatformServices, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = [ended_elsewhere(api, services) for _ in range(2)]
    clock.advance(31 * 86_400)
    delete, asked = services.blobs.delete_below, []

    def refused_first(prefix: str) -> None:
        asked.append(prefix)
        if len(asked) == 1:
            raise BlobError("it is held.")
        delete(prefix)

    with monkeypatch.context() as patched:
        patched.setattr(services.blobs, "delete_below", refused_first)
        services.resumption.forget_old()
    assert sorted(any(services.blobs.keys(f"runs/{run['id']}/resume")) for run in runs) == [False, True]
    services.resumption.forget_old()
    assert not any(any(services.blobs.keys(f"runs/{run['id']}/resume")) for run in runs)


def test_a_resume_names_missing_secrets(api: TestClient, services: PlatformServices) -> None:
    secrets = {"required": ["HF_TOKEN"], "provided": {"HF_TOKEN": "hf_0123456789"}}
    run = ended_with_checkpoint(api, services, secrets=secrets)
    reply = api.post(f"{RUNS}/{run['name']}/resume", json={})
    assert_flat_error(reply, 404, "SECRETS_NOT_FOUND")
    assert reply.json()["missing"] == ["HF_TOKEN"]
    assert api.get(f"{RUNS}/{run['name']}").json()["training_run"]["status"] == "failed"


def test_checkpoints_outlive_restarts(
    api: TestClient, services: PlatformServices, clock: ManualClock
) -> None:
    stopped, failed = (ended_with_checkpoint(api, services, outcome) for outcome in ("stopped", "failed"))
    finished = ended_with_checkpoint(api, services, "finished")
    directories = {
        run["id"]: WorkingDirectory(services.config.runs_dir, run["id"])
        for run in (stopped, failed, finished)
    }
    remove_leftovers(services.db, services.config.runs_dir, clock.now())
    kept = {id: directory.checkpoint_step() for id, directory in directories.items()}
    assert kept == {stopped["id"]: 7, failed["id"]: 7, finished["id"]: None}
    checkpoints = directories[stopped["id"]].training.checkpoints
    assert [path.name for path in checkpoints.iterdir()] == ["step-00000007"], "the last one alone"
    assert not directories[stopped["id"]].source.exists()
    clock.advance(31 * 86_400)
    remove_leftovers(services.db, services.config.runs_dir, clock.now())
    assert not any(directory.checkpoint_step() for directory in directories.values())
    assert directories[failed["id"]].log.read_text() == "words", "why it failed is still told"


def test_files_of_a_validation_go_when_another_replaces_it_or_where_the_store_was_away_when_their_run_is_over(
    api: TestClient, services: PlatformServices, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: Any) -> NoReturn:
        raise BlobStoreSilent("the store does not answer.")

    def kept() -> set[str]:
        return {*services.blobs.keys(f"runs/{worker.run_id}/validation")}

    worker = claimed(services, submitted(api)["id"])
    worker.begin(total_steps=8)
    worker.add_validation(2)
    replaced = worker.add_validation(4)
    assert kept() == {replaced}
    with monkeypatch.context() as patched:
        patched.setattr(services.blobs, "delete_below", away)
        with pytest.raises(Refused, match="BLOBS_UNAVAILABLE"):
            worker.add_validation(6)
    newest = worker.add_validation(6)  # said again, as a worker does
    services.resumption.forget_old()
    assert kept() == {replaced, newest}, "it may be sending more"
    worker.ends()
    with monkeypatch.context() as patched:
        patched.setattr(services.blobs, "delete", away)
        with pytest.raises(BlobStoreSilent):
            services.resumption.forget_old()
    services.resumption.forget_old()
    assert kept() == {newest}
    assert worker.run.training_state is None, "it is looked for no more"
