"""Back up everything a platform owns as of one moment, in one file, while the platform runs.

The moment is that of the database copy. Files are collected as hard links, which survive replacement and deletion, once
before that moment so that nothing referenced is gone, and once after it so that nothing is missing. The platform cleans
up surplus files, and the next worker publishes a run's surplus journal. A file that was stored and deleted between the
two passes is in neither; if the database copy refers to one, the copy is repeated. Requests and runs are not blocked.

Rows are included for either engine. Files in a bucket are excluded by default: a store has its own backups, and
every backup would hold them all again.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import tempfile
from pathlib import Path

from osmosis_ai.errors import ConflictError, OsmosisError
from osmosis_ai.platform.backup.archive import DATABASE, OBJECTS, BackupReport, stage_in, write
from osmosis_ai.platform.backup.databases import copy_database, missing_blobs, require_platform, sqlite_file
from osmosis_ai.platform.backup.restore import restore_backup, stored_keys
from osmosis_ai.platform.blobs import open_blob_store
from osmosis_ai.platform.blobs.store import BlobNotFound
from osmosis_ai.platform.clock import SystemClock
from osmosis_ai.platform.config import PlatformConfig
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
            # What disappears now has another name at the next pass, or no reference.
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
