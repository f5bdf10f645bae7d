"""Uploads of datasets, imported runs and workers' files: bytes of an announced size, sent to the store in parts.

The owner records the session in its own rows. A session that no row names is aborted once it is old.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from osmosis_ai.api.models.datasets import CompletedPart, UploadInstructions, UploadPart
from osmosis_ai.platform.blobs.store import BlobError, BlobInfo, BlobStore, BlobUpload, UploadNotFound

UPLOAD_TTL = timedelta(hours=24)
"""How long the URLs of an upload work, and how long it may take."""
MULTIPART_FROM_BYTES, PART_BYTES = 64 << 20, 32 << 20
"""From which size on a client sends a file in parts, and their size."""
# Between the start of an upload and the commit of its row.
_ORPHAN_AGE = timedelta(hours=1)


class UnexpectedBytesError(BlobError):
    """The stored bytes are not those that were announced; they were deleted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UploadSession:
    """An upload that has begun; its digest is unknown if the client did not announce it."""

    upload: BlobUpload
    size: int
    part_size: int
    sha256: str | None = None

    def part_sizes(self) -> list[int]:
        if not self.size:
            return [0]
        whole, rest = divmod(self.size, self.part_size)
        return [self.part_size] * whole + ([rest] if rest else [])

    def urls(self, blobs: BlobStore, ttl: timedelta = UPLOAD_TTL) -> list[str]:
        sizes = enumerate(self.part_sizes(), 1)
        return [blobs.signed_part_url(self.upload, number, size=size, ttl=ttl) for number, size in sizes]

    def received(self, blobs: BlobStore) -> dict[int, str] | None:
        """Return the ETags of the complete parts, in order; None if the upload has ended."""
        try:
            parts = blobs.parts(self.upload)
        except UploadNotFound:
            return None
        return {
            number: parts[number].etag
            for number, size in enumerate(self.part_sizes(), 1)
            if number in parts and parts[number].size == size
        }

    def instructions(self, blobs: BlobStore, received: Mapping[int, str] | None = None) -> UploadInstructions:
        """Return where a client of the hosted API sends the bytes."""
        urls = self.urls(blobs)
        common: dict[str, Any] = {
            "expires_in": int(UPLOAD_TTL.total_seconds()),
            "s3_key": self.upload.key,
            "upload_id": self.upload.id,
        }
        if len(urls) == 1:
            return UploadInstructions(method="simple", presigned_url=urls[0], upload_headers={}, **common)
        if received is not None:
            common["received_parts"] = [
                CompletedPart(PartNumber=number, ETag=etag) for number, etag in received.items()
            ]
        return UploadInstructions(
            method="multipart",
            part_size=self.part_size,
            total_parts=len(urls),
            presigned_urls=[
                UploadPart(part_number=number, presigned_url=url, size=size)
                for number, (url, size) in enumerate(zip(urls, self.part_sizes(), strict=True), 1)
            ],
            **common,
        )

    def problems_with(self, received: Mapping[int, str], named: Sequence[CompletedPart] | None) -> list[str]:
        """Return why the received parts are not all parts, or not those that the client names."""
        count = len(self.part_sizes())
        if named is None and count > 1:
            return ["`parts` is missing: the upload has more than one"]
        problems = []
        if named is not None and [part.PartNumber for part in named] != list(range(1, count + 1)):
            problems.append(f"`parts` must name each of the {count} parts once, in ascending order")
        etags = {part.PartNumber: part.ETag.strip().strip('"') for part in named or ()}
        for number in range(1, count + 1):
            if number not in received:
                problems.append(f"part {number} has not arrived" if count > 1 else "no bytes have arrived")
            elif etags.get(number, received[number]) != received[number]:
                problems.append(f"part {number} arrived with another ETag than the one named")
        return problems

    def complete(self, blobs: BlobStore, etags: Sequence[str]) -> BlobInfo:
        """Make the blob of these parts if it is what was announced; may be repeated."""
        info = blobs.complete_upload(self.upload, etags)
        if info.size != self.size:
            problem = f"{info.size} bytes were stored instead of {self.size}"
        elif self.sha256 not in (None, info.sha256):
            problem = "the bytes received are not those that were announced; upload the file again"
        else:
            return info
        blobs.delete(self.upload.key)
        raise UnexpectedBytesError(problem)


@contextmanager
def new_upload(blobs: BlobStore, key: str) -> Iterator[BlobUpload]:
    """Begin an upload; abort it if the block, which records it, fails."""
    upload = blobs.begin_upload(key)
    try:
        yield upload
    except BaseException:
        blobs.abort_upload(upload)
        raise


def old_uploads(blobs: BlobStore, directory: str, *, now: datetime) -> list[BlobUpload]:
    """Return the unfinished uploads that are too old to still get a row."""
    return [
        upload
        for upload, begun_at in blobs.unfinished_uploads()
        if begun_at < now - _ORPHAN_AGE and upload.key.startswith(f"{directory}/")
    ]
