"""Digests of rows that are equal for equal rows in every format and file.

Two rows are equal if an agent and its grader receive the same from both. JSON Lines omits a key where Parquet has a
null, CSV has text where JSON has a number, and Parquet turns 3 into 3.0; these differences do not count.
"""

from __future__ import annotations

import hashlib
import json
import math
from typing import Any

from osmosis_ai.datasets.rows import DatasetRow

DIGEST_CHARACTERS = 32
"""The length of a digest: a prefix of the SHA-256 in hex."""


def row_digest(row: DatasetRow) -> str:
    """Return the digest of a row as a rollout receives it: messages, expected answer, metadata."""
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
