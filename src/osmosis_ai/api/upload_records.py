"""Records of interrupted uploads on disk: their intent, and the parts that the store has acknowledged."""

from __future__ import annotations

import hashlib
import json
import uuid
from contextlib import suppress
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from osmosis_ai.api.models.datasets import UploadInstructions, UploadIntent
from osmosis_ai.files import write_atomic, write_json

# URLs that expire during the first part are useless.
_MARGIN = timedelta(seconds=60)


class UnfinishedUpload(BaseModel):
    """An upload in parts: its destination and progress."""

    model_config = ConfigDict(hide_input_in_errors=True)

    path: Path = Field(exclude=True)
    version: Literal[1] = 1
    dataset_id: str
    digest: str
    scope: str
    instructions: UploadInstructions = Field(repr=False)
    expires_at: datetime | None
    acknowledged: dict[int, str]

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
        write_json(self.path, self.model_dump(mode="json"))

    def forget(self) -> None:
        """Remove the file after the upload was completed or cancelled."""
        self.path.unlink(missing_ok=True)


def note_intent(state_dir: Path, *, digest: str, scope: str) -> tuple[UploadIntent, Path]:
    """Return the intent to send these bytes to ``scope``, and its file; an interrupted one is reused."""
    path = state_dir / f"{_short(digest)}-{_short(hashlib.sha256(scope.encode()).hexdigest())}.intent"
    try:
        found = UploadIntent.of(path.read_text("ascii").strip())
    except (OSError, UnicodeDecodeError):
        found = None
    if found is not None and found.sha256 == digest:
        return found, path
    intent = UploadIntent(uuid.uuid4().hex, digest)
    with suppress(OSError):
        state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_atomic(path, f"{intent.header}\n")
    return intent, path


def open_upload(
    state_dir: Path, *, digest: str, dataset_id: str, instructions: UploadInstructions, scope: str
) -> UnfinishedUpload:
    """Return the upload of these bytes to this dataset, with its progress if it was started before."""
    path = state_dir / f"{_short(digest)}-{hashlib.sha256(dataset_id.encode()).hexdigest()[:16]}.json"
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
        acknowledged={},
    )
    if former is not None and _layout(former.instructions) == _layout(instructions):
        upload.acknowledged = former.acknowledged
        if former.instructions == instructions:
            upload.expires_at = former.expires_at
    upload.save()
    return upload


def find_unfinished_upload(
    state_dir: Path, *, digest: str, scope: str, now: datetime | None = None
) -> UnfinishedUpload | None:
    """Return the upload of these bytes in this scope that is furthest and whose URLs are valid, or None."""
    moment = now or datetime.now(timezone.utc)
    found = []
    for path in sorted(state_dir.glob(f"{_short(digest)}-*.json")):
        upload = _load(path)
        if upload is None or upload.digest != digest:
            continue
        if upload.expires_at is not None and upload.expires_at <= moment + _MARGIN:
            upload.forget()
        elif upload.scope == scope:
            found.append(upload)
    return max(found, key=lambda upload: len(upload.acknowledged), default=None)


def _load(path: Path) -> UnfinishedUpload | None:
    """Read a record. Without a readable one, the upload only starts again."""
    try:
        return UnfinishedUpload.model_validate({**json.loads(path.read_bytes()), "path": path})
    except (OSError, ValueError, RecursionError, TypeError):
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


def _short(digest: str) -> str:
    return digest[:32]
