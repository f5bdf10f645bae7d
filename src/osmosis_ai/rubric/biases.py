"""What moves a judge's score besides quality: the length of the text, its place, the order it is quoted in.

A score that goes along with length is no bias by itself: longer answers may be better. Only scores
given by people can tell the two apart, so with them each effect is measured as what the judge adds
to it. People's scores are noisy too; holding a noisy score fixed leaves some of the quality it
measures, while the difference of judge and people does not, so both are given.

Sources:
    MacKinnon and White 1985, "Some Heteroskedasticity-Consistent Covariance Matrix Estimators with
        Improved Finite Sample Properties" (HC3, recommended by Long and Ervin 2000).
    Dubois et al. 2024, "Length-Controlled AlpacaEval" (judges' preference for length).
    Wang et al. 2023, "Large Language Models are not Fair Evaluators" (order of what is quoted).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from osmosis_ai.evaluation.comparison.differences import Pairs, mean_difference
from osmosis_ai.evaluation.comparison.multiplicity import holm
from osmosis_ai.rubric.calibration import NO_PAIR, NO_PEOPLE
from osmosis_ai.rubric.correlation import partial, spearman
from osmosis_ai.rubric.estimate import CONFIDENCE, TrustEstimate

if TYPE_CHECKING:
    from osmosis_ai.rubric.scores import Floats, Integers

_LEAST = 4
HC3_METHOD = "least squares, HC3 errors"

_ONE_ORDER = "every call quoted its texts in the same order; `--swap` reverses it in every other one"
_NO_COMMON = "no record was scored in both orders"


@dataclass(frozen=True, slots=True)
class LengthBias:
    """How a judge's score goes with the length of the text."""

    correlation: TrustEstimate
    controlled: TrustEstimate
    per_doubling: TrustEstimate
    against_people: bool

    @property
    def p(self) -> float | None:
        """The p-value of no bias: both figures have to differ from zero, on the same side."""
        if self.controlled.p is None or self.per_doubling.p is None:
            return None
        same_side = (self.controlled.value or 0.0) * (self.per_doubling.value or 0.0) > 0
        return max(self.controlled.p, self.per_doubling.p) if same_side else 1.0

    @property
    def is_clear(self) -> bool:
        """Whether the judge rewards or punishes length in a way that people do not."""
        same_side = (self.controlled.value or 0.0) * (self.per_doubling.value or 0.0) > 0
        return self.controlled.excludes_zero and self.per_doubling.excludes_zero and same_side


@dataclass(frozen=True, slots=True)
class JudgeBiases:
    """What influences the scores of one judge besides quality."""

    length: LengthBias
    order_in_file: TrustEstimate
    position: TrustEstimate


def adjusted_for_all(judges: Sequence[JudgeBiases]) -> list[JudgeBiases]:
    """Adjust the p-values of all biases of all judges together, by Holm's method."""
    tests = holm([p for each in judges for p in (each.length.p, each.order_in_file.p, each.position.p)])
    return [
        JudgeBiases(
            replace(
                each.length,
                controlled=replace(each.length.controlled, p_adjusted=length),
                per_doubling=replace(each.length.per_doubling, p_adjusted=length),
            ),
            replace(each.order_in_file, p_adjusted=order),
            replace(each.position, p_adjusted=position),
        )
        for each, length, order, position in zip(judges, tests[::3], tests[1::3], tests[2::3], strict=True)
    ]


def length_bias(judge: Floats, lengths: Floats, people: Floats) -> LengthBias:
    """Return how a judge's score goes with the length of the text."""
    import numpy as np

    scored = ~np.isnan(judge)
    doublings = np.log2(np.maximum(lengths, 1.0))
    both = scored & ~np.isnan(people)
    correlation = spearman(judge[scored], doublings[scored])
    if not both.any():
        controlled = TrustEstimate.missing(NO_PEOPLE if np.isnan(people).all() else NO_PAIR)
        return LengthBias(
            correlation, controlled, slope(judge[scored], doublings[scored]), against_people=False
        )
    controlled = partial(judge[both], doublings[both], people[both])
    beyond = slope(judge[both] - people[both], doublings[both])
    return LengthBias(correlation, controlled, beyond, against_people=True)


def order_in_file(judge: Floats, people: Floats) -> TrustEstimate:
    """Return the rank correlation of judge minus people with the place in the file."""
    import numpy as np

    both = ~np.isnan(judge) & ~np.isnan(people)
    if not both.any():
        return TrustEstimate.missing(NO_PEOPLE if np.isnan(people).all() else NO_PAIR)
    return spearman(judge[both] - people[both], np.flatnonzero(both).astype(np.float64))


def position_bias(
    scores: Floats, presentations: Sequence[str] | None, *, scale: tuple[float, float] | None = None
) -> TrustEstimate:
    """Return by how much the first order of the quoted blocks scores above the second, on the same records."""
    import numpy as np

    orders = list(dict.fromkeys(presentations or ()))
    if len(orders) < 2:
        return TrustEstimate.missing(_ONE_ORDER)
    used = np.array([order == orders[0] for order in presentations or ()])
    other = np.array([order == orders[1] for order in presentations or ()])
    first, first_rows = _known(scores[:, used])
    second, second_rows = _known(scores[:, other])
    pairs = Pairs.of(second, second_rows, first, first_rows, scale=scale)
    if pairs is None:
        return TrustEstimate.missing(_NO_COMMON)
    found = mean_difference(pairs)
    figure = TrustEstimate(found.value, records=found.rows, scores=found.samples)
    interval = None if found.low is None or found.high is None else (found.low, found.high)
    return figure.within(
        interval, method=f"{found.method}, by record", otherwise=f"no interval: {found.reason}", p=found.p
    )


def slope(y: Floats, x: Floats) -> TrustEstimate:
    """Return the slope of ``y`` on ``x`` by least squares."""
    import numpy as np
    from scipy.special import stdtr, stdtrit

    if x.size < _LEAST:
        return TrustEstimate.missing(
            f"fewer than {_LEAST} records were scored", records=x.size, scores=x.size
        )
    if x.min() == x.max():
        return TrustEstimate.missing("every text has the same length", records=x.size, scores=x.size)
    away = x - x.mean()
    squares = float(np.square(away).sum())
    value = float((away * y).sum() / squares)
    residuals = y - y.mean() - value * away
    leverage = 1 / x.size + np.square(away) / squares
    # A record that the line must pass through tells nothing of the spread.
    weighted = away * residuals / np.maximum(1 - leverage, 1e-9)
    error = float(np.square(weighted).sum()) ** 0.5 / squares
    half = float(stdtrit(x.size - 2, (1 + CONFIDENCE) / 2)) * error
    figure = TrustEstimate(value, records=x.size, scores=x.size)
    on_one_line = "no interval: the records lie on one line"
    if half <= 1e-12:
        return figure.within(None, method=HC3_METHOD, otherwise=on_one_line)
    p = 2 * float(stdtr(x.size - 2, -abs(value) / error))
    return figure.within((value - half, value + half), method=HC3_METHOD, otherwise=on_one_line, p=p)


def _known(scores: Floats) -> tuple[Floats, Integers]:
    """Return the scores that are there, and the record of each."""
    import numpy as np

    rows, runs = np.nonzero(~np.isnan(scores))
    return scores[rows, runs], rows
