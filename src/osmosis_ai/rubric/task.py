"""One question to a judge, and its answer.

A :class:`JudgeTask` that exists can be judged: what it is made of has been checked.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Real
from typing import Any

from osmosis_ai.rubric.errors import JudgeArgumentError, JudgeValueError


@dataclass(frozen=True, slots=True)
class JudgeTask:
    """What is judged, and against what."""

    rubric: str
    solution_str: str
    ground_truth: str | None = None
    original_input: str | None = None
    metadata: dict[str, Any] | None = None
    score_min: float = 0.0
    score_max: float = 1.0
    system_prompt: str | None = None
    reverse_blocks: bool = False

    def __post_init__(self) -> None:
        for name in ("rubric", "solution_str"):
            value = getattr(self, name)
            if not isinstance(value, str) or not value.strip():
                raise JudgeArgumentError(f"`{name}` must be a non-empty string, not {_shown(value)}.")
        for name in ("ground_truth", "original_input", "system_prompt"):
            value = getattr(self, name)
            if value is not None and not isinstance(value, str):
                raise JudgeArgumentError(f"`{name}` must be a string or None, not {_shown(value)}.")
        if self.metadata is not None and not isinstance(self.metadata, dict):
            raise JudgeArgumentError(f"`metadata` must be a dict or None, not {_shown(self.metadata)}.")
        check_bounds(self.score_min, self.score_max)


@dataclass(frozen=True, slots=True)
class Judgement:
    """What the judge said."""

    score: float
    explanation: str
    raw: Any
    input_tokens: int
    output_tokens: int
    cost_usd: float | None
    duration_s: float
    retries: int
    stated_score: float | None = None


def check_bounds(score_min: object, score_max: object) -> tuple[float, float]:
    """Return the bounds as floats."""
    lowest, highest = _number("score_min", score_min), _number("score_max", score_max)
    if not (math.isfinite(lowest) and math.isfinite(highest)):
        raise JudgeValueError(f"`score_min` and `score_max` must be finite, not {lowest} and {highest}.")
    if highest <= lowest:
        raise JudgeValueError(f"`score_max` ({highest}) must be greater than `score_min` ({lowest}).")
    return lowest, highest


def _number(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, Real | str):
        raise JudgeArgumentError(f"`{name}` must be a number, not {_shown(value)}.")
    try:
        return float(value)
    except (ValueError, OverflowError):
        raise JudgeArgumentError(f"`{name}` must be a number, not {_shown(value)}.") from None


def _shown(value: object) -> str:
    if isinstance(value, str):
        return repr(value[:40]) if value.strip() else "a blank one"
    return type(value).__name__
