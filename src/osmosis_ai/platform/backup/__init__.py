"""A backup is one file that holds everything a platform owns, as it was at one moment, whatever it did meanwhile.

The moment is that of the database's copy. Files are collected as hard links, which keep what they name however
often the platform replaces or deletes it: once before that moment, so that nothing the database refers to is gone,
and once after it, so that nothing is missing. What is too much the platform clears away by itself, and what a run's
journal has too much its next worker publishes. What was stored and deleted again between the two looks is in neither;
where the database's copy knows such a file, a later moment is taken. Neither requests nor runs are held up.
"""

from __future__ import annotations

import contextlib
import errno
import shutil
import sqlite3
import tempfile
from dataclasses import replace
from pathlib import Path

from sqlalchemy import make_url

from osmosis_ai.errors import ConflictError, NotFoundError, OsmosisError
from osmosis_ai.files import sync_directory
from osmosis_ai.platform.backup.archive import HOME, BackupReport, damaged, extract, write
from osmosis_ai.platform.backup.collection import Collection, stage_in
from osmosis_ai.platform.config import PlatformConfig

__all__ = ["BackupReport", "create_backup", "restore_backup"]

DATABASE = "platform.db"
"""The name of the database in a backup, whatever its own."""

# Files that a platform has lost are missing at every moment.
_MORE_MOMENTS = 4


def create_backup(config: PlatformConfig, target: Path, *, overwrite: bool = False) -> BackupReport:
    """Write a backup of a platform, which may be running.

    Args:
        config: which platform.
        target: the file to write, readable by its owner alone; compressed when its name ends in ``gz``.
        overwrite: whether a file that is there may be replaced.

    Raises:
        NotFoundError: there is no platform.
        ConflictError: ``target`` is there already, or another backup is being made.
        OsmosisError: the database is not SQLite, or is damaged.
        OSError: the disk is full; ``target`` is as it was before.
    """
    database = _sqlite_path(config)
    if not database.is_file():
        raise NotFoundError(
            f"there is no platform in {config.home}.", hint="set OSMOSIS_HOME to its directory"
        )
    if target.exists() and not overwrite:
        raise ConflictError(f"{target} exists already.", hint="name another file, or replace it with --force")
    with stage_in(config.home) as stage:
        collection = Collection(config.home, stage, database)
        collection.gather()
        missing = _collect_snapshot(collection, database, stage)
        for _ in range(_MORE_MOMENTS):
            if not missing or config.blobs_url:
                break
            missing = _collect_snapshot(collection, database, stage)
        # What is in a bucket is no part of the backup.
        return write(stage, target.absolute(), missing_blobs=0 if config.blobs_url else missing)


def _collect_snapshot(collection: Collection, database: Path, stage: Path) -> int:
    """Copy the database, and collect what has been stored by then; return how many files it knows that are not there."""
    (stage / DATABASE).unlink(missing_ok=True)
    _copy_database(database, stage / DATABASE)
    collection.gather()
    return _missing_blobs(stage)


def restore_backup(config: PlatformConfig, source: Path) -> BackupReport:
    """Make a platform from a backup; nothing is in its place before everything is checked.

    Args:
        config: which platform; its data directory must be empty or not there yet.
        source: a file that :func:`create_backup` wrote.

    Raises:
        ConflictError: the data directory is not empty.
        NotFoundError: there is no such file.
        OsmosisError: the file is no backup, is damaged or cut off, or is of a newer format.
        OSError: the disk is full; nothing is left behind.
    """
    database, home = _sqlite_path(config), config.home.resolve()
    if not source.is_file():
        raise NotFoundError(f"there is no file {source}.")
    occupied = home.exists() and (not home.is_dir() or any(home.iterdir()))
    if occupied or database.exists():
        raise ConflictError(
            f"{home if occupied else database} is there already; a backup is restored into an empty data directory.",
            hint="set OSMOSIS_HOME to a directory that does not exist yet",
        )
    home.parent.mkdir(parents=True, exist_ok=True)
    stage = Path(tempfile.mkdtemp(prefix=f".{home.name}.restore-", dir=home.parent))
    restored = stage / HOME
    try:
        restored.mkdir(mode=0o700)
        report = extract(source, stage)
        _check_database(restored / DATABASE)
        missing = 0 if config.blobs_url else _missing_blobs(restored)
        if database != home / DATABASE:
            database.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            shutil.move(restored / DATABASE, database)
        _move_into_home(restored, home)
    finally:
        shutil.rmtree(stage, ignore_errors=True)
    return replace(report, path=home, missing_blobs=missing)


def _sqlite_path(config: PlatformConfig) -> Path:
    url = make_url(config.database_url)
    if url.get_backend_name() != "sqlite" or not url.database:
        raise OsmosisError(
            "the platform's database is not SQLite: its own tools make its backup.",
            hint=f"`pg_dump` the database first, then copy {config.home}",
        )
    path = Path(url.database).absolute()
    return path.parent.resolve() / path.name


def _copy_database(source: Path, target: Path) -> None:
    """Copy a database that may be written to meanwhile, and check the copy."""
    with (
        contextlib.closing(sqlite3.connect(source, timeout=30)) as live,
        contextlib.closing(sqlite3.connect(target)) as copy,
    ):
        # In one step: it reads a snapshot, writers go on beside it, and none makes it begin again.
        live.backup(copy, pages=-1)
        # One file, without a log beside it.
        copy.execute("PRAGMA journal_mode=DELETE")
    target.chmod(0o600)
    _check_database(target)


def _check_database(path: Path) -> None:
    try:
        if not path.is_file():
            raise damaged("it holds no database")
        with contextlib.closing(sqlite3.connect(path)) as connection:
            (verdict,) = connection.execute("PRAGMA quick_check(1)").fetchone()
    except sqlite3.DatabaseError as error:
        verdict = str(error)
    if verdict != "ok":
        raise OsmosisError(
            f"the database is damaged: {verdict}.", code="INTERNAL", hint="restore an earlier backup"
        )


def _missing_blobs(home: Path) -> int:
    """Count the blobs that the database refers to, in whatever table, and that are not there."""
    missing = 0
    with contextlib.closing(sqlite3.connect(home / DATABASE)) as connection:
        tables = connection.execute(
            "SELECT t.name FROM sqlite_master t, pragma_table_info(t.name) c "
            "WHERE t.type = 'table' AND c.name = 'blob_key'"
        ).fetchall()
        for (table,) in tables:
            for (key,) in connection.execute(f'SELECT blob_key FROM "{table}" WHERE blob_key IS NOT NULL'):
                missing += not (home / "blobs" / "objects" / key).is_file()
    return missing


def _move_into_home(restored: Path, home: Path) -> None:
    try:
        restored.rename(home)
    except OSError as error:
        # A directory that something is mounted on cannot be replaced, only filled.
        if error.errno not in (errno.EBUSY, errno.EXDEV):
            raise
        for path in restored.iterdir():
            shutil.move(path, home / path.name)
    sync_directory(home.parent)
