"""The commit of a run is packed once, for as long as it is wanted; nothing of its archive gets out of its directory."""

from __future__ import annotations

import gzip
import hashlib
import io
import tarfile
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, BinaryIO

import pytest
from fastapi.testclient import TestClient

from osmosis_ai.platform.gitsync.git import GitError
from osmosis_ai.platform.worker.work import SourceArchiveError, unpack_source
from tests.platform.conftest import ManualClock, World
from tests.platform.evaluations import Code, submit_body, wait_until
from tests.platform.fake_worker import EVALS, FakeWorker


class Exports:
    """Counts the exports of the platform's mirrors, and delays them while ``may_continue`` is clear."""

    def __init__(self, world: World) -> None:
        self.count = 0
        self.may_continue = threading.Event()
        self.may_continue.set()
        self._export = world.services.mirrors.archive

    def __call__(self, *arguments: Any) -> Any:
        self.count += 1
        assert self.may_continue.wait(120)
        return self._export(*arguments)


@pytest.fixture
def exports(world: World, monkeypatch: pytest.MonkeyPatch) -> Exports:
    counting = Exports(world)
    monkeypatch.setattr(world.services.mirrors, "archive", counting)
    return counting


PACKING = "its code is being packed for workers."


@pytest.mark.parametrize("when", ["before the submit", "before the claim"])
@pytest.mark.parametrize("what", ["lost", "cut short"])
def test_lost_archive_is_packed_again(
    api: TestClient, world: World, code: Code, when: str, what: str
) -> None:
    EVALS.taken(api)
    (key,) = world.stored("sources")
    lost = FakeWorker.claims(world)
    before = lost.assignment.source
    world.services.blobs.delete(key)
    if what == "cut short":
        world.store(key, b"cut")
    if when == "before the submit":
        EVALS.taken(api)
    else:
        lost.releases()
    given = FakeWorker.claims(world)
    source = given.assignment.source
    assert source is not None and before is not None
    assert (source.sha256, source.size) == (before.sha256, before.size)
    assert hashlib.sha256(given.download(source.url)).hexdigest() == before.sha256


def test_concurrent_submits_pack_their_commit_once(
    api: TestClient, world: World, exports: Exports, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare, prepared = world.services.sources.prepare, threading.Barrier(7)

    def wait_for_all(*arguments: Any) -> Any:
        packing = prepare(*arguments)
        prepared.wait(120)
        return packing

    with monkeypatch.context() as patched, ThreadPoolExecutor(6) as threads:
        patched.setattr(world.services.sources, "prepare", wait_for_all)
        exports.may_continue.clear()
        replies = [threads.submit(api.post, EVALS.route, json=submit_body()) for _ in range(6)]
        prepared.wait(120)
        exports.may_continue.set()
        assert [reply.result(timeout=120).status_code for reply in replies] == [200] * 6
    assert exports.count == 1
    EVALS.taken(api)
    assert exports.count == 1, "nor afterwards"


def test_a_submit_does_not_wait_for_packing(
    api: TestClient, world: World, exports: Exports, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("osmosis_ai.platform.runs.submitter.PACK_WAIT_S", 0.01)
    exports.may_continue.clear()
    run = api.post(EVALS.route, json=submit_body()).json()
    path = f"{EVALS.route}/{run['name']}"
    assert run["status"] == "pending"
    with ThreadPoolExecutor(1) as threads:
        claiming = threads.submit(FakeWorker.claims, world)
        try:
            wait_until(lambda: PACKING in api.get(f"{path}/logs").text)
            assert api.get(path).json()["waits"] == PACKING
            assert not claiming.done()
        finally:
            exports.may_continue.set()
        assert claiming.result(timeout=120).assignment.source is not None
    assert "waits" not in api.get(path).json()


def test_unusable_commit(api: TestClient, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def export(*_: object) -> None:
        raise GitError("the commit has 3 GiB of files, and 2 GiB is the most a run can take.")

    monkeypatch.setattr(world.services.mirrors, "archive", export)
    reply = api.post(EVALS.route, json=submit_body())
    assert (reply.status_code, reply.json()["code"]) == (400, "SOURCE_UNUSABLE")
    assert "2 GiB is the most" in reply.json()["error"]
    assert api.get(EVALS.route).json()["total_count"] == 0


def test_sweep(
    api: TestClient, world: World, exports: Exports, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    put = world.services.blobs.put

    def put_and_sweep(key: str, stream: BinaryIO) -> Any:
        info = put(key, stream)
        world.services.sources.sweep()
        return info

    with monkeypatch.context() as patched:
        patched.setattr(world.services.blobs, "put", put_and_sweep)
        EVALS.taken(api)
    put("sources/wsp_1/left-by-a-crash.tar.gz", io.BytesIO(b"packed"))
    worker = FakeWorker.claims(world)
    clock.advance(2 * 3600)
    world.services.sources.sweep()
    assert len(world.stored("sources")) == 1, "a worker may ask for it"
    worker.finishes()
    world.services.sources.sweep()
    assert world.stored("sources") == []
    # A later run has it packed again, under another key.
    EVALS.taken(api)
    assert exports.count == 2 and len(world.stored("sources")) == 1
    world.services.sources.sweep()
    assert len(world.stored("sources")) == 1


def archive_of(path: Path, *entries: tuple[str, bytes | str, str]) -> Path:
    """Write an archive of (name, content or link's destination, kind)."""
    kinds = {
        "link": tarfile.SYMTYPE,
        "hard": tarfile.LNKTYPE,
        "pipe": tarfile.FIFOTYPE,
        "device": tarfile.CHRTYPE,
    }
    with tarfile.open(path, "w:gz", format=tarfile.PAX_FORMAT) as archive:
        for name, content, kind in entries:
            entry = tarfile.TarInfo(name)
            if isinstance(content, str):
                entry.type, entry.linkname = kinds[kind], content
                archive.addfile(entry)
            else:
                entry.size, entry.mode = len(content), 0o755 if kind == "program" else 0o4644
                archive.addfile(entry, io.BytesIO(content))
    return path


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "run" / "source"


def test_unpack_replaces_the_directory(tmp_path: Path, target: Path) -> None:
    target.mkdir(parents=True)
    (target / "left.txt").write_text("of an agent")
    archive = archive_of(
        tmp_path / "a.tar.gz",
        ("rollouts/a/shared", "../../shared", "link"),
        ("rollouts/a/main.py", b"print()", "file"),
        ("run.sh", b"#!/bin/sh", "program"),
        ("shared/x.txt", b"x", "file"),
    )
    unpack_source(archive, target)
    assert sorted(path.name for path in target.rglob("*") if path.is_file()) == ["main.py", "run.sh", "x.txt"]
    assert (target / "rollouts/a/shared/x.txt").read_bytes() == b"x"
    assert (target / "run.sh").stat().st_mode & 0o7777 == 0o755
    assert (target / "shared/x.txt").stat().st_mode & 0o7111 == 0


OUTSIDE = [
    [("../out.txt", b"x", "file")],
    [("/tmp/out.txt", b"x", "file")],
    [("a/../../out.txt", b"x", "file")],
    [("a//b", b"x", "file")],
    [("out", "/etc", "link")],
    [("out", "../..", "link")],
    [("passwd", "/etc/passwd", "hard")],
    [("pipe", "", "pipe")],
    [("null", "", "device")],
    [("d", "..", "link"), ("d/out.txt", b"x", "file")],
    [("fine", b"y", "file")],
]


@pytest.mark.parametrize("entries", OUTSIDE)
def test_hostile_archives(tmp_path: Path, target: Path, entries: list[tuple[str, bytes | str, str]]) -> None:
    target.mkdir(parents=True)
    (target / "before").touch()
    archive = archive_of(tmp_path / "a.tar.gz", ("fine", b"x", "file"), *entries)
    with pytest.raises(SourceArchiveError):
        unpack_source(archive, target)
    assert [path.name for path in target.iterdir()] == ["before"]
    assert not list(tmp_path.rglob("out.txt"))


def test_damaged_and_large_archives(tmp_path: Path, target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.tar.gz").write_bytes(b"no archive")
    (tmp_path / "b.tar.gz").write_bytes(gzip.compress(b"x" * 5000)[:-20])
    monkeypatch.setattr("osmosis_ai.platform.worker.work.MAX_SOURCE_BYTES", 1000)
    archive_of(tmp_path / "c.tar.gz", ("a", b"x" * 600, "file"), ("b", b"x" * 600, "file"))
    for name in "abc":
        with pytest.raises(SourceArchiveError):
            unpack_source(tmp_path / f"{name}.tar.gz", target)
        assert not target.exists()
