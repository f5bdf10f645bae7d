"""What a row is, apart from where it stands: a digest that the same row has in every format and file.

Two rows are the same when an agent and its grader get the same of both. JSON Lines leaves a key out where Parquet
has a null, CSV has text where JSON has a number, and Parquet turns 3 into 3.0: none of these makes another row.
"""

from __future__ import annotations

import hashlib
import json
import math
from typing import Any

from osmosis_ai.datasets.rows import DatasetRow

DIGEST_CHARACTERS = 32
"""Of the SHA-256, in hex."""


def row_digest(row: DatasetRow) -> str:
    """Return the digest of what a rollout gets of a row: messages, expected answer, metadata."""
    return content_digest({"ground_truth": row.label, "messages": row.messages, "metadata": row.metadata})


def content_digest(value: Any) -> str:
    """Return the first 32 hex digits of the SHA-256 of a value's canonical JSON."""
    text = json.dumps(
        _canonical(value), sort_keys=True, separators=(",", ":"), ensure_ascii=False, default=str
    )
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:DIGEST_CHARACTERS]


def _canonical(value: Any) -> Any:
    if isinstance(value, dict):
        known = {str(key): item for key, raw in value.items() if (item := _canonical(raw)) is not None}
        return known or None
    if isinstance(value, (list, tuple)):
        return [_canonical(item) for item in value]
    if isinstance(value, float):
        if math.isnan(value):
            return None
        return int(value) if value.is_integer() else value
    return value
