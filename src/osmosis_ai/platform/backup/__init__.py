"""Back up everything a platform owns as of one moment, in one file, while the platform runs; and restore it.

The moment is that of the database copy. Files are collected as hard links, which survive replacement and deletion. They
are collected before and after that moment, so no referenced file is missing. The platform cleans
up surplus files, and the next worker publishes a run's surplus journal. A file that was stored and deleted between the
two passes is in neither; if the database copy refers to one, the copy is repeated. Requests and runs are not blocked.

Rows are included for either engine. Files in a bucket are excluded by default: a store has its own backups, and
every backup would hold them all again.

A restore goes into an empty data directory, and into the configured database and store. The whole backup is unpacked
and verified first. Then the data directory appears with a marker file, files go to the bucket and rows to the database
if they are separate, and the marker is removed last. No platform starts while the marker exists, and the same command
resumes an interrupted restore.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from osmosis_ai.errors import ConflictError, NotFoundError, OsmosisError
from osmosis_ai.files import sync_directory, write_json
from osmosis_ai.platform.backup.archive import DATABASE, HOME, OBJECTS, BackupReport, extract, stage_in, write
from osmosis_ai.platform.backup.databases import (
    check_database,
    copy_database,
    missing_blobs,
    require_empty,
    require_known_schema,
    require_platform,
    restore_rows,
    sqlite_file,
)
from osmosis_ai.platform.blobs import open_blob_store
from osmosis_ai.platform.blobs.store import BlobNotFound, BlobStore, BlobStoreError, measure
from osmosis_ai.platform.clock import SystemClock
from osmosis_ai.platform.config import RESTORE_NOTE, PlatformConfig
from osmosis_ai.platform.db.engine import Database
from osmosis_ai.platform.process_state import LOCK_NAME, STATE_NAME

__all__ = ["BackupReport", "create_backup", "restore_backup"]

STAGE_PREFIX = ".backup-"
# Files that a platform has lost are missing from every copy.
_COPIES = 5
_OTHER_ARCHIVES = (".zip", ".7z", ".bz2", ".xz", ".zst")
_CANNOT_LINK = (errno.EPERM, errno.EACCES, errno.EXDEV, errno.EMLINK, errno.ENOTSUP)


def create_backup(
    config: PlatformConfig, target: Path, *, overwrite: bool = False, with_bucket: bool = False
) -> BackupReport:
    """Write a backup of a platform, which may be running."""
    require_platform(config)
    _require_writable(target, overwrite=overwrite)
    has_blobs = with_bucket or not config.blobs_url
    with stage_in(config.home, STAGE_PREFIX) as stage:
        _link_files(config, stage)
        for _ in range(_COPIES):
            (stage / DATABASE).unlink(missing_ok=True)
            copy_database(config, stage / DATABASE)
            _link_files(config, stage)
            if with_bucket and config.blobs_url:
                _fetch_bucket(config, stage)
            missing = missing_blobs(stage) if has_blobs else 0
            if not missing:
                break
        return write(stage, target.absolute(), missing_blobs=missing)


def _require_writable(target: Path, *, overwrite: bool) -> None:
    if target.is_dir():
        raise OsmosisError(f"{target} is a directory.", hint="name a file, such as osmosis.tar.gz in it")
    if target.suffix in _OTHER_ARCHIVES:
        raise OsmosisError(
            f"{target} cannot be written: a backup is a tar archive.",
            hint="name a file that ends in .tar.gz or .tar",
        )
    if target.exists() and not overwrite:
        raise ConflictError(f"{target} already exists.", hint="name another file, or replace it with --force")
    # Checked before the platform is copied, which may take minutes.
    try:
        tempfile.TemporaryFile(dir=target.absolute().parent).close()
    except OSError as error:
        raise OsmosisError(
            f"{target} cannot be written: {error.strerror or error}.",
            hint="name a file in an existing directory that you may write to",
        ) from error


def _link_files(config: PlatformConfig, stage: Path) -> None:
    """Link the files of a data directory, but for the database, and link replaced ones again."""
    home = config.home.resolve()
    database = sqlite_file(config) or home / DATABASE
    ends = ("", "-wal", "-shm", "-journal", ".lock")
    database_files = {database.with_name(f"{database.name}{end}") for end in ends}

    def is_transient(path: str) -> bool:
        name = path.rpartition("/")[2]
        return (
            path in (LOCK_NAME, STATE_NAME, DATABASE, "blobs/incoming", "blob-copies")
            or path.startswith(STAGE_PREFIX)
            or (path == "blobs" and bool(config.blobs_url))
            or home / path in database_files
            or (path.startswith("git/") and name.endswith(".lock"))
            or (path.startswith("runs/") and name == "worker.lock")
        )

    def link_below(below: str) -> None:
        (stage / below).mkdir(mode=0o700, exist_ok=True)
        # Last names first: uploads before the objects they become, refs before the commits they name.
        for entry in sorted(os.scandir(home / below), key=lambda entry: entry.name, reverse=True):
            path = f"{below}{entry.name}"
            if is_transient(path):
                continue
            # A file that disappears now is found at the next pass, or is no longer referenced.
            with contextlib.suppress(FileNotFoundError):
                if entry.is_dir(follow_symlinks=False):
                    link_below(f"{path}/")
                elif entry.is_symlink() or entry.is_file():
                    _link(Path(entry.path), stage / path)

    link_below("")


def _link(source: Path, target: Path) -> None:
    if source.is_symlink():
        target.unlink(missing_ok=True)
        target.symlink_to(source.readlink())
        return
    if target.is_symlink() or target.exists():
        if source.samefile(target):
            return
        target.unlink()
    try:
        os.link(source, target)
    except OSError as error:
        if error.errno not in _CANNOT_LINK:
            raise
        shutil.copy2(source, target)


def _fetch_bucket(config: PlatformConfig, stage: Path) -> None:
    """Put the files of a bucket where a data directory has its files."""
    store = open_blob_store(config, SystemClock())
    for key in stored_keys(store):
        path = stage / OBJECTS / key
        if path.exists():
            continue
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        try:
            with store.open(key) as stream, path.open("wb") as file:
                shutil.copyfileobj(stream, file)
        except BlobNotFound:
            path.unlink(missing_ok=True)


_THREADS = 8
# A platform that is killed while it checks its store may leave a blob below this prefix.
_CHECKS = "checks"


def restore_backup(config: PlatformConfig, source: Path) -> BackupReport:
    config = replace(config, home=config.home.resolve())
    home = config.home
    if not source.is_file():
        raise NotFoundError(f"there is no file {source}.")
    target = {"database": Database(config.database_url).shown, "files": config.blobs_shown}
    home.parent.mkdir(parents=True, exist_ok=True)
    with stage_in(home.parent, f".{home.name}.restore-") as stage:
        begun = _interrupted(home)
        fills_database = sqlite_file(config) != home / DATABASE
        again = begun.get("database") == target["database"]
        if fills_database and not again:
            require_empty(config)
        restored = stage / HOME
        restored.mkdir(mode=0o700)
        report = extract(source, stage)
        check_database(restored / DATABASE)
        require_known_schema(restored / DATABASE)
        objects = restored / OBJECTS
        found = (path.relative_to(objects).as_posix() for path in objects.rglob("*") if not path.is_dir())
        keys = set(found) if config.blobs_url else set[str]()
        missing = 0 if config.blobs_url and not keys else missing_blobs(restored)
        # The stage takes the local copies of files that are read back.
        store = open_blob_store(replace(config, home=stage), SystemClock()) if keys else None
        if store is not None:
            # An interrupted restore may have left some of the files there.
            left_there = keys if begun.get("files") == target["files"] else set()
            store.check()
            other = next((key for key in stored_keys(store) if key not in left_there), None)
            if other is not None:
                raise ConflictError(
                    f"{config.blobs_shown} is not empty: it contains {other}.",
                    hint="name an empty bucket or prefix in OSMOSIS_BLOBS_URL",
                )
        _put_in_place(restored, home, target)
        if store is not None:
            _fill_store(store, config.blobs_shown, home, keys)
        if config.blobs_url:
            shutil.rmtree(config.blobs_dir, ignore_errors=True)
        if fills_database:
            restore_rows(home / DATABASE, config.database_url, again=again)
            for path in home.glob(f"{DATABASE}*"):
                path.unlink()
        config.restore_note.unlink()
        sync_directory(home)
    return replace(report, path=home, missing_blobs=missing)


def stored_keys(store: BlobStore) -> Iterator[str]:
    for key in store.keys(""):
        if key.partition("/")[0] != _CHECKS:
            yield key


def _interrupted(home: Path) -> dict[str, str]:
    """Return the target of an interrupted restore into ``home``; nothing if ``home`` is empty or missing."""
    try:
        note: dict[str, str] = json.loads((home / RESTORE_NOTE).read_bytes())
        return note
    except (FileNotFoundError, NotADirectoryError):
        pass
    if home.exists() and (not home.is_dir() or any(home.iterdir())):
        raise ConflictError(
            f"{home} is not an empty data directory.",
            hint="set OSMOSIS_HOME to a directory that does not exist yet",
        )
    return {}


def _put_in_place(restored: Path, home: Path, target: dict[str, str]) -> None:
    """Make ``restored`` the data directory, with a note of the other places that the restore writes to."""
    note = home / RESTORE_NOTE
    write_json(restored / RESTORE_NOTE, target)
    if not note.exists():
        try:
            restored.rename(home)
            sync_directory(home.parent)
            return
        except OSError as error:
            # A mount point cannot be replaced, only filled.
            if error.errno not in (errno.EBUSY, errno.EXDEV):
                raise
    # The note is kept, so it survives an interruption at any moment.
    write_json(note, target)
    for path in set(home.iterdir()) - {note}:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
    for path in restored.iterdir():
        if path.name != RESTORE_NOTE:
            shutil.move(path, home / path.name)


def _fill_store(store: BlobStore, shown: str, home: Path, keys: set[str]) -> None:
    """Store the files of an unpacked backup, and read each of them back."""

    def put(key: str) -> None:
        with (home / OBJECTS / key).open("rb") as file:
            written = store.put(key, file)
        with store.open(key) as stored:
            if measure(stored) != written:
                raise BlobStoreError(f"{shown} returned different bytes than were stored: {key}.")

    with ThreadPoolExecutor(_THREADS, thread_name_prefix="osmosis-restore") as pool:
        for _ in pool.map(put, sorted(keys)):
            pass
