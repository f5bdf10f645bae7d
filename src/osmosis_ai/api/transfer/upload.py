"""Upload a file to a blob store, in one request or in parts."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path

from osmosis_ai.api.models.datasets import CompletedPart, UploadInstructions
from osmosis_ai.api.retrying import Waits
from osmosis_ai.api.transfer.client import BlobClient, TransferError, check_url
from osmosis_ai.api.transfer.unfinished import UnfinishedUpload, open_upload
from osmosis_ai.errors import OsmosisError

Progress = Callable[[int], None]
WAITS = Waits((1.0, 2.0, 4.0, 8.0))
SIMPLE_TIMEOUT_S = 600.0
PART_TIMEOUT_S = 300.0
_BLOCK_BYTES = 256 * 1024


@dataclass(frozen=True)
class Upload:
    """A completed upload."""

    parts: tuple[CompletedPart, ...] | None
    sent_bytes: int
    record: UnfinishedUpload | None = field(default=None, repr=False)

    def forget(self) -> None:
        """Remove the record; call this after the platform has accepted the completion."""
        if self.record is not None:
            self.record.forget()


@dataclass(frozen=True)
class _Part:
    number: int
    url: str = field(repr=False)
    offset: int
    size: int


def upload_file(
    path: Path,
    instructions: UploadInstructions,
    *,
    progress: Progress | None = None,
    state_dir: Path | None = None,
    dataset_id: str = "",
    digest: str | None = None,
    scope: str = "",
    client: BlobClient | None = None,
) -> Upload:
    """Upload a file as the platform instructs."""
    with ExitStack() as stack:
        blobs = client if client is not None else stack.enter_context(BlobClient())
        source = stack.enter_context(_Source(path))
        if instructions.method == "simple":
            _put_whole(blobs, source, instructions, progress)
            return Upload(parts=None, sent_bytes=source.size)
        if instructions.method != "multipart":
            raise _nonsense(f"there is no upload method '{instructions.method}'")
        parts = _plan(instructions, source.size)
        record = None
        if state_dir is not None:
            digest = digest or source.digest()
            # The upload works without its record, so a disk error does not stop it.
            with suppress(OSError):
                record = open_upload(
                    state_dir, digest=digest, dataset_id=dataset_id, instructions=instructions, scope=scope
                )
        there = {part.PartNumber: part.ETag for part in instructions.received_parts}
        return _put_parts(blobs, source, parts, record, there, progress)


def _put_whole(
    blobs: BlobClient, source: _Source, instructions: UploadInstructions, progress: Progress | None
) -> None:
    url = instructions.presigned_url
    if url is None:
        raise _nonsense("`presigned_url` is missing")
    check_url(url)
    WAITS.run(
        lambda: blobs.put(
            url,
            lambda: source.read(0, source.size, progress, done=0),
            size=source.size,
            headers=instructions.upload_headers,
            timeout_s=SIMPLE_TIMEOUT_S,
        ),
    )
    source.ensure_unchanged()


def _put_parts(
    blobs: BlobClient,
    source: _Source,
    parts: list[_Part],
    record: UnfinishedUpload | None,
    there: Mapping[int, str],
    progress: Progress | None,
) -> Upload:
    etags = {**there, **(record.acknowledged if record is not None else {})}
    done = sum(part.size for part in parts if part.number in etags)
    sent = 0
    if progress is not None:
        progress(done)
    for part in parts:
        if part.number in etags:
            continue
        etags[part.number] = _put_part(blobs, source, part, progress, done)
        source.ensure_unchanged()
        if record is not None:
            with suppress(OSError):
                record.acknowledge(part.number, etags[part.number])
        done += part.size
        sent += part.size
    completed = tuple(CompletedPart(PartNumber=part.number, ETag=etags[part.number]) for part in parts)
    return Upload(parts=completed, sent_bytes=sent, record=record)


def _put_part(blobs: BlobClient, source: _Source, part: _Part, progress: Progress | None, done: int) -> str:
    headers = WAITS.run(
        lambda: blobs.put(
            part.url,
            lambda: source.read(part.offset, part.size, progress, done=done),
            size=part.size,
            headers={},
            timeout_s=PART_TIMEOUT_S,
        ),
    )
    etag: str = headers.get("etag", "").strip().strip('"')
    if not etag:
        raise TransferError(f"the store took part {part.number} but did not acknowledge it (no ETag).")
    return etag


def _plan(instructions: UploadInstructions, size: int) -> list[_Part]:
    part_size, total = instructions.part_size, instructions.total_parts
    if part_size is None or total is None:
        raise _nonsense("`part_size` and `total_parts` are missing")
    if part_size < 1 or not part_size * (total - 1) < size <= part_size * total:
        raise _nonsense(f"{total} parts of {part_size} bytes are not the {size} bytes of the file")
    given = sorted(instructions.presigned_urls, key=lambda part: part.part_number)
    if [part.part_number for part in given] != list(range(1, total + 1)):
        raise _nonsense(f"there is not one URL for each of the parts 1 to {total}")
    parts = []
    for part in given:
        offset = (part.part_number - 1) * part_size
        length = min(part_size, size - offset)
        if part.size is not None and part.size != length:
            raise _nonsense(f"part {part.part_number} has {length} bytes, not {part.size}")
        check_url(part.presigned_url)
        parts.append(_Part(part.part_number, part.presigned_url, offset, length))
    return parts


def _nonsense(what: str) -> TransferError:
    return TransferError(f"the platform's upload instructions make no sense: {what}.")


class _Source:
    """The file to send; it can be read repeatedly, and changes to it are detected."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self._handle = path.open("rb")
        except OSError as error:
            raise OsmosisError(f"cannot read {path}: {error.strerror}.") from None
        self._state = self._stat()
        self.size = self._state[0]

    def __enter__(self) -> _Source:
        return self

    def __exit__(self, *_: object) -> None:
        self._handle.close()

    def digest(self) -> str:
        digest = hashlib.sha256()
        for block in self.read(0, self.size, None, done=0):
            digest.update(block)
        return digest.hexdigest()

    def read(self, offset: int, size: int, progress: Progress | None, *, done: int) -> Iterator[bytes]:
        """Yield ``size`` bytes from ``offset``; ``progress`` counts from ``done``."""
        self._handle.seek(offset)
        left = size
        while left:
            block = self._handle.read(min(left, _BLOCK_BYTES))
            if not block:
                raise self._changed()
            yield block
            left -= len(block)
            if progress is not None:
                progress(done + size - left)

    def ensure_unchanged(self) -> None:
        """Raise if the file has changed."""
        if self._stat() != self._state:
            raise self._changed()

    def _stat(self) -> tuple[int, int]:
        found = os.fstat(self._handle.fileno())
        return found.st_size, found.st_mtime_ns

    def _changed(self) -> OsmosisError:
        return OsmosisError(f"{self._path} changed while it was being uploaded.", hint="upload it again")
