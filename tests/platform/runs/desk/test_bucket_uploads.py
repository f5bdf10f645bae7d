"""What a worker sends to a bucket: in parts, and by URLs that allow one thing each."""

from __future__ import annotations

import io
import logging
import os
from collections.abc import Iterator
from dataclasses import replace
from typing import BinaryIO
from urllib.parse import urlsplit

import httpx
import pytest
from fastapi.testclient import TestClient

from osmosis_ai.platform.runs.work.http_link import HttpLink
from osmosis_ai.platform.runs.work.run_channel import OutgoingBlob, send_blob
from tests.platform.platform_parts import PlatformConfig, PlatformServices
from tests.platform.runs.desk.desk_workers import DeskWorker, Refused, submitted
from tests.platform.s3_server import CREDENTIALS, new_bucket

pytestmark = pytest.mark.integration
PART = 5 << 20
NAME, PATH = "files/large", "artifacts/row_0_run_0/large"


class Watched(io.BytesIO):
    """Remembers the most that was read at once."""

    most = 0

    def read(self, size: int | None = -1) -> bytes:
        data = super().read(size)
        self.most = max(self.most, len(data))
        return data


@pytest.fixture
def config(config: PlatformConfig, monkeypatch: pytest.MonkeyPatch) -> PlatformConfig:
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("osmosis_ai.platform.runs.desk.uploads.PART_BYTES", PART)
    return replace(config, blobs_url=new_bucket())


@pytest.fixture
def worker(api: TestClient, services: PlatformServices) -> Iterator[DeskWorker]:
    submitted(api)
    yield DeskWorker.claims(services)
    services.blobs.delete_below("runs")


@pytest.fixture
def link() -> Iterator[HttpLink]:
    made = HttpLink("http://127.0.0.1:9", "worker-token")
    yield made
    made.close()


@pytest.mark.parametrize("size", [0, 7, PART, PART + 1, 2 * PART + 1234])
def test_a_file_arrives_in_as_many_parts_as_it_needs_and_never_as_a_whole_in_memory(
    api: TestClient, worker: DeskWorker, link: HttpLink, size: int
) -> None:
    data = os.urandom(size)
    content, grant = Watched(data), worker.wants(NAME, data)
    sent = send_blob(link, OutgoingBlob.of(NAME, content), grant)
    assert len(sent.further_etags) == len(grant.further_urls) == max(0, -(-size // PART) - 1)
    assert content.most <= 1 << 20
    for _ in range(2):
        worker.sync(sent=[sent], files=[{"path": PATH, "kind": "artifacts", "size": size, "blob": NAME}])
    asked = {"items": [{"path": PATH}]}
    reply = api.post(f"/api/cli/eval-runs/{worker.run_id}/samples/download-urls", json=asked).json()
    assert httpx.get(reply["items"][0]["url"], trust_env=False, timeout=300).content == data
    assert list(worker.services.blobs.unfinished_uploads()) == []


def test_an_upload_that_was_cut_off_continues_with_the_missing_parts(worker: DeskWorker) -> None:
    class Counted(HttpLink):
        def send(self, grant: object, content: BinaryIO, size: int) -> str:
            sent.append(grant.url)  # type: ignore[attr-defined]
            return super().send(grant, content, size)  # type: ignore[arg-type]

    sent: list[str] = []
    link = Counted("http://127.0.0.1:9", "worker-token")
    data = os.urandom(3 * PART)
    first = worker.wants(NAME, data)
    cut_off = first.model_copy(update={"further_urls": first.further_urls[:1]})
    send_blob(link, OutgoingBlob.of(NAME, io.BytesIO(data)), cut_off)
    again = worker.wants(NAME, data)
    assert (again.id, set(again.received)) == (first.id, {1, 2})
    sent.clear()
    worker.sync(sent=[send_blob(link, OutgoingBlob.of(NAME, io.BytesIO(data)), again)])
    link.close()
    assert sent == [again.further_urls[1]]
    with worker.services.blobs.open(f"runs/{worker.run_id}/{NAME}") as stored:
        assert stored.read() == data


def test_parts_in_another_order_or_too_few_make_no_file(worker: DeskWorker, link: HttpLink) -> None:
    data = os.urandom(2 * PART + 5)
    sent = send_blob(link, OutgoingBlob.of(NAME, io.BytesIO(data)), worker.wants(NAME, data))
    etags = [sent.etag, *sent.further_etags]
    for first, *others in ([etags[1], etags[0], etags[2]], etags[:2], [*etags, etags[0]]):
        changed = sent.model_copy(update={"etag": first, "further_etags": others})
        with pytest.raises(Refused, match="UPLOAD_GONE"):
            worker.sync(sent=[changed])
    assert f"runs/{worker.run_id}/{NAME}" not in list(worker.services.blobs.keys("runs"))


def test_a_url_is_for_its_file_its_upload_and_its_method_and_is_never_logged(
    api: TestClient, worker: DeskWorker, link: HttpLink, caplog: pytest.LogCaptureFixture
) -> None:
    submitted(api)
    other = DeskWorker.claims(worker.services)
    with caplog.at_level(logging.DEBUG):
        one, two = worker.wants("files/b", b"one"), other.wants("files/b", b"two")
        sent = send_blob(link, OutgoingBlob.of(NAME, io.BytesIO(b"one")), worker.wants(NAME, b"one"))
        worker.sync(sent=[sent], files=[{"path": PATH, "kind": "artifacts", "size": 3, "blob": NAME}])
        asked = {"items": [{"path": PATH}]}
        reply = api.post(f"/api/cli/eval-runs/{worker.run_id}/samples/download-urls", json=asked).json()
    get, put, mine, theirs = reply["items"][0]["url"], one.url, worker.run_id, other.run_id
    with httpx.Client(trust_env=False, timeout=300) as http:
        assert http.get(get).content == b"one"
        refused = [
            http.get(get.replace(f"/{mine}/", f"/{theirs}/")),
            http.delete(get),
            http.put(get, content=b"new"),
            http.put(put.replace(f"/{mine}/", f"/{theirs}/"), content=b"new"),
            http.put(put.replace(one.id, two.id), content=b"new"),
            http.put(put.replace("partNumber=1", "partNumber=2"), content=b"new"),
            http.put(put, content=b"more than was granted"),
        ]
    assert {reply.status_code for reply in refused} <= {400, 403}
    logged = "".join(each.getMessage() for each in caplog.records if not each.name.startswith("httpx"))
    for secret in (*CREDENTIALS.values(), "X-Amz-Signature", urlsplit(get).query):
        assert secret not in logged
