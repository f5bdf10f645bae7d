"""Records of interrupted uploads on disk: their intent, and the parts that the store has acknowledged."""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

from osmosis_ai.api.models.datasets import UploadInstructions, UploadIntent
from osmosis_ai.files import write_atomic, write_json

_VERSION = 1
# URLs that expire during the first part are useless.
_MARGIN = timedelta(seconds=60)


@dataclass
class UnfinishedUpload:
    """An upload in parts: its destination and progress."""

    path: Path
    dataset_id: str
    digest: str
    scope: str
    instructions: UploadInstructions = field(repr=False)
    expires_at: datetime | None = None
    acknowledged: dict[int, str] = field(default_factory=dict)

    def acknowledge(self, part_number: int, etag: str) -> None:
        """Record that the store has a part; durable across crashes."""
        self.acknowledged[part_number] = etag
        self.save()

    @property
    def is_acknowledged(self) -> bool:
        """Whether the store has every part, so that at most the platform's completion is missing."""
        return len(self.acknowledged) == (self.instructions.total_parts or 0)

    def save(self) -> None:
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_json(
            self.path,
            {
                "version": _VERSION,
                "dataset_id": self.dataset_id,
                "digest": self.digest,
                "scope": self.scope,
                "instructions": self.instructions.to_wire(),
                "expires_at": self.expires_at.isoformat() if self.expires_at else None,
                "acknowledged": {str(number): etag for number, etag in sorted(self.acknowledged.items())},
            },
        )

    def forget(self) -> None:
        """Remove the file after the upload was completed or cancelled."""
        self.path.unlink(missing_ok=True)


@dataclass(frozen=True)
class NotedIntent:
    """The intent to upload, recorded in a file before the first request."""

    path: Path
    intent: UploadIntent

    def forget(self) -> None:
        """Remove the file after the upload was completed or cancelled."""
        self.path.unlink(missing_ok=True)


def note_intent(state_dir: Path, *, digest: str, scope: str) -> NotedIntent:
    """Return the intent to send these bytes to ``scope``; an interrupted one is reused."""
    path = state_dir / f"{_short(digest)}-{_short(hashlib.sha256(scope.encode()).hexdigest())}.intent"
    try:
        found = UploadIntent.of(path.read_text("ascii").strip())
    except (OSError, UnicodeDecodeError):
        found = None
    if found is not None and found.sha256 == digest:
        return NotedIntent(path, found)
    noted = NotedIntent(path, UploadIntent(uuid.uuid4().hex, digest))
    with suppress(OSError):
        state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_atomic(path, f"{noted.intent.header}\n")
    return noted


def open_upload(
    state_dir: Path, *, digest: str, dataset_id: str, instructions: UploadInstructions, scope: str = ""
) -> UnfinishedUpload:
    """Return the upload of these bytes to this dataset, with its progress if it was started before."""
    path = state_dir / _file_name(digest, dataset_id)
    former = _load(path)
    now = datetime.now(timezone.utc)
    lifetime = instructions.expires_in
    upload = UnfinishedUpload(
        path=path,
        dataset_id=dataset_id,
        digest=digest,
        scope=scope,
        instructions=instructions,
        expires_at=None if lifetime is None else now + timedelta(seconds=lifetime),
    )
    if former is not None and _layout(former.instructions) == _layout(instructions):
        upload.acknowledged = former.acknowledged
        if former.instructions == instructions:
            upload.expires_at = former.expires_at
    upload.save()
    return upload


def find_unfinished_upload(
    state_dir: Path, *, digest: str, scope: str = "", now: datetime | None = None
) -> UnfinishedUpload | None:
    """Return the upload of these bytes in this scope that is furthest and whose URLs are valid, or None."""
    moment = now or datetime.now(timezone.utc)
    found = []
    for upload in _uploads(state_dir, digest):
        if upload.expires_at is not None and upload.expires_at <= moment + _MARGIN:
            upload.forget()
        elif upload.scope == scope:
            found.append(upload)
    return max(found, key=lambda upload: len(upload.acknowledged), default=None)


def _uploads(state_dir: Path, digest: str) -> Iterator[UnfinishedUpload]:
    for path in sorted(state_dir.glob(f"{_short(digest)}-*.json")):
        upload = _load(path)
        if upload is not None and upload.digest == digest:
            yield upload


def _load(path: Path) -> UnfinishedUpload | None:
    try:
        content: Any = json.loads(path.read_bytes())
        if content["version"] != _VERSION:
            return None
        expires_at = content["expires_at"]
        return UnfinishedUpload(
            path=path,
            dataset_id=str(content["dataset_id"]),
            digest=str(content["digest"]),
            scope=str(content["scope"]),
            instructions=UploadInstructions.model_validate(content["instructions"]),
            expires_at=None if expires_at is None else datetime.fromisoformat(expires_at),
            acknowledged={int(number): str(etag) for number, etag in content["acknowledged"].items()},
        )
    except (OSError, ValueError, RecursionError, KeyError, TypeError, AttributeError):
        # Without a readable record, the upload only starts again.
        return None


def _layout(instructions: UploadInstructions) -> tuple[Any, ...]:
    urls = () if instructions.upload_id else tuple(part.presigned_url for part in instructions.presigned_urls)
    return (
        instructions.upload_id,
        instructions.s3_key,
        instructions.part_size,
        instructions.total_parts,
        urls,
    )


def _file_name(digest: str, dataset_id: str) -> str:
    return f"{_short(digest)}-{hashlib.sha256(dataset_id.encode()).hexdigest()[:16]}.json"


def _short(digest: str) -> str:
    return digest[:32]
