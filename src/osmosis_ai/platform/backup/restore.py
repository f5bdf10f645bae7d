"""Restore a backup into an empty data directory, and into the configured database and store.

The whole backup is unpacked and verified first. Then the data directory appears with a marker file, files go to
the bucket and rows to the database if they are separate, and the marker is removed last. No platform starts while the
marker exists, and the same command resumes an interrupted restore.
"""

from __future__ import annotations

import errno
import json
import shutil
from dataclasses import replace
from pathlib import Path

from osmosis_ai.errors import ConflictError, NotFoundError
from osmosis_ai.files import sync_directory, write_json
from osmosis_ai.platform.backup.archive import DATABASE, HOME, BackupReport, extract
from osmosis_ai.platform.backup.collection import stage_in
from osmosis_ai.platform.backup.databases import (
    check_database,
    missing_blobs,
    require_empty,
    require_known_schema,
    restore_rows,
    sqlite_file,
)
from osmosis_ai.platform.backup.stores import fill_store, keys_in, require_usable
from osmosis_ai.platform.blobs.opening import open_blob_store
from osmosis_ai.platform.clock import SystemClock
from osmosis_ai.platform.config import RESTORE_NOTE, PlatformConfig
from osmosis_ai.platform.db.engine import Database


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
        keys = keys_in(restored) if config.blobs_url else set()
        missing = 0 if config.blobs_url and not keys else missing_blobs(restored)
        # The stage takes the copies of files that are read back.
        store = open_blob_store(replace(config, home=stage), SystemClock()) if keys else None
        if store is not None:
            left_there = keys if begun.get("files") == target["files"] else set()
            require_usable(store, config.blobs_shown, besides=left_there)
        _put_in_place(restored, home, target)
        if store is not None:
            fill_store(store, config.blobs_shown, home, keys)
        if config.blobs_url:
            shutil.rmtree(config.blobs_dir, ignore_errors=True)
        if fills_database:
            restore_rows(home / DATABASE, config.database_url, again=again)
            for path in home.glob(f"{DATABASE}*"):
                path.unlink()
        config.restore_note.unlink()
        sync_directory(home)
    return replace(report, path=home, missing_blobs=missing)


def _interrupted(home: Path) -> dict[str, str]:
    """Return where an interrupted restore into ``home`` wrote to; nothing if ``home`` is empty or not there."""
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
    """Make ``restored`` the data directory, with a note of where else the restore writes to."""
    note = home / RESTORE_NOTE
    write_json(restored / RESTORE_NOTE, target)
    if not note.exists():
        try:
            restored.rename(home)
            sync_directory(home.parent)
            return
        except OSError as error:
            # A directory that something is mounted on cannot be replaced, only filled.
            if error.errno not in (errno.EBUSY, errno.EXDEV):
                raise
    # The note stays, so that an interruption at any moment leaves it there.
    write_json(note, target)
    for path in set(home.iterdir()) - {note}:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
    for path in restored.iterdir():
        if path.name != RESTORE_NOTE:
            shutil.move(path, home / path.name)
