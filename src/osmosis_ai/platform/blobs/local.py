"""Blobs as files of one directory.

    objects/<key>                  the blobs
    uploads/<id>/upload.json       the upload's target and start time
    uploads/<id>/<n>.<sha256>      its parts; the digest is the ETag
    incoming/                      files being written or deleted

Files get their final name by a rename within one file system, after their bytes are on disk. An aborted write (an
exception, a full disk, ``kill -9``) leaves nothing under the final name. A part's name identifies its bytes, so
completing an upload needs only the names.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import secrets
import shutil
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime, timedelta
from pathlib import Path
from typing import BinaryIO

from osmosis_ai.files import sync_directory, write_json
from osmosis_ai.platform.blobs.signing import DownloadGrant, PartGrant, UrlSigner, transfer_refused
from osmosis_ai.platform.blobs.store import (
    BlobInfo,
    BlobNotFound,
    BlobUpload,
    Part,
    PartsMismatch,
    UploadNotFound,
    check_key,
    measure,
)
from osmosis_ai.platform.clock import Clock
from osmosis_ai.platform.refusals import ApiError

BLOCK_BYTES = 1 << 20
# A younger file may not be locked yet.
_SWEEP_AGE = timedelta(hours=1)
_UPLOAD_ID = re.compile(r"[0-9a-f]{32}")
_PART_FILE = re.compile(r"([0-9]{1,5})\.([0-9a-f]{64})")
_RECORD = "upload.json"


class LocalBlobStore:
    def __init__(self, root: Path, signer: UrlSigner, clock: Clock) -> None:
        self.signer = signer
        self._objects = root / "objects"
        self._uploads = root / "uploads"
        self._incoming = root / "incoming"
        self._clock = clock
        # Two requests may send the same part, and the later one replaces the other. No other process receives parts.
        self._replacing = threading.Lock()

    def check(self) -> None:
        with IncomingFile(self._incoming) as incoming:
            incoming.write(b"\0")
            incoming.seal()

    def put(self, key: str, stream: BinaryIO) -> BlobInfo:
        target = self._path(key)
        with IncomingFile(self._incoming) as incoming:
            shutil.copyfileobj(stream, incoming, BLOCK_BYTES)
            info = incoming.seal()
            make_directories(target.parent)
            incoming.move_to(target)
        return info

    def open(self, key: str) -> BinaryIO:
        try:
            return self._path(key).open("rb")
        except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
            raise BlobNotFound(f"the stored file {key} is gone.") from None

    def read(self, key: str, offset: int, length: int) -> bytes:
        with self.open(key) as blob:
            blob.seek(offset)
            return blob.read(length)

    def size(self, key: str) -> int:
        with self.open(key) as blob:
            return os.fstat(blob.fileno()).st_size

    def delete(self, key: str) -> None:
        self._path(key).unlink(missing_ok=True)

    def delete_below(self, prefix: str) -> None:
        path = self._path(prefix)
        # Another thread may delete it at the same time, which ends one attempt.
        while path.is_dir():
            with suppress(FileNotFoundError):
                shutil.rmtree(path)

    def keys(self, prefix: str) -> Iterator[str]:
        for directory, _, names in os.walk(self._path(prefix) if prefix else self._objects):
            for name in names:
                yield (Path(directory) / name).relative_to(self._objects).as_posix()

    @contextmanager
    def local_copy(self, key: str) -> Iterator[Path]:
        self.size(key)
        yield self._path(key)

    def signed_get_url(self, key: str, *, filename: str, ttl: timedelta) -> str:
        return self.signer.sign(DownloadGrant(check_key(key), filename), ttl=ttl)

    def begin_upload(self, key: str) -> BlobUpload:
        upload = BlobUpload(secrets.token_hex(16), check_key(key))
        for place in (self._incoming, self._uploads):
            place.mkdir(mode=0o700, parents=True, exist_ok=True)
        begun = self._incoming / f"begun-{upload.id}"
        begun.mkdir(mode=0o700)
        # If a power cut removes the record, the client's first PUT fails because the upload has ended.
        record = {"key": key, "begun_at": self._clock.now().isoformat()}
        write_json(begun / _RECORD, record, durable=False)
        # Without its record, an upload would never count as old.
        begun.rename(self._uploads / upload.id)
        return upload

    def signed_part_url(self, upload: BlobUpload, part_number: int, *, size: int, ttl: timedelta) -> str:
        return self.signer.sign(PartGrant(upload.id, part_number, size), ttl=ttl)

    def parts(self, upload: BlobUpload) -> Mapping[int, Part]:
        found: dict[int, Part] = {}
        try:
            for path in list(self._upload_dir(upload.id).iterdir()):
                # A part may disappear while it is replaced.
                with suppress(FileNotFoundError):
                    if match := _PART_FILE.fullmatch(path.name):
                        found[int(match[1])] = Part(match[2], path.stat().st_size)
        except FileNotFoundError:
            raise UploadNotFound from None
        if self._path(upload.key).exists():
            # It is being completed, so its parts disappear one after the other.
            raise UploadNotFound
        return found

    def complete_upload(self, upload: BlobUpload, etags: Sequence[str]) -> BlobInfo:
        target = self._path(upload.key)
        # A process that was killed afterwards may have completed it.
        info = _info_of(target)
        if info is None:
            try:
                info = self._assemble(upload, etags, target)
            except (UploadNotFound, PartsMismatch):
                # Another request may complete it now, which moves the parts.
                info = _info_of(target)
                if info is None:
                    raise
        self.abort_upload(upload)
        return info

    def abort_upload(self, upload: BlobUpload) -> None:
        # It is renamed first, so a part that arrives now finds no upload instead of an incomplete one.
        doomed = self._incoming / f"ended-{secrets.token_hex(8)}"
        self._incoming.mkdir(mode=0o700, parents=True, exist_ok=True)
        with suppress(FileNotFoundError):
            self._upload_dir(upload.id).rename(doomed)
            shutil.rmtree(doomed, ignore_errors=True)

    def unfinished_uploads(self) -> Iterator[tuple[BlobUpload, datetime]]:
        for path in list(self._uploads.glob("*/")):
            # An upload may end meanwhile, and other directories have no record.
            with suppress(OSError, ValueError, KeyError, TypeError):
                record = json.loads((path / _RECORD).read_bytes())
                yield BlobUpload(path.name, record["key"]), datetime.fromisoformat(record["begun_at"])

    def sweep(self) -> None:
        sweep(self._incoming, now=self._clock.now())

    def receive_part(self, grant: PartGrant) -> IncomingFile:
        """Return the file to write a part to, for :meth:`keep_part`."""
        if not self._upload_dir(grant.upload_id).is_dir():
            raise UploadNotFound
        return IncomingFile(self._incoming, size=grant.size)

    def keep_part(self, grant: PartGrant, incoming: IncomingFile) -> Part:
        """Make received bytes a part of their upload, in place of an earlier one of that number."""
        info = incoming.seal()
        directory = self._upload_dir(grant.upload_id)
        target = directory / f"{grant.part_number}.{info.sha256}"
        with self._replacing:
            try:
                incoming.move_to(target)
            except FileNotFoundError:
                raise UploadNotFound from None
            for former in directory.glob(f"{grant.part_number}.*"):
                if former != target:
                    former.unlink(missing_ok=True)
        return Part(info.sha256, info.size)

    def _assemble(self, upload: BlobUpload, etags: Sequence[str], target: Path) -> BlobInfo:
        directory = self._upload_dir(upload.id)
        if not directory.is_dir():
            raise UploadNotFound
        sources = [directory / f"{number}.{etag}" for number, etag in enumerate(etags, 1)]
        for number, source in enumerate(sources, 1):
            if not _PART_FILE.fullmatch(source.name) or not source.is_file():
                raise PartsMismatch(f"part {number} was not received with the ETag named.")
        make_directories(target.parent)
        try:
            if len(sources) == 1:
                size = sources[0].stat().st_size
                sources[0].replace(target)
                sync_directory(target.parent)
                return BlobInfo(size, etags[0])
            with IncomingFile(self._incoming) as incoming:
                for source in sources:
                    with source.open("rb") as part:
                        shutil.copyfileobj(part, incoming, BLOCK_BYTES)
                info = incoming.seal()
                incoming.move_to(target)
            return info
        except FileNotFoundError:
            raise UploadNotFound from None

    def _path(self, key: str) -> Path:
        return self._objects / check_key(key)

    def _upload_dir(self, upload_id: str) -> Path:
        if not _UPLOAD_ID.fullmatch(upload_id):
            raise UploadNotFound
        return self._uploads / upload_id


class IncomingFile:
    """A file being written in a staging directory; as a context manager it discards what was not moved."""

    def __init__(self, place: Path, *, size: int | None = None) -> None:
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(dir=place)
        self._path = Path(name)
        self._handle = os.fdopen(descriptor, "wb")
        # Tells `sweep` that it is being written.
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        self._expected = size
        self._received = 0
        self._digest = hashlib.sha256()

    def __enter__(self) -> IncomingFile:
        return self

    def __exit__(self, *_: object) -> None:
        # On a full disk even closing fails, because it flushes.
        with suppress(OSError):
            self._handle.close()
        self._path.unlink(missing_ok=True)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self._received += len(data)
        if self._expected is not None and self._received > self._expected:
            raise wrong_size(self._received, self._expected)
        self._digest.update(data)
        self._handle.write(data)

    def seal(self) -> BlobInfo:
        """Bring all bytes to the disk."""
        if self._expected is not None and self._received < self._expected:
            raise wrong_size(self._received, self._expected)
        self._handle.flush()
        os.fsync(self._handle.fileno())
        return BlobInfo(self._received, self._digest.hexdigest())

    def move_to(self, target: Path) -> None:
        """Give the sealed bytes a name in an existing directory, in place of a file that has it."""
        self._path.replace(target)
        sync_directory(target.parent)


def wrong_size(received: int, expected: int) -> ApiError:
    status, reason = (413, "BODY_TOO_LARGE") if received > expected else (400, "BODY_INCOMPLETE")
    return transfer_refused(
        status, reason, f"the body must have exactly {expected} bytes, got {received} (nothing was stored)."
    )


def make_directories(directory: Path) -> None:
    """Make a directory and its parents, so that they survive a power cut."""
    if directory.is_dir():
        return
    make_directories(directory.parent)
    directory.mkdir(mode=0o700, exist_ok=True)
    sync_directory(directory.parent)


def sweep(place: Path, *, now: datetime) -> None:
    """Remove what killed processes left in a staging directory."""
    with suppress(FileNotFoundError):
        for entry in list(place.iterdir()):
            # A file that is being written is locked.
            with suppress(FileNotFoundError, BlockingIOError):
                if now.timestamp() - entry.stat().st_mtime < _SWEEP_AGE.total_seconds():
                    continue
                if entry.is_dir():
                    shutil.rmtree(entry, ignore_errors=True)
                else:
                    with entry.open("rb") as handle:
                        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                        entry.unlink()


def _info_of(path: Path) -> BlobInfo | None:
    try:
        with path.open("rb") as blob:
            return measure(blob)
    except FileNotFoundError:
        return None
