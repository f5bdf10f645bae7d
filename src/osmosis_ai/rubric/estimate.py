"""One number of a trust report: never without what it was taken over, nor without a reason when absent."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from osmosis_ai.evaluation.statistics import CONFIDENCE, estimate_mean, estimate_rate

if TYPE_CHECKING:
    from osmosis_ai.rubric.scores import Booleans, Floats, Integers

__all__ = ["CONFIDENCE", "EXACT_METHOD", "LEAST_GRADED", "STUDENT_METHOD", "TrustEstimate"]

STUDENT_METHOD = "Student's t, clustered by record"
EXACT_METHOD = "Clopper and Pearson, by record"

LEAST_GRADED = 20
"""With fewer records a word such as "good" would be a guess: a figure is shown, and not graded."""

_ROUNDING = 1e-12
_NO_SPREAD = "no interval: one record, or no variation among records"


@dataclass(frozen=True, slots=True)
class TrustEstimate:
    """A number, how sure it is, what it was taken over, and what it says."""

    value: float | None
    low: float | None = None
    high: float | None = None
    records: int = 0
    scores: int = 0
    method: str | None = None
    reason: str | None = None
    sentence: str = ""
    p: float | None = None
    p_adjusted: float | None = None

    @classmethod
    def missing(cls, reason: str, *, records: int = 0, scores: int = 0) -> TrustEstimate:
        """Return a figure without a value, and why."""
        return cls(None, records=records, scores=scores, reason=reason, sentence=f"Not measurable: {reason}.")

    def within(
        self, interval: tuple[float, float] | None, *, method: str, otherwise: str, p: float | None = None
    ) -> TrustEstimate:
        """Return the figure with ``interval`` and ``p``, or with ``otherwise`` as the reason for having none."""
        if interval is None or not all(math.isfinite(bound) for bound in interval):
            return replace(self, reason=otherwise)
        low, high = float(interval[0]), float(interval[1])
        if high - low <= _ROUNDING * max(abs(low), abs(high)):
            return replace(self, reason=otherwise)
        return replace(self, low=low, high=high, method=method, p=p)

    def saying(self, sentence: str) -> TrustEstimate:
        """Return the figure with its sentence; one without a value keeps saying why."""
        # A sentence may begin with the name of a model, which keeps its spelling.
        text = "T" + sentence[1:] if sentence.startswith("the ") else sentence
        return self if self.value is None else replace(self, sentence=text)

    @classmethod
    def of_mean(
        cls, values: Floats, rows: Integers | None = None, *, low: float = -math.inf, high: float = math.inf
    ) -> TrustEstimate:
        """Return a mean with its interval: Student's t, the scores of one record counted as one cluster."""
        import numpy as np

        found = estimate_mean(values, np.arange(values.size) if rows is None else rows)
        if found is None:
            return cls.missing("there are no scores")
        figure = cls(found.value, records=found.clusters, scores=found.n)
        interval = None if found.low is None or found.high is None else (found.low, found.high)
        return figure.within(interval, method=STUDENT_METHOD, otherwise=_NO_SPREAD)._cut(low, high)

    @classmethod
    def of_rate(cls, hits: Booleans) -> TrustEstimate:
        """Return the share of records of which something is true, with Clopper and Pearson's interval."""
        import numpy as np

        found = estimate_rate(hits.astype(np.float64), np.arange(hits.size))
        if found is None:
            return cls.missing("there are no records")
        return cls(found.value, found.low, found.high, found.clusters, found.n, EXACT_METHOD)

    def _cut(self, least: float, greatest: float) -> TrustEstimate:
        if self.low is None or self.high is None:
            return self
        return replace(self, low=max(self.low, least), high=min(self.high, greatest))

    @property
    def graded(self) -> float | None:
        """What a grade goes by: the lower bound of the interval; None where nothing can be graded."""
        if self.value is None or self.records < LEAST_GRADED:
            return None
        return self.value if self.low is None else self.low

    @property
    def excludes_zero(self) -> bool:
        """Whether the interval is on one side of zero, and the adjusted p-value agrees if there is one."""
        if self.low is None or self.high is None or self.low <= 0 <= self.high:
            return False
        return self.p_adjusted is None or self.p_adjusted <= 1 - CONFIDENCE
