"""Backup file format: a tar archive with provenance and a final digest.

backup.json   release and time
home/…        the data directory
seal.json     file count and digest; a backup without it is truncated
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import tarfile
import tempfile
import zlib
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path, PurePosixPath
from typing import IO, Any, cast

from osmosis_ai._version import __version__
from osmosis_ai.errors import OsmosisError
from osmosis_ai.files import sync_directory

HOME = "home"
DATABASE = "platform.db"
"""The name of the database in a backup, whatever its own."""
OBJECTS = Path("blobs", "objects")
"""Where a backup holds stored files."""
FORMAT = 1
_ABOUT, _SEAL = "backup.json", "seal.json"
_BLOCK_BYTES = 1 << 20


@dataclass(frozen=True)
class BackupReport:
    """What a backup holds."""

    path: Path
    created_at: str
    version: str
    files: int
    size_bytes: int
    missing_blobs: int

    def facts(self) -> dict[str, Any]:
        """Return what it holds, wherever it lies."""
        return {name: value for name, value in asdict(self).items() if name != "path"}


class _Digest:
    """One digest over all names and contents, in their order."""

    def __init__(self) -> None:
        self._digest = hashlib.sha256()
        self.files = 0
        self.size_bytes = 0

    def begin(self, entry: tarfile.TarInfo) -> None:
        """Take note of an entry."""
        described = (entry.name, entry.linkname, entry.size)
        self._digest.update(json.dumps(described).encode())
        self.files += entry.isreg()
        self.size_bytes += entry.size

    def reading(self, stream: IO[bytes]) -> IO[bytes]:
        """Return ``stream`` so that whatever is read of it is taken note of."""
        digest = self._digest

        class Noted(io.RawIOBase):
            def read(self, size: int = -1) -> bytes:
                block = stream.read(size)
                digest.update(block)
                return block

        return cast("IO[bytes]", Noted())

    def seal(self) -> dict[str, Any]:
        """Return what the backup ends with."""
        return {"files": self.files, "size_bytes": self.size_bytes, "sha256": self._digest.hexdigest()}


def write(stage: Path, target: Path, *, missing_blobs: int) -> BackupReport:
    """Write what was collected in ``stage`` to ``target``, in one step."""
    created_at = datetime.now(timezone.utc).isoformat(timespec="seconds")
    descriptor, name = tempfile.mkstemp(prefix=f".{target.name}.", suffix=".tmp", dir=target.parent)
    temporary, digest = Path(name), _Digest()
    try:
        with os.fdopen(descriptor, "wb") as stream:
            compressed = target.suffix in (".gz", ".tgz")
            with tarfile.open(fileobj=stream, mode="w|gz" if compressed else "w|") as archive:
                about = {"format": FORMAT, "version": __version__, "created_at": created_at}
                _add_json(archive, _ABOUT, about)
                _add_tree(archive, stage, HOME, digest)
                _add_json(archive, _SEAL, digest.seal())
            stream.flush()
            os.fsync(stream.fileno())
        temporary.replace(target)
        sync_directory(target.parent)
    finally:
        temporary.unlink(missing_ok=True)
    return BackupReport(target, created_at, __version__, digest.files, digest.size_bytes, missing_blobs)


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
                # Of a journal that is appended to meanwhile, as much as there is now.
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
    """Unpack a backup into ``stage`` and check that it is whole."""
    try:
        with tarfile.open(source, "r|*") as archive:
            return _unpack(archive, source, stage)
    except (tarfile.TarError, zlib.error, EOFError) as error:
        raise damaged(str(error)) from error
    except OSError as error:
        # What a broken compressed file raises has no number; a full disk's has.
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
            path = stage / _safe(entry.name)
            if entry.isdir():
                path.mkdir(mode=0o700, parents=True, exist_ok=True)
            elif entry.issym():
                links.append((path, entry.linkname))
            elif entry.isreg():
                _unpack_file(archive, entry, path, digest)
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
    return BackupReport(source, about["created_at"], about["version"], digest.files, digest.size_bytes, 0)


def _unpack_file(archive: tarfile.TarFile, entry: tarfile.TarInfo, path: Path, digest: _Digest) -> None:
    content = archive.extractfile(entry)
    assert content is not None
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600 | (entry.mode & 0o100))
    with os.fdopen(descriptor, "wb") as handle:
        shutil.copyfileobj(digest.reading(content), handle, _BLOCK_BYTES)


def _read_json(archive: tarfile.TarFile, entry: tarfile.TarInfo) -> dict[str, Any]:
    content = archive.extractfile(entry)
    try:
        value = json.loads(content.read() if content is not None else b"")
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise damaged(f"{entry.name} cannot be read")
    return value


def _safe(name: str) -> PurePosixPath:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or path.parts[:1] != (HOME,):
        raise damaged(f"it holds a file outside of the data directory: {name}")
    return path


def damaged(what: str) -> OsmosisError:
    """Return the error of a backup that cannot be used."""
    return OsmosisError(f"the backup is damaged: {what}.", hint="nothing was restored; use another backup")
