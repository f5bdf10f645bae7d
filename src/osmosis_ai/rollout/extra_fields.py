"""Data that this package stores under reserved keys of a sample's ``extra_fields``.

Any version of the rollout protocol passes the keys through. User code can store anything under them, so readers treat a
malformed value as missing.
"""

from __future__ import annotations

import math
import numbers
import sys
from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

NOTES_KEY = "grader_notes"
JUDGE_KEY = "judge_calls"
LOOP_KEY = "agent_loop"

CANCELLED = "cancelled"
"""Finish reason of a rollout that its server's shutdown ended; such a rollout is run again."""

MOST_NOTES_CHARS = 2_000
MOST_PARTS = 32
MOST_NAME_CHARS = 64
_MOST_JUDGEMENTS = 32
_MOST_TEXT_CHARS = 8_000
_MOST_COUNTED = 2**31 - 1


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
        if notes is not None:
            if not isinstance(notes, str):
                raise ValueError(f"`notes` must be text, not {type(notes).__name__}")
            if len(notes) > MOST_NOTES_CHARS:
                notes = f"{notes[: MOST_NOTES_CHARS - 1]}…"
        if parts is None:
            return cls(notes)
        if not isinstance(parts, Mapping):
            raise ValueError(f"`parts` must be a table of numbers by name, not {type(parts).__name__}")
        if len(parts) > MOST_PARTS:
            raise ValueError(f"`parts` can have {MOST_PARTS} numbers at most, not {len(parts)}")
        return cls(notes, {_name(name): _part(name, value) for name, value in parts.items()})

    def write(self, extra_fields: MutableMapping[str, Any]) -> None:
        """Write the notes to a sample's ``extra_fields``, replacing earlier ones."""
        fields = {"notes": self.notes, "parts": dict(self.parts)}
        present = {name: value for name, value in fields.items() if value}
        extra_fields.pop(NOTES_KEY, None)
        if present:
            extra_fields[NOTES_KEY] = present


def read_grader_notes(extra_fields: Mapping[str, Any]) -> GraderNotes:
    """Return the notes stored in ``extra_fields``; empty if they are missing or malformed."""
    stored = _table(extra_fields, NOTES_KEY)
    try:
        return GraderNotes.checked(stored.get("notes") or None, stored.get("parts"))
    except ValueError:
        return GraderNotes()


def _name(name: object) -> str:
    if not isinstance(name, str) or not name.strip() or len(name) > MOST_NAME_CHARS:
        raise ValueError(f"a part's name must be text of 1 to {MOST_NAME_CHARS} characters, not {name!r:.80}")
    return str(name)


def _part(name: str, value: object) -> float:
    # NumPy scalars are registered as real numbers. True and False state whether a part was met.
    try:
        number = float(value) if isinstance(value, numbers.Real) else math.nan
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise ValueError(f"the part `{name}` must be a finite number, not {value!r:.80}")
    return number


@dataclass
class JudgeCalls:
    """Judge calls of one grading. A retry of the same score is not counted separately.

    Unanswered questions count as calls. ``judgements`` are the first calls: ``model`` and either ``score`` and
    ``explanation``, or ``error``; ``stated_score`` is the judge's number if it was ``outside_scale`` and clamped.
    """

    calls: int = 0
    tokens: int = 0
    cost_usd: float | None = None
    judgements: list[dict[str, Any]] = field(default_factory=list)
    outside_scale: int = 0

    def to_fields(self) -> dict[str, Any]:
        """Return the ``extra_fields`` entry; empty without calls."""
        if not self.calls:
            return {}
        fields: dict[str, Any] = {"calls": self.calls, "tokens": self.tokens, "cost_usd": self.cost_usd}
        if self.outside_scale:
            fields["outside_scale"] = self.outside_scale
        return {JUDGE_KEY: {**fields, "judgements": self.judgements}}


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
        cut = {name: v[:_MOST_TEXT_CHARS] if isinstance(v, str) else v for name, v in judgement.items()}
        calls.judgements.append(cut)


def read_judge_calls(extra_fields: Mapping[str, Any]) -> JudgeCalls:
    """Return the calls stored in ``extra_fields``; empty if they are missing or malformed."""
    stored = _table(extra_fields, JUDGE_KEY)
    calls, tokens = _count(stored.get("calls")), _count(stored.get("tokens"))
    if not calls or tokens is None:
        return JudgeCalls()
    cost_usd, judgements = _number(stored.get("cost_usd")), stored.get("judgements")
    return JudgeCalls(
        calls,
        tokens,
        cost_usd if cost_usd is not None and cost_usd >= 0 else None,
        [
            read
            for each in (judgements[:_MOST_JUDGEMENTS] if isinstance(judgements, list) else [])
            if isinstance(each, Mapping) and (read := _judgement(each))
        ],
        min(_count(stored.get("outside_scale")) or 0, calls),
    )


def _judgement(stored: Mapping[str, Any]) -> dict[str, Any]:
    texts = {
        name: stored[name] for name in ("model", "explanation", "error") if isinstance(stored.get(name), str)
    }
    scores = {name: _number(stored.get(name)) for name in ("score", "stated_score")}
    return {**texts, **{name: score for name, score in scores.items() if score is not None}}


@dataclass
class LoopOutcome:
    """How an agent loop ended: scores by eval function name, and the reason for each missing score."""

    finish_reason: str | None = None
    scores: dict[str, float] = field(default_factory=dict)
    unscored: dict[str, str] = field(default_factory=dict)

    def to_fields(self) -> dict[str, Any]:
        """Return the ``extra_fields`` entry."""
        fields = {"finish_reason": self.finish_reason, "scores": self.scores, "unscored": self.unscored}
        return {LOOP_KEY: {name: value for name, value in fields.items() if value}}


def read_outcome(extra_fields: Mapping[str, Any]) -> LoopOutcome:
    """Return the outcome stored in ``extra_fields``; empty if they are not from an agent loop."""
    stored = _table(extra_fields, LOOP_KEY)
    reason = stored.get("finish_reason")
    scores = {
        str(name): float(value)
        for name, value in _table(stored, "scores").items()
        if type(value) in (int, float) and abs(value) <= sys.float_info.max
    }
    unscored = {
        str(name): value for name, value in _table(stored, "unscored").items() if isinstance(value, str)
    }
    return LoopOutcome(reason if isinstance(reason, str) else None, scores, unscored)


def _table(stored: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    table = stored.get(name)
    return table if isinstance(table, Mapping) else {}


def _count(value: Any) -> int | None:
    return value if type(value) is int and 0 <= value <= _MOST_COUNTED else None


def _number(value: Any) -> float | None:
    fits = type(value) is float or (type(value) is int and abs(value) <= _MOST_COUNTED)
    return float(value) if fits and math.isfinite(value) else None
