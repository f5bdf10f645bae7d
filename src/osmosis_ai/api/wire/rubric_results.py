"""Results of judging sessions on a platform; a resource of self-hosted platforms.

Sizes in bytes, the digest SHA-256 in lower-case hexadecimal, of the document as it is stored.
"""

from __future__ import annotations

import shlex
from typing import Any

from pydantic import Field

from osmosis_ai.api.wire.base import Timestamp, WireModel

LARGEST_DOCUMENT_BYTES = 32 << 20
"""Of a document, with the name that it is sent with."""
LONGEST_NAME = 255


def deletion_command(name: str) -> str:
    """Return the command that deletes a result, as a shell takes it."""
    return f"osmosis eval delete --rubric {'-- ' if name.startswith('-') else ''}{shlex.quote(name)}"


class RubricDocument(WireModel):
    """What every result has; the rest is as `osmosis eval rubric` wrote it, and kept as it is."""

    generated_at: Timestamp
    model: str
    records: list[dict[str, Any]]


class RubricUpload(WireModel):
    name: str
    document: RubricDocument


class JudgeCallCounts(WireModel):
    """How many calls of judges there are."""

    planned: int
    scored: int
    failed: int
    pending: int


class StoredRubricResult(WireModel):
    """A result as lists show it.

    ``status``: ``finished``, or ``incomplete`` when calls are pending; ``created_at``: when it was uploaded; ``score``: the mean over
    scored records; ``is_new``: whether this very upload brought it, of an upload alone.
    """

    id: str
    name: str
    status: str
    sha256: str
    size: int
    created_at: Timestamp
    generated_at: Timestamp | None = None
    creator_name: str | None = None
    model: str | None = None
    dataset: str | None = None
    rubric_id: str | None = None
    score: float | None = Field(default=None, allow_inf_nan=False)
    calls: JudgeCallCounts | None = None
    cost_usd: float | None = None
    duration_s: float | None = None
    platform_url: str | None = None
    is_new: bool | None = None


class RubricResultPage(WireModel):
    """Results, the newest first; ``next_cursor`` is that of the page behind."""

    rubric_results: list[StoredRubricResult] = []
    next_cursor: str | None = None
