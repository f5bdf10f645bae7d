"""The store in a directory: what it leaves on the disk, and what its URLs allow until they expire."""

from __future__ import annotations

import os
import stat
import threading
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import text

from osmosis_ai.errors import OsmosisError
from osmosis_ai.platform.blobs.signing import load_signing_key
from tests.evaluation.builders import record
from tests.platform.conftest import ManualClock, World, assert_flat_error
from tests.platform.datasets_world import Uploads, rows
from tests.platform.fake_worker import EVALS, FakeWorker, file_url
from tests.platform.runs.conftest import code, member

__all__ = ["code", "member"]


@pytest.fixture(name="rows")
def rows_of_the_dataset() -> None:
    """The rows of this repository."""


def test_only_the_platforms_user_can_read_a_blob(uploads: Uploads, world: World) -> None:
    uploads.upload("more", rows())
    uploads.begin("half", rows())
    found = list((world.services.config.home / "blobs").rglob("*"))
    assert any(path.is_file() for path in found)
    for path in found:
        assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0, path


def test_what_a_killed_process_left_is_swept_and_what_is_being_written_is_not(
    world: World, clock: ManualClock
) -> None:
    store: Any = world.services.blobs
    incoming = world.services.config.home / "blobs" / "incoming"
    incoming.mkdir(parents=True, exist_ok=True)
    (incoming / "abandoned").write_bytes(b"half")
    (incoming / "ended-1").mkdir()
    (incoming / "fresh").write_bytes(b"half")
    long_ago, just_now = clock.now().timestamp() - 7200, clock.now().timestamp()
    url = store.signed_part_url(store.begin_upload("a.csv"), 1, size=4, ttl=timedelta(hours=1))
    grant = store.signer.part(url.rpartition("/")[2])
    with store.receive_part(grant) as writing:
        for path in incoming.iterdir():
            age = just_now if path.name == "fresh" else long_ago
            os.utime(path, (age, age))
        store.sweep()
        assert not (incoming / "abandoned").exists()
        assert not (incoming / "ended-1").exists()
        assert (incoming / "fresh").exists()
        writing.write(b"data")
        assert store.keep_part(grant, writing).size == 4


# Signed URLs


def test_a_url_that_was_altered_in_any_place_or_is_another_platforms_is_refused(
    client: TestClient, uploads: Uploads, tmp_path: Path, clock: ManualClock
) -> None:
    url = uploads.begin("more", rows())["upload"]["presigned_url"]
    base, _, token = url.rpartition("/")
    with World.opened(tmp_path / "other", clock=clock, port=8733) as other:
        upload = other.services.blobs.begin_upload("datasets/a.jsonl")
        theirs = other.services.blobs.signed_part_url(upload, 1, size=4, ttl=timedelta(hours=1))
    altered = {
        token[:place] + put + token[place + 1 :]
        for place in range(len(token))
        for put in ("A", "B", ".", "\n", "é", "")
    } - {token}
    for refused in (*altered, "a.b", "=.=", token * 100, theirs.rpartition("/")[2]):
        assert client.put(f"{base}/{quote(refused)}", content=rows()).status_code == 403, refused
    assert client.put(url, content=rows()).status_code == 200


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


def test_a_signing_key_that_others_can_read_or_that_is_damaged_is_refused(world: World) -> None:
    home = world.services.config.home
    path = home / "keys" / "blob-urls.key"
    path.chmod(0o644)
    with pytest.raises(OsmosisError, match="every user"), World.opened(home):
        pass
    path.chmod(0o600)
    path.write_text("zz")
    with pytest.raises(OsmosisError, match="damaged"), World.opened(home):
        pass


CONTENT = {0: b"[]", 1: b'"first"', 2: b'"' + b"second " * 1000 + b'"'}


@pytest.fixture
def urls(api: TestClient, world: World) -> list[str]:
    """The addresses of conversations of a run, which are in one pack."""
    EVALS.taken(api, evaluation_config={"limit": 3, "n": 1})
    worker = FakeWorker.claims(world)
    worker.write([record(row, 0) for row in CONTENT])
    files = [worker.conversation(row, content=content) for row, content in CONTENT.items()]
    worker.sync(journal=worker.part(), files=files)
    worker.finishes()
    assert any("pack" in key for key in world.stored(f"runs/{worker.run_id}"))
    found = [file_url(api, worker.run_id, f"trajectories/row_{row}_run_0.json") for row in CONTENT]
    return [str(url) for url in found]


def test_a_file_of_a_pack_is_served_by_its_url_from_any_byte(client: TestClient, urls: list[str]) -> None:
    assert [client.get(url).content for url in urls] == list(CONTENT.values())
    whole = client.get(urls[2])
    assert whole.headers["content-length"] == str(len(CONTENT[2]))
    assert 'filename="row_2_run_0.json"' in whole.headers["content-disposition"]
    assert whole.headers["x-content-type-options"] == "nosniff"
    rest = client.get(urls[2], headers={"Range": "bytes=6990-", "If-Range": whole.headers["etag"]})
    assert (rest.status_code, rest.content) == (206, CONTENT[2][6990:])
    assert client.get(urls[1]).headers["etag"] != whole.headers["etag"]


@pytest.mark.parametrize(
    "change",
    ["offset = 1", "length = 3", "length = length - 4", "size = 4", "size = 8", "offset = 1000000000"],
)
def test_a_file_whose_bytes_in_the_pack_are_others_is_damaged(
    client: TestClient, world: World, urls: list[str], change: str
) -> None:
    with world.services.db.transaction() as session:
        session.execute(text(f"UPDATE run_files SET {change} WHERE path LIKE '%row_1_run_0.json'"))
    assert_flat_error(client.get(urls[1]), 500, "BLOB_DAMAGED")
