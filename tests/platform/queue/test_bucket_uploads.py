"""Uploads to a bucket: in parts, and by URLs that allow one thing each."""

from __future__ import annotations

import io
import logging
import os
from collections.abc import Iterator
from dataclasses import replace
from urllib.parse import urlsplit

import httpx
import pytest
from fastapi.testclient import TestClient

from osmosis_ai.api.models.workers import SentUpload, UploadGrant
from osmosis_ai.platform.config import PlatformConfig
from osmosis_ai.platform.worker.client import OutgoingBlob, WorkerClient
from tests.platform.fake_worker import FakeWorker, file_url
from tests.platform.s3_server import CREDENTIALS, new_bucket

pytestmark = pytest.mark.integration
PART = 5 << 20
NAME, PATH = "files/large", "artifacts/row_0_run_0/large"


class Watched(io.BytesIO):
    """Remembers the largest read."""

    most = 0

    def read(self, size: int | None = -1) -> bytes:
        data = super().read(size)
        self.most = max(self.most, len(data))
        return data


@pytest.fixture
def config(config: PlatformConfig, monkeypatch: pytest.MonkeyPatch) -> PlatformConfig:
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("osmosis_ai.platform.queue.reports.PART_BYTES", PART)
    return replace(config, blobs_url=new_bucket())


@pytest.fixture
def worker(worker: FakeWorker) -> Iterator[FakeWorker]:
    yield worker
    worker.world.services.blobs.delete_below("runs")


@pytest.fixture(scope="module")
def blobs() -> Iterator[WorkerClient]:
    made = WorkerClient("http://127.0.0.1:9")
    yield made
    made.close()


def send(client: WorkerClient, grant: UploadGrant, content: io.BytesIO) -> SentUpload:
    [sent] = client.send_all([(OutgoingBlob.of(grant.name, content), grant)], lasting_s=60.0)
    return sent


@pytest.mark.parametrize("size", [0, 7, PART, PART + 1, 2 * PART + 1234])
def test_a_file_arrives_in_as_many_parts_as_it_needs(
    api: TestClient, worker: FakeWorker, blobs: WorkerClient, size: int
) -> None:
    data = os.urandom(size)
    content, grant = Watched(data), worker.wants(NAME, data)
    sent = send(blobs, grant, content)
    assert len(sent.further_etags) == len(grant.further_urls) == max(0, -(-size // PART) - 1)
    assert content.most <= 1 << 20, "it is never in memory as a whole"
    for _ in range(2):
        worker.sync(sent=[sent], files=[{"path": PATH, "kind": "artifacts", "size": size, "blob": NAME}])
    assert httpx.get(file_url(api, worker.run_id, PATH) or "", trust_env=False, timeout=300).content == data
    assert list(worker.world.services.blobs.unfinished_uploads()) == []


def test_an_interrupted_upload_continues_with_the_missing_parts_and_no_url_is_logged(
    worker: FakeWorker, blobs: WorkerClient, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    data = os.urandom(3 * PART)
    first = worker.wants(NAME, data)
    send(blobs, first.model_copy(update={"further_urls": first.further_urls[:1]}), io.BytesIO(data))
    again = worker.wants(NAME, data)
    assert (again.id, set(again.received)) == (first.id, {1, 2})
    # A part that has arrived is not sent again: nothing is at its address now.
    nowhere = {"url": "http://127.0.0.1:9/", "further_urls": ["http://127.0.0.1:9/", again.further_urls[1]]}
    worker.sync(sent=[send(blobs, again.model_copy(update=nowhere), io.BytesIO(data))])
    with worker.world.services.blobs.open(f"runs/{worker.run_id}/{first.name}") as stored:
        assert stored.read() == data
    logged = "".join(each.getMessage() for each in caplog.records if not each.name.startswith("httpx"))
    for secret in (*CREDENTIALS.values(), "X-Amz-Signature", urlsplit(first.url).query):
        assert secret not in logged
