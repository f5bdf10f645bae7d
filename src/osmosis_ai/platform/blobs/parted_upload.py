"""Uploads of an announced size: its parts, where clients send them, and which have arrived."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from osmosis_ai.api.models.datasets import CompletedPart, UploadInstructions, UploadPart
from osmosis_ai.platform.blobs.store import BlobStore, BlobUpload, Part

UPLOAD_TTL = timedelta(hours=24)
"""How long the URLs of an upload work, and how long it may take."""
MULTIPART_FROM_BYTES, PART_BYTES = 64 << 20, 32 << 20
"""From which size on a file is sent in parts, and their size."""
# Between the start of an upload and the commit of its row.
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
        parts = [
            UploadPart(
                part_number=number,
                presigned_url=blobs.signed_part_url(self.upload, number, size=size, ttl=UPLOAD_TTL),
                size=size,
            )
            for number, size in enumerate(self.part_sizes(), 1)
        ]
        common: dict[str, Any] = {
            "expires_in": int(UPLOAD_TTL.total_seconds()),
            "s3_key": self.upload.key,
            "upload_id": self.upload.id,
        }
        if len(parts) == 1:
            url = parts[0].presigned_url
            return UploadInstructions(method="simple", presigned_url=url, upload_headers={}, **common)
        if received is not None:
            common["received_parts"] = [
                CompletedPart(PartNumber=each.part_number, ETag=part.etag)
                for each in parts
                if (part := received.get(each.part_number)) is not None and part.size == each.size
            ]
        return UploadInstructions(
            method="multipart",
            part_size=self.part_size,
            total_parts=len(parts),
            presigned_urls=parts,
            **common,
        )

    def problems_with(self, received: Mapping[int, Part], named: Sequence[CompletedPart] | None) -> list[str]:
        """Return why the received parts are not all parts, or not those that the client names."""
        sizes = self.part_sizes()
        if named is None and len(sizes) > 1:
            return ["`parts` is missing: the upload has more than one"]
        problems = []
        if named is not None and [part.PartNumber for part in named] != list(range(1, len(sizes) + 1)):
            problems.append(f"`parts` must name each of the {len(sizes)} parts once, in ascending order")
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
        """Return the ETags of all parts in order, if there are no problems with them."""
        return [received[number].etag for number in range(1, len(self.part_sizes()) + 1)]


def old_uploads(blobs: BlobStore, directory: str, *, now: datetime) -> list[BlobUpload]:
    """Return the unfinished uploads that are too old to still get a row."""
    return [
        upload
        for upload, begun_at in blobs.unfinished_uploads()
        if begun_at < now - _ORPHAN_AGE and upload.key.startswith(f"{directory}/")
    ]
