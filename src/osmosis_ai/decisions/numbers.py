"""A difference between two runs with its interval: what every command that compares prints and emits.

The interval and the p-value come from one method, so that they never contradict each other: p is below
0.05 just where the 95 % interval leaves out "no difference". A number without an interval says why.

p-values of several questions asked at once are adjusted. Candidates against one baseline take Holm: the chance of any false
"better" stays below the level. Slices take Benjamini and Hochberg: at most that share of the slices called different is false.

Sources:
    Holm 1979, "A Simple Sequentially Rejective Multiple Test Procedure".
    Benjamini and Hochberg 1995, "Controlling the False Discovery Rate".
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, TypeAlias

from osmosis_ai.statistics.estimates import Estimate

if TYPE_CHECKING:
    from osmosis_ai.statistics.estimates import Floats


Kind: TypeAlias = Literal["difference", "ratio"]
NumberData: TypeAlias = dict[str, float | int | str | None]


@dataclass(frozen=True, slots=True)
class Difference:
    """By how much B lies above A, or how many times A it is, and how far that can be trusted."""

    value: float
    low: float | None
    high: float | None
    at_least: float | None
    at_most: float | None
    rows: int
    samples: int
    method: str | None = None
    p: float | None = None
    p_adjusted: float | None = None
    reason: str | None = None
    warning: str | None = None
    kind: Kind = "difference"

    @property
    def none(self) -> float:
        """The value of no difference: 0, or 1 for a ratio."""
        return 0.0 if self.kind == "difference" else 1.0

    @property
    def excludes_none(self) -> bool:
        """Whether there is an interval and it leaves out no difference."""
        if self.low is None or self.high is None:
            return False
        return self.low > self.none or self.high < self.none

    def within(self, width: float, *, certain: bool) -> Difference:
        """Return the difference with its interval limited to ``-width`` and ``width``."""
        low, high, at_least, at_most = (
            None if bound is None else min(max(bound, -width), width)
            for bound in (self.low, self.high, self.at_least, self.at_most)
        )
        if not certain:
            return replace(self, low=low, high=high)
        return replace(self, low=low, high=high, at_least=at_least, at_most=at_most)

    def times(self, factor: float) -> Difference:
        """Return the difference of values ``factor`` times as large."""
        low, high, at_least, at_most = (
            None if bound is None else bound * factor
            for bound in (self.low, self.high, self.at_least, self.at_most)
        )
        return replace(
            self, value=self.value * factor, low=low, high=high, at_least=at_least, at_most=at_most
        )

    def reversed(self) -> Difference:
        """Return A against B."""

        def turned(number: float | None) -> float | None:
            if number is None:
                return None
            if self.kind == "difference":
                return 0.0 - number  # 0.0 - 0.0 is 0.0, where -0.0 would print a sign
            return 1 / number if number else math.inf

        return replace(
            self,
            value=turned(self.value) or 0.0,
            low=turned(self.high),
            high=turned(self.low),
            at_least=turned(self.at_most),
            at_most=turned(self.at_least),
        )


def number_data(found: Estimate | Difference | None) -> NumberData:
    """Return a number as documents show it: the same nine keys for every one."""
    if isinstance(found, Difference):
        rows, samples, p, p_adjusted = found.rows, found.samples, found.p, found.p_adjusted
    elif found is not None:
        rows, samples, p, p_adjusted = found.clusters, found.n, None, None
    else:
        rows, samples, p, p_adjusted = 0, 0, None, None
    return {
        "value": found.value if found else None,
        "low": found.low if found else None,
        "high": found.high if found else None,
        "rows": rows,
        "samples": samples,
        "method": found.method if found else None,
        "p": p,
        "p_adjusted": p_adjusted,
        "reason": found.reason if found else "nothing to compare",
    }


def holm(ps: Sequence[float | None]) -> list[float | None]:
    """Return each p-value adjusted so that any false discovery is rarer than the level; None stays None."""
    import numpy as np

    def adjusted(ordered: Floats) -> Floats:
        return np.maximum.accumulate(ordered * np.arange(ordered.size, 0, -1))

    return _adjust(ps, adjusted)


def benjamini_hochberg(ps: Sequence[float | None]) -> list[float | None]:
    """Return each p-value adjusted so that the share of false discoveries is below the level; None stays
    None."""
    import numpy as np

    def adjusted(ordered: Floats) -> Floats:
        raised = ordered * ordered.size / np.arange(1, ordered.size + 1)
        return np.minimum.accumulate(raised[::-1])[::-1]

    return _adjust(ps, adjusted)


def _adjust(ps: Sequence[float | None], by: Callable[[Floats], Floats]) -> list[float | None]:
    import numpy as np

    known = [place for place, p in enumerate(ps) if p is not None]
    found = np.array([p for p in ps if p is not None], dtype=np.float64)
    order = np.argsort(found, kind="stable")
    adjusted: list[float | None] = [None] * len(ps)
    for place, p in zip(order, np.minimum(by(found[order]), 1.0), strict=True):
        adjusted[known[place]] = float(p)
    return adjusted
