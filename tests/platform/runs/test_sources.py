"""The commit of a run is packed once, for as long as it is wanted; nothing of its archive gets out of its directory."""

from __future__ import annotations

import gzip
import hashlib
import io
import shutil
import tarfile
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import select

from osmosis_ai.platform.db.tables import DbSourceArchive
from osmosis_ai.platform.gitsync.git import GitError
from osmosis_ai.platform.queue.waiting import PACKING
from osmosis_ai.platform.runs.source_archives import WANTED_FOR
from osmosis_ai.platform.services import PlatformServices
from osmosis_ai.platform.worker import source_archive
from osmosis_ai.platform.worker.source_archive import SourceArchiveError, unpack_source
from tests.platform.conftest import ManualClock
from tests.platform.evaluations import Code, submit_body, wait_until
from tests.platform.fake_worker import EVALS, FakeWorker

Export = Callable[..., Any]


class Exports:
    """The exports of the platform's mirrors: how many there were, and whether they may go on."""

    def __init__(self, services: PlatformServices, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        self.go_on = threading.Event()
        self.go_on.set()
        self._export: Export = services.mirrors.export
        monkeypatch.setattr(services.mirrors, "export", self)

    def __call__(self, *arguments: Any) -> Any:
        self.count += 1
        assert self.go_on.wait(120)
        return self._export(*arguments)


@pytest.fixture
def exports(services: PlatformServices, monkeypatch: pytest.MonkeyPatch) -> Exports:
    return Exports(services, monkeypatch)


def archives(services: PlatformServices) -> list[DbSourceArchive]:
    with services.db.session() as session:
        return list(session.scalars(select(DbSourceArchive)))


def stored(services: PlatformServices) -> list[str]:
    return sorted(services.blobs.keys("sources"))


def test_a_mirror_lost_after_the_submit(api: TestClient, services: PlatformServices, code: Code) -> None:
    EVALS.taken(api)
    (archive,) = archives(services)
    assert archive.sha256 in archive.blob_key and archive.commit_sha == code.head
    shutil.rmtree(services.mirrors.root)
    shutil.rmtree(code.path)
    given = FakeWorker.claims(services).assignment.source
    assert given is not None and (given.sha256, given.size) == (archive.sha256, archive.size)


@pytest.mark.parametrize("when", ["before the submit", "before the claim"])
@pytest.mark.parametrize("what", ["lost", "cut short"])
def test_an_archive_whose_bytes_are_gone_is_made_again(
    api: TestClient, services: PlatformServices, code: Code, when: str, what: str
) -> None:
    EVALS.taken(api)
    (archive,) = archives(services)
    lost = FakeWorker.claims(services)
    services.blobs.delete(archive.blob_key)
    if what == "cut short":
        services.blobs.put(archive.blob_key, io.BytesIO(b"cut"))
    if when == "before the submit":
        EVALS.taken(api)
    else:
        lost.releases()
    given = FakeWorker.claims(services)
    source = given.assignment.source
    assert source is not None and (source.sha256, source.size) == (archive.sha256, archive.size)
    assert hashlib.sha256(given.download(source.url)).hexdigest() == archive.sha256


def test_submits_at_once_pack_their_commit_once(
    api: TestClient, services: PlatformServices, exports: Exports, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare, prepared = services.sources.prepare, threading.Semaphore(0)

    def counted(*arguments: Any) -> Any:
        packing = prepare(*arguments)
        prepared.release()
        return packing

    monkeypatch.setattr(services.sources, "prepare", counted)
    exports.go_on.clear()
    with ThreadPoolExecutor(6) as threads:
        replies = [threads.submit(api.post, EVALS.route, json=submit_body()) for _ in range(6)]
        try:
            for _ in replies:
                assert prepared.acquire(timeout=120)
        finally:
            exports.go_on.set()
        assert [reply.result(timeout=120).status_code for reply in replies] == [200] * 6
    assert exports.count == 1
    EVALS.taken(api)
    assert exports.count == 1, "nor afterwards"


def test_a_run_waits_for_its_commit_to_be_packed_and_its_submit_does_not(
    api: TestClient, services: PlatformServices, exports: Exports, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("osmosis_ai.platform.runs.submit.submitter.PACK_WAIT_S", 0.01)
    exports.go_on.clear()
    run = api.post(EVALS.route, json=submit_body()).json()
    path = f"{EVALS.route}/{run['name']}"
    assert run["status"] == "pending"
    with ThreadPoolExecutor(1) as threads:
        claiming = threads.submit(FakeWorker.claims, services)
        try:
            wait_until(lambda: PACKING in api.get(f"{path}/logs").text)
            assert api.get(path).json()["waits"] == PACKING
            assert not claiming.done()
        finally:
            exports.go_on.set()
        assert claiming.result(timeout=120).assignment.source is not None
    assert "waits" not in api.get(path).json()


def test_a_commit_that_no_run_can_take_is_refused_in_a_sentence(
    api: TestClient, services: PlatformServices, monkeypatch: pytest.MonkeyPatch
) -> None:
    def export(*_: object) -> None:
        raise GitError("the commit has 3 GiB of files, and 2 GiB is the most a run can take.")

    monkeypatch.setattr(services.mirrors, "export", export)
    reply = api.post(EVALS.route, json=submit_body())
    assert (reply.status_code, reply.json()["code"]) == (400, "SOURCE_UNUSABLE")
    assert "2 GiB is the most" in reply.json()["error"]
    assert api.get(EVALS.route).json()["total_count"] == 0


def test_archives_go_when_no_run_that_could_be_executed_refers_to_them(
    api: TestClient, services: PlatformServices, exports: Exports, clock: ManualClock, code: Code
) -> None:
    EVALS.taken(api)
    worker = FakeWorker.claims(services)
    clock.advance(2 * WANTED_FOR.total_seconds())
    services.sources.sweep()
    assert len(archives(services)) == len(stored(services)) == 1, "a worker may ask for it"
    worker.finishes()
    services.sources.sweep()
    assert (archives(services), stored(services)) == ([], [])
    # Who goes on later has it made again, under another key.
    EVALS.taken(api)
    assert exports.count == 2 and len(stored(services)) == 1
    services.sources.sweep()
    assert len(archives(services)) == 1


def test_what_a_crash_left_of_an_archive_is_swept(services: PlatformServices, tmp_path: Path) -> None:
    (tmp_path / "left").write_bytes(b"packed")
    with (tmp_path / "left").open("rb") as file:
        services.blobs.put("sources/wsp_1/left.tar.gz", file)
    services.sources.sweep()
    assert stored(services) == []


def archive_of(path: Path, *entries: tuple[str, str, str | bytes]) -> Path:
    """Write an archive of (kind, name, content or destination)."""
    kinds = {
        "link": tarfile.SYMTYPE,
        "hard": tarfile.LNKTYPE,
        "pipe": tarfile.FIFOTYPE,
        "device": tarfile.CHRTYPE,
    }
    with tarfile.open(path, "w:gz", format=tarfile.PAX_FORMAT) as archive:
        for kind, name, content in entries:
            entry = tarfile.TarInfo(name)
            if isinstance(content, bytes):
                entry.size, entry.mode = len(content), 0o755 if kind == "program" else 0o4644
                archive.addfile(entry, io.BytesIO(content))
                continue
            entry.type, entry.linkname = kinds[kind], content
            archive.addfile(entry)
    return path


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "run" / "source"


def test_an_archive_replaces_what_was_there(tmp_path: Path, target: Path) -> None:
    target.mkdir(parents=True)
    (target / "left.txt").write_text("of an agent")
    archive = archive_of(
        tmp_path / "a.tar.gz",
        ("link", "rollouts/a/shared", "../../shared"),
        ("file", "rollouts/a/main.py", b"print()"),
        ("program", "run.sh", b"#!/bin/sh"),
        ("file", "shared/x.txt", b"x"),
    )
    unpack_source(archive, target)
    assert sorted(path.name for path in target.rglob("*") if path.is_file()) == ["main.py", "run.sh", "x.txt"]
    assert (target / "rollouts/a/shared/x.txt").read_bytes() == b"x"
    assert (target / "run.sh").stat().st_mode & 0o7777 == 0o755
    assert (target / "shared/x.txt").stat().st_mode & 0o7111 == 0


@pytest.mark.parametrize(
    "entry",
    [
        ("file", "../out.txt", b"x"),
        ("file", "/tmp/out.txt", b"x"),
        ("file", "a/../../out.txt", b"x"),
        ("file", "a//b", b"x"),
        ("link", "out", "/etc"),
        ("link", "out", "../.."),
        ("hard", "passwd", "/etc/passwd"),
        ("pipe", "pipe", ""),
        ("device", "null", ""),
    ],
)
def test_a_hostile_entry_is_refused(
    tmp_path: Path, target: Path, entry: tuple[str, str, str | bytes]
) -> None:
    target.mkdir(parents=True)
    (target / "before").touch()
    archive = archive_of(tmp_path / "a.tar.gz", ("file", "fine", b"x"), entry)
    with pytest.raises(SourceArchiveError):
        unpack_source(archive, target)
    assert [path.name for path in target.iterdir()] == ["before"]
    assert not (tmp_path / "out.txt").exists() and not (target.parent / "out.txt").exists()


def test_no_file_goes_through_a_link_and_no_path_is_there_twice(tmp_path: Path, target: Path) -> None:
    through = archive_of(tmp_path / "a.tar.gz", ("link", "d", ".."), ("file", "d/out.txt", b"x"))
    twice = archive_of(tmp_path / "b.tar.gz", ("file", "a", b"x"), ("file", "a", b"y"))
    for archive in (through, twice):
        with pytest.raises(SourceArchiveError):
            unpack_source(archive, target)
        assert not target.exists() and not (tmp_path / "run" / "out.txt").exists()


def test_no_archive_or_too_much(tmp_path: Path, target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.tar.gz").write_bytes(b"no archive")
    (tmp_path / "b.tar.gz").write_bytes(gzip.compress(b"x" * 5000)[:-20])
    monkeypatch.setattr(source_archive, "MAX_SOURCE_BYTES", 1000)
    archive_of(tmp_path / "c.tar.gz", ("file", "a", b"x" * 600), ("file", "b", b"x" * 600))
    for name in "abc":
        with pytest.raises(SourceArchiveError):
            unpack_source(tmp_path / f"{name}.tar.gz", target)
        assert not target.exists()
