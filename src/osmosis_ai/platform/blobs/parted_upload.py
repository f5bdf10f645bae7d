"""Bytes that a client was told to send: their exact size, cut into parts, and what of them has arrived."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from osmosis_ai.api.wire.datasets import CompletedPart, UploadInstructions, UploadPart
from osmosis_ai.platform.blobs.store import BlobStore, BlobUpload, Part

UPLOAD_TTL = timedelta(hours=24)
"""How long the URLs of an upload work, and how long it may take."""
MULTIPART_FROM_BYTES, PART_BYTES = 64 << 20, 32 << 20
"""From which size on a file is sent in parts, and how large they are."""
# Between the beginning of an upload and the commit of the row that knows it.
_ORPHAN_AGE = timedelta(hours=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class PartedUpload:
    """An upload that has begun."""

    upload: BlobUpload
    size: int
    part_size: int

    def part_sizes(self) -> list[int]:
        """Return the exact size of each part, in bytes."""
        if not self.size:
            return [0]
        whole, rest = divmod(self.size, self.part_size)
        return [self.part_size] * whole + ([rest] if rest else [])

    def instructions(
        self, blobs: BlobStore, received: Mapping[int, Part] | None = None
    ) -> UploadInstructions:
        """Return where the client sends the bytes."""
        sizes = self.part_sizes()
        urls = [
            blobs.signed_part_url(self.upload, number, size=size, ttl=UPLOAD_TTL)
            for number, size in enumerate(sizes, 1)
        ]
        common: dict[str, Any] = {
            "expires_in": int(UPLOAD_TTL.total_seconds()),
            "s3_key": self.upload.key,
            "upload_id": self.upload.id,
        }
        if received is not None and len(urls) > 1:
            common["received_parts"] = _whole_parts(sizes, received)
        if len(urls) == 1:
            return UploadInstructions(method="simple", presigned_url=urls[0], upload_headers={}, **common)
        return UploadInstructions(
            method="multipart",
            part_size=self.part_size,
            total_parts=len(urls),
            presigned_urls=[
                UploadPart(part_number=number, presigned_url=url, size=size)
                for number, (url, size) in enumerate(zip(urls, sizes, strict=True), 1)
            ],
            **common,
        )

    def problems_with(self, received: Mapping[int, Part], named: Sequence[CompletedPart] | None) -> list[str]:
        """Return what keeps the parts received from being all parts, and those that the client names."""
        sizes = self.part_sizes()
        if named is None and len(sizes) > 1:
            return ["`parts` is missing: the upload has more than one"]
        problems = [] if named is None else _problems_of_names(named, len(sizes))
        etags = {part.PartNumber: part.ETag.strip().strip('"') for part in named or ()}
        for number, size in enumerate(sizes, 1):
            part = received.get(number)
            if part is None or part.size != size:
                problems.append(
                    f"part {number} has not arrived" if len(sizes) > 1 else "no bytes have arrived"
                )
            elif etags.get(number, part.etag) != part.etag:
                problems.append(f"part {number} arrived with another ETag than the one named")
        return problems

    def all_etags(self, received: Mapping[int, Part]) -> list[str]:
        """Return the ETags of all parts in order; call it when there are no problems with them."""
        return [received[number].etag for number in range(1, len(self.part_sizes()) + 1)]


def old_uploads(blobs: BlobStore, directory: str, *, now: datetime) -> list[BlobUpload]:
    """Return the unfinished uploads that began so long ago that one which no row knows never will be."""
    return [
        upload
        for upload, begun_at in blobs.unfinished_uploads()
        if begun_at < now - _ORPHAN_AGE and upload.key.startswith(f"{directory}/")
    ]


def _whole_parts(sizes: Sequence[int], received: Mapping[int, Part]) -> list[CompletedPart]:
    return [
        CompletedPart(PartNumber=number, ETag=part.etag)
        for number, size in enumerate(sizes, 1)
        if (part := received.get(number)) is not None and part.size == size
    ]


def _problems_of_names(named: Sequence[CompletedPart], total: int) -> list[str]:
    numbers = [part.PartNumber for part in named]
    if numbers == list(range(1, total + 1)):
        return []
    if len(set(numbers)) < len(numbers):
        return ["`parts` names a part twice"]
    if numbers != sorted(numbers):
        return ["`parts` must be in ascending order"]
    missing = sorted(set(range(1, total + 1)) - set(numbers))
    unknown = sorted(set(numbers) - set(range(1, total + 1)))
    return [f"`parts` does not name part {number}" for number in missing] + [
        f"there is no part {number}" for number in unknown
    ]
