"""Backups restored into another database and another store: every row, every file, whatever interrupts it."""

from __future__ import annotations

import io
import json
import signal
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from osmosis_ai.platform.blobs.opening import open_blob_store
from osmosis_ai.platform.clock import SystemClock
from osmosis_ai.platform.config import PlatformConfig
from osmosis_ai.platform.db.engine import Database, opened_database
from osmosis_ai.platform.db.tables import Base, DbLogLine, DbWorkspace
from tests.cli.conftest import Cli
from tests.platform.databases import postgres_database, put_migrated_database
from tests.platform.s3_server import CREDENTIALS, new_bucket

pytestmark = pytest.mark.integration
ROWS = 3
MOMENT = datetime(2026, 3, 29, 1, 30, 15, 250_000, tzinfo=timezone.utc)
# Users and a database may order these differently than their bytes.
NAMES = ("Zebra", "äpfel", "apple", "_x", "a-b", "aB", "a b", "nul\0")
Rows = dict[str, list[tuple[Any, ...]]]


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


def all_rows(config: PlatformConfig) -> Rows:
    with opened_database(config.database_url) as database, database.session() as session:
        return {
            table.name: sorted(
                (tuple(row) for row in session.execute(sa.select(table))),
                key=lambda row: [str(it) for it in row[:3]],
            )
            for table in Base.metadata.sorted_tables
        }


def all_files(config: PlatformConfig) -> dict[str, bytes]:
    store = open_blob_store(config, SystemClock())
    found = {}
    for key in store.keys(""):
        with store.open(key) as stream:
            found[key] = stream.read()
    return found


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PlatformConfig:
    """A platform on SQLite and this disk, with rows in every table and all the files that they name."""
    home = tmp_path / "platform"
    put_migrated_database(home, fill)
    (home / "keys").mkdir()
    (home / "keys" / "secrets.json").write_text("{}")
    config = PlatformConfig(home=home)
    store = open_blob_store(config, SystemClock())
    for table in Base.metadata.sorted_tables:
        if "blob_key" in table.columns:
            for row in range(ROWS):
                store.put(f"{table.name}/{row}", io.BytesIO(f"{table.name} {row}".encode()))
    monkeypatch.setenv("OSMOSIS_HOME", str(home))
    for name, secret in CREDENTIALS.items():
        monkeypatch.setenv(name, secret)
    return config


@pytest.fixture
def file(cli: Cli, config: PlatformConfig, tmp_path: Path) -> Path:
    """A backup of that platform."""
    path = tmp_path / "backup.tar.gz"
    done = cli("platform", "backup", str(path), "--json")
    assert done.status == 0, done.err
    assert json.loads(done.out)["resource"]["missing_blobs"] == 0
    return path


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[PlatformConfig]:
    """The settings of an empty platform on PostgreSQL and a bucket, the database's URL in the file `url`."""
    with postgres_database() as url:
        (tmp_path / "url").write_text(f"{url}\n")
        yield PlatformConfig(home=tmp_path / "elsewhere", database_url=url, blobs_url=new_bucket())


def use(monkeypatch: pytest.MonkeyPatch, config: PlatformConfig) -> None:
    """Name the data directory and the bucket of a platform in the environment."""
    monkeypatch.setenv("OSMOSIS_HOME", str(config.home))
    monkeypatch.setenv("OSMOSIS_BLOBS_URL", config.blobs_url)


def test_a_platform_moves_to_postgresql_and_a_bucket_and_back(
    cli: Cli,
    config: PlatformConfig,
    file: Path,
    elsewhere: PlatformConfig,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before, files = all_rows(config), all_files(config)
    assert all(len(rows) >= ROWS for rows in before.values()) and len(files) >= ROWS
    use(monkeypatch, elsewhere)
    done = cli("platform", "restore", str(file), "--database-file", str(tmp_path / "url"))
    assert done.status == 0 and "warning" not in done.err, done.err
    assert f'OSMOSIS_DATABASE_URL="$(cat {tmp_path / "url"})" osmosis platform start' in done.out
    # PostgreSQL has no text with the character NUL.
    workspaces = [
        tuple(it.replace("\0", "\ufffd") if isinstance(it, str) else it for it in row)
        for row in before["workspaces"]
    ]
    expected = {**before, "workspaces": workspaces}
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

    monkeypatch.setenv("OSMOSIS_DATABASE_URL", elsewhere.database_url)
    back = tmp_path / "back.tar"
    lean = cli("platform", "backup", str(tmp_path / "lean.tar"), "--json")
    full = cli("platform", "backup", str(back), "--with-bucket", "--json")
    sizes = [json.loads(done.out)["resource"]["files"] for done in (lean, full)]
    assert sizes[1] - sizes[0] == len(files)
    monkeypatch.delenv("OSMOSIS_DATABASE_URL")
    again = PlatformConfig(home=tmp_path / "again")
    use(monkeypatch, again)
    done = cli("platform", "restore", str(back), "--json")
    assert (done.status, json.loads(done.out)["resource"]["missing_blobs"]) == (0, 0), done.err
    assert all_rows(again) == expected
    assert all_files(again) == files

    # Without its files, a backup is restored next to the bucket that has them.
    other = PlatformConfig(
        home=tmp_path / "other",
        database_url=f"sqlite:///{tmp_path}/db/rows.db",
        blobs_url=elsewhere.blobs_url,
    )
    use(monkeypatch, other)
    monkeypatch.setenv("OSMOSIS_DATABASE_URL", other.database_url)
    assert cli("platform", "restore", str(tmp_path / "lean.tar")).status == 0
    assert all_rows(other) == expected
    assert (tmp_path / "db" / "rows.db").stat().st_mode & 0o077 == 0
    assert not (other.home / "platform.db").exists()


KILLED = """
import os, sys
from osmosis_ai.cli.main import main
from osmosis_ai.platform.backup import restore, rows, stores
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
        restore.check_database = end
    case "files":
        S3BlobStore.put = put_some
    case "rows":
        rows._set_sequences = end
    case "committed":
        restore.sync_directory = lambda path: None if path.name != "elsewhere" else end()
        from pathlib import Path
        unlink = Path.unlink
        Path.unlink = lambda path, **k: end() if path.name == "restoring.json" else unlink(path, **k)
main()
"""


@pytest.mark.parametrize(
    "moment",
    [*(pytest.param(it, marks=pytest.mark.nightly) for it in ("unpacked", "files", "rows")), "committed"],
)
def test_a_restore_that_was_killed_leaves_nothing_usable_and_is_repeated(
    cli: Cli,
    config: PlatformConfig,
    file: Path,
    elsewhere: PlatformConfig,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    moment: str,
) -> None:
    use(monkeypatch, elsewhere)
    monkeypatch.setenv("OSMOSIS_DATABASE_URL", elsewhere.database_url)
    killed = subprocess.run(
        [sys.executable, "-c", KILLED, moment, "platform", "restore", str(file)],
        capture_output=True,
        text=True,
    )
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
    assert {name: len(rows) for name, rows in all_rows(elsewhere).items()} == {
        name: len(rows) for name, rows in all_rows(config).items()
    }
    assert all_files(elsewhere) == all_files(config)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "backup.tar.gz",
        "elsewhere",
        "platform",
        "url",
    ]
    assert [path.name for path in elsewhere.home.iterdir()] == ["keys"]


def test_nothing_is_restored_into_what_is_not_empty(
    cli: Cli, file: Path, elsewhere: PlatformConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(monkeypatch, elsewhere)
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
    refused("is there already")
    assert [path.name for path in elsewhere.home.iterdir()] == ["theirs"]


def altered(file: Path, change: Callable[[str, bytes], bytes]) -> Path:
    """Write the unpacked files of a backup as they are changed, without a new digest."""
    other = file.with_name("altered.tar")
    with tarfile.open(file) as old, tarfile.open(other, "w") as new:
        for entry in old.getmembers():
            content = old.extractfile(entry)
            data = change(entry.name, content.read()) if content is not None else b""
            entry.size = len(data)
            new.addfile(entry, io.BytesIO(data))
    return other


def test_a_backup_of_a_newer_release_is_refused(
    cli: Cli, config: PlatformConfig, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OSMOSIS_HOME", str(tmp_path / "restored"))
    later = altered(
        file,
        lambda name, data: data.replace(b'"format": 1', b'"format": 9') if name == "backup.json" else data,
    )
    refused = cli("platform", "restore", str(later))
    assert refused.status == 1 and "in a format this release does not know" in " ".join(refused.err.split())
    with opened_database(config.database_url) as database, database.transaction() as session:
        session.execute(sa.text("UPDATE alembic_version SET version_num = '9999'"))
    monkeypatch.setenv("OSMOSIS_HOME", str(config.home))
    assert cli("platform", "backup", str(tmp_path / "newer.tar")).status == 0
    monkeypatch.setenv("OSMOSIS_HOME", str(tmp_path / "restored"))
    refused = cli("platform", "restore", str(tmp_path / "newer.tar"))
    assert refused.status == 1 and "unknown: revision 9999" in refused.err
    assert not (tmp_path / "restored").exists()


def test_a_database_of_another_release_on_a_server_is_not_backed_up(
    cli: Cli, file: Path, elsewhere: PlatformConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(monkeypatch, elsewhere)
    monkeypatch.setenv("OSMOSIS_DATABASE_URL", elsewhere.database_url)
    assert cli("platform", "restore", str(file)).status == 0
    for step in ("0000", "9999"):
        with opened_database(elsewhere.database_url) as database, database.transaction() as session:
            session.execute(sa.text("UPDATE alembic_version SET version_num = :step"), {"step": step})
        refused = cli("platform", "backup", str(tmp_path / "other.tar"))
        assert refused.status == 1 and f"unknown: revision {step}" in refused.err


def test_a_row_that_does_not_fit_is_named_and_nothing_of_it_is_shown(
    cli: Cli,
    config: PlatformConfig,
    elsewhere: PlatformConfig,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with opened_database(config.database_url) as database, database.transaction() as session:
        session.execute(sa.update(DbWorkspace).where(DbWorkspace.name == "apple").values(name="canary" * 100))
    assert cli("platform", "backup", str(tmp_path / "long.tar")).status == 0
    use(monkeypatch, elsewhere)
    monkeypatch.setenv("OSMOSIS_DATABASE_URL", elsewhere.database_url)
    refused = cli("platform", "restore", str(tmp_path / "long.tar"))
    assert refused.status == 1 and "a row of table 'workspaces' between " in refused.err
    assert "canary" not in refused.err
    assert set(map(len, all_rows(elsewhere).values())) == {0}


def test_the_url_of_a_database_comes_from_a_file_and_is_never_shown(
    cli: Cli, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OSMOSIS_HOME", str(tmp_path / "restored"))
    given = tmp_path / "url"
    for text, said in (
        ("postgresql://u:canary-4711@127.0.0.1:1/x", "does not answer"),
        ("postgresql://u@127.0.0.1:1/x?password=canary-4711", "does not answer"),
        ("postgresql://u:p@127.0.0.1:canary-4711/x", "is no database URL"),
        ("canary-4711", "is no database URL"),
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
