"""Upload in progress, as stored in the dataset's row.

It lasts from the create request until its bytes have been checked. A later upload of the same dataset replaces it, and
work on the earlier one stops when it finds another id in the row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from osmosis_ai.api.wire.datasets import CompletedPart, UploadIntent
from osmosis_ai.platform.blobs.parted_upload import PartedUpload
from osmosis_ai.platform.blobs.store import BlobUpload, Part
from osmosis_ai.platform.datasets.upload_request import DatasetRejected
from osmosis_ai.platform.db.tables import DbDataset

_MOST_ISSUES = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingUpload(PartedUpload):
    """An upload that has begun."""

    extension: str
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
            intent=UploadIntent.of(record["intent"]),
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

    def match(self, received: Mapping[int, Part], named: Sequence[CompletedPart] | None) -> list[str]:
        """Return the ETags of all parts in order, if they are there and are those the client names."""
        problems = self.problems_with(received, named)
        if problems:
            more = len(problems) - _MOST_ISSUES
            shown = problems[:_MOST_ISSUES] + ([f"and {more} more"] if more > 0 else [])
            raise DatasetRejected([("parts", problem) for problem in shown])
        return self.all_etags(received)
