"""The store in a directory: what it leaves on the disk, and what its URLs allow until they expire."""

from __future__ import annotations

import io
import os
import stat
import threading
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from osmosis_ai.errors import OsmosisError
from osmosis_ai.platform.blobs.local import LocalBlobStore
from osmosis_ai.platform.blobs.shards import ShardPiece, ShardWriter, read_piece
from osmosis_ai.platform.blobs.signing import DownloadGrant, PartGrant, UrlSigner, load_signing_key
from osmosis_ai.platform.blobs.store import (
    BlobError,
    BlobNotFound,
    UrlRefused,
)
from osmosis_ai.platform.services import PlatformServices
from tests.platform.conftest import ManualClock, assert_flat_error

HOUR = timedelta(hours=1)


@pytest.fixture
def signer(tmp_path: Path, clock: ManualClock) -> UrlSigner:
    return UrlSigner(
        load_signing_key(tmp_path / "keys" / "blob-urls.key"), "https://osmosis.example/p", clock
    )


@pytest.fixture
def store(tmp_path: Path, signer: UrlSigner, clock: ManualClock) -> LocalBlobStore:
    return LocalBlobStore(tmp_path / "blobs", signer, clock)


def test_only_the_platforms_user_can_read_a_blob(store: LocalBlobStore, tmp_path: Path) -> None:
    store.put("a/b", io.BytesIO(b"x"))
    for path in (tmp_path / "blobs").rglob("*"):
        assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0, path


def test_what_a_killed_process_left_is_swept_and_what_is_being_written_is_not(
    store: LocalBlobStore, tmp_path: Path, clock: ManualClock
) -> None:
    upload = store.begin_upload("a.csv")
    incoming = tmp_path / "blobs" / "incoming"
    incoming.mkdir(exist_ok=True)
    (incoming / "abandoned").write_bytes(b"half")
    (incoming / "ended-1").mkdir()
    (incoming / "fresh").write_bytes(b"half")
    long_ago, just_now = clock.now().timestamp() - 7200, clock.now().timestamp()

    with store.receive_part(PartGrant(upload.id, 1, 4)) as writing:
        for path in incoming.iterdir():
            age = just_now if path.name == "fresh" else long_ago
            os.utime(path, (age, age))
        store.sweep()
        assert not (incoming / "abandoned").exists()
        assert not (incoming / "ended-1").exists()
        assert (incoming / "fresh").exists()
        writing.write(b"data")
        assert store.keep_part(PartGrant(upload.id, 1, 4), writing).size == 4


# Signed URLs


def token_of(url: str) -> str:
    return url.rpartition("/")[2]


def test_a_url_names_the_public_address_and_gives_back_what_was_granted(
    store: LocalBlobStore, signer: UrlSigner
) -> None:
    url = store.signed_get_url("a/b.csv", filename="größe 1.csv", ttl=HOUR)
    assert url.startswith("https://osmosis.example/p/blobs/")
    assert signer.download(token_of(url)) == DownloadGrant("a/b.csv", "größe 1.csv")

    upload = store.begin_upload("x.csv")
    url = store.signed_part_url(upload, 3, size=17, ttl=HOUR)
    assert signer.part(token_of(url)) == PartGrant(upload.id, 3, 17)


def test_a_url_that_was_altered_in_any_place_is_refused(signer: UrlSigner) -> None:
    token = token_of(signer.sign(PartGrant("0" * 32, 1, 10), ttl=HOUR))
    for place in range(len(token)):
        for other in ("A" if token[place] != "A" else "B", ".", "\n", "é", ""):
            altered = token[:place] + other + token[place + 1 :]
            if altered != token:
                with pytest.raises(UrlRefused):
                    signer.part(altered)
    for nonsense in ("", ".", "a.b", "=.=", token * 100):
        with pytest.raises(UrlRefused):
            signer.part(nonsense)


def test_a_url_to_fetch_does_not_send_and_the_other_way_round(signer: UrlSigner) -> None:
    with pytest.raises(UrlRefused, match="allows GET, not PUT"):
        signer.part(token_of(signer.sign(DownloadGrant("a", "a"), ttl=HOUR)))
    with pytest.raises(UrlRefused, match="allows PUT, not GET"):
        signer.download(token_of(signer.sign(PartGrant("0" * 32, 1, 1), ttl=HOUR)))


def test_another_platforms_url_is_refused(signer: UrlSigner, tmp_path: Path, clock: ManualClock) -> None:
    other = UrlSigner(load_signing_key(tmp_path / "other.key"), signer.base_url, clock)
    with pytest.raises(UrlRefused):
        signer.download(token_of(other.sign(DownloadGrant("a", "a"), ttl=HOUR)))


def test_the_signing_key_is_made_once_and_private(tmp_path: Path) -> None:
    path = tmp_path / "keys" / "urls.key"
    keys: list[bytes] = []
    threads = [threading.Thread(target=lambda: keys.append(load_signing_key(path))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(set(keys)) == 1 and len(keys) == 8 and len(keys[0]) == 32
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [entry.name for entry in path.parent.iterdir()] == ["urls.key"]
    assert keys[0].hex() not in repr(UrlSigner(keys[0], "https://x", ManualClock()))


def test_a_signing_key_that_others_can_read_or_that_is_damaged_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "urls.key"
    load_signing_key(path)
    path.chmod(0o644)
    with pytest.raises(OsmosisError, match="every user"):
        load_signing_key(path)
    path.chmod(0o600)
    path.write_text("zz")
    with pytest.raises(OsmosisError, match="damaged"):
        load_signing_key(path)


SHARD = "runs/run_1/shards/one"
FILES = [b"", b"first", b"second " * 1000, bytes(range(256))]


@pytest.fixture
def pieces(services: PlatformServices, tmp_path: Path) -> Iterator[list[ShardPiece]]:
    writer = ShardWriter(tmp_path)
    added = [writer.add(content) for content in FILES]
    services.blobs.put(SHARD, writer.content())
    yield added
    writer.close()


@pytest.mark.parametrize(
    "change", [{"offset": 1}, {"length": 3}, {"size": 4}, {"size": 6}, {"offset": 10**9}]
)
def test_a_piece_that_is_none_is_damaged(
    services: PlatformServices, pieces: list[ShardPiece], change: dict[str, int]
) -> None:
    with pytest.raises(BlobError, match="damaged"):
        read_piece(services.blobs, SHARD, pieces[1]._replace(**change))
    with pytest.raises(BlobNotFound):
        read_piece(services.blobs, "runs/run_1/shards/gone", pieces[1])


def test_bytes_that_unpack_to_very_many_take_no_more_memory_than_the_file_said(
    services: PlatformServices, tmp_path: Path
) -> None:
    writer = ShardWriter(tmp_path)
    bomb = writer.add(bytes(50_000_000))
    services.blobs.put(SHARD, writer.content())
    writer.close()
    with pytest.raises(BlobError, match="damaged"):
        read_piece(services.blobs, SHARD, bomb._replace(size=10))


def test_a_file_of_a_shard_is_fetched_by_its_url_from_any_byte_on(
    client: TestClient, services: PlatformServices, pieces: list[ShardPiece]
) -> None:
    grant = DownloadGrant(SHARD, "row_2_run_0.json", pieces[2])
    url = services.url_signer.sign(grant, ttl=timedelta(minutes=1))
    whole = client.get(url)
    assert whole.content == FILES[2] and whole.headers["content-length"] == str(len(FILES[2]))
    assert 'filename="row_2_run_0.json"' in whole.headers["content-disposition"]
    assert whole.headers["x-content-type-options"] == "nosniff"
    rest = client.get(url, headers={"Range": "bytes=6990-", "If-Range": whole.headers["etag"]})
    assert (rest.status_code, rest.content) == (206, FILES[2][6990:])
    others = services.url_signer.sign(replace(grant, piece=pieces[1]), ttl=timedelta(minutes=1))
    assert client.get(others).headers["etag"] != whole.headers["etag"]


def test_a_damaged_shard_and_one_that_is_gone_are_said(
    client: TestClient, services: PlatformServices, pieces: list[ShardPiece]
) -> None:
    url = services.url_signer.sign(DownloadGrant(SHARD, "x.json", pieces[1]), ttl=timedelta(minutes=1))
    services.blobs.put(SHARD, io.BytesIO(b"something else"))
    assert_flat_error(client.get(url), 500, "BLOB_DAMAGED")
    services.blobs.delete(SHARD)
    assert_flat_error(client.get(url), 404, "BLOB_NOT_FOUND")
