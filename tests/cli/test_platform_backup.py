"""`osmosis platform backup` and `restore`: all of a platform, at one moment, in one file."""

from __future__ import annotations

import gzip
import io
import json
import os
import signal
import stat
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from osmosis_ai.errors import ConflictError, OsmosisError
from osmosis_ai.platform import backup
from osmosis_ai.platform.accounts import bootstrap
from osmosis_ai.platform.backup import STAGE_PREFIX, create_backup, databases, restore_backup
from osmosis_ai.platform.backup.archive import stage_in
from osmosis_ai.platform.blobs import open_blob_store
from osmosis_ai.platform.clock import SystemClock
from osmosis_ai.platform.config import PlatformConfig
from osmosis_ai.platform.db.engine import Database, opened_database
from osmosis_ai.platform.db.tables import Base, DbDataset, DbLogLine, DbWorkspace, new_id
from osmosis_ai.platform.services import PlatformServices
from tests.cli.conftest import Cli
from tests.full_disk import files_of_at_most
from tests.logins import hash_passwords_quickly
from tests.platform.databases import postgres_database, put_migrated_database
from tests.platform.s3_server import CREDENTIALS, new_bucket

pytestmark = pytest.mark.integration


FILES = {
    "runs/run_1/evaluation/calm-fern-1/events.jsonl": '{"row_index": 0}\n',
    "runs/run_1/worker.lock": "",
    "git/rep_1.git/refs/main": "0" * 40,
    "git/rep_1.git/refs/main.lock": "",
    "git/rep_1.git/hook": "#!/bin/sh\n",
    "blobs/incoming/half": "ro",
}


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PlatformConfig:
    monkeypatch.setenv("OSMOSIS_HOME", str(tmp_path / "platform"))
    hash_passwords_quickly(monkeypatch)
    return PlatformConfig(home=tmp_path / "platform")


@pytest.fixture
def platform(config: PlatformConfig) -> PlatformServices:
    """A platform with a secret, a stored file, a run under way and a mirror, open in this process."""
    put_migrated_database(config.home)
    services = PlatformServices(config)
    first = bootstrap(services.db, services.clock)
    assert first is not None
    store(services, first.workspace_id, "multiply", b"rows")
    services.vault.seal(b"a key is made", context="secrets:1")
    for name, text in FILES.items():
        path = config.home / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (config.git_dir / "rep_1.git" / "hook").chmod(0o700)
    (config.git_dir / "rep_1.git" / "latest").symlink_to("refs/main")
    return services


def store(services: PlatformServices, workspace_id: str, name: str, content: bytes) -> str:
    key = f"datasets/{new_id('blob')}"
    info = services.blobs.put(key, io.BytesIO(content))
    about = {"name": name, "extension": "jsonl", "status": "uploaded", "file_size": info.size}
    times = dict.fromkeys(("created_at", "updated_at"), services.clock.now())
    row = DbDataset(id=new_id("ds"), workspace_id=workspace_id, blob_key=key, **about, **times)
    with services.db.transaction() as session:
        session.add(row)
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


def test_backup_and_restore(
    cli: Cli, platform: PlatformServices, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, file = platform.config.home, tmp_path / "kept" / "platform.tar.gz"
    file.parent.mkdir()
    done = cli("platform", "backup", str(file), "--json")
    assert done.status == 0, done.err
    resource = done.resource
    assert (resource["missing_blobs"], resource["size_bytes"]) == (0, file.stat().st_size)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert [path.name for path in file.parent.iterdir()] == [file.name]
    assert not list(home.glob(".backup-*"))

    again = cli("platform", "backup", str(file), "--force")
    assert f"osmosis platform restore {file}" in again.out

    monkeypatch.setenv("OSMOSIS_HOME", str(tmp_path / "restored"))
    done = cli("platform", "restore", str(file))
    assert done.status == 0, done.err
    assert "Stop the old platform first" in done.out
    assert f"OSMOSIS_HOME={tmp_path / 'restored'} osmosis platform start" in done.out
    restored = tmp_path / "restored"
    assert files_of(restored) == files_of(home)
    assert stat.S_IMODE(restored.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) & 0o077 for path in restored.rglob("*")} == {0}
    assert os.access(restored / "git" / "rep_1.git" / "hook", os.X_OK)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["kept", "platform", "restored"]
    again = PlatformServices(PlatformConfig(home=restored))
    assert [user.email for user in again.accounts.users()] == ["admin@localhost"]
    sealed = platform.vault.seal(b"value", context="secrets:1")
    assert again.vault.open(sealed, context="secrets:1") == b"value"


def test_rows_added_and_deleted_during_a_backup(
    platform: PlatformServices, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workspace = platform.workspaces.all()[0].id
    copy, copies = backup.copy_database, []

    def copy_changing_database(source: PlatformConfig, target: Path) -> None:
        copies.append(target)
        if len(copies) > 1:
            copy(source, target)
            return
        key = store(platform, workspace, "fleeting", os.urandom(64))
        copy(source, target)
        with platform.db.transaction() as session:
            session.query(DbDataset).filter_by(name="fleeting").delete()
        platform.blobs.delete(key)

    monkeypatch.setattr(backup, "copy_database", copy_changing_database)
    report = create_backup(platform.config, tmp_path / "backup.tar")
    assert (report.missing_blobs, len(copies)) == (0, 2)
    assert restore_backup(PlatformConfig(home=tmp_path / "restored"), report.path).missing_blobs == 0


Entries = list[tuple[tarfile.TarInfo, bytes]]
Edit = Callable[[Entries], Entries]


def rewrite(file: Path, edit: Edit) -> None:
    """Change the entries of a backup, and not its digest."""
    with tarfile.open(file) as old:
        entries = [(entry, old.extractfile(entry).read() if entry.isreg() else b"") for entry in old]  # type: ignore[union-attr]
    with tarfile.open(file, "w") as new:
        for entry, data in edit(entries):
            entry.size = len(data)
            new.addfile(entry, io.BytesIO(data))


def replace_bytes(old: bytes, new: bytes) -> Edit:
    return lambda entries: [(entry, data.replace(old, new)) for entry, data in entries]


STRAY = (tarfile.TarInfo("home/../../stray"), b"")
DAMAGES: dict[str, Edit | None] = {
    "truncated": None,
    "no last entry": lambda entries: entries[:-1],
    "other address": replace_bytes(b"admin@localhost", b"evilx@localhost"),
    "outside path": lambda entries: [*entries[:-1], STRAY, entries[-1]],
}


@pytest.mark.parametrize("edit", DAMAGES.values(), ids=DAMAGES)
def test_damaged_backups(platform: PlatformServices, tmp_path: Path, edit: Edit | None) -> None:
    file = create_backup(platform.config, tmp_path / "backup.tar").path
    if edit is None:
        os.truncate(file, file.stat().st_size // 2)
    else:
        rewrite(file, edit)
    with pytest.raises(OsmosisError, match="damaged"):
        restore_backup(PlatformConfig(home=tmp_path / "restored"), file)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["backup.tar", "platform"]


def test_foreign_archives(cli: Cli, config: PlatformConfig, tmp_path: Path) -> None:
    stray = tmp_path / "notes.tar.gz"
    with tarfile.open(stray, "w:gz") as archive:
        archive.addfile(tarfile.TarInfo("notes"))
    done = cli("platform", "restore", str(stray))
    assert done.status == 1 and "not a backup" in done.err
    stray.write_bytes(gzip.compress(b"text"))
    assert cli("platform", "restore", str(stray)).status == 1
    assert not config.home.exists()


def test_existing_files_and_missing_blobs(cli: Cli, platform: PlatformServices, tmp_path: Path) -> None:
    file = tmp_path / "backup.tar"
    file.write_text("mine")
    done = cli("platform", "backup", str(file))
    assert (done.status, file.read_text()) == (1, "mine") and "--force" in done.err
    assert cli("platform", "backup", str(file), "--force").status == 0
    before = files_of(platform.config.home)
    done = cli("platform", "restore", str(file))
    assert done.status == 1 and "empty data directory" in done.err
    assert files_of(platform.config.home) == before

    for path in (platform.config.blobs_dir / "objects").rglob("*"):
        if path.is_file():
            path.unlink()
    done = cli("platform", "backup", str(tmp_path / "lost.tar"))
    assert done.status == 0 and "Files of the database are missing from" in done.err


def test_invalid_backup_paths(cli: Cli, platform: PlatformServices, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    for place, said in (
        (tmp_path, "is a directory."),
        (tmp_path / "file" / "backup.tar", "cannot be written: "),
        (tmp_path / "missing" / "backup.tar", "cannot be written: "),
        (tmp_path / "backup.zip", "a backup is a tar archive."),
    ):
        done = cli("platform", "backup", str(place), "--force", "--json")
        error = json.loads(done.err)["error"]
        assert (done.status, error["code"]) == (1, "VALIDATION") and said in error["message"]
        assert error["hint"].startswith("name a file")
    assert not (tmp_path / "missing").exists()


def test_concurrent_backups(platform: PlatformServices, tmp_path: Path) -> None:
    with stage_in(platform.config.home, STAGE_PREFIX), pytest.raises(ConflictError, match="another backup"):
        create_backup(platform.config, tmp_path / "backup.tar")


def test_full_disk_keeps_the_previous_backup(cli: Cli, platform: PlatformServices, tmp_path: Path) -> None:
    file = tmp_path / "backup.tar"
    create_backup(platform.config, file)
    before = file.read_bytes()
    store(platform, platform.workspaces.all()[0].id, "large", os.urandom(2 << 20))
    with files_of_at_most(len(before) + (1 << 20)):
        done = cli("platform", "backup", str(file), "--force")
    assert done.status == 1 and "Traceback" not in done.err
    assert file.read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["backup.tar", "platform"]
    assert not list(platform.config.home.glob(".backup-*"))


ROWS = 3
MOMENT = datetime(2026, 3, 29, 1, 30, 15, 250_000, tzinfo=timezone.utc)
# Users and a database may order these differently than their bytes.
NAMES = ("Zebra", "äpfel", "apple", "_x", "a-b", "aB", "a b", "nul\0")
Rows = dict[str, list[tuple[Any, ...]]]
Use = Callable[[PlatformConfig], None]


def value(column: sa.Column[Any], row: int) -> Any:
    """Return what the ``row``-th row holds in a column; the last row holds as little as it may."""
    if column.nullable and row == ROWS - 1:
        return None
    for key in column.foreign_keys:
        return value(key.column, row)
    kind = column.type.impl if isinstance(column.type, sa.TypeDecorator) else column.type
    if column.name == "blob_key":
        return f"{column.table.name}/{row}"
    if isinstance(kind, sa.JSON):
        return {"row": row, "text": "grüezi"}
    if isinstance(kind, sa.Boolean):
        return bool(row % 2)
    if isinstance(kind, sa.DateTime):
        return MOMENT
    if isinstance(kind, sa.Integer):
        return row
    if isinstance(kind, (sa.Numeric, sa.Float)):
        return row + 0.5
    text = f"{row} {column.table.name} {column.name}"[: getattr(kind, "length", None)]
    return text.encode() if isinstance(kind, sa.LargeBinary) else text


def fill(database: Database) -> None:
    """Put rows into every table."""
    with database.transaction() as session:
        for table in Base.metadata.sorted_tables:
            rows = [{column.name: value(column, row) for column in table.columns} for row in range(ROWS)]
            session.execute(sa.insert(table), rows)
        for name in NAMES:
            session.add(DbWorkspace(id=f"ws_{name.strip(chr(0))}", name=name, created_at=MOMENT))


def all_rows(source: PlatformConfig) -> Rows:
    with opened_database(source.database_url) as database, database.session() as session:
        return {
            table.name: sorted(map(tuple, session.execute(sa.select(table))), key=str)
            for table in Base.metadata.sorted_tables
        }


def all_files(source: PlatformConfig) -> dict[str, bytes]:
    store = open_blob_store(source, SystemClock())
    return {key: store.read(key, 0, store.size(key)) for key in store.keys("")}


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PlatformConfig:
    """A platform on SQLite and this disk, with rows in every table and all the files that they name."""
    home = tmp_path / "platform"
    put_migrated_database(home, fill)
    (home / "keys").mkdir()
    (home / "keys" / "secrets.json").write_text("{}")
    source = PlatformConfig(home=home)
    store = open_blob_store(source, SystemClock())
    for table in Base.metadata.sorted_tables:
        if "blob_key" in table.columns:
            for row in range(ROWS):
                store.put(f"{table.name}/{row}", io.BytesIO(f"{table.name} {row}".encode()))
    monkeypatch.setenv("OSMOSIS_HOME", str(home))
    for name, secret in CREDENTIALS.items():
        monkeypatch.setenv(name, secret)
    return source


@pytest.fixture
def file(cli: Cli, source: PlatformConfig, tmp_path: Path) -> Path:
    """A backup of that platform."""
    path = tmp_path / "backup.tar.gz"
    done = cli("platform", "backup", str(path), "--json")
    assert done.status == 0, done.err
    assert done.resource["missing_blobs"] == 0
    return path


@pytest.fixture
def elsewhere(tmp_path: Path) -> Iterator[PlatformConfig]:
    """The settings of an empty platform on PostgreSQL and a bucket, the database's URL in the file `url`."""
    with postgres_database() as url:
        (tmp_path / "url").write_text(f"{url}\n")
        yield PlatformConfig(home=tmp_path / "elsewhere", database_url=url, blobs_url=new_bucket())


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch) -> Use:
    """Names the places of a platform in the environment."""

    def use(config: PlatformConfig) -> None:
        monkeypatch.setenv("OSMOSIS_HOME", str(config.home))
        monkeypatch.setenv("OSMOSIS_BLOBS_URL", config.blobs_url)
        monkeypatch.setenv("OSMOSIS_DATABASE_URL", config.database_url)

    return use


def test_move_to_postgresql_and_a_bucket_and_back(
    cli: Cli, source: PlatformConfig, file: Path, elsewhere: PlatformConfig, tmp_path: Path, use: Use
) -> None:
    before, files = all_rows(source), all_files(source)
    assert all(len(rows) >= ROWS for rows in before.values()) and len(files) >= ROWS
    use(PlatformConfig(home=elsewhere.home, blobs_url=elsewhere.blobs_url))
    done = cli("platform", "restore", str(file), "--database-file", str(tmp_path / "url"))
    assert done.status == 0 and "warning" not in done.err, done.err
    assert f'OSMOSIS_DATABASE_URL="$(cat {tmp_path / "url"})" osmosis platform start' in done.out
    # PostgreSQL has no text with the character NUL.
    assert any("\0" in str(row[1]) for row in before["workspaces"])
    expected = {
        name: [tuple(it.replace("\0", "\ufffd") if isinstance(it, str) else it for it in row) for row in rows]
        for name, rows in before.items()
    }
    assert all_rows(elsewhere) == expected
    assert all_files(elsewhere) == files
    left = [path.name for path in elsewhere.home.iterdir()]
    assert left == ["keys"] and (elsewhere.home / "keys" / "secrets.json").is_file()
    with opened_database(elsewhere.database_url) as database, database.transaction() as session:
        line = DbLogLine(subject_id="x", timestamp=MOMENT, level="info", step="s", message="new")
        session.add(line)
        session.flush()
        assert line.id == ROWS  # after those that came with their numbers
        session.delete(line)

    use(elsewhere)
    back = tmp_path / "back.tar"
    lean = cli("platform", "backup", str(tmp_path / "lean.tar"), "--json")
    full = cli("platform", "backup", str(back), "--with-bucket", "--json")
    sizes = [done.resource["files"] for done in (lean, full)]
    assert sizes[1] - sizes[0] == len(files)
    again = PlatformConfig(home=tmp_path / "again")
    use(again)
    done = cli("platform", "restore", str(back), "--json")
    assert (done.status, done.resource["missing_blobs"]) == (0, 0), done.err
    assert all_rows(again) == expected
    assert all_files(again) == files

    # Without its files, a backup is restored next to the bucket that has them.
    url = f"sqlite:///{tmp_path}/db/rows.db"
    other = PlatformConfig(home=tmp_path / "other", database_url=url, blobs_url=elsewhere.blobs_url)
    use(other)
    assert cli("platform", "restore", str(tmp_path / "lean.tar")).status == 0
    assert all_rows(other) == expected
    assert (tmp_path / "db" / "rows.db").stat().st_mode & 0o077 == 0
    assert not (other.home / "platform.db").exists()


KILLED = """
import os, sys
from osmosis_ai.cli.main import main
from osmosis_ai.platform import backup
from osmosis_ai.platform.backup import databases
from osmosis_ai.platform.blobs.s3 import S3BlobStore

def end(*_, **__):
    os.kill(os.getpid(), 9)

def put_some(store, key, stream, *, put=S3BlobStore.put):
    if key.startswith("checks"):
        return put(store, key, stream)
    put(store, key, stream)
    end()

match sys.argv.pop(1):
    case "unpacked":
        backup.check_database = end
    case "files":
        S3BlobStore.put = put_some
    case "rows":
        databases._set_sequences = end
    case "committed":
        backup.sync_directory = lambda path: None if path.name != "elsewhere" else end()
        from pathlib import Path
        unlink = Path.unlink
        Path.unlink = lambda path, **k: end() if path.name == "restoring.json" else unlink(path, **k)
main()
"""


@pytest.mark.parametrize(
    "moment",
    [*(pytest.param(it, marks=pytest.mark.nightly) for it in ("unpacked", "files", "rows")), "committed"],
)
def test_killed_restore(
    cli: Cli,
    source: PlatformConfig,
    file: Path,
    elsewhere: PlatformConfig,
    tmp_path: Path,
    use: Use,
    moment: str,
) -> None:
    use(elsewhere)
    command = [sys.executable, "-c", KILLED, moment, "platform", "restore", str(file)]
    killed = subprocess.run(command, capture_output=True, text=True)
    assert killed.returncode == -signal.SIGKILL, (killed.stdout, killed.stderr)
    if moment == "unpacked":
        assert not elsewhere.home.exists()
    else:
        for words in (("start",), ("user", "list"), ("backup", str(tmp_path / "half.tar"))):
            refused = cli("platform", *words)
            assert refused.status == 1
            assert f"the restore into {elsewhere.home} is not finished" in " ".join(refused.err.split())
    done = cli("platform", "restore", str(file))
    assert done.status == 0, done.err
    known, restored = all_rows(source), all_rows(elsewhere)
    assert {name: len(rows) for name, rows in restored.items()} == {
        name: len(rows) for name, rows in known.items()
    }
    assert all_files(elsewhere) == all_files(source)
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {"backup.tar.gz", "elsewhere", "platform", "url"}
    assert [path.name for path in elsewhere.home.iterdir()] == ["keys"]


def test_restore_needs_empty_targets(
    cli: Cli, file: Path, elsewhere: PlatformConfig, tmp_path: Path, use: Use
) -> None:
    use(elsewhere)
    restore = ("platform", "restore", str(file), "--json", "--database-file", str(tmp_path / "url"))

    def refused(said: str) -> None:
        done = cli(*restore)
        error = json.loads(done.err)["error"]
        assert (done.status, error["code"]) == (1, "CONFLICT") and said in error["message"]

    with opened_database(elsewhere.database_url) as database, database.transaction() as session:
        session.execute(sa.text("CREATE TABLE theirs (id int)"))
    refused("is not empty: it contains the table theirs.")
    with opened_database(elsewhere.database_url) as database, database.transaction() as session:
        session.execute(sa.text("DROP TABLE theirs"))
    store = open_blob_store(elsewhere, SystemClock())
    store.put("theirs", io.BytesIO(b"x"))
    refused("is not empty: it contains theirs.")
    store.delete("theirs")
    assert not elsewhere.home.exists()
    (tmp_path / "rows.db").write_text("theirs")
    (tmp_path / "url").write_text(f"sqlite:///{tmp_path}/rows.db")
    refused("rows.db already exists.")
    elsewhere.home.mkdir()
    (elsewhere.home / "theirs").touch()
    refused("is not an empty data directory.")
    assert [path.name for path in elsewhere.home.iterdir()] == ["theirs"]


def test_backup_of_a_newer_release(
    cli: Cli, source: PlatformConfig, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    newer = tmp_path / "newer.tar"
    with opened_database(source.database_url) as database, database.transaction() as session:
        session.execute(sa.text("UPDATE alembic_version SET version_num = '9999'"))
    assert cli("platform", "backup", str(newer)).status == 0
    rewrite(file, replace_bytes(b'"format": 1', b'"format": 9'))
    monkeypatch.setenv("OSMOSIS_HOME", str(tmp_path / "restored"))
    for path, said in ((file, "in a format this release does not know"), (newer, "unknown: revision 9999")):
        refused = cli("platform", "restore", str(path))
        assert refused.status == 1 and said in " ".join(refused.err.split())
    assert not (tmp_path / "restored").exists()


def test_row_that_does_not_fit(
    cli: Cli, source: PlatformConfig, elsewhere: PlatformConfig, tmp_path: Path, use: Use
) -> None:
    with opened_database(source.database_url) as database, database.transaction() as session:
        session.execute(sa.update(DbWorkspace).where(DbWorkspace.name == "apple").values(name="canary" * 100))
    assert cli("platform", "backup", str(tmp_path / "long.tar")).status == 0
    use(elsewhere)
    refused = cli("platform", "restore", str(tmp_path / "long.tar"))
    assert refused.status == 1 and "a row of table 'workspaces' between " in refused.err
    assert "canary" not in refused.err
    assert set(map(len, all_rows(elsewhere).values())) == {0}


def test_restore_compares_the_copied_rows(
    cli: Cli, file: Path, elsewhere: PlatformConfig, use: Use, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(elsewhere)
    insert = databases._insert

    def altered(session: Any, table: Any, rows: Any) -> None:
        is_workspaces = table is DbWorkspace.__table__
        insert(
            session, table, [row | {"name": row["name"].upper()} for row in rows] if is_workspaces else rows
        )

    with monkeypatch.context() as patch:
        patch.setattr(databases, "_insert", altered)
        refused = cli("platform", "restore", str(file))
    assert refused.status == 1 and "the copied rows differ from those of the database." in refused.err
    assert set(map(len, all_rows(elsewhere).values())) == {0}
    assert cli("platform", "restore", str(file)).status == 0


def test_database_file_option(cli: Cli, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OSMOSIS_HOME", str(tmp_path / "restored"))
    given = tmp_path / "url"
    for text, said in (
        ("postgresql://u:canary-4711@127.0.0.1:1/x", "does not answer"),
        ("postgresql://u@127.0.0.1:1/x?password=canary-4711", "does not answer"),
        ("postgresql://u:p@127.0.0.1:canary-4711/x", "is not a database URL"),
        ("canary-4711", "is not a database URL"),
        ("two canary-4711", "found 2 words"),
        ("mysql://u:canary-4711@h/x", "SQLite and PostgreSQL"),
    ):
        given.write_text(text)
        for mode in ("--json", "--plain"):
            refused = cli("platform", "restore", str(file), "--database-file", str(given), mode)
            assert refused.status == 1 and said in refused.err, refused.err
            assert "canary" not in refused.out + refused.err and "Traceback" not in refused.err
    refused = cli("platform", "restore", str(file), "--database-file", str(tmp_path / "none"))
    assert refused.status == 1 and "cannot be read" in refused.err
    assert cli("platform", "restore", str(file), "--database", "sqlite:///x.db").status == 2
    assert not (tmp_path / "restored").exists()
