"""A backup is one file that holds everything a platform owns, as it was at one moment, whatever it did meanwhile.

The moment is that of the database's copy. Files are collected as hard links, which keep what they name however
often the platform replaces or deletes it: once before that moment, so that nothing the database refers to is gone,
and once after it, so that nothing is missing. What is too much the platform clears away by itself, and what a run's
journal has too much its next worker publishes. What was stored and deleted again between the two looks is in neither;
where the database's copy knows such a file, a later moment is taken. Neither requests nor runs are held up.

The rows are in it on either engine. Files that lie in a bucket are not, unless they are asked for: a store has means
of its own, and the next backup would hold all of them again.
"""

from __future__ import annotations

import errno
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path

from osmosis_ai.errors import ConflictError, NotFoundError, OsmosisError
from osmosis_ai.files import sync_directory
from osmosis_ai.platform.backup.archive import HOME, BackupReport, extract, write
from osmosis_ai.platform.backup.collection import Collection, stage_in
from osmosis_ai.platform.backup.databases import (
    check_database,
    copy_database,
    known_blobs,
    let_it_start,
    require_empty,
    require_known_schema,
    require_platform,
    restore_rows,
    sqlite_file,
)
from osmosis_ai.platform.blobs.move_marks import stored_keys
from osmosis_ai.platform.blobs.opening import open_blob_store
from osmosis_ai.platform.blobs.store import BlobNotFound
from osmosis_ai.platform.clock import SystemClock
from osmosis_ai.platform.config import PlatformConfig

__all__ = ["BackupReport", "create_backup", "restore_backup"]

DATABASE = "platform.db"
"""The name of the database in a backup, whatever its own."""

_OBJECTS = Path("blobs", "objects")
_DEPARTURE = Path("moves", "departure")
# Files that a platform has lost are missing at every moment.
_MORE_MOMENTS = 4


def create_backup(
    config: PlatformConfig, target: Path, *, overwrite: bool = False, with_bucket: bool = False
) -> BackupReport:
    """Write a backup of a platform, which may be running.

    Args:
        config: which platform.
        target: the file to write, readable by its owner alone; compressed when its name ends in ``gz``.
        overwrite: whether a file that is there may be replaced.
        with_bucket: whether files that lie in a bucket are fetched, too.

    Raises:
        NotFoundError: there is no platform.
        ConflictError: ``target`` is there already, or another backup is being made.
        OsmosisError: ``target`` cannot be written, or the database is damaged, has another release's schema, or cannot be
            reached.
        BlobStoreError: the bucket cannot be read.
        OSError: the disk is full; ``target`` is as it was before.
    """
    require_platform(config)
    if target.is_dir():
        raise OsmosisError(f"{target} is a directory.", hint="name a file, such as osmosis.tar.gz in it")
    if target.exists() and not overwrite:
        raise ConflictError(f"{target} exists already.", hint="name another file, or replace it with --force")
    _require_a_place(target.absolute())
    counts = with_bucket or not config.blobs_url
    with stage_in(config.home) as stage:
        collection = Collection(
            config.home,
            stage,
            sqlite_file(config) or config.home / DATABASE,
            holds_blobs=not config.blobs_url,
        )
        collection.gather()
        for _ in range(_MORE_MOMENTS + 1):
            missing = _collect_snapshot(config, collection, stage, with_bucket=with_bucket)
            if not missing or not counts:
                break
        return write(stage, target.absolute(), missing_blobs=missing if counts else 0)


def _require_a_place(target: Path) -> None:
    # Tried before the platform is copied, which may take minutes.
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=target.parent).close()
    except OSError as error:
        raise OsmosisError(
            f"{target} cannot be written: {error.strerror or error}.",
            hint="name a file in a directory that you may write to",
        ) from error


def _collect_snapshot(
    config: PlatformConfig, collection: Collection, stage: Path, *, with_bucket: bool
) -> int:
    """Copy the database, and collect what has been stored by then; return how many files it knows that are not there."""
    (stage / DATABASE).unlink(missing_ok=True)
    copy_database(config, stage / DATABASE)
    collection.gather()
    if with_bucket and config.blobs_url:
        _fetch_bucket(config, stage)
    return _missing_blobs(stage)


def _fetch_bucket(config: PlatformConfig, stage: Path) -> None:
    """Put the files of a bucket where those of a data directory lie."""
    store = open_blob_store(config, SystemClock())
    for key in stored_keys(store):
        path = stage / _OBJECTS / key
        if path.exists():
            continue
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        try:
            with store.open(key) as stream, path.open("wb") as file:
                shutil.copyfileobj(stream, file)
        except BlobNotFound:
            path.unlink(missing_ok=True)


def restore_backup(config: PlatformConfig, source: Path) -> BackupReport:
    """Make a platform from a backup; nothing is in its place before everything is checked.

    Args:
        config: which platform; its data directory must be empty or not there yet, and so its database.
        source: a file that :func:`create_backup` wrote.

    Raises:
        ConflictError: the data directory or the database is not empty.
        NotFoundError: there is no such file.
        OsmosisError: the file is no backup, is damaged or cut off, or is of a newer format; it holds files, and they
            are to be in a bucket; another release wrote it; the database does not take it.
        OSError: the disk is full; nothing is left behind.
    """
    home = config.home.resolve()
    if not source.is_file():
        raise NotFoundError(f"there is no file {source}.")
    if home.exists() and (not home.is_dir() or any(home.iterdir())):
        raise ConflictError(
            f"{home} is there already; a backup is restored into an empty data directory.",
            hint="set OSMOSIS_HOME to a directory that does not exist yet",
        )
    require_empty(config)
    home.parent.mkdir(parents=True, exist_ok=True)
    stage = Path(tempfile.mkdtemp(prefix=f".{home.name}.restore-", dir=home.parent))
    restored = stage / HOME
    try:
        restored.mkdir(mode=0o700)
        report = extract(source, stage)
        check_database(restored / DATABASE)
        require_known_schema(restored / DATABASE)
        let_it_start(restored / DATABASE)
        (restored / _OBJECTS / _DEPARTURE).unlink(missing_ok=True)
        missing = 0 if config.blobs_url else _missing_blobs(restored)
        _refuse_files_beside_a_bucket(config, restored)
        _put_database(config, restored, home)
        _move_into_home(restored, home)
    finally:
        shutil.rmtree(stage, ignore_errors=True)
    return replace(report, path=home, missing_blobs=missing)


def _refuse_files_beside_a_bucket(config: PlatformConfig, restored: Path) -> None:
    if config.blobs_url and any(path.is_file() for path in (restored / _OBJECTS).rglob("*")):
        raise OsmosisError(
            "this backup holds files, and OSMOSIS_BLOBS_URL says that they lie in a bucket.",
            hint="restore it without that variable; `osmosis platform move --blobs s3://…` then brings them there",
        )


def _put_database(config: PlatformConfig, restored: Path, home: Path) -> None:
    database = sqlite_file(config)
    if database is None:
        restore_rows(restored / DATABASE, config.database_url)
        for path in restored.glob(f"{DATABASE}*"):
            path.unlink()
    elif database != home / DATABASE:
        database.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        shutil.move(restored / DATABASE, database)


def _missing_blobs(home: Path) -> int:
    """Count the blobs that the database refers to and that are not there."""
    return sum(not (home / _OBJECTS / key).is_file() for key in known_blobs(home / DATABASE))


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
