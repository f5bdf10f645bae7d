"""What a worker sends to a bucket: in parts, and by URLs that allow one thing each."""

from __future__ import annotations

import io
import logging
import os
from collections.abc import Iterator
from datetime import timedelta
from hashlib import sha256
from io import BytesIO
from pathlib import Path
from typing import BinaryIO
from urllib.parse import urlsplit

import httpx
import pytest

from osmosis_ai.api.wire.workers import SentUpload, WantedUpload
from osmosis_ai.platform.blobs.copies import BlobCopies
from osmosis_ai.platform.blobs.s3 import S3BlobStore
from osmosis_ai.platform.blobs.store import BlobStore
from osmosis_ai.platform.clock import SystemClock
from osmosis_ai.platform.db.tables import DbRun
from osmosis_ai.platform.runs.desk import uploads
from osmosis_ai.platform.runs.desk.uploads import RunUploads, UploadGoneError, note_wanted
from osmosis_ai.platform.runs.work.http_link import HttpLink
from osmosis_ai.platform.runs.work.run_channel import OutgoingBlob, send_blob
from osmosis_ai.platform.services import PlatformServices
from tests.platform.conftest import Member
from tests.platform.s3_server import CREDENTIALS, new_address
from tests.platform.viewer.runs_world import add_run

pytestmark = pytest.mark.integration
PART = 5 << 20
NAME = "resume/archive"


class Watched(BytesIO):
    """Remembers the most that was read at once."""

    most = 0

    def read(self, size: int | None = -1) -> bytes:
        data = super().read(size)
        self.most = max(self.most, len(data))
        return data


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[BlobStore]:
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(uploads, "PART_BYTES", PART)
    bucket = S3BlobStore(new_address(), SystemClock(), BlobCopies(tmp_path / "copies"))
    yield bucket
    bucket.delete_below("runs")


@pytest.fixture
def run(services: PlatformServices, member: Member) -> DbRun:
    return add_run(services, member, "large")


@pytest.fixture
def link() -> Iterator[HttpLink]:
    made = HttpLink("http://127.0.0.1:9", "worker-token")
    yield made
    made.close()


def begin(desk: RunUploads, services: PlatformServices, run: DbRun, content: bytes) -> uploads.UploadGrant:
    wanted = WantedUpload(name=NAME, size=len(content), sha256=sha256(content).hexdigest())
    begun = desk.begin(run.id, [wanted])
    with services.db.transaction() as session:
        note_wanted(session, session.get_one(DbRun, run.id), begun, desk.most_bytes)
    (grant,) = desk.grants(run.id, begun)
    return grant


@pytest.mark.parametrize("size", [0, 7, PART, PART + 1, 2 * PART + 1234])
def test_a_blob_arrives_in_as_many_parts_as_it_needs_and_never_as_a_whole_in_memory(
    store: BlobStore, services: PlatformServices, run: DbRun, link: HttpLink, size: int
) -> None:
    desk = RunUploads(services.db, store, 1 << 40)
    data = os.urandom(size)
    content = Watched(data)
    grant = begin(desk, services, run, data)
    sent = send_blob(link, OutgoingBlob.of(NAME, content), grant)
    assert len(sent.further_etags) == len(grant.further_urls) == max(0, -(-size // PART) - 1)
    assert content.most <= 1 << 20
    desk.complete(run.id, [sent])
    desk.complete(run.id, [sent])
    assert store.size(f"runs/{run.id}/{NAME}") == size
    with store.open(f"runs/{run.id}/{NAME}") as stored:
        assert stored.read() == data
    assert list(store.unfinished_uploads()) == []


def test_an_upload_that_was_cut_off_goes_on_with_the_parts_that_are_missing(
    store: BlobStore, services: PlatformServices, run: DbRun, link: HttpLink
) -> None:
    desk = RunUploads(services.db, store, 1 << 40)
    data = os.urandom(3 * PART)
    first = begin(desk, services, run, data)
    assert first.received == {}
    urls = first.further_urls
    send_blob(link, OutgoingBlob.of(NAME, BytesIO(data)), first.model_copy(update={"further_urls": urls[:1]}))
    again, sent = begin(desk, services, run, data), []
    assert (again.id, set(again.received)) == (first.id, {1, 2})

    class Counted(HttpLink):
        def send(self, grant: uploads.UploadGrant, content: BinaryIO, size: int) -> str:
            sent.append(grant.url)
            return super().send(grant, content, size)

    counted = Counted("http://127.0.0.1:9", "worker-token")
    desk.complete(run.id, [send_blob(counted, OutgoingBlob.of(NAME, BytesIO(data)), again)])
    counted.close()
    assert sent == [again.further_urls[1]]
    with store.open(f"runs/{run.id}/{NAME}") as stored:
        assert stored.read() == data


def test_parts_in_another_order_or_too_few_make_no_blob(
    store: BlobStore, services: PlatformServices, run: DbRun, link: HttpLink
) -> None:
    desk = RunUploads(services.db, store, 1 << 40)
    data = os.urandom(2 * PART + 5)
    grant = begin(desk, services, run, data)
    sent = send_blob(link, OutgoingBlob.of(NAME, BytesIO(data)), grant)
    etags = [sent.etag, *sent.further_etags]
    for wrong in ([etags[1], etags[0], etags[2]], etags[:2], [*etags, etags[0]]):
        changed = {"etag": wrong[0], "further_etags": wrong[1:]}
        with pytest.raises(UploadGoneError):
            desk.complete(run.id, [SentUpload.model_validate({**sent.model_dump(), **changed})])
    assert f"runs/{run.id}/{NAME}" not in list(store.keys("runs"))


HOUR = timedelta(hours=1)


@pytest.fixture
def bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> S3BlobStore:
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    return S3BlobStore(new_address(), SystemClock(), BlobCopies(tmp_path / "copies"))


@pytest.mark.integration
def test_a_url_of_the_bucket_is_for_its_file_its_upload_and_its_method(bucket: S3BlobStore) -> None:
    bucket.put("runs/one/a", io.BytesIO(b"one"))
    bucket.put("runs/two/a", io.BytesIO(b"two"))
    one, two = bucket.begin_upload("runs/one/b"), bucket.begin_upload("runs/two/b")
    get = bucket.signed_get_url("runs/one/a", filename="a", ttl=HOUR)
    put = bucket.signed_part_url(one, 1, size=3, ttl=HOUR)
    with httpx.Client(trust_env=False, timeout=300) as http:
        assert http.get(get).content == b"one"
        refused = [
            http.get(get.replace("/runs/one/", "/runs/two/")),
            http.delete(get),
            http.put(get, content=b"new"),
            http.put(put.replace("/runs/one/", "/runs/two/"), content=b"new"),
            http.put(put.replace(one.id, two.id), content=b"new"),
            http.put(put.replace("partNumber=1", "partNumber=2"), content=b"new"),
            http.put(put, content=b"more than was granted"),
        ]
        assert {reply.status_code for reply in refused} <= {400, 403}
    assert bucket.parts(one) == bucket.parts(two) == {}
    for upload in (one, two):
        bucket.abort_upload(upload)
    with bucket.open("runs/two/a") as stored:
        assert stored.read() == b"two"
    bucket.delete_below("runs")


@pytest.mark.integration
def test_no_url_of_the_bucket_is_logged_however_much_is(
    bucket: S3BlobStore, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG):
        bucket.put("runs/one/a", io.BytesIO(b"one"))
        url = bucket.signed_get_url("runs/one/a", filename="a", ttl=HOUR)
        upload = bucket.begin_upload("runs/one/b")
        bucket.signed_part_url(upload, 1, size=3, ttl=HOUR)
        bucket.abort_upload(upload)
        with bucket.open("runs/one/a") as stored:
            stored.read()
    bucket.delete_below("runs")
    for secret in (*CREDENTIALS.values(), "X-Amz-Signature", urlsplit(url).query):
        assert secret not in caplog.text
