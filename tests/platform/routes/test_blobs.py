"""Signed URLs over HTTP: what is sent, cut off, too long, altered or late, and what can be fetched again."""

from __future__ import annotations

import io
from collections.abc import Iterator
from datetime import timedelta
from email.message import Message

import pytest
from fastapi.testclient import TestClient

from osmosis_ai.platform.blobs.store import BlobStore, BlobStoreBusy, BlobStoreError, BlobUpload
from osmosis_ai.platform.config import PlatformConfig
from tests.platform.conftest import ManualClock, World, assert_flat_error

HOUR = timedelta(hours=1)
DATA = bytes(range(256)) * 40


@pytest.fixture
def blobs(world: World) -> BlobStore:
    return world.services.blobs


@pytest.fixture
def upload(blobs: BlobStore) -> BlobUpload:
    return blobs.begin_upload("datasets/x.csv")


@pytest.fixture
def url(blobs: BlobStore, upload: BlobUpload) -> str:
    return blobs.signed_part_url(upload, 1, size=len(DATA), ttl=HOUR)


def left_over(config: PlatformConfig) -> list[str]:
    return [p.name for p in config.blobs_dir.rglob("*") if p.is_file() and p.name != "upload.json"]


def in_pieces(data: bytes, size: int = 1000) -> Iterator[bytes]:
    for start in range(0, len(data), size):
        yield data[start : start + size]


@pytest.mark.parametrize(("failure", "is_away"), [(BlobStoreBusy, True), (BlobStoreError, None)])
def test_a_store_that_is_away_is_no_damaged_file(
    failure: type[BlobStoreError],
    is_away: bool | None,
    client: TestClient,
    blobs: BlobStore,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def away(*_: object) -> None:
        raise failure("the bucket 'planted' does not do what it is asked.")

    monkeypatch.setattr(blobs, "open", away)
    reply = client.get(blobs.signed_get_url("runs/a", filename="a", ttl=HOUR))
    assert assert_flat_error(reply, 503, "BLOBS_UNAVAILABLE").get("store_away") is is_away
    assert "planted" not in reply.text


@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize(
    ("body", "status", "code"), [(DATA + b"!", 413, "BODY_TOO_LARGE"), (DATA[:-1], 400, "BODY_INCOMPLETE")]
)
def test_a_body_of_another_size_than_announced_is_refused_and_nothing_kept(
    client: TestClient,
    blobs: BlobStore,
    upload: BlobUpload,
    url: str,
    config: PlatformConfig,
    body: bytes,
    status: int,
    code: str,
    chunked: bool,
) -> None:
    reply = client.put(url, content=in_pieces(body) if chunked else body)
    assert_flat_error(reply, status, code)
    assert reply.headers["connection"] == "close"
    assert blobs.parts(upload) == {} and left_over(config) == []


def test_a_url_that_has_expired_or_was_altered_is_refused(
    client: TestClient, blobs: BlobStore, upload: BlobUpload, url: str, clock: ManualClock
) -> None:
    larger = blobs.signed_part_url(upload, 1, size=99, ttl=HOUR)
    mixed = url.rpartition(".")[0] + "." + larger.rpartition(".")[2]
    for refused in (
        url[:-1] + ("A" if url[-1] != "A" else "B"),
        mixed,
        url + "%2F..",
        url.rpartition("/")[0] + "/x",
        blobs.signed_get_url("datasets/x.csv", filename="x.csv", ttl=HOUR),
    ):
        assert_flat_error(client.put(refused, content=DATA), 403, "BLOB_URL_INVALID")
    assert_flat_error(client.get(url), 403, "BLOB_URL_INVALID")
    clock.advance(3600)
    assert_flat_error(client.put(url, content=DATA), 403, "BLOB_URL_EXPIRED")


# Fetching


@pytest.fixture
def stored(blobs: BlobStore) -> str:
    blobs.put("runs/r/a.bin", io.BytesIO(DATA))
    return blobs.signed_get_url("runs/r/a.bin", filename='größe "1".csv', ttl=HOUR)


def test_a_download_has_its_exact_length_and_name_and_needs_no_token(client: TestClient, stored: str) -> None:
    reply = client.get(stored)
    assert reply.content == DATA
    assert reply.headers["Content-Length"] == str(len(DATA))
    assert reply.headers["Content-Type"] == "application/octet-stream"
    assert reply.headers["X-Content-Type-Options"] == "nosniff"
    assert "sandbox" in reply.headers["Content-Security-Policy"]
    assert "Content-Encoding" not in reply.headers
    message = Message()
    message["Content-Disposition"] = reply.headers["Content-Disposition"]
    assert message.get_content_disposition() == "attachment"
    assert "filename*=UTF-8''gr%C3%B6%C3%9Fe%20%221%22.csv" in reply.headers["Content-Disposition"]


END = len(DATA)


@pytest.mark.parametrize(
    ("asked", "status", "start", "stop"),
    [
        ("bytes=0-0", 206, 0, 1),
        ("bytes=100-199", 206, 100, 200),
        ("bytes=10000-", 206, 10_000, END),
        ("bytes=10000-99999999", 206, 10_000, END),
        ("bytes=-7", 206, END - 7, END),
        ("bytes=-99999999", 206, 0, END),
        *((none, 200, 0, END) for none in ("bytes=5-2", "bytes=0-1,3-4", "rows=0-1", "bytes=", "bytes=-")),
        *((behind, 416, 0, 0) for behind in (f"bytes={END}-", "bytes=99999999-", "bytes=-0")),
    ],
)
def test_ranges(client: TestClient, stored: str, asked: str, status: int, start: int, stop: int) -> None:
    reply = client.get(stored, headers={"Range": asked})
    assert reply.status_code == status
    if status == 416:
        assert_flat_error(reply, 416, "RANGE_NOT_SATISFIABLE")
        assert reply.headers["Content-Range"] == f"bytes */{END}"
        return
    assert reply.content == DATA[start:stop]
    if status == 206:
        assert reply.headers["Content-Length"] == str(stop - start)
        assert reply.headers["Content-Range"] == f"bytes {start}-{stop - 1}/{END}"


def test_a_download_goes_on_only_with_the_same_bytes(
    client: TestClient, stored: str, blobs: BlobStore
) -> None:
    etag = client.get(stored).headers["ETag"]
    go_on = {"Range": "bytes=5-", "If-Range": etag}
    assert client.get(stored, headers=go_on).status_code == 206
    blobs.put("runs/r/a.bin", io.BytesIO(DATA[::-1]))
    again = client.get(stored, headers=go_on)
    assert again.status_code == 200 and again.content == DATA[::-1]
