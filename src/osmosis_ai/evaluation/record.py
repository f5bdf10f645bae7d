"""One finished attempt, as the journal keeps it.

A record is complete by itself: everything a table or a metric says about an attempt is here, so
that numbers after a crash are the numbers of an undisturbed run. The keys up to ``error_type``
are the product's; those after it are ours and appear in no other file.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import orjson

from osmosis_ai.controller.attempt import BOUNDARIES, STATUSES, Boundary, Status


@dataclass(frozen=True, slots=True)
class TerminalRecord:
    """The outcome of one attempt (``run_index``) on one selected row (``row_index``)."""

    row_index: int
    run_index: int
    rollout_id: str
    status: Status
    duration_ms: int
    source_row_index: int | None = None
    reward: float | None = None
    tokens: int | None = None
    error_type: str | None = None
    boundary: Boundary | None = None
    error: str | None = None
    model_calls: int | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cost_usd: float | None = None
    model_latency_ms: float | None = None
    category: str | None = None
    lost_attempts: int | None = None
    row_digest: str | None = None
    scores: Mapping[str, float] | None = None
    unscored: Mapping[str, str] | None = None
    finish_reason: str | None = None
    judge_calls: int | None = None
    judge_tokens: int | None = None
    judge_cost_usd: float | None = None
    judge_outside_scale: int | None = None
    judgements: Sequence[Mapping[str, Any]] | None = None
    input: str | None = None
    output: str | None = None
    notes: str | None = None
    parts: Mapping[str, float] | None = None
    finish_reasons: Mapping[str, int] | None = None

    @property
    def has_unknown_tokens(self) -> bool:
        """Whether a model was called, perhaps without an answer, and nobody reported the tokens."""
        return self.tokens is None and (bool(self.model_calls) or self.boundary == "provider")

    def to_line(self) -> bytes:
        """Return the record as one canonical JSON line, newline included, nulls left out."""
        known = {name: value for name in _NAMES if (value := getattr(self, name)) is not None}
        return orjson.dumps(known, option=orjson.OPT_SORT_KEYS | orjson.OPT_APPEND_NEWLINE)

    @classmethod
    def from_line(cls, line: bytes) -> TerminalRecord:
        """Parse a line written by :meth:`to_line`."""
        value = orjson.loads(line)  # its JSONDecodeError is a ValueError
        if not isinstance(value, dict):
            raise ValueError("not a JSON object")
        known = {name: value[name] for name in _NAMES if name in value}
        for name, content in known.items():
            check_field(name, content)
        missing = [name for name in _REQUIRED if name not in known]
        if missing:
            raise ValueError(f"no `{missing[0]}`")
        return cls(**known)


_NAMES: tuple[str, ...] = tuple(field.name for field in fields(TerminalRecord))
_REQUIRED = ("row_index", "run_index", "rollout_id", "status", "duration_ms")
_COUNTS = frozenset(
    {
        "row_index",
        "run_index",
        "source_row_index",
        "duration_ms",
        "tokens",
        "model_calls",
        "prompt_tokens",
        "completion_tokens",
        "lost_attempts",
        "judge_calls",
        "judge_tokens",
        "judge_outside_scale",
    }
)
_NUMBERS = frozenset({"reward", "cost_usd", "model_latency_ms", "judge_cost_usd"})
_DIGEST = re.compile(r"[0-9a-f]{16,64}")
LARGEST_COUNT = 2**53 - 1
"""What JSON's readers agree on (RFC 8259, section 6); sums of two fit every store of whole numbers."""
_SHOWN = 100
_TABLES: dict[str, tuple[type, ...]] = {
    "scores": (int, float),
    "parts": (int, float),
    "unscored": (str,),
    "finish_reasons": (int,),
}


def check_field(name: str, content: Any) -> None:
    """Find out whether ``content`` can be the value of a record's field."""
    if name in _COUNTS:
        fits = type(content) is int and 0 <= content <= LARGEST_COUNT
    elif name in _NUMBERS:
        fits = type(content) in (int, float)
    elif name in _TABLES:
        fits = fits_table(name, content)
    elif name == "judgements":
        fits = isinstance(content, list) and all(isinstance(judgement, dict) for judgement in content)
    elif name == "status":
        fits = isinstance(content, str) and content in STATUSES
    elif name == "boundary":
        fits = isinstance(content, str) and content in BOUNDARIES
    elif name == "row_digest":
        fits = isinstance(content, str) and _DIGEST.fullmatch(content) is not None
    elif name == "rollout_id":
        fits = isinstance(content, str) and is_safe_id(content)
    else:
        fits = isinstance(content, str)
    if not fits:
        raise ValueError(f"`{name}` cannot be {repr(content)[:_SHOWN]}")


def fits_table(name: str, content: Any) -> bool:
    """Return whether ``content`` can be the value of a field that is a table."""
    return isinstance(content, dict) and all(type(value) in _TABLES[name] for value in content.values())


def is_safe_id(value: str) -> bool:
    """Tell whether ``value`` can name a directory: one path segment, nothing special."""
    return value not in ("", ".", "..") and "/" not in value and "\\" not in value and "\0" not in value
