"""`osmosis platform backup` and `restore`: all of a platform, at one moment, in one file."""

from __future__ import annotations

import gzip
import io
import json
import os
import stat
import subprocess
import sys
import tarfile
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from sqlalchemy import text

from osmosis_ai.errors import ConflictError, OsmosisError
from osmosis_ai.platform import backup
from osmosis_ai.platform.accounts import bootstrap
from osmosis_ai.platform.backup import create_backup, restore_backup
from osmosis_ai.platform.backup.collection import STAGE_PREFIX, stage_in
from osmosis_ai.platform.config import PlatformConfig
from osmosis_ai.platform.db.tables import DbDataset, new_id
from osmosis_ai.platform.services import PlatformServices, build_services
from tests.cli.conftest import Cli
from tests.logins import hash_passwords_quickly
from tests.platform.databases import put_migrated_database

pytestmark = pytest.mark.integration


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PlatformConfig:
    monkeypatch.setenv("OSMOSIS_HOME", str(tmp_path / "platform"))
    hash_passwords_quickly(monkeypatch)
    return PlatformConfig(home=tmp_path / "platform")


@pytest.fixture
def platform(config: PlatformConfig) -> PlatformServices:
    """A platform with a secret, a stored file, a run under way and a mirror, open in this process."""
    put_migrated_database(config.home)
    services = build_services(config)
    first = bootstrap(services.db, services.clock)
    assert first is not None
    store(services, first.workspace_id, "multiply", b"rows")
    services.vault.seal(b"a key is made", context="secrets:1")
    journal = config.runs_dir / "run_1" / "evaluation" / "calm-fern-1" / "events.jsonl"
    journal.parent.mkdir(parents=True)
    journal.write_text('{"row_index": 0}\n')
    (journal.parents[2] / "worker.lock").touch()
    (config.git_dir / "rep_1.git" / "refs").mkdir(parents=True)
    (config.git_dir / "rep_1.git" / "refs" / "main").write_text("0" * 40)
    (config.git_dir / "rep_1.git" / "refs" / "main.lock").touch()
    (config.git_dir / "rep_1.git" / "hook").write_text("#!/bin/sh\n")
    (config.git_dir / "rep_1.git" / "hook").chmod(0o700)
    (config.git_dir / "rep_1.git" / "latest").symlink_to("refs/main")
    (config.blobs_dir / "incoming").mkdir(parents=True, exist_ok=True)
    (config.blobs_dir / "incoming" / "half").write_bytes(b"ro")
    return services


def store(services: PlatformServices, workspace_id: str, name: str, content: bytes) -> str:
    key = f"datasets/{new_id('blob')}"
    info = services.blobs.put(key, io.BytesIO(content))
    now = services.clock.now()
    with services.db.transaction() as session:
        session.add(
            DbDataset(
                id=new_id("ds"),
                workspace_id=workspace_id,
                name=name,
                extension="jsonl",
                status="uploaded",
                blob_key=key,
                sha256=info.sha256,
                file_size=info.size,
                created_at=now,
                updated_at=now,
            )
        )
    return key


def files_of(home: Path) -> dict[str, bytes | str]:
    """Return what a backup must hold: every file but the database, and what is of the moment."""
    moment = ("platform.db", "platform.lock", "platform.json", "worker.lock", "main.lock", "half")
    return {
        str(path.relative_to(home)): str(path.readlink()) if path.is_symlink() else path.read_bytes()
        for path in home.rglob("*")
        if (path.is_file() or path.is_symlink())
        and not path.name.startswith("platform.db")
        and path.name not in moment
    }


def test_what_is_restored_is_what_was_backed_up(
    cli: Cli, platform: PlatformServices, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, file = platform.config.home, tmp_path / "kept" / "platform.tar.gz"
    done = cli("platform", "backup", str(file), "--json")
    assert done.status == 0, done.err
    assert json.loads(done.out)["resource"]["missing_blobs"] == 0
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert [path.name for path in file.parent.iterdir()] == [file.name]
    assert not list(home.glob(".backup-*"))

    again = cli("platform", "backup", str(file), "--force")
    assert f"osmosis platform restore {file}" in again.out

    monkeypatch.setenv("OSMOSIS_HOME", str(tmp_path / "restored"))
    done = cli("platform", "restore", str(file))
    assert done.status == 0, done.err
    assert "osmosis platform start" in done.out
    restored = tmp_path / "restored"
    assert files_of(restored) == files_of(home)
    assert stat.S_IMODE(restored.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) & 0o077 for path in restored.rglob("*")} == {0}
    assert os.access(restored / "git" / "rep_1.git" / "hook", os.X_OK)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["kept", "platform", "restored"]
    again = build_services(PlatformConfig(home=restored))
    assert [user.email for user in again.accounts.users()] == ["admin@localhost"]
    sealed = platform.vault.seal(b"value", context="secrets:1")
    assert again.vault.open(sealed, context="secrets:1") == b"value"


def test_a_backup_of_a_busy_platform_is_of_one_moment(
    platform: PlatformServices, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Datasets come and go and are replaced all the while; whatever the copy knows, it has.

    The changes pause for the last copy that a backup tries. On a busy machine they could disturb every copy.
    """
    workspace = platform.workspaces.all()[0].id
    ended = threading.Event()
    failures: list[Exception] = []
    working, changes = threading.Event(), [threading.Lock() for _ in range(3)]
    copy, copies = backup.copy_database, 0

    def copy_without_changes_at_last(source: PlatformConfig, target: Path) -> None:
        nonlocal copies
        copies += 1
        if copies == backup._MORE_MOMENTS + 1:
            working.clear()
            for change in changes:
                with change:
                    pass  # no change is in progress any more
        copy(source, target)

    def work(number: int) -> None:
        try:
            while not ended.is_set():
                working.wait()
                with changes[number]:
                    if working.is_set():
                        replace_dataset(f"rows-{number}")
        except Exception as error:
            failures.append(error)

    def replace_dataset(name: str) -> None:
        former = store(platform, workspace, name, os.urandom(64))
        with platform.db.transaction() as session:
            session.query(DbDataset).filter_by(name=name).delete()
        platform.blobs.delete(former)

    monkeypatch.setattr(backup, "copy_database", copy_without_changes_at_last)
    workers = [threading.Thread(target=work, args=(number,)) for number in range(3)]
    for worker in workers:
        worker.start()
    try:
        for attempt in range(8):
            working.set()
            copies = 0
            report = create_backup(platform.config, tmp_path / f"{attempt}.tar")
            assert report.missing_blobs == 0
            restored = PlatformConfig(home=tmp_path / f"restored-{attempt}")
            assert restore_backup(restored, report.path).missing_blobs == 0
    finally:
        ended.set()
        working.set()
        for worker in workers:
            worker.join()
    assert failures == []


def test_what_came_and_went_between_two_looks_takes_another_moment(
    platform: PlatformServices, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workspace = platform.workspaces.all()[0].id
    copy, copies = backup.copy_database, []

    def copy_a_database_that_changes(source: PlatformConfig, target: Path) -> None:
        copies.append(target)
        first = len(copies) == 1
        key = store(platform, workspace, "fleeting", os.urandom(64)) if first else ""
        copy(source, target)
        if first:
            with platform.db.transaction() as session:
                session.query(DbDataset).filter_by(name="fleeting").delete()
            platform.blobs.delete(key)

    monkeypatch.setattr(backup, "copy_database", copy_a_database_that_changes)
    report = create_backup(platform.config, tmp_path / "backup.tar")
    assert (report.missing_blobs, len(copies)) == (0, 2)
    assert restore_backup(PlatformConfig(home=tmp_path / "restored"), report.path).missing_blobs == 0


def test_a_journal_that_grows_meanwhile_is_a_journal(platform: PlatformServices, tmp_path: Path) -> None:
    journal = next(platform.config.runs_dir.rglob("events.jsonl"))
    ended = threading.Event()

    def append() -> None:
        with journal.open("ab", buffering=0) as stream:
            while not ended.is_set():
                stream.write(b'{"row_index": 1}\n')

    worker = threading.Thread(target=append)
    worker.start()
    try:
        report = create_backup(platform.config, tmp_path / "backup.tar")
    finally:
        ended.set()
        worker.join()
    restored = PlatformConfig(home=tmp_path / "restored")
    restore_backup(restored, report.path)
    copied = next(restored.runs_dir.rglob("events.jsonl")).read_bytes()
    assert copied and journal.read_bytes().startswith(copied)


def cut_off(content: bytes) -> bytes:
    return content[: len(content) // 2]


def without_its_end(content: bytes) -> bytes:
    kept = io.BytesIO()
    with tarfile.open(fileobj=io.BytesIO(content)) as old, tarfile.open(fileobj=kept, mode="w") as new:
        for entry in old.getmembers()[:-1]:
            new.addfile(entry, old.extractfile(entry) if entry.isreg() else None)
    return kept.getvalue()


def altered(content: bytes) -> bytes:
    assert b"admin@localhost" in content
    return content.replace(b"admin@localhost", b"evilx@localhost")


def leading_out(content: bytes) -> bytes:
    kept = io.BytesIO()
    with tarfile.open(fileobj=io.BytesIO(content)) as old, tarfile.open(fileobj=kept, mode="w") as new:
        for entry in old.getmembers():
            if entry.name == "seal.json":
                stray = tarfile.TarInfo("home/../../stray")
                new.addfile(stray)
            new.addfile(entry, old.extractfile(entry) if entry.isreg() else None)
    return kept.getvalue()


@pytest.mark.parametrize("harm", [cut_off, without_its_end, altered, leading_out])
def test_nothing_of_a_damaged_backup_is_restored(
    platform: PlatformServices, tmp_path: Path, harm: Callable[[bytes], bytes]
) -> None:
    file = create_backup(platform.config, tmp_path / "backup.tar").path
    file.write_bytes(harm(file.read_bytes()))
    with pytest.raises(OsmosisError, match="damaged"):
        restore_backup(PlatformConfig(home=tmp_path / "restored"), file)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["backup.tar", "platform"]


def test_a_backup_with_another_schema_is_refused(
    cli: Cli, platform: PlatformServices, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with platform.db.transaction() as session:
        session.execute(text("UPDATE alembic_version SET version_num = '0024'"))
    file = create_backup(platform.config, tmp_path / "backup.tar").path
    monkeypatch.setenv("OSMOSIS_HOME", str(tmp_path / "restored"))
    done = cli("platform", "restore", str(file))
    assert done.status == 1 and "The schema of the backup is unknown: revision 0024" in done.err
    assert not (tmp_path / "restored").exists()


def test_a_damaged_compressed_backup_is_refused(platform: PlatformServices, tmp_path: Path) -> None:
    file = create_backup(platform.config, tmp_path / "backup.tgz").path
    whole = file.read_bytes()
    for content in (whole[: len(whole) // 2], whole[:400] + b"?" * 400 + whole[800:]):
        file.write_bytes(content)
        with pytest.raises(OsmosisError, match="damaged"):
            restore_backup(PlatformConfig(home=tmp_path / "restored"), file)


def test_another_file_is_no_backup(cli: Cli, config: PlatformConfig, tmp_path: Path) -> None:
    stray = tmp_path / "notes.tar.gz"
    with tarfile.open(stray, "w:gz") as archive:
        archive.addfile(tarfile.TarInfo("notes"))
    done = cli("platform", "restore", str(stray))
    assert done.status == 1 and "not a backup" in done.err
    stray.write_bytes(gzip.compress(b"text"))
    assert cli("platform", "restore", str(stray)).status == 1
    assert cli("platform", "restore", str(tmp_path / "nowhere")).status == 1
    assert not config.home.exists()


def test_nothing_is_replaced_unasked(cli: Cli, platform: PlatformServices, tmp_path: Path) -> None:
    file = tmp_path / "backup.tar"
    file.write_text("mine")
    done = cli("platform", "backup", str(file))
    assert (done.status, file.read_text()) == (1, "mine") and "--force" in done.err
    assert cli("platform", "backup", str(file), "--force").status == 0
    before = files_of(platform.config.home)
    done = cli("platform", "restore", str(file))
    assert done.status == 1 and "empty data directory" in done.err
    assert files_of(platform.config.home) == before


@pytest.mark.parametrize("options", [(), ("--force",)])
def test_a_place_that_takes_no_file_is_refused_before_anything_is_copied(
    cli: Cli, platform: PlatformServices, tmp_path: Path, options: tuple[str, ...]
) -> None:
    (tmp_path / "file").write_text("mine")
    for place, said in (
        (tmp_path, "is a directory."),
        (tmp_path / "file" / "backup.tar", "cannot be written: "),
        (Path("/proc/nowhere/backup.tar"), "cannot be written: "),
    ):
        done = cli("platform", "backup", str(place), *options, "--json")
        error = json.loads(done.err)["error"]
        assert (done.status, error["code"]) == (1, "VALIDATION") and said in error["message"]
        assert error["hint"].startswith("name a file")


def test_what_is_lost_already_is_told(cli: Cli, platform: PlatformServices, tmp_path: Path) -> None:
    for path in (platform.config.blobs_dir / "objects").rglob("*"):
        if path.is_file():
            path.unlink()
    done = cli("platform", "backup", str(tmp_path / "backup.tar"))
    assert done.status == 0 and "Files of the database are missing from" in done.err


def test_there_must_be_a_platform(cli: Cli, config: PlatformConfig, tmp_path: Path) -> None:
    done = cli("platform", "backup", str(tmp_path / "backup.tar"), "--json")
    assert json.loads(done.err)["error"]["code"] == "NOT_FOUND"
    assert list(tmp_path.iterdir()) == []


def test_backups_are_made_one_at_a_time(platform: PlatformServices, tmp_path: Path) -> None:
    with stage_in(platform.config.home, STAGE_PREFIX), pytest.raises(ConflictError, match="another backup"):
        create_backup(platform.config, tmp_path / "backup.tar")


def test_a_database_elsewhere_is_found_and_put_there(platform: PlatformServices, tmp_path: Path) -> None:
    elsewhere = PlatformConfig(home=tmp_path / "other", database_url=f"sqlite:///{tmp_path}/db/osmosis.db")
    services = build_services(elsewhere)
    bootstrap(services.db, services.clock)
    file = create_backup(elsewhere, tmp_path / "backup.tar").path
    target = PlatformConfig(home=tmp_path / "restored", database_url=f"sqlite:///{tmp_path}/new/osmosis.db")
    restore_backup(target, file)
    assert not (target.home / "platform.db").exists()
    assert build_services(target).accounts.users()


@pytest.mark.skipif(sys.platform == "darwin", reason="limits the size of files as Linux does")
def test_a_full_disk_leaves_the_former_backup(platform: PlatformServices, tmp_path: Path) -> None:
    file = tmp_path / "backup.tar"
    create_backup(platform.config, file)
    before = file.read_bytes()
    store(platform, platform.workspaces.all()[0].id, "large", os.urandom(1 << 20))
    done = subprocess.run(
        [
            *("bash", "-c", 'ulimit -f 512; trap "" XFSZ; exec "$@"', "-"),
            *(sys.executable, "-m", "osmosis_ai", "platform", "backup", str(file), "--force"),
        ],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 1, done.stderr
    assert "Traceback" not in done.stderr
    assert file.read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["backup.tar", "platform"]
    assert not list(platform.config.home.glob(".backup-*"))
