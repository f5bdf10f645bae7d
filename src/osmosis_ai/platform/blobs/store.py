"""Interface of blob stores.

A blob is complete or absent and never changes: new bytes get a new key. Clients send bytes as an
*upload* of one or more parts, each PUT to a signed URL of its exact size. Completing the upload creates the blob, and
an incomplete upload leaves nothing. All methods block and must not be called inside a database transaction.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import IO, BinaryIO, Protocol

from osmosis_ai.errors import OsmosisError

MAX_KEY_CHARS = 255
_BLOCK_BYTES = 1 << 20
_KEY = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*(/[A-Za-z0-9_][A-Za-z0-9._-]*)*")


class BlobError(OsmosisError):
    """Base class of the errors of blobs."""


class BlobNotFound(BlobError):
    default_code = "NOT_FOUND"


class UploadNotFound(BlobError):
    """The upload was completed, aborted, or never begun."""

    default_code = "NOT_FOUND"

    def __init__(self) -> None:
        super().__init__(
            "this upload has ended: it was completed, aborted or replaced.", hint="start the upload again"
        )


class PartsMismatch(BlobError):
    """The parts named at the end of an upload are not those received."""


class BlobStoreError(BlobError):
    """The store refuses the platform itself, is full, or holds other bytes than were stored."""

    default_code = "PLATFORM_ERROR"
    is_infrastructure = True


class BlobStoreBusy(BlobStoreError):
    """The store is temporarily unavailable."""


class BlobStoreSilent(BlobStoreBusy):
    """The store does not answer."""


@dataclass(frozen=True, slots=True)
class BlobInfo:
    """A stored blob: its size in bytes and its SHA-256 in hexadecimal."""

    size: int
    sha256: str


@dataclass(frozen=True, slots=True)
class BlobUpload:
    """An upload that has begun: ``id`` is the store's, ``key`` what it will become."""

    id: str
    key: str


@dataclass(frozen=True, slots=True)
class Part:
    """A received part, or a stored object: its ETag, without quotes, and its size in bytes."""

    etag: str
    size: int


class BlobStore(Protocol):
    """Bytes by key. A prefix is a key without its last segments."""

    def check(self) -> None:
        """Find out whether blobs can be written, read and removed."""

    def put(self, key: str, stream: BinaryIO) -> BlobInfo:
        """Store everything ``stream`` has; an existing blob is replaced in one step."""

    def open(self, key: str) -> BinaryIO:
        """Open a blob for reading; an open blob stays readable when it is deleted."""

    def read(self, key: str, offset: int, length: int) -> bytes:
        """Return ``length`` bytes from ``offset`` on; fewer if the blob ends before."""

    def size(self, key: str) -> int:
        """Return a blob's size in bytes."""

    def delete(self, key: str) -> None:
        """Remove a blob; a missing one is no error."""

    def delete_below(self, prefix: str) -> None:
        """Remove every blob below ``prefix``."""

    def keys(self, prefix: str) -> Iterator[str]:
        """Yield the keys below ``prefix`` in no order; all keys if it is empty."""

    def local_copy(self, key: str) -> AbstractContextManager[Path]:
        """Provide a read-only file with the blob's bytes and the key's extension."""

    def signed_get_url(self, key: str, *, filename: str, ttl: timedelta) -> str:
        """Return a URL that serves the blob, as a download named ``filename``, until ``ttl`` has passed."""

    def begin_upload(self, key: str) -> BlobUpload:
        """Begin an upload of a new blob."""

    def signed_part_url(self, upload: BlobUpload, part_number: int, *, size: int, ttl: timedelta) -> str:
        """Return a URL that takes exactly ``size`` bytes by PUT as a part, numbered from 1."""

    def parts(self, upload: BlobUpload) -> Mapping[int, Part]:
        """Return the parts received so far, by number."""

    def complete_upload(self, upload: BlobUpload, etags: Sequence[str]) -> BlobInfo:
        """Make the blob of parts 1, 2 … with these ETags; may be repeated, also after a crash."""

    def abort_upload(self, upload: BlobUpload) -> None:
        """Abort an upload and forget its parts; one that has ended is no error."""

    def unfinished_uploads(self) -> Iterator[tuple[BlobUpload, datetime]]:
        """Yield the uploads that have not ended, each with the time it began."""

    def sweep(self) -> None:
        """Remove the leftovers of killed processes."""


class HashedStream:
    """A stream that is read once, and the size and digest of what was read; ``digest`` continues that of other streams."""

    def __init__(self, stream: IO[bytes], digest: hashlib._Hash | None = None) -> None:
        self._stream = stream
        self._digest = digest or hashlib.sha256()
        self._size = 0

    def read(self, size: int = -1) -> bytes:
        data = self._stream.read(size)
        self._digest.update(data)
        self._size += len(data)
        return data

    def info(self) -> BlobInfo:
        return BlobInfo(self._size, self._digest.hexdigest())


def measure(stream: IO[bytes]) -> BlobInfo:
    """Return the size and digest of what is left of a stream."""
    hashed = HashedStream(stream)
    while hashed.read(_BLOCK_BYTES):
        pass
    return hashed.info()


def check_key(key: str) -> str:
    """Return ``key`` if it is one: segments of letters, digits, ``.``, ``_`` and ``-`` between slashes."""
    if len(key) > MAX_KEY_CHARS or not _KEY.fullmatch(key):
        raise ValueError(f"not a blob key: {key[:MAX_KEY_CHARS]!r}")
    return key
