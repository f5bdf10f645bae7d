"""What every store promises, asked of the one in a directory and of the one in a bucket."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from datetime import timedelta
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest
from anyio.from_thread import BlockingPortal

from osmosis_ai.platform.blobs import s3
from osmosis_ai.platform.blobs.s3 import S3BlobStore
from osmosis_ai.platform.blobs.store import BlobNotFound, BlobStore, BlobUpload, PartsMismatch, UploadNotFound
from osmosis_ai.platform.clock import SystemClock
from osmosis_ai.platform.config import PlatformConfig
from osmosis_ai.platform.services import PlatformServices
from tests.platform.conftest import World, application
from tests.platform.one_hop_client import OneHopClient, running
from tests.platform.s3_server import CREDENTIALS, OTHER_STORE, new_address

pytestmark = pytest.mark.integration
HOUR = timedelta(hours=1)
# The least that a real store takes for a part that is not the last.
LEAST_PART = 5 << 20 if OTHER_STORE else 6


class Place(NamedTuple):
    """A store, and HTTP to whatever its URLs name."""

    store: BlobStore
    http: httpx.Client | OneHopClient

    def put(self, url: str, data: bytes) -> Any:
        # As the CLI does it: the bytes, and no word more.
        return self.http.put(url, content=data)

    def send(self, upload: BlobUpload, number: int, data: bytes) -> str:
        url = self.store.signed_part_url(upload, number, size=len(data), ttl=HOUR)
        reply = self.put(url, data)
        assert reply.status_code == 200, reply.text
        return str(reply.headers["etag"]).strip('"')


@pytest.fixture(params=["directory", "bucket"])
def place(
    request: pytest.FixtureRequest, tmp_path: Path, portal: BlockingPortal, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Place]:
    if request.param == "directory":
        config = PlatformConfig(home=tmp_path / "platform")
        services = PlatformServices(config)
        with running(application(World(services)), portal, config.base_url) as client:
            yield Place(services.blobs, client)
        services.db.dispose()
        return
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    # Small, so that a test's bytes are several ranges.
    monkeypatch.setattr(s3, "RANGE_BYTES", 1000)
    store = S3BlobStore(new_address(), SystemClock(), tmp_path / "copies")
    with httpx.Client(trust_env=False) as client:
        yield Place(store, client)
    store.delete_below("runs")


@pytest.fixture
def store(place: Place) -> BlobStore:
    return place.store


def content_of(store: BlobStore, key: str) -> bytes:
    with store.open(key) as handle:
        return handle.read()


@pytest.mark.parametrize("size", [0, 5, 1000, 1001, 4321])
def test_what_is_put_can_be_read_measured_listed_and_deleted(store: BlobStore, size: int) -> None:
    data = bytes(n % 251 for n in range(size))
    info = store.put("runs/run_1/a.json", io.BytesIO(data))

    assert (info.size, info.sha256) == (size, sha256(data).hexdigest())
    assert content_of(store, "runs/run_1/a.json") == data
    assert store.size("runs/run_1/a.json") == size
    for offset, length in ((0, size), (0, 0), (3, 2), (1, 9000), (size, 1), (size + 7, 5)):
        assert store.read("runs/run_1/a.json", offset, length) == data[offset : offset + length]
    assert list(store.keys("runs")) == ["runs/run_1/a.json"]
    for _ in range(2):
        with store.local_copy("runs/run_1/a.json") as path:
            assert path.suffix == ".json" and path.read_bytes() == data

    store.delete("runs/run_1/a.json")
    store.delete("runs/run_1/a.json")
    for read in (
        store.open,
        store.size,
        lambda key: store.read(key, 0, 1),
        lambda key: store.local_copy(key).__enter__(),
    ):
        with pytest.raises(BlobNotFound):
            read("runs/run_1/a.json")
    assert list(store.keys("runs")) == []


def test_what_was_opened_stays_readable_when_the_blob_is_deleted(store: BlobStore) -> None:
    for key, data in (("runs/small", b"x" * 10), ("runs/large", b"y" * 5000)):
        store.put(key, io.BytesIO(data))
        with store.open(key) as handle:
            assert handle.read(3) == data[:3]
            store.delete(key)
            assert handle.read() == data[3:]
            assert handle.seek(1) == 1


def test_everything_below_a_prefix_is_deleted_and_nothing_beside_it(store: BlobStore) -> None:
    for key in ("runs/r1/a", "runs/r1/deep/b", "runs/r10/a", "runs/r1x"):
        store.put(key, io.BytesIO(b"x"))
    store.delete_below("runs/r1")
    store.delete_below("runs/never")
    assert sorted(store.keys("runs")) == ["runs/r10/a", "runs/r1x"]


@pytest.mark.parametrize(
    "key", ["", "/a", "a/", "a//b", "../a", "a/../b", ".a", "a b", "a\n", "é", "a" * 256]
)
def test_a_key_cannot_lead_out_of_the_store(store: BlobStore, key: str) -> None:
    def put(key: str) -> object:
        return store.put(key, io.BytesIO(b"x"))

    # All keys are below the empty prefix.
    keys = [lambda key: list(store.keys(key))] if key else []
    for touch in (store.open, store.size, store.delete, store.begin_upload, put, *keys):
        with pytest.raises(ValueError, match="not a blob key"):
            touch(key)


def test_a_put_that_fails_half_way_leaves_the_former_blob(store: BlobStore) -> None:
    class Broken(io.BytesIO):
        def read(self, size: int | None = -1, /) -> bytes:
            raise OSError(28, "No space left on device")

    store.put("runs/a", io.BytesIO(b"old"))
    with pytest.raises(OSError, match="No space"):
        store.put("runs/a", Broken(b"new"))
    assert content_of(store, "runs/a") == b"old"
    assert list(store.keys("runs")) == ["runs/a"] and list(store.unfinished_uploads()) == []


def test_parts_become_a_blob_in_their_order(place: Place) -> None:
    upload = place.store.begin_upload("runs/x.csv")
    head = b"hello " * (LEAST_PART // 6 + 1)
    second, first = place.send(upload, 2, b"world"), place.send(upload, 1, head)

    received = place.store.parts(upload)
    assert {n: (p.etag, p.size) for n, p in received.items()} == {1: (first, len(head)), 2: (second, 5)}
    info = place.store.complete_upload(upload, [first, second])

    assert (info.size, info.sha256) == (len(head) + 5, sha256(head + b"world").hexdigest())
    assert content_of(place.store, "runs/x.csv") == head + b"world"
    assert list(place.store.unfinished_uploads()) == []


@pytest.mark.parametrize("parts", [[b"only"], [b"x" * LEAST_PART, b"two"], [b""]])
def test_completing_an_upload_again_gives_the_same_blob(place: Place, parts: list[bytes]) -> None:
    upload = place.store.begin_upload("runs/x.csv")
    etags = [place.send(upload, number, data) for number, data in enumerate(parts, 1)]
    done = place.store.complete_upload(upload, etags)
    assert done == place.store.complete_upload(upload, etags)
    assert done.size == len(b"".join(parts))
    place.store.abort_upload(upload)
    assert place.store.size("runs/x.csv") == done.size


def test_a_part_sent_again_replaces_the_former(place: Place) -> None:
    upload = place.store.begin_upload("runs/a.csv")
    former = place.send(upload, 1, b"former")
    url = place.store.signed_part_url(upload, 1, size=6, ttl=HOUR)
    reply = place.put(url, b"latter")
    if reply.status_code == 501:
        pytest.skip("this store takes each part once")
    latter = reply.headers["etag"].strip('"')
    with pytest.raises(PartsMismatch):
        place.store.complete_upload(upload, [former])
    place.store.complete_upload(upload, [latter])
    assert content_of(place.store, "runs/a.csv") == b"latter"


@pytest.mark.parametrize("etag", ["0" * 64, "../../../etc/passwd", "", "1.x", "upload.json"])
def test_an_etag_that_was_not_given_completes_nothing(place: Place, etag: str) -> None:
    upload = place.store.begin_upload("runs/a.csv")
    place.send(upload, 1, b"data")
    with pytest.raises(PartsMismatch):
        place.store.complete_upload(upload, [etag])
    assert list(place.store.keys("runs")) == []
    assert len(place.store.parts(upload)) == 1


def test_a_url_takes_exactly_its_bytes_and_no_other_part(place: Place) -> None:
    upload = place.store.begin_upload("runs/a.csv")
    url = place.store.signed_part_url(upload, 1, size=5, ttl=HOUR)
    for wrong in (b"1234", b"123456", b""):
        assert place.put(url, wrong).status_code in (400, 403, 413)
    assert place.put(_altered(url), b"12345").status_code in (400, 403)
    assert place.http.get(url).status_code in (400, 403, 405)
    assert place.store.parts(upload) == {}
    assert place.put(url, b"12345").status_code == 200


def _altered(url: str) -> str:
    """Another signature, of the same length."""
    end = "B" if url[-1] != "B" else "C"
    return url[:-2] + ("0" if url[-2] != "0" else "1") + (end if not url[-1].isdigit() else url[-1])


def test_an_aborted_upload_takes_nothing_more(place: Place) -> None:
    upload = place.store.begin_upload("runs/a.csv")
    etag = place.send(upload, 1, b"data")
    url = place.store.signed_part_url(upload, 2, size=4, ttl=HOUR)
    place.store.abort_upload(upload)
    place.store.abort_upload(upload)

    assert place.put(url, b"late").status_code == 404
    with pytest.raises(UploadNotFound):
        place.store.parts(upload)
    with pytest.raises(UploadNotFound):
        place.store.complete_upload(upload, [etag])
    assert list(place.store.keys("runs")) == []


def test_a_download_is_saved_under_its_name_and_never_shown(place: Place) -> None:
    place.store.put("runs/page.html", io.BytesIO(b"<script>alert(1)</script>"))
    url = place.store.signed_get_url("runs/page.html", filename='größe "1".html', ttl=HOUR)
    reply = place.http.get(url)
    assert reply.status_code == 200 and reply.content == b"<script>alert(1)</script>"
    assert reply.headers["content-type"] == "application/octet-stream"
    disposition = reply.headers["content-disposition"]
    assert re.match("attachment; ", disposition)
    assert "filename*=UTF-8''gr%C3%B6%C3%9Fe%20%221%22.html" in disposition
    part = place.http.get(url, headers={"Range": "bytes=1-6"})
    # rclone sends the part and calls it everything.
    assert part.status_code in (200, 206) and part.content == b"script"
    place.store.delete("runs/page.html")
    assert place.http.get(url).status_code == 404
