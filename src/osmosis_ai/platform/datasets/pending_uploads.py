"""An upload on its way to a dataset, as the dataset's row remembers it.

It lasts from the create request until its bytes have been checked. A later upload of the same dataset takes
its place; whoever works on the former one finds another id in the row and lets go.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from osmosis_ai.api.wire.datasets import CompletedPart, UploadInstructions, UploadIntent, UploadPart
from osmosis_ai.platform.blobs.store import BlobStore, BlobUpload, Part
from osmosis_ai.platform.datasets.upload_request import DatasetRejected
from osmosis_ai.platform.db.tables import DbDataset

UPLOAD_TTL = timedelta(hours=24)
"""How long the URLs of an upload work, and how long it may take."""

_MOST_ISSUES = 20


@dataclass(frozen=True, slots=True)
class PendingUpload:
    """An upload that has begun.

    Args:
        upload: the store's.
        extension: of the file.
        size: of the file, in bytes.
        part_size: of every part but the last, in bytes; that of the file for an upload in one piece.
        creator_id: who sends it.
        expires_at: when its URLs end.
        etags: of its parts, once the client has completed it.
        intent: what the client said it would send, if it did.
    """

    upload: BlobUpload
    extension: str
    size: int
    part_size: int
    creator_id: str | None
    expires_at: datetime
    etags: tuple[str, ...] | None = None
    intent: UploadIntent | None = None

    @classmethod
    def of(cls, row: DbDataset | None) -> PendingUpload | None:
        """Return the upload that a dataset waits for, or None."""
        record = row.upload if row is not None else None
        if record is None:
            return None
        etags = record["etags"]
        return cls(
            upload=BlobUpload(record["id"], record["key"]),
            extension=record["extension"],
            size=record["size"],
            part_size=record["part_size"],
            creator_id=record["creator_id"],
            expires_at=datetime.fromisoformat(record["expires_at"]),
            etags=None if etags is None else tuple(etags),
            # Uploads that an earlier release began have none.
            intent=UploadIntent.of(record.get("intent")),
        )

    def to_json(self) -> dict[str, Any]:
        """Return what :meth:`of` reads."""
        return {
            "id": self.upload.id,
            "key": self.upload.key,
            "extension": self.extension,
            "size": self.size,
            "part_size": self.part_size,
            "creator_id": self.creator_id,
            "expires_at": self.expires_at.isoformat(),
            "etags": None if self.etags is None else list(self.etags),
            "intent": None if self.intent is None else self.intent.header,
        }

    def completed(self, etags: Sequence[str]) -> PendingUpload:
        """Return the upload with all its parts received."""
        return replace(self, etags=tuple(etags))

    def is_of(self, creator_id: str, extension: str, size: int, intent: UploadIntent) -> bool:
        """Tell whether this is what the same user began to send: the same bytes, and not all of them here."""
        same_bytes = self.intent is not None and self.intent.sha256 == intent.sha256
        same_file = (self.creator_id, self.extension, self.size) == (creator_id, extension, size)
        return same_bytes and same_file and self.etags is None

    def without_sender(self) -> PendingUpload:
        """Return the upload without its sender, who is no user any more."""
        return replace(self, creator_id=None)

    def part_sizes(self) -> list[int]:
        """Return the exact size of each part, in bytes."""
        whole, rest = divmod(self.size, self.part_size)
        return [self.part_size] * whole + ([rest] if rest else [])

    def instructions(
        self, blobs: BlobStore, received: Mapping[int, Part] | None = None
    ) -> UploadInstructions:
        """Return where the client sends the bytes.

        Args:
            blobs: where the upload is.
            received: the parts that have arrived, of an upload that goes on.
        """
        sizes = self.part_sizes()
        urls = [
            blobs.signed_part_url(self.upload, number, size=size, ttl=UPLOAD_TTL)
            for number, size in enumerate(sizes, 1)
        ]
        common: dict[str, Any] = {
            "expires_in": UPLOAD_TTL.total_seconds(),
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

    def match(self, received: Mapping[int, Part], named: Sequence[CompletedPart] | None) -> list[str]:
        """Return the ETags of all parts in order, if they are there and are those the client names.

        Raises:
            DatasetRejected: naming every part that is missing or another.
        """
        sizes = self.part_sizes()
        if named is None and len(sizes) > 1:
            raise DatasetRejected([("parts", "`parts` is missing: the upload has more than one")])
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
        if problems:
            more = len(problems) - _MOST_ISSUES
            shown = problems[:_MOST_ISSUES] + ([f"and {more} more"] if more > 0 else [])
            raise DatasetRejected([("parts", problem) for problem in shown])
        return [received[number].etag for number in range(1, len(sizes) + 1)]


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
