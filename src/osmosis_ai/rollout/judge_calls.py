"""Judge calls made during grading, stored under a reserved key of the sample's ``extra_fields``.

Calls to judges are recorded only during grading. A value that a user's grader stored under the key is kept but ignored.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

JUDGE_KEY = "judge_calls"

_MOST_KEPT = 32
_MOST_TEXT_CHARS = 8_000
_MOST_COUNTED = 2**31 - 1
_TEXTS = ("model", "explanation", "error")


@dataclass
class JudgeCalls:
    """Judge calls of one grading. A retry of the same score is not counted separately.

    Attributes:
        calls: Number of questions, including unanswered ones.
        tokens: Input and output tokens.
        cost_usd: Total cost of calls with a known price; None if no price is known.
        judgements: The first calls: ``model`` and either ``score`` and ``explanation``, or ``error``.
            ``stated_score`` is the judge's original number if it was outside the scale.
        outside_scale: Number of scores that were clamped to the scale.
    """

    calls: int = 0
    tokens: int = 0
    cost_usd: float | None = None
    judgements: list[dict[str, Any]] = field(default_factory=list)
    outside_scale: int = 0

    def add(self, *, tokens: int, cost_usd: float | None, judgement: Mapping[str, Any]) -> None:
        """Record a call."""
        self.calls += 1
        self.tokens += tokens
        self.outside_scale += "stated_score" in judgement
        if cost_usd is not None:
            self.cost_usd = (self.cost_usd or 0.0) + cost_usd
        if len(self.judgements) < _MOST_KEPT:
            cut = {name: v[:_MOST_TEXT_CHARS] if isinstance(v, str) else v for name, v in judgement.items()}
            self.judgements.append(cut)

    def to_fields(self) -> dict[str, Any]:
        """Return the ``extra_fields`` entry; empty without calls."""
        if not self.calls:
            return {}
        said: dict[str, Any] = {"calls": self.calls, "tokens": self.tokens, "cost_usd": self.cost_usd}
        if self.outside_scale:
            said["outside_scale"] = self.outside_scale
        return {JUDGE_KEY: {**said, "judgements": self.judgements}}


_under_way: ContextVar[JudgeCalls | None] = ContextVar("osmosis_judge_calls", default=None)


@contextmanager
def counting_judge_calls() -> Iterator[JudgeCalls]:
    """Collect the judge calls made in the block by this task and the tasks it starts."""
    calls = JudgeCalls()
    token = _under_way.set(calls)
    try:
        yield calls
    finally:
        _under_way.reset(token)


def note_judge_call(*, tokens: int, cost_usd: float | None, judgement: Mapping[str, Any]) -> None:
    """Record a judge call with the current grading, if any."""
    calls = _under_way.get()
    if calls is not None:
        calls.add(tokens=tokens, cost_usd=cost_usd, judgement=judgement)


def read_judge_calls(extra_fields: Mapping[str, Any]) -> JudgeCalls:
    """Return the calls stored in ``extra_fields``; empty if they are missing or malformed."""
    said = extra_fields.get(JUDGE_KEY)
    if not isinstance(said, Mapping):
        return JudgeCalls()
    calls, tokens = _count(said.get("calls")), _count(said.get("tokens"))
    if not calls or tokens is None:
        return JudgeCalls()
    cost_usd, given = _number(said.get("cost_usd")), said.get("judgements")
    judgements = [_judgement(each) for each in given[:_MOST_KEPT]] if isinstance(given, list) else []
    priced = cost_usd is not None and cost_usd >= 0
    outside_scale = min(_count(said.get("outside_scale")) or 0, calls)
    return JudgeCalls(
        calls, tokens, cost_usd if priced else None, list(filter(None, judgements)), outside_scale
    )


def _judgement(said: Any) -> dict[str, Any]:
    if not isinstance(said, Mapping):
        return {}
    texts = {name: said[name] for name in _TEXTS if isinstance(said.get(name), str)}
    scores = {name: _number(said.get(name)) for name in ("score", "stated_score")}
    return {**texts, **{name: score for name, score in scores.items() if score is not None}}


def _count(value: Any) -> int | None:
    return value if type(value) is int and 0 <= value <= _MOST_COUNTED else None


def _number(value: Any) -> float | None:
    fits = type(value) is float or (type(value) is int and abs(value) <= _MOST_COUNTED)
    return float(value) if fits and math.isfinite(value) else None
