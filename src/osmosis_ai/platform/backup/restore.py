"""Restore a backup into an empty data directory, and into the configured database and store.

The whole backup is unpacked and verified first. Then the data directory appears with a marker file, files go to
the bucket and rows to the database if they are separate, and the marker is removed last. No platform starts while the
marker exists, and the same command resumes an interrupted restore.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from osmosis_ai.errors import ConflictError, NotFoundError
from osmosis_ai.files import sync_directory, write_json
from osmosis_ai.platform.backup.archive import DATABASE, HOME, OBJECTS, BackupReport, extract, stage_in
from osmosis_ai.platform.backup.databases import (
    check_database,
    missing_blobs,
    require_empty,
    require_known_schema,
    restore_rows,
    sqlite_file,
)
from osmosis_ai.platform.blobs import open_blob_store
from osmosis_ai.platform.blobs.store import BlobStore, BlobStoreError
from osmosis_ai.platform.clock import SystemClock
from osmosis_ai.platform.config import RESTORE_NOTE, PlatformConfig
from osmosis_ai.platform.db.engine import Database

_THREADS = 8
_BLOCK_BYTES = 1 << 20
# A platform that is killed while it checks its store may leave a blob below this prefix.
_CHECKS = "checks"


def restore_backup(config: PlatformConfig, source: Path) -> BackupReport:
    """Make a platform from a backup."""
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
        keys = _keys_in(restored) if config.blobs_url else set()
        missing = 0 if config.blobs_url and not keys else missing_blobs(restored)
        # The stage takes the local copies of files that are read back.
        store = open_blob_store(replace(config, home=stage), SystemClock()) if keys else None
        if store is not None:
            left_there = keys if begun.get("files") == target["files"] else set()
            _require_usable(store, config.blobs_shown, besides=left_there)
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
    """Yield the keys of everything in a store."""
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


def _keys_in(home: Path) -> set[str]:
    objects = home / OBJECTS
    return {
        (Path(directory) / name).relative_to(objects).as_posix()
        for directory, _, names in os.walk(objects)
        for name in names
    }


def _require_usable(store: BlobStore, shown: str, *, besides: set[str]) -> None:
    """Refuse a store that does not work, or holds other files than those an interrupted restore left there."""
    store.check()
    other = next((key for key in stored_keys(store) if key not in besides), None)
    if other is not None:
        raise ConflictError(
            f"{shown} is not empty: it contains {other}.",
            hint="name an empty bucket or prefix in OSMOSIS_BLOBS_URL",
        )


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
    # The note stays, so that it is there after an interruption at any moment.
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
            written = store.put(key, file).sha256
        digest = hashlib.sha256()
        with store.open(key) as stored:
            while block := stored.read(_BLOCK_BYTES):
                digest.update(block)
        if digest.hexdigest() != written:
            raise BlobStoreError(f"{shown} returned different bytes than were stored: {key}.")

    with ThreadPoolExecutor(_THREADS, thread_name_prefix="osmosis-restore") as pool:
        for _ in pool.map(put, sorted(keys)):
            pass
