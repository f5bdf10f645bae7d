"""Back up everything a platform owns as of one moment, in one file, while the platform runs.

The moment is that of the database copy. Files are collected as hard links, which survive replacement and deletion, once
before that moment so that nothing referenced is gone, and once after it so that nothing is missing. The platform cleans
up surplus files, and the next worker publishes a run's surplus journal. A file that was stored and deleted between the
two passes is in neither; if the database copy refers to one, the copy is repeated. Requests and runs are not blocked.

Rows are included for either engine. Files in a bucket are excluded by default: a store has its own backups, and
every backup would hold them all again.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from osmosis_ai.errors import ConflictError, OsmosisError
from osmosis_ai.platform.backup.archive import DATABASE, OBJECTS, BackupReport, write
from osmosis_ai.platform.backup.collection import STAGE_PREFIX, Collection, stage_in
from osmosis_ai.platform.backup.databases import copy_database, missing_blobs, require_platform, sqlite_file
from osmosis_ai.platform.backup.restore import restore_backup
from osmosis_ai.platform.backup.stores import stored_keys
from osmosis_ai.platform.blobs.opening import open_blob_store
from osmosis_ai.platform.blobs.store import BlobNotFound
from osmosis_ai.platform.clock import SystemClock
from osmosis_ai.platform.config import PlatformConfig

__all__ = ["BackupReport", "create_backup", "restore_backup"]

# Files that a platform has lost are missing at every moment.
_MORE_MOMENTS = 4
_OTHER_ARCHIVES = (".zip", ".7z", ".bz2", ".xz", ".zst")


def create_backup(
    config: PlatformConfig, target: Path, *, overwrite: bool = False, with_bucket: bool = False
) -> BackupReport:
    """Write a backup of a platform, which may be running."""
    require_platform(config)
    if target.is_dir():
        raise OsmosisError(f"{target} is a directory.", hint="name a file, such as osmosis.tar.gz in it")
    if target.suffix in _OTHER_ARCHIVES:
        raise OsmosisError(
            f"{target} cannot be written: a backup is a tar archive.",
            hint="name a file that ends in .tar.gz or .tar",
        )
    if target.exists() and not overwrite:
        raise ConflictError(f"{target} already exists.", hint="name another file, or replace it with --force")
    _require_a_place(target.absolute())
    counts = with_bucket or not config.blobs_url
    with stage_in(config.home, STAGE_PREFIX) as stage:
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
        tempfile.TemporaryFile(dir=target.parent).close()
    except OSError as error:
        raise OsmosisError(
            f"{target} cannot be written: {error.strerror or error}.",
            hint="name a file in an existing directory that you may write to",
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
    return missing_blobs(stage)


def _fetch_bucket(config: PlatformConfig, stage: Path) -> None:
    """Put the files of a bucket where those of a data directory lie."""
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
