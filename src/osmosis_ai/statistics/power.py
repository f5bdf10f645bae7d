"""Statistical power: the rows and attempts that detect a difference, and the difference that they detect.

A sample size is a number of rows and of attempts on each. It detects a difference if a test at the chosen confidence
finds it in ``power`` of all repetitions. The variance is a :class:`~osmosis_ai.statistics.variance.VarianceComponents`;
for a difference of two runs, that of pairs.

Sources:
    Cochran 1977, "Sampling Techniques", section 10.6 (how many attempts a row for the money).
    Cohen 1988, "Statistical Power Analysis for the Behavioral Sciences", section 12.2, and Miller 2024, "Adding Error
        Bars to Evals", section 5 (power of a comparison of two models).
    Julious and Owen 2006, "Sample size calculations for clinical studies allowing for uncertainty about the variance",
        Pharmaceutical Statistics 5(1) (designs from a pilot).
"""

from __future__ import annotations

import math
from collections.abc import Callable

from osmosis_ai.statistics.estimates import CONFIDENCE
from osmosis_ai.statistics.variance import VarianceComponents

POWER = 0.8

MOST_ROWS = 10_000_000
"""No dataset has more rows, so more rows are no answer."""

MOST_ATTEMPTS = 10_000

# Standard errors at which no test misses a difference, however few rows; beyond them the distribution is not computed.
_SURELY = 37.0
_SURELY_RIGHT = 5.0
# A comparison that uses the score test more rarely is planned with t alone.
_NEVER = 1e-3


def detectable(
    spread: VarianceComponents,
    rows: int,
    n: float,
    *,
    confidence: float = CONFIDENCE,
    power: float = POWER,
    sides: int = 2,
    pass_or_fail: bool = False,
) -> float | None:
    """Return the smallest difference that ``rows`` x ``n`` detects; None below two rows."""
    if rows < 2:
        return None
    error = math.sqrt(spread.row_mean_variance(n) / rows)
    least = _quantiles(rows, confidence, power, sides) * error
    if not pass_or_fail or _score_test_share(least, error, rows, n) < _NEVER:
        return least
    from scipy.optimize import brentq
    from scipy.special import stdtr, stdtrit

    critical = float(stdtrit(rows - 1, _level(confidence, sides)))

    def lacking(difference: float) -> float:
        by_t = float(stdtr(rows - 1, difference / error - critical))
        return power - _with_score_test(by_t, difference, error, rows, n, confidence, sides)

    most = least
    while lacking(most) > 0:
        most *= 2
    return least if most == least else float(brentq(lacking, most / 2, most))


def power_of(
    difference: float,
    spread: VarianceComponents,
    rows: int,
    n: float,
    *,
    confidence: float = CONFIDENCE,
    sides: int = 2,
    pass_or_fail: bool = False,
) -> float | None:
    """Return how often ``rows`` x ``n`` finds a difference, whichever its direction; None below two rows."""
    from scipy.special import nctdtr, stdtrit

    if rows < 2:
        return None
    error = math.sqrt(spread.row_mean_variance(n) / rows)
    if error == 0:
        return 1.0 if difference else 1 - confidence
    degrees, critical = rows - 1, float(stdtrit(rows - 1, _level(confidence, sides)))
    away = min(abs(difference) / error, _SURELY)
    missed = float(nctdtr(degrees, away, critical))
    # Detections in the wrong direction count, too; they are negligible if the difference is large.
    reversed_ = float(nctdtr(degrees, away, -critical)) if sides == 2 and away < _SURELY_RIGHT else 0.0
    found = 1 - missed + reversed_
    return _with_score_test(found, difference, error, rows, n, confidence, sides) if pass_or_fail else found


def _score_test_share(difference: float, error: float, rows: int, n: float) -> float:
    """Return how often so few rows differ that pass rates are compared by the score test."""
    from scipy.special import bdtr

    if n <= 1 or not error:
        return 0.0
    spread = error * math.sqrt(rows)
    equal = min(math.exp(-((difference / spread) ** 2) / 2) / math.sqrt(2 * math.pi) / spread / n, 1.0)
    return float(bdtr(math.ceil(fewest_differing(rows)) - 1, rows, 1 - equal))


def _with_score_test(
    by_t: float, difference: float, error: float, rows: int, n: float, confidence: float, sides: int
) -> float:
    """Return the power of t and the score test together."""
    from scipy.special import ndtr, ndtri

    share = _score_test_share(difference, error, rows, n)
    if not share:
        return by_t
    beyond = (1 - 1 / n) * abs(difference)
    variance = (error**2 * rows + difference**2 + beyond) / (1 + beyond)
    critical = float(ndtri(_level(confidence, sides))) * math.sqrt(variance / rows)
    by_score = float(ndtr((abs(difference) - critical) / error))
    return (1 - share) * by_t + share * min(by_score, by_t)


def rows_needed(
    difference: float,
    spread: VarianceComponents,
    n: float,
    *,
    confidence: float = CONFIDENCE,
    power: float = POWER,
    sides: int = 2,
    pass_or_fail: bool = False,
) -> int | None:
    """Return the fewest rows on which ``n`` attempts each detect a difference; None above :data:`MOST_ROWS`."""

    def seen(rows: int) -> bool:
        least = detectable(
            spread, rows, n, confidence=confidence, power=power, sides=sides, pass_or_fail=pass_or_fail
        )
        return least is not None and least <= abs(difference)

    # The number that the normal distribution requires; Student's t requires more.
    from scipy.special import ndtri

    asked = float(ndtri(_level(confidence, sides)) + ndtri(power)) / max(abs(difference), 1e-300)
    fewest = asked * asked * spread.row_mean_variance(n)
    return _least(seen, max(2, math.floor(fewest)), MOST_ROWS) if fewest <= MOST_ROWS else None


def n_needed(
    difference: float,
    spread: VarianceComponents,
    rows: int,
    *,
    confidence: float = CONFIDENCE,
    power: float = POWER,
    sides: int = 2,
) -> int | None:
    """Return the fewest attempts a row with which ``rows`` rows detect a difference; None where no number does."""
    if rows < 2 or spread.within is None:
        return None
    allowed = rows * (abs(difference) / _quantiles(rows, confidence, power, sides)) ** 2
    if spread.row_mean_variance(1) <= allowed:
        return 1
    if allowed <= spread.between:
        return None
    n = math.ceil(spread.within / (allowed - spread.between) - 1e-9)
    return n if n <= MOST_ATTEMPTS else None


def allowing_for_the_pilot(
    spread: VarianceComponents, *, confidence: float = CONFIDENCE, power: float = POWER, sides: int = 2
) -> VarianceComponents:
    """Return a spread that is larger by as much as a pilot's own has to be for designs to reach their power.

    A variance from few rows is too small as often as it is too large, but too small costs more power than too
    large brings: designs from 30 rows reach 0.75 to 0.79 where 0.8 is asked. Their standard errors take
    ``t'[power]`` of the noncentral t with the pilot's degrees of freedom and noncentrality ``z[1-a/2]`` in place of
    ``z[1-a/2] + z[power]`` (Julious and Owen 2006): the power averaged over pilots is what was asked.
    """
    from scipy.special import nctdtrit, ndtri

    critical = float(ndtri(_level(confidence, sides)))
    asked, degrees = critical + float(ndtri(power)), spread.degrees or spread.rows - 1
    return spread.scaled((float(nctdtrit(degrees, critical, power)) / asked) ** 2)


def best_n(spread: VarianceComponents, *, cost_row: float, cost_attempt: float) -> int | None:
    """Return the attempts per row with the smallest standard error for the money, if new rows have a price.

    ``sqrt(cost_row / cost_attempt * s2_w / s2_b)`` (Cochran 1977, 10.6), at least 1: if a row costs only its attempts,
    another row always helps more than another attempt. None where the spread is not known in its parts,
    or every further attempt on a row tells as much as one on a new row, or costs nothing.

    Args:
        spread: its parts.
        cost_row: of one more row, besides its attempts.
        cost_attempt: of one attempt; in the same money.
    """
    if spread.within is None or spread.between == 0:
        return None
    if cost_row <= 0 or spread.within == 0:
        return 1
    if cost_attempt <= 0:
        return None
    return max(1, round(math.sqrt(cost_row / cost_attempt * spread.within / spread.between)))


def _level(confidence: float, sides: int) -> float:
    return 1 - (1 - confidence) / sides


def _quantiles(rows: int, confidence: float, power: float, sides: int) -> float:
    from scipy.special import stdtrit

    degrees = rows - 1
    return float(stdtrit(degrees, _level(confidence, sides)) + stdtrit(degrees, power))


def _least(holds: Callable[[int], bool], low: int, most: int) -> int | None:
    """Return the least number from ``low`` that ``holds``, which holds for all above, too; None above ``most``."""
    high, step = low, 1
    while not holds(high):
        if high >= most:
            return None
        low, high, step = high + 1, min(high + step, most), 2 * step
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle + 1, high)
    return high


def fewest_differing(rows: int) -> float:
    """Return how many rows have to differ before Student's t is used for differences with a known range."""
    return min(max(rows / 2, 8), 15, rows)
