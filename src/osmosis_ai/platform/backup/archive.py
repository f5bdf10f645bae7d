"""Backup file format: a tar archive with provenance and a final digest.

backup.json   release and time
home/…        the data directory
seal.json     file count and digest; a backup without it is truncated
"""

from __future__ import annotations

import fcntl
import glob
import hashlib
import io
import json
import os
import shutil
import tarfile
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path, PurePosixPath
from typing import IO, Any, cast

from osmosis_ai._version import __version__
from osmosis_ai.errors import ConflictError, OsmosisError
from osmosis_ai.files import replacing
from osmosis_ai.platform.blobs.store import HashedStream

HOME = "home"
DATABASE = "platform.db"
"""The name of the database in a backup, whatever its own."""
OBJECTS = Path("blobs", "objects")
"""The directory of stored files in a backup."""
FORMAT = 1
_ABOUT, _SEAL = "backup.json", "seal.json"
_BLOCK_BYTES = 1 << 20


@dataclass(frozen=True)
class BackupReport:
    path: Path
    created_at: str
    version: str
    files: int
    size_bytes: int
    missing_blobs: int

    def facts(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if name != "path"}


@contextmanager
def stage_in(directory: Path, prefix: str) -> Iterator[Path]:
    """Create a temporary directory inside ``directory``, and remove those that killed processes left."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConflictError(f"another backup or restore is running in {directory}.") from None
        for abandoned in directory.glob(f"{glob.escape(prefix)}*"):
            shutil.rmtree(abandoned, ignore_errors=True)
        stage = Path(tempfile.mkdtemp(prefix=prefix, dir=directory))
        try:
            yield stage
        finally:
            shutil.rmtree(stage, ignore_errors=True)
    finally:
        os.close(descriptor)


class _Digest:
    """One digest over all names and contents, in their order."""

    def __init__(self) -> None:
        self._digest = hashlib.sha256()
        self._files = 0
        self._size_bytes = 0

    def begin(self, entry: tarfile.TarInfo) -> None:
        self._digest.update(json.dumps((entry.name, entry.linkname, entry.size)).encode())
        self._files += entry.isreg()
        self._size_bytes += entry.size

    def reading(self, stream: IO[bytes]) -> IO[bytes]:
        """Return a stream that adds everything that is read of ``stream``."""
        return cast("IO[bytes]", HashedStream(stream, self._digest))

    def seal(self) -> dict[str, Any]:
        """Return the content of the archive's last entry."""
        return {"files": self._files, "size_bytes": self._size_bytes, "sha256": self._digest.hexdigest()}


def write(stage: Path, target: Path, *, missing_blobs: int) -> BackupReport:
    """Write what was collected in ``stage`` to ``target``, in one step."""
    created_at = datetime.now(timezone.utc).isoformat(timespec="seconds")
    digest = _Digest()
    with replacing(target) as stream:
        compressed = target.suffix in (".gz", ".tgz")
        with tarfile.open(fileobj=stream, mode="w|gz" if compressed else "w|") as archive:
            about = {"format": FORMAT, "version": __version__, "created_at": created_at}
            _add_json(archive, _ABOUT, about)
            _add_tree(archive, stage, HOME, digest)
            _add_json(archive, _SEAL, digest.seal())
    return _report(target, about, digest.seal(), missing_blobs)


def _report(path: Path, about: dict[str, Any], seal: dict[str, Any], missing_blobs: int = 0) -> BackupReport:
    return BackupReport(
        path, about["created_at"], about["version"], seal["files"], seal["size_bytes"], missing_blobs
    )


def _add_tree(archive: tarfile.TarFile, directory: Path, name: str, digest: _Digest) -> None:
    for found in sorted(os.scandir(directory), key=lambda found: found.name):
        entry = tarfile.TarInfo(f"{name}/{found.name}")
        entry.mode = 0o600
        if found.is_symlink():
            entry.type, entry.linkname = tarfile.SYMTYPE, str(Path(found.path).readlink())
        elif found.is_dir():
            entry.type, entry.mode = tarfile.DIRTYPE, 0o700
        else:
            with Path(found.path).open("rb") as stream:
                status = os.fstat(stream.fileno())
                # A journal may grow meanwhile; the backup has its current size.
                entry.size, entry.mtime = status.st_size, int(status.st_mtime)
                entry.mode |= status.st_mode & 0o100
                digest.begin(entry)
                archive.addfile(entry, digest.reading(stream))
            continue
        digest.begin(entry)
        archive.addfile(entry)
        if entry.isdir():
            _add_tree(archive, Path(found.path), entry.name, digest)


def _add_json(archive: tarfile.TarFile, name: str, value: dict[str, Any]) -> None:
    content = json.dumps(value).encode()
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(content), 0o600
    archive.addfile(entry, io.BytesIO(content))


def extract(source: Path, stage: Path) -> BackupReport:
    """Unpack a backup into ``stage`` and verify it."""
    try:
        with tarfile.open(source, "r|*") as archive:
            return _unpack(archive, source, stage)
    except (tarfile.TarError, zlib.error, EOFError) as error:
        raise damaged(str(error)) from error
    except OSError as error:
        # The error of a damaged compressed file has no number; that of a full disk has one.
        if error.errno is None:
            raise damaged(str(error)) from error
        raise


def _unpack(archive: tarfile.TarFile, source: Path, stage: Path) -> BackupReport:
    digest, links = _Digest(), []
    about: dict[str, Any] | None = None
    seal: dict[str, Any] | None = None
    for entry in archive:
        if entry.name == _ABOUT and about is None:
            about = _read_json(archive, entry)
            if about.get("format") != FORMAT:
                raise OsmosisError(
                    f"{source} was written by Osmosis {about.get('version')}, in a format this release does not know.",
                    hint="upgrade this installation, then restore again",
                )
        elif entry.name == _SEAL and seal is None:
            seal = _read_json(archive, entry)
        elif about is None:
            break
        else:
            digest.begin(entry)
            name = PurePosixPath(entry.name)
            if name.is_absolute() or ".." in name.parts or name.parts[:1] != (HOME,):
                raise damaged(f"it holds a file outside of the data directory: {name}")
            path = stage / name
            if entry.isdir():
                path.mkdir(mode=0o700, parents=True, exist_ok=True)
            elif entry.issym():
                links.append((path, entry.linkname))
            elif entry.isreg():
                path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                mode = 0o600 | (entry.mode & 0o100)
                descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
                with os.fdopen(descriptor, "wb") as handle:
                    content = cast("IO[bytes]", archive.extractfile(entry))
                    shutil.copyfileobj(digest.reading(content), handle, _BLOCK_BYTES)
            else:
                raise damaged(f"it holds something that is not a file: {entry.name}")
    if about is None:
        raise OsmosisError(
            f"{source} is not a backup of a platform.",
            hint="name a file that `osmosis platform backup` wrote",
        )
    if seal != digest.seal():
        raise damaged("it is cut off" if seal is None else "its content is not what was written")
    # Last, so that nothing is ever written through one.
    for path, leads_to in links:
        path.symlink_to(leads_to)
    return _report(source, about, digest.seal())


def _read_json(archive: tarfile.TarFile, entry: tarfile.TarInfo) -> dict[str, Any]:
    content = archive.extractfile(entry)
    try:
        value = json.loads(content.read() if content is not None else b"")
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise damaged(f"{entry.name} cannot be read")
    return value


def damaged(what: str) -> OsmosisError:
    return OsmosisError(f"the backup is damaged: {what}.", hint="nothing was restored; use another backup")
