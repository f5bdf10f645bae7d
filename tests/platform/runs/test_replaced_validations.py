"""Files of a validation go when another replaces it, also where the store was away in that moment."""

from __future__ import annotations

import hashlib
from io import BytesIO
from typing import Any, NoReturn

import pytest

from osmosis_ai.api.wire.workers import SyncRequest
from osmosis_ai.platform.blobs.store import BlobStoreSilent
from osmosis_ai.platform.db.tables import DbRun, DbRunUpload
from osmosis_ai.platform.runs.desk.news import WorkerNews
from osmosis_ai.platform.runs.desk.uploads import RunUploads
from osmosis_ai.platform.runs.leases import Leases
from osmosis_ai.platform.runs.training_names import SAMPLES_PATH, blobs_below, version_of
from osmosis_ai.platform.services import PlatformServices
from tests.platform.conftest import ManualClock, Member

RUN = "run_1"


class Training:
    """A training run and the worker that says what it validates."""

    def __init__(self, services: PlatformServices, clock: ManualClock, workspace_id: str) -> None:
        self.services = services
        self.leases = Leases(services.db, clock)
        uploads = RunUploads(services.db, services.blobs, 1 << 30)
        self.news = WorkerNews(services.db, clock, services.logs, services.blobs, uploads)
        described = {
            "id": RUN,
            "workspace_id": workspace_id,
            "kind": "training",
            "name": "keen-owl",
            "status": "pending",
        }
        of = {
            "request": {},
            "rollout_name": "multiply",
            "dataset_name": "multiply",
            "model_path": "osmosis/tiny",
        }
        with services.db.transaction() as session:
            session.add(DbRun(**described, **of, created_at=clock.now()))
        lease = self.leases.claim(RUN, "token")
        assert lease is not None
        self.lease = lease

    def validate(self, step: int) -> str:
        """Send a validation of one file; return the key of its blob."""
        listed = f"after step {step}".encode()
        name = f"{blobs_below(version_of(step, listed))}/a-samples.jsonl"
        described: dict[str, Any] = {"size": len(listed), "sha256": hashlib.sha256(listed).hexdigest()}
        self.services.blobs.put(f"runs/{RUN}/{name}", BytesIO(listed))
        with self.services.db.transaction() as session:
            session.merge(DbRunUpload(run_id=RUN, name=name, upload_id=name, is_stored=True, **described))
        part = {"path": SAMPLES_PATH, "kind": "validation", "size": len(listed), "blob": name}
        said = {
            "start": {"total_steps": 8, "steps_done": 0},
            "validation": {"version": version_of(step, listed), "files": [part]},
        }
        self.news.take(
            self.leases, self.lease, SyncRequest.model_validate({"lease": "token", "training": said})
        )
        return f"runs/{RUN}/{name}"

    def kept(self) -> set[str]:
        return {*self.services.blobs.keys(f"runs/{RUN}/validation")}


@pytest.fixture
def training(services: PlatformServices, clock: ManualClock, member: Member) -> Training:
    return Training(services, clock, member.workspace.id)


def test_a_validation_that_another_replaces_loses_its_files_at_once(training: Training) -> None:
    training.validate(2)
    newest = training.validate(4)
    assert training.kept() == {newest}


def test_files_that_stayed_because_the_store_was_away_go_when_their_run_is_over(
    training: Training, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: Any) -> NoReturn:
        raise BlobStoreSilent("the store does not answer.")

    replaced, services = training.validate(2), training.services
    with monkeypatch.context() as patched:
        patched.setattr(services.blobs, "delete_below", away)
        with pytest.raises(BlobStoreSilent):
            training.validate(4)
    kept = training.validate(4)  # said again, as a worker does
    services.resumption.forget_old()
    assert training.kept() == {replaced, kept}, "it may be sending more"
    with training.leases.writing(training.lease) as (_, run):
        training.leases.end(run, "finished")
    with monkeypatch.context() as patched:
        patched.setattr(services.blobs, "delete", away)
        with pytest.raises(BlobStoreSilent):
            services.resumption.forget_old()
    services.resumption.forget_old()
    assert training.kept() == {kept}
    with services.db.session() as session:
        assert session.get_one(DbRun, RUN).training_state is None, "it is looked for no more"
