"""How a judge's scores compare with those of people.

Only records with both take part: the judge's is the mean of its runs, so that each record counts
once. Differences are judge minus people: above zero the judge is lenient.

Sources:
    Cohen 1960, "A Coefficient of Agreement for Nominal Scales"; Cohen 1968, "Weighted Kappa".
    Dawid 1982, "The Well-Calibrated Bayesian" (bins of the forecast, here of the judge's score).
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from osmosis_ai.rubric import resampling
from osmosis_ai.rubric.correlation import pearson, spearman
from osmosis_ai.rubric.estimate import TrustEstimate

if TYPE_CHECKING:
    from osmosis_ai.rubric.scores import Floats, Integers

_MOST_LEVELS = 11
_PARTS = 5
NO_PEOPLE = "no record carries a score given by people (`label` or `human_score`)"

NO_PAIR = "the judge scored none of the records that people scored"


@dataclass(frozen=True, slots=True)
class Levels:
    """The categories that scores are put into where a statistic needs categories."""

    low: float
    high: float
    parts: int
    centred: bool

    @property
    def size(self) -> int:
        """How many categories there are."""
        return self.parts + 1 if self.centred else self.parts

    @property
    def names(self) -> list[str]:
        """The categories as people read them."""
        edges = [self.low + (self.high - self.low) * part / self.parts for part in range(self.parts + 1)]
        shown = [f"{edge:.4g}" for edge in edges]
        if self.centred:
            return shown
        return [f"{low} – {high}" for low, high in pairwise(shown)]

    def of(self, scores: Floats) -> Integers:
        """Return the category of each score, counted from 0."""
        import numpy as np

        steps = (scores - self.low) / (self.high - self.low) * self.parts
        # A mean of runs may miss its edge by a rounding error.
        found = np.floor(np.round(steps, 9) + (0.5 if self.centred else 0.0))
        return np.clip(found, 0, self.size - 1).astype(np.int64)


@dataclass(frozen=True, slots=True)
class Bin:
    """The records whose judged score is in one category."""

    name: str
    judge: float | None
    people: float | None
    bias: TrustEstimate


@dataclass(frozen=True, slots=True)
class Calibration:
    """A judge against people."""

    pearson: TrustEstimate
    spearman: TrustEstimate
    kappa: TrustEstimate
    weighted_kappa: TrustEstimate
    exact: TrustEstimate
    mean_absolute_error: TrustEstimate
    bias: TrustEstimate
    bins: tuple[Bin, ...]
    levels: tuple[str, ...]


def calibrate(judge: Floats, people: Floats, *, low: float, high: float, seed: int = 0) -> Calibration:
    """Return how a judge's scores compare with people's."""
    import numpy as np

    both = ~np.isnan(judge) & ~np.isnan(people)
    unlabelled = NO_PEOPLE if np.isnan(people).all() else NO_PAIR
    judge, people = judge[both], people[both]
    if judge.size == 0:
        return _nothing(unlabelled)
    slack = 1e-9 * (high - low)
    if people.min() < low - slack or people.max() > high + slack:
        seen = f"people's scores run from {people.min():.4g} to {people.max():.4g}"
        reason = f"{seen}, the judge's scale from {low:.4g} to {high:.4g}"
        return _nothing(reason, pearson=pearson(judge, people), spearman=spearman(judge, people))
    levels = levels_of(people, low, high)
    difference, widest = judge - people, high - low
    return Calibration(
        pearson=pearson(judge, people),
        spearman=spearman(judge, people),
        kappa=cohen_kappa(levels.of(judge), levels.of(people), levels.size, seed=seed),
        weighted_kappa=cohen_kappa(
            levels.of(judge), levels.of(people), levels.size, weighted=True, seed=seed
        ),
        exact=TrustEstimate.of_rate(levels.of(judge) == levels.of(people)),
        mean_absolute_error=TrustEstimate.of_mean(np.abs(difference), low=0.0, high=widest),
        bias=TrustEstimate.of_mean(difference, low=-widest, high=widest),
        bins=_bins(judge, people, levels, widest),
        levels=tuple(levels.names),
    )


def levels_of(people: Floats, low: float, high: float) -> Levels:
    """Return the categories in which people scored: the even grid they kept to, else five equal parts."""
    import numpy as np

    offsets = np.unique(np.round((people - low) / (high - low), 9))
    whole = high - low
    candidates = [*range(1, _MOST_LEVELS)]
    if float(low).is_integer() and float(whole).is_integer() and 2 <= whole < _MOST_LEVELS:
        candidates.insert(0, int(whole))
    for parts in candidates:
        if np.all(np.abs(offsets * parts - np.round(offsets * parts)) < 1e-6):
            return Levels(low, high, parts, centred=True)
    return Levels(low, high, _PARTS, centred=False)


def cohen_kappa(
    a: Integers, b: Integers, size: int, *, weighted: bool = False, seed: int = 0
) -> TrustEstimate:
    """Return Cohen's kappa of two ratings in ``size`` ordered categories, counted from 0.

    ``1 - observed / expected disagreement``: plain (Cohen 1960) every difference weighs 1, with
    ``weighted`` (Cohen 1968) its square ``(i - j)^2``; expected from the product of both margins.
    """
    import numpy as np

    if a.size < 2:
        return TrustEstimate.missing("fewer than two records to compare", records=a.size, scores=a.size)
    if np.all(a == a[0]) or np.all(b == b[0]):
        return TrustEstimate.missing(
            "all scores of the judge, or of people, fall into one category", records=a.size, scores=a.size
        )
    ones = np.ones(a.size)
    if weighted:
        i, j = a.astype(np.float64), b.astype(np.float64)
        sums, statistic = np.column_stack((ones, (i - j) ** 2, i, j, i * i, j * j)), _weighted_kappa
    else:
        columns = (ones, (a != b).astype(np.float64), np.eye(size)[a], np.eye(size)[b])
        sums, statistic = np.column_stack(columns), _plain_kappa
    kappa = float(statistic(sums.sum(axis=0, keepdims=True))[0])
    interval = resampling.bootstrap_interval(sums, statistic, seed=seed)
    figure = TrustEstimate(kappa, records=a.size, scores=a.size)
    return figure.within(interval, method=resampling.METHOD, otherwise=resampling.TOO_FEW)


def _plain_kappa(totals: Floats) -> Floats:
    size = (totals.shape[1] - 2) // 2
    records, differing = totals[:, 0], totals[:, 1]
    chance = (totals[:, 2 : 2 + size] * totals[:, 2 + size :]).sum(axis=1) / records**2
    kappa: Floats = 1 - (differing / records) / (1 - chance)
    return kappa


def _weighted_kappa(totals: Floats) -> Floats:
    records, observed, i, j, i_squared, j_squared = totals.T
    expected = (records * (i_squared + j_squared) - 2 * i * j) / records
    kappa: Floats = 1 - observed / expected
    return kappa


def _bins(judge: Floats, people: Floats, levels: Levels, widest: float) -> tuple[Bin, ...]:
    found = []
    categories = levels.of(judge)
    for category, name in enumerate(levels.names):
        here = categories == category
        if not here.any():
            found.append(Bin(name, None, None, TrustEstimate.missing("no record has such a score")))
            continue
        bias = TrustEstimate.of_mean(judge[here] - people[here], low=-widest, high=widest)
        found.append(Bin(name, float(judge[here].mean()), float(people[here].mean()), bias))
    return tuple(found)


def _nothing(reason: str, **known: TrustEstimate) -> Calibration:
    missing = TrustEstimate.missing(reason)
    names = ("pearson", "spearman", "kappa", "weighted_kappa", "exact", "mean_absolute_error", "bias")
    return Calibration(**{name: known.get(name, missing) for name in names}, bins=(), levels=())
