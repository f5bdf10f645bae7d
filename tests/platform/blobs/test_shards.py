"""Many files in a blob: each read alone, over HTTP too, and one that is damaged is told from one that is not."""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from osmosis_ai.platform.blobs.shards import ShardPiece, ShardWriter, read_piece
from osmosis_ai.platform.blobs.signing import DownloadGrant
from osmosis_ai.platform.blobs.store import BlobError, BlobNotFound
from osmosis_ai.platform.services import PlatformServices
from tests.platform.conftest import assert_flat_error

KEY = "runs/run_1/shards/one"
FILES = [b"", b"first", b"second " * 1000, bytes(range(256))]


@pytest.fixture
def pieces(services: PlatformServices, tmp_path: Path) -> Iterator[list[ShardPiece]]:
    writer = ShardWriter(tmp_path)
    added = [writer.add(content) for content in FILES]
    services.blobs.put(KEY, writer.content())
    yield added
    writer.close()


def test_each_file_is_read_alone(services: PlatformServices, pieces: list[ShardPiece]) -> None:
    assert [read_piece(services.blobs, KEY, piece) for piece in pieces] == FILES
    assert services.blobs.size(KEY) == sum(piece.length for piece in pieces) < sum(map(len, FILES))


def test_a_write_that_failed_leaves_no_gap(services: PlatformServices, tmp_path: Path) -> None:
    writer = ShardWriter(tmp_path)
    writer.add(b"kept")
    writer._file.write(b"half of a file that the disk did not take")
    piece = writer.add(b"next")
    services.blobs.put(KEY, writer.content())
    writer.close()
    assert read_piece(services.blobs, KEY, piece) == b"next"
    assert services.blobs.size(KEY) == piece.offset + piece.length


@pytest.mark.parametrize(
    "change", [{"offset": 1}, {"length": 3}, {"size": 4}, {"size": 6}, {"offset": 10**9}]
)
def test_a_piece_that_is_none_is_damaged(
    services: PlatformServices, pieces: list[ShardPiece], change: dict[str, int]
) -> None:
    with pytest.raises(BlobError, match="damaged"):
        read_piece(services.blobs, KEY, pieces[1]._replace(**change))
    with pytest.raises(BlobNotFound):
        read_piece(services.blobs, "runs/run_1/shards/gone", pieces[1])


def test_bytes_that_unpack_to_very_many_take_no_more_memory_than_the_file_said(
    services: PlatformServices, tmp_path: Path
) -> None:
    writer = ShardWriter(tmp_path)
    bomb = writer.add(bytes(50_000_000))
    services.blobs.put(KEY, writer.content())
    writer.close()
    with pytest.raises(BlobError, match="damaged"):
        read_piece(services.blobs, KEY, bomb._replace(size=10))


def test_a_file_of_a_shard_is_fetched_by_its_url_from_any_byte_on(
    client: TestClient, services: PlatformServices, pieces: list[ShardPiece]
) -> None:
    grant = DownloadGrant(KEY, "row_2_run_0.json", pieces[2])
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
    url = services.url_signer.sign(DownloadGrant(KEY, "x.json", pieces[1]), ttl=timedelta(minutes=1))
    services.blobs.put(KEY, io.BytesIO(b"something else"))
    assert_flat_error(client.get(url), 500, "BLOB_DAMAGED")
    services.blobs.delete(KEY)
    assert_flat_error(client.get(url), 404, "BLOB_NOT_FOUND")
