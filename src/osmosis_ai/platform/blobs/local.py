"""Blobs as files of one directory.

    objects/<key>                  the blobs
    uploads/<id>/upload.json       the upload's target and start time
    uploads/<id>/<n>.<sha256>      its parts; the digest is the ETag
    incoming/                      files being written or deleted

Files get their final name by a rename within one file system, after their bytes are on disk. A part's name identifies
its bytes, so completing an upload needs only the names.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import stat
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime, timedelta
from pathlib import Path
from typing import BinaryIO

from osmosis_ai.datasets import file_digest
from osmosis_ai.files import sync_directory, write_json
from osmosis_ai.platform.blobs.incoming import BLOCK_BYTES, IncomingFile, make_directories, sweep
from osmosis_ai.platform.blobs.signing import DownloadGrant, PartGrant, UrlSigner, url_signer
from osmosis_ai.platform.blobs.store import (
    BlobInfo,
    BlobNotFound,
    BlobUpload,
    Part,
    PartsMismatch,
    UploadNotFound,
    check_key,
)
from osmosis_ai.platform.clock import Clock
from osmosis_ai.platform.config import PlatformConfig

_UPLOAD_ID = re.compile(r"[0-9a-f]{32}")
_PART_FILE = re.compile(r"([0-9]{1,5})\.([0-9a-f]{64})")
_RECORD = "upload.json"


class LocalBlobStore:
    """A :class:`~osmosis_ai.platform.blobs.store.BlobStore` in a directory of this machine."""

    def __init__(self, root: Path, signer: UrlSigner, clock: Clock) -> None:
        self.signer = signer
        self._objects = root / "objects"
        self._uploads = root / "uploads"
        self._incoming = root / "incoming"
        self._clock = clock
        # Two requests may send the same part: the one that comes last replaces the other, not both each other. No other
        # process takes parts: they come through the platform's HTTP alone, and its data directory has one platform,
        # which holds its lock; a restore fills an empty directory, and a backup only reads.
        self._replacing = threading.Lock()

    def check(self) -> None:
        """Write a byte, and throw it away."""
        with IncomingFile(self._incoming) as incoming:
            incoming.write(b"\0")
            incoming.seal()

    def put(self, key: str, stream: BinaryIO) -> BlobInfo:
        """Store everything ``stream`` has; an existing blob is replaced in one step."""
        target = self._path(key)
        with IncomingFile(self._incoming) as incoming:
            while block := stream.read(BLOCK_BYTES):
                incoming.write(block)
            info = incoming.seal()
            make_directories(target.parent)
            incoming.move_to(target)
        return info

    def open(self, key: str) -> BinaryIO:
        """Open a blob for reading; what was opened stays readable when the blob is deleted."""
        try:
            return self._path(key).open("rb")
        except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
            raise _not_found(key) from None

    def read(self, key: str, offset: int, length: int) -> bytes:
        """Return ``length`` bytes from ``offset`` on; fewer where the blob ends before."""
        with self.open(key) as blob:
            blob.seek(offset)
            return blob.read(length)

    def size(self, key: str) -> int:
        """Return a blob's size in bytes."""
        try:
            about = self._path(key).stat()
        except (FileNotFoundError, NotADirectoryError):
            raise _not_found(key) from None
        if not stat.S_ISREG(about.st_mode):
            raise _not_found(key)
        return about.st_size

    def delete(self, key: str) -> None:
        """Remove a blob; one that is not there is no error."""
        self._path(key).unlink(missing_ok=True)

    def delete_below(self, prefix: str) -> None:
        """Remove every blob below ``prefix``, and the directories with them."""
        path = self._path(prefix)
        # Somebody else may delete it, too: what is gone meanwhile ends one walk, not the deletion.
        while path.is_dir():
            with suppress(FileNotFoundError):
                shutil.rmtree(path)

    def keys(self, prefix: str) -> Iterator[str]:
        """Yield the keys below ``prefix``; below ``""`` are all."""
        for directory, _, names in os.walk(self._path(prefix) if prefix else self._objects):
            for name in names:
                yield (Path(directory) / name).relative_to(self._objects).as_posix()

    @contextmanager
    def local_copy(self, key: str) -> Iterator[Path]:
        """Give the blob's own file; a reader that has it open keeps it when the blob is deleted."""
        self.size(key)
        yield self._path(key)

    def signed_get_url(self, key: str, *, filename: str, ttl: timedelta) -> str:
        """Return a URL that serves the blob, as a download named ``filename``, until ``ttl`` has passed."""
        return self.signer.sign(DownloadGrant(check_key(key), filename), ttl=ttl)

    def begin_upload(self, key: str) -> BlobUpload:
        """Begin an upload of a new blob."""
        upload = BlobUpload(secrets.token_hex(16), check_key(key))
        # A power cut may take the record back: the client's first PUT then says that the upload has ended.
        record = {"key": key, "begun_at": self._clock.now().isoformat()}
        for place in (self._incoming, self._uploads):
            place.mkdir(mode=0o700, parents=True, exist_ok=True)
        begun = self._incoming / f"begun-{upload.id}"
        begun.mkdir(mode=0o700)
        write_json(begun / _RECORD, record, durable=False)
        # It is there with its record or not at all: of one without, nobody would know that it is old and has to go.
        begun.rename(self._uploads / upload.id)
        return upload

    def signed_part_url(self, upload: BlobUpload, part_number: int, *, size: int, ttl: timedelta) -> str:
        """Return a URL that takes exactly ``size`` bytes by PUT as a part, numbered from 1."""
        return self.signer.sign(PartGrant(upload.id, part_number, size), ttl=ttl)

    def parts(self, upload: BlobUpload) -> Mapping[int, Part]:
        """Return the parts received so far, by number."""
        try:
            paths = list(self._upload_dir(upload.id).iterdir())
        except FileNotFoundError:
            raise UploadNotFound from None
        found: dict[int, Part] = {}
        for path in paths:
            # One that is replaced at this moment is not there yet.
            with suppress(FileNotFoundError):
                if match := _PART_FILE.fullmatch(path.name):
                    found[int(match[1])] = Part(match[2], path.stat().st_size)
        if self._path(upload.key).exists():
            # It is being completed: its parts are going one after the other.
            raise UploadNotFound
        return found

    def complete_upload(self, upload: BlobUpload, etags: Sequence[str]) -> BlobInfo:
        """Make the blob of parts 1, 2 … with these ETags; may be repeated, also after a crash."""
        target = self._path(upload.key)
        # It may have been done before, by a process that did not live to say so.
        info = _info_of(target) or self._assembled(upload, etags, target)
        self.abort_upload(upload)
        return info

    def abort_upload(self, upload: BlobUpload) -> None:
        """Give an upload up and forget its parts; one that has ended is no error."""
        # Renamed first: a part that arrives meanwhile finds no upload, instead of half of one.
        doomed = self._incoming / f"ended-{secrets.token_hex(8)}"
        self._incoming.mkdir(mode=0o700, parents=True, exist_ok=True)
        with suppress(FileNotFoundError):
            self._upload_dir(upload.id).rename(doomed)
            shutil.rmtree(doomed, ignore_errors=True)

    def unfinished_uploads(self) -> Iterator[tuple[BlobUpload, datetime]]:
        """Yield the uploads that have not ended, each with the moment it began."""
        for path in list(self._uploads.glob("*/")):
            # What ends meanwhile, or is no record, is no unfinished upload.
            with suppress(OSError, ValueError, KeyError, TypeError):
                record = json.loads((path / _RECORD).read_bytes())
                yield BlobUpload(path.name, record["key"]), datetime.fromisoformat(record["begun_at"])

    def sweep(self) -> None:
        """Remove what processes that were killed have left half-written."""
        sweep(self._incoming, now=self._clock.now())

    def receive_part(self, grant: PartGrant) -> IncomingFile:
        """Take the bytes of a part; :meth:`keep_part` makes them one."""
        if not self._upload_dir(grant.upload_id).is_dir():
            raise UploadNotFound
        return IncomingFile(self._incoming, size=grant.size)

    def keep_part(self, grant: PartGrant, incoming: IncomingFile) -> Part:
        """Make what was received a part of its upload, in place of an earlier one of that number."""
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

    def _assembled(self, upload: BlobUpload, etags: Sequence[str], target: Path) -> BlobInfo:
        try:
            return self._assemble(upload, etags, target)
        except (UploadNotFound, PartsMismatch, FileNotFoundError) as error:
            # Who does the same at the same time takes the parts away, and leaves the blob.
            if (info := _info_of(target)) is not None:
                return info
            if isinstance(error, FileNotFoundError):
                raise UploadNotFound from None
            raise

    def _assemble(self, upload: BlobUpload, etags: Sequence[str], target: Path) -> BlobInfo:
        directory = self._upload_dir(upload.id)
        if not directory.is_dir():
            raise UploadNotFound
        sources = [directory / f"{number}.{etag}" for number, etag in enumerate(etags, 1)]
        for number, source in enumerate(sources, 1):
            if not _PART_FILE.fullmatch(source.name) or not source.is_file():
                raise PartsMismatch(f"part {number} was not received with the ETag named.")
        make_directories(target.parent)
        if len(sources) == 1:
            size = sources[0].stat().st_size
            sources[0].replace(target)
            sync_directory(target.parent)
            return BlobInfo(size, etags[0])
        with IncomingFile(self._incoming) as incoming:
            for source in sources:
                with source.open("rb") as part:
                    while block := part.read(BLOCK_BYTES):
                        incoming.write(block)
            info = incoming.seal()
            incoming.move_to(target)
        return info

    def _path(self, key: str) -> Path:
        return self._objects / check_key(key)

    def _upload_dir(self, upload_id: str) -> Path:
        if not _UPLOAD_ID.fullmatch(upload_id):
            raise UploadNotFound
        return self._uploads / upload_id


def open_local_store(config: PlatformConfig, clock: Clock) -> LocalBlobStore:
    """Return the store in the data directory of the platform of ``config``."""
    return LocalBlobStore(config.blobs_dir, url_signer(config, clock), clock)


def _info_of(path: Path) -> BlobInfo | None:
    """Return what a file holds; None where there is none."""
    try:
        return BlobInfo(path.stat().st_size, file_digest(path))
    except FileNotFoundError:
        return None


def _not_found(key: str) -> BlobNotFound:
    return BlobNotFound(f"the stored file {key} is gone.")
