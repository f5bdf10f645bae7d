"""The store in a directory: what it leaves on the disk, and what its URLs allow until they expire."""

from __future__ import annotations

import io
import os
import stat
import threading
import zlib
from datetime import timedelta
from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import update

from osmosis_ai.errors import OsmosisError
from osmosis_ai.platform.blobs.local import LocalBlobStore
from osmosis_ai.platform.blobs.signing import PartGrant, UrlSigner, load_signing_key
from osmosis_ai.platform.db.tables import DbConversation, DbRun, DbRunFile
from osmosis_ai.platform.refusals import ApiError
from osmosis_ai.platform.runs.files import pack_files
from tests.platform.conftest import ManualClock, Member, World, assert_flat_error
from tests.platform.viewer.runs_world import add_run

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


def test_a_url_that_was_altered_in_any_place_or_is_another_platforms_is_refused(
    signer: UrlSigner, tmp_path: Path, clock: ManualClock
) -> None:
    other = UrlSigner(load_signing_key(tmp_path / "other.key"), signer.base_url, clock)
    grant = PartGrant("0" * 32, 1, 10)
    token = token_of(signer.sign(grant, ttl=HOUR))
    altered = {
        token[:place] + other + token[place + 1 :]
        for place in range(len(token))
        for other in ("A", "B", ".", "\n", "é", "")
    } - {token}
    nonsense = ("", ".", "a.b", "=.=", token * 100)
    for refused in (*altered, *nonsense, token_of(other.sign(grant, ttl=HOUR))):
        with pytest.raises(ApiError):
            signer.part(refused)


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


CONTENT = {"a": b"", "b": b"first", "c": b"second " * 1000, "d": bytes(range(256))}


@pytest.fixture
def packed(world: World, member: Member) -> DbRun:
    """A run whose files are in one pack."""
    run = add_run(world, member, "amber")
    with world.services.db.transaction() as session:
        for path, content in CONTENT.items():
            session.add(DbConversation(run_id=run.id, path=path, content=zlib.compress(content)))
            session.add(DbRunFile(run_id=run.id, path=path, kind="other", size=len(content)))
    pack_files(world.services.db, world.services.blobs, run.id, lambda: None)
    return run


def file_url(world: World, run: DbRun, path: str) -> str:
    with world.services.db.session() as session:
        file = session.get_one(DbRunFile, (run.id, path))
    assert file.offset is not None
    return world.services.run_files.url(file, filename="row_2_run_0.json", ttl=timedelta(minutes=1))


def test_a_file_of_a_pack_is_served_by_its_url_from_any_byte(
    client: TestClient, world: World, packed: DbRun
) -> None:
    assert {path: client.get(file_url(world, packed, path)).content for path in CONTENT} == CONTENT
    url = file_url(world, packed, "c")
    whole = client.get(url)
    assert whole.headers["content-length"] == str(len(CONTENT["c"]))
    assert 'filename="row_2_run_0.json"' in whole.headers["content-disposition"]
    assert whole.headers["x-content-type-options"] == "nosniff"
    rest = client.get(url, headers={"Range": "bytes=6990-", "If-Range": whole.headers["etag"]})
    assert (rest.status_code, rest.content) == (206, CONTENT["c"][6990:])
    assert client.get(file_url(world, packed, "b")).headers["etag"] != whole.headers["etag"]


@pytest.mark.parametrize(
    "change", [{"offset": 1}, {"length": 3}, {"size": 4}, {"size": 6}, {"offset": 10**9}]
)
def test_a_file_whose_bytes_in_the_pack_are_others_is_damaged(
    client: TestClient, world: World, packed: DbRun, change: dict[str, int]
) -> None:
    url = file_url(world, packed, "b")
    with world.services.db.transaction() as session:
        session.execute(update(DbRunFile).where(DbRunFile.path == "b").values(change))
    assert_flat_error(client.get(url), 500, "BLOB_DAMAGED")
