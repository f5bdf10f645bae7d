"""Data that this package stores under reserved keys of a sample's ``extra_fields``.

Any version of the rollout protocol passes the keys through. User code can store anything under them, so readers treat
malformed data as missing.
"""

from __future__ import annotations

import math
import numbers
import sys
from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Annotated, Any, TypedDict

import msgspec
from msgspec import Meta, Struct

NOTES_KEY = "grader_notes"
JUDGE_KEY = "judge_calls"
LOOP_KEY = "agent_loop"

CANCELLED = "cancelled"
"""Finish reason of a rollout that its server's shutdown ended; such a rollout is run again."""

MOST_NOTES_CHARS = 2_000
_MOST_PARTS = 32
_MOST_NAME_CHARS = 64
_MOST_JUDGEMENTS = 32
_MOST_TEXT_CHARS = 8_000

Count = Annotated[int, Meta(ge=0, lt=2**31)]
FiniteFloat = Annotated[float, Meta(ge=-sys.float_info.max, le=sys.float_info.max)]


@dataclass(frozen=True, slots=True)
class GraderNotes:
    """A grader's text notes and the named components of its reward. Either may be missing."""

    notes: str | None = None
    parts: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def checked(cls, notes: object = None, parts: object = None) -> GraderNotes:
        """Validate a grader's values. Notes are truncated to 2,000 characters.

        Raises:
            ValueError: The notes are not text, or the parts are not a table of at most 32 finite numbers.
        """
        if notes is not None and not isinstance(notes, str):
            raise ValueError(f"`notes` must be text, not {type(notes).__name__}")
        if notes is not None and len(notes) > MOST_NOTES_CHARS:
            notes = f"{notes[: MOST_NOTES_CHARS - 1]}…"
        if parts is None:
            return cls(notes)
        if not isinstance(parts, Mapping):
            raise ValueError(f"`parts` must be a table of numbers by name, not {type(parts).__name__}")
        if len(parts) > _MOST_PARTS:
            raise ValueError(f"`parts` can have {_MOST_PARTS} numbers at most, not {len(parts)}")
        return cls(notes, dict(_checked_part(*part) for part in parts.items()))

    def write(self, extra_fields: MutableMapping[str, Any]) -> None:
        """Write the notes to a sample's ``extra_fields``, replacing earlier ones."""
        extra_fields.pop(NOTES_KEY, None)
        if self.notes or self.parts:
            fields = {"notes": self.notes, "parts": dict(self.parts)}
            extra_fields[NOTES_KEY] = {name: value for name, value in fields.items() if value}


def read_grader_notes(extra_fields: Mapping[str, Any]) -> GraderNotes:
    """Return the notes stored in ``extra_fields``."""
    stored = extra_fields.get(NOTES_KEY)
    if not isinstance(stored, Mapping):
        return GraderNotes()
    try:
        return GraderNotes.checked(stored.get("notes"), stored.get("parts"))
    except ValueError:
        return GraderNotes()


def _checked_part(name: object, value: object) -> tuple[str, float]:
    if not isinstance(name, str) or not name.strip() or len(name) > _MOST_NAME_CHARS:
        raise ValueError(
            f"a part's name must be text of 1 to {_MOST_NAME_CHARS} characters, not {name!r:.80}"
        )
    # NumPy scalars are registered as real numbers. True and False state whether a part was met.
    try:
        number = float(value) if isinstance(value, numbers.Real) else math.nan
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise ValueError(f"the part `{name}` must be a finite number, not {value!r:.80}")
    return name, number


class Judgement(TypedDict, total=False):
    """One judge call; ``stated_score`` is the judge's number if it was outside the scale and clamped."""

    model: str
    score: FiniteFloat
    explanation: str
    stated_score: FiniteFloat
    error: str


class JudgeCalls(Struct):
    """Judge calls of one grading, with the first calls' judgements.

    A retry of the same score is not counted separately. Unanswered questions count as calls.
    """

    calls: Count = 0
    tokens: Count = 0
    cost_usd: Annotated[float, Meta(ge=0, le=sys.float_info.max)] | None = None
    judgements: list[Judgement] = msgspec.field(default_factory=list)
    outside_scale: Count = 0

    def to_fields(self) -> dict[str, Any]:
        """Return the ``extra_fields`` entry; empty without calls."""
        return {JUDGE_KEY: msgspec.to_builtins(self)} if self.calls else {}


_current_calls: ContextVar[JudgeCalls | None] = ContextVar("osmosis_judge_calls", default=None)


@contextmanager
def counting_judge_calls() -> Iterator[JudgeCalls]:
    """Collect the judge calls made in the block by this task and the tasks it starts."""
    calls = JudgeCalls()
    token = _current_calls.set(calls)
    try:
        yield calls
    finally:
        _current_calls.reset(token)


def note_judge_call(*, tokens: int, cost_usd: float | None, judgement: Mapping[str, Any]) -> None:
    """Record a judge call with the current grading, if any."""
    calls = _current_calls.get()
    if calls is None:
        return
    calls.calls += 1
    calls.tokens += tokens
    calls.outside_scale += "stated_score" in judgement
    if cost_usd is not None:
        calls.cost_usd = (calls.cost_usd or 0.0) + cost_usd
    if len(calls.judgements) < _MOST_JUDGEMENTS:
        cut: Any = {name: v[:_MOST_TEXT_CHARS] if isinstance(v, str) else v for name, v in judgement.items()}
        calls.judgements.append(cut)


def read_judge_calls(extra_fields: Mapping[str, Any]) -> JudgeCalls:
    """Return the calls stored in ``extra_fields``."""
    try:
        calls = msgspec.convert(extra_fields.get(JUDGE_KEY), JudgeCalls)
    except msgspec.ValidationError:
        return JudgeCalls()
    return calls if calls.calls >= max(calls.outside_scale, 1) else JudgeCalls()


class LoopOutcome(Struct, omit_defaults=True):
    """How an agent loop ended: scores by eval function name, and the reason for each missing score."""

    finish_reason: str | None = None
    scores: dict[str, FiniteFloat] = msgspec.field(default_factory=dict)
    unscored: dict[str, str] = msgspec.field(default_factory=dict)

    def to_fields(self) -> dict[str, Any]:
        """Return the ``extra_fields`` entry."""
        return {LOOP_KEY: msgspec.to_builtins(self)}


def read_outcome(extra_fields: Mapping[str, Any]) -> LoopOutcome:
    """Return the outcome stored in ``extra_fields``; empty if they are not from an agent loop."""
    try:
        return msgspec.convert(extra_fields.get(LOOP_KEY), LoopOutcome)
    except msgspec.ValidationError:
        return LoopOutcome()
