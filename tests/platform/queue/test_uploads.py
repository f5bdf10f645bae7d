"""Blobs of workers: announced, sent by signed URLs, and completed."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest
from fastapi.testclient import TestClient

from tests.platform.conftest import ManualClock, World
from tests.platform.fake_worker import EVALS, GPU, FakeWorker, Refused, downloaded, expire_leases

NAME, PATH = "files/abc", "artifacts/row_0_run_0/a.txt"
FILE = {"path": PATH, "kind": "artifacts", "size": 5, "blob": NAME}


def stored(world: World) -> list[str]:
    """Return the blobs of runs."""
    return world.stored("runs")


def open_uploads(world: World) -> int:
    return len(list(world.services.blobs.unfinished_uploads()))


def test_an_upload_is_complete_before_a_file_names_it(api: TestClient, worker: FakeWorker) -> None:
    def is_unknown() -> bool:
        with pytest.raises(Refused, match=r"409 UPLOAD_GONE: `files/.*/abc` has not arrived"):
            worker.sync(files=[FILE])
        return True

    assert is_unknown()
    grant = worker.wants(NAME, b"hello")
    assert worker.wants(NAME, b"hello").id == grant.id, "a repeated request continues the upload"
    assert is_unknown()
    sent = worker.puts(grant, b"hello")
    assert is_unknown()
    for _ in range(2):
        worker.sync(sent=[sent], files=[FILE])
    worker.sync(files=[{**FILE, "path": "artifacts/row_0_run_0/b.txt"}])
    assert downloaded(api, worker.run_id, "artifacts/row_0_run_0/b.txt") == b"hello"
    assert worker.wants(NAME, b"hello").url == "", "the platform has it"
    assert open_uploads(worker.world) == 0


def test_a_manifest_has_the_checksum_of_a_whole_file(api: TestClient, worker: FakeWorker) -> None:
    worker.sync(sent=[worker.uploads(NAME, b"hello")], files=[FILE, worker.conversation(0)])
    listed = api.get(f"{EVALS.route}/{worker.run_id}/samples/manifest?types=artifacts,trajectories").json()[
        "files"
    ]
    assert [listed[0], listed[-1]] == [
        {"path": PATH, "size": 5, "sha256": hashlib.sha256(b"hello").hexdigest()},
        {"path": "trajectories/row_0_run_0.json", "size": 13},
    ]


def test_bytes_other_than_the_announced_ones_never_become_a_blob(worker: FakeWorker) -> None:
    grant = worker.wants(NAME, b"hello")
    sent = worker.puts(grant, b"jello")
    for problem in ("/abc` differ from the announced size or digest", "has not arrived"):
        with pytest.raises(Refused, match=f"409 UPLOAD_GONE: .*{problem}"):
            worker.sync(sent=[sent], files=[FILE])
    assert stored(worker.world) == []
    worker.sync(sent=[worker.uploads(NAME, b"hello")], files=[FILE])


def test_the_next_worker_uses_what_its_predecessor_sent(worker: FakeWorker, clock: ManualClock) -> None:
    completed, begun = worker.uploads("files/one", b"one"), worker.wants("files/two", b"two")
    worker.sync(sent=[completed])
    expire_leases(clock)
    successor = FakeWorker.claims(worker.world, "gpu")
    assert successor.wants("files/one", b"one").url == ""
    assert successor.wants("files/two", b"two").id == begun.id
    with pytest.raises(Refused, match="409 LEASE_LOST"):
        worker.sync(sent=[worker.puts(begun, b"two")])
    successor.sync(sent=[worker.puts(begun, b"two")], files=[{**FILE, "size": 3, "blob": "files/two"}])


def test_an_upload_is_of_one_shard(api: TestClient, worker: FakeWorker) -> None:
    EVALS.taken(api, advanced_config=GPU)
    other = FakeWorker.claims(worker.world, "gpu")
    sent = worker.puts(worker.wants(NAME, b"mine!"), b"mine!")
    for name in ({"sent": [sent]}, {"wanted": [{"name": sent.name, "size": 5, "sha256": "0" * 64}]}):
        with pytest.raises(Refused, match=r"400 VALIDATION: .* is not a name for an upload of this shard"):
            other.sync(**name)
    worker.sync(sent=[sent])
    with pytest.raises(Refused, match=r"400 VALIDATION: .* is not a name for an upload of this shard"):
        other.sync(files=[{**FILE, "blob": sent.name}])
    assert stored(worker.world) == [f"runs/{worker.run_id}/{sent.name}"]


def wanted(first: int, count: int, **changes: Any) -> dict[str, Any]:
    known = {"size": 1, "sha256": hashlib.sha256(b"\0").hexdigest(), **changes}
    return {"wanted": [{"name": f"files/{number}", **known} for number in range(first, first + count)]}


def reported(worker: FakeWorker) -> int:
    return len([said for said in worker.messages() if "uploads open" in said or "may upload" in said])


def test_a_run_has_a_limit_of_open_uploads(worker: FakeWorker, monkeypatch: pytest.MonkeyPatch) -> None:
    world, most = worker.world, 8
    monkeypatch.setattr("osmosis_ai.platform.queue.reports.MOST_OPEN", most)
    for first in (0, most // 2):
        worker.call("sync", wanted(first, most // 2))
    worker.call("sync", wanted(0, 5))  # these are open already
    for number in range(3):
        with pytest.raises(Refused, match="409 UPLOAD_LIMIT") as refused:
            worker.call("sync", {**wanted(most + number, 1), "environment": "changed"})
        assert refused.value.body["details"] == {"uploads": most}
    assert (open_uploads(world), worker.run.environment, reported(worker)) == (most, None, 1)
    worker.sync(sent=[worker.puts(worker.wants("files/0", b"\0"), b"\0")])
    worker.call("sync", wanted(most, 1))
    worker.finishes()
    assert open_uploads(world) == 0


def test_a_run_has_a_limit_of_uploaded_bytes(worker: FakeWorker) -> None:
    most = worker.world.services.config.run_upload_bytes
    worker.call("sync", wanted(0, 1, size=most - 100))
    for number in range(1, 4):
        with pytest.raises(Refused, match=r"409 UPLOAD_LIMIT: .*at most 1000 GB.*OSMOSIS_RUN_UPLOAD_GB"):
            worker.call("sync", wanted(number, 1, size=101))
    assert (open_uploads(worker.world), worker.run.upload_bytes, reported(worker)) == (1, most - 100, 1)
    # Announcing another size under the same name counts again.
    worker.call("sync", wanted(1, 1, size=20))
    worker.call("sync", wanted(1, 1, size=70))
    with pytest.raises(Refused, match="409 UPLOAD_LIMIT"):
        worker.call("sync", wanted(1, 1, size=30))
    worker.finishes()
    assert worker.run.status == "finished"


def test_a_range_is_no_larger_than_the_files_that_are_read_into_memory(worker: FakeWorker) -> None:
    content = bytes(5 << 20)
    sent = worker.uploads("files/x", content)
    part = {**worker.conversation(0).model_dump(mode="json", exclude={"content"}), "blob": "files/x"}
    part |= {"size": 10, "offset": 0, "length": len(content)}
    with pytest.raises(Refused, match=r"400 VALIDATION_FAILED: .*: such a file has at most 4194304 bytes"):
        worker.call("sync", {"sent": [sent.model_dump()], "files": [part]})
