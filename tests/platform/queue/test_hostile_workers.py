"""Workers that send what would harm other runs, or the platform: each call is refused, and nothing else changes."""

from __future__ import annotations

from typing import Any

import pytest
from fastapi.testclient import TestClient
from pydantic import ValidationError

from osmosis_ai.api.wire.workers import AssignedRun, SyncRequest
from osmosis_ai.platform.runs.journals import read_journal
from osmosis_ai.platform.runs.training_names import version_of
from osmosis_ai.platform.worker.client import StoredBytesError, WorkerClient
from tests.evaluation.builders import record
from tests.platform.conftest import ManualClock
from tests.platform.fake_worker import (
    EVALS,
    GPU,
    TERM_S,
    FakeTrainer,
    FakeWorker,
    Refused,
    claim,
    claim_request,
    pool_token,
    records,
    settle,
)
from tests.platform.platform_parts import PlatformServices
from tests.platform.queue.test_training_news import trainer

__all__ = ["trainer"]


@pytest.fixture
def worker(api: TestClient, services: PlatformServices) -> FakeWorker:
    EVALS.taken(api, advanced_config=GPU)
    return FakeWorker.claims(services, "gpu")


@pytest.mark.parametrize(
    "numbers",
    [
        {"model_latency_ms": 1.7e308, "model_calls": 3},
        {"model_latency_ms": -1.0, "model_calls": 3},
        {"cost_usd": 1.7e308},
        {"judge_cost_usd": -0.1},
        {"reward": -1e200},
        {"parts": {"format": 1e308}},
    ],
)
def test_numbers_that_would_spoil_the_sums_of_a_run_are_refused(
    api: TestClient, worker: FakeWorker, numbers: dict[str, Any]
) -> None:
    worker.write([record(0, 0, **numbers)])
    with pytest.raises(Refused, match=f"its '{next(iter(numbers))}' is out of range") as refused:
        worker.sync(journal=worker.part())
    assert refused.value.status == 400 and worker.samples() == []
    settle(worker.services)
    assert api.get(f"{EVALS.route}/{worker.run_id}").status_code == 200


def test_the_errors_of_one_worker_keep_no_lease_of_another(
    services: PlatformServices, worker: FakeWorker, trainer: FakeTrainer, clock: ManualClock
) -> None:
    version = version_of(1, b"rows")
    sent = trainer.uploads(name := f"validation/{version}/a-samples.jsonl", b"rows")
    file = {"path": "validation/samples.jsonl", "kind": "validation", "size": 4, "blob": name}
    trainer.sync(sent=[sent])
    for _ in range(2):
        clock.advance(TERM_S - 5)
        with pytest.raises(Refused) as refused:
            trainer.sync(training={"validation": {"version": version, "files": [file, file]}})
        assert refused.value.status == 400
        trainer.sync()
    found = claim(services, pool_token(services))
    assert found is not None and found.run.id == worker.run_id, "its worker has been silent for a lease"


def test_a_slow_reader_of_a_journal_holds_no_connection(
    services: PlatformServices, worker: FakeWorker
) -> None:
    for each in records(3):
        worker.write([each])
        worker.sync(journal=worker.part())
    readers = [read_journal(services.db, worker.shard_id) for _ in range(100)]
    assert {next(reader) for reader in readers}, "more than the database has connections"
    assert worker.sync().journal_bytes == len(worker.journal)
    assert b"".join(read_journal(services.db, worker.shard_id)) == worker.journal


def test_a_range_is_no_larger_than_the_files_that_are_read_into_memory(worker: FakeWorker) -> None:
    content = bytes(5 << 20)
    sent = worker.uploads("files/x", content)
    part = {**worker.conversation(0).model_dump(exclude={"content"}), "blob": "files/x"}
    with pytest.raises(Refused, match="is not a valid file of a run"):
        worker.sync(sent=[sent], files=[{**part, "size": 10, "offset": 0, "length": len(content)}])


def test_an_upload_is_requested_once_in_a_call(worker: FakeWorker) -> None:
    wanted = {"name": "files/x", "size": 1, "sha256": "0" * 64}
    with pytest.raises(ValidationError, match="the same upload twice"):
        SyncRequest.model_validate({"wanted": [wanted, wanted]})


def test_a_claim_is_repeated_only_with_its_own_token(services: PlatformServices, worker: FakeWorker) -> None:
    request = claim_request(claim_id=worker.shard.claim_id)
    with pytest.raises(Refused, match="this claim has been answered"):
        claim(services, pool_token(services), request)
    again = claim(services, worker.bearer, request)
    assert again is not None and again.lease.token.get_secret_value() == worker.lease


def test_a_platform_cannot_name_places_of_the_workers_machine(worker: FakeWorker, tmp_path: Any) -> None:
    described = worker.assignment.run.model_dump(by_alias=True)
    with pytest.raises(ValidationError, match="workspace_id"):
        AssignedRun.model_validate({**described, "workspace_id": "/var/cache"})
    client = WorkerClient("https://platform.example", "osmw_x")
    download = worker.assignment.dataset.model_copy(update={"url": "http://127.0.0.1:9/admin"})
    with pytest.raises(StoredBytesError, match="named an address of this machine"):
        client.fetch(download, tmp_path / "rows", lasting_s=1)
    client.close()
