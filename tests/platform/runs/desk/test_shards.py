"""Conversations come in small shards, which are put together: each is read whole all the while, whoever is killed."""

from __future__ import annotations

import secrets
from hashlib import sha256
from io import BytesIO
from pathlib import Path
from typing import Any, NoReturn

import pytest
from fastapi.testclient import TestClient

from osmosis_ai.platform.blobs.shards import ShardWriter
from tests.platform.conftest import ManualClock
from tests.platform.platform_parts import PlatformServices
from tests.platform.runs.desk.desk_workers import RUNS, DeskWorker, submitted

SHARDS = 64
DAY_S = 24 * 3600


class Killed(BaseException):
    """The process ends here."""


class Conversations:
    """A run whose worker has sent as many shards as are put together at a time."""

    def __init__(self, api: TestClient, services: PlatformServices, scratch: Path) -> None:
        self.api, self.services, self._scratch = api, services, scratch
        submitted(api)
        self.worker = DeskWorker.claims(services)
        self.contents: dict[str, bytes] = {}
        self.send(SHARDS)

    def send(self, count: int) -> None:
        packed: dict[str, bytes] = {}
        files = []
        for _ in range(count):
            name, writer = f"shards/{secrets.token_hex(16)}", ShardWriter(self._scratch)
            path = f"trajectories/row_{len(self.contents)}_run_0.json"
            self.contents[path] = f"{path} {secrets.token_hex(100)}".encode()
            piece = writer.add(self.contents[path])
            place = {"blob": name, "shard_offset": piece.offset, "shard_length": piece.length}
            files.append({"path": path, "kind": "trajectories", "size": piece.size, **place})
            packed[name] = writer.content().read()
            writer.close()
        wanted = [
            {"name": name, "size": len(content), "sha256": sha256(content).hexdigest()}
            for name, content in packed.items()
        ]
        grants = self.worker.sync(wanted=wanted).uploads
        self.worker.sync(sent=[self.worker.puts(grant, packed[grant.name]) for grant in grants], files=files)

    def urls(self) -> dict[str, str]:
        asked = {"items": [{"path": path} for path in self.contents]}
        reply = self.api.post(f"{RUNS}/{self.worker.run_id}/samples/download-urls", json=asked)
        return {item["path"]: item["url"] for item in reply.json()["items"]}

    def read(self, urls: dict[str, str] | None = None) -> dict[str, bytes]:
        found = (self.urls() if urls is None else urls).items()
        return {path: self.api.get(url, headers={"Authorization": ""}).content for path, url in found}

    def manifest(self) -> Any:
        asked = {"types": "trajectories"}
        return self.api.get(f"{RUNS}/{self.worker.run_id}/samples/manifest", params=asked).json()["files"]

    def shards(self) -> list[str]:
        return [key for key in self.services.blobs.keys(f"runs/{self.worker.run_id}") if "/source" not in key]

    def merge(self) -> None:
        self.services.shard_merging.merge_due()
        self.services.shard_merging.tidy()


@pytest.fixture
def run(api: TestClient, services: PlatformServices, tmp_path: Path) -> Conversations:
    return Conversations(api, services, tmp_path)


@pytest.mark.parametrize("killed_at", [None, "read", "put", "delete"])
def test_a_conversation_is_read_whole_before_while_and_after_its_shards_are_put_together(
    run: Conversations, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, killed_at: str | None
) -> None:
    def killed(*_: Any) -> NoReturn:
        raise Killed

    before, listed = run.urls(), run.manifest()
    if killed_at in ("read", "put"):
        with monkeypatch.context() as patch:
            patch.setattr(run.services.blobs, killed_at, killed)
            with pytest.raises(Killed):
                run.merge()
        assert run.read() == run.contents
    run.merge()
    assert run.read(before) == run.contents, "a download that is under way continues"
    assert run.read() == run.contents and run.manifest() == listed
    clock.advance(14 * 60)  # the time of the URLs is not over
    run.merge()
    assert run.read(before) == run.contents
    run.send(3)
    run.worker.ends()
    assert run.read() == run.contents
    if killed_at == "delete":
        clock.advance(DAY_S)
        with monkeypatch.context() as patch:
            patch.setattr(run.services.blobs, killed_at, killed)
            with pytest.raises(Killed):
                run.merge()
    for _ in range(3):
        run.merge()
        clock.advance(DAY_S)
    assert run.read() == run.contents
    assert len([key for key in run.shards() if "derived" not in key]) == 1


def test_a_deleted_run_leaves_no_shard(run: Conversations, clock: ManualClock) -> None:
    run.merge()
    run.send(3)
    run.worker.ends()
    assert run.api.delete(f"{RUNS}/{run.worker.run_id}").status_code == 200
    assert run.shards() == []
    clock.advance(DAY_S)
    run.merge()
    assert run.shards() == []


@pytest.mark.parametrize("harm", ["deleted", "altered"])
def test_a_harmed_shard_costs_no_other(run: Conversations, clock: ManualClock, harm: str) -> None:
    key = next(key for key in run.shards() if "/shards/" in key)
    with run.services.blobs.open(key) as blob:
        content = blob.read()
    run.services.blobs.delete(key)
    if harm != "deleted":
        run.services.blobs.put(key, BytesIO(b"\0" + content[1:]))
    run.merge()
    run.worker.ends()
    for _ in range(3):
        run.merge()
        clock.advance(DAY_S)
    found = run.read()
    right = [path for path, content in run.contents.items() if found[path] == content]
    assert len(run.contents) - len(right) <= 1
