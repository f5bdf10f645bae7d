"""The exact methods say what SciPy and statsmodels say, and what can be worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.optimize import brentq, minimize_scalar
from scipy.stats import permutation_test

from osmosis_ai.evaluation.comparison.exact import mcnemar_mid_p, score_interval, sign_flips

Z = 1.959963984540054


def binary(higher: int, lower: int, rows: int) -> np.ndarray:
    """Return sorted differences of rows that were tried once."""
    return np.repeat([-1.0, 0.0, 1.0], [lower, rows - higher - lower, higher])


def tango(higher: int, lower: int, rows: int, z: float) -> tuple[float, float]:
    """Return Tango's interval by his closed form of the restricted estimate."""

    def score(difference: float) -> float:
        b = -higher - lower + (2 * rows - higher + lower) * difference
        c = -lower * difference * (1 - difference)
        restricted = (math.sqrt(b * b - 8 * rows * c) - b) / (4 * rows)
        variance = rows * (2 * restricted + difference * (1 - difference))
        return (higher - lower - rows * difference) / math.sqrt(variance)

    seen = (higher - lower) / rows
    return (
        brentq(lambda it: score(it) - z, -1 + 1e-15, seen - 1e-9, xtol=1e-15),
        brentq(lambda it: score(it) + z, seen + 1e-9, 1 - 1e-15, xtol=1e-15),
    )


@pytest.mark.parametrize("rows", [2, 6, 11])
def test_the_sign_flip_test_is_scipys_permutation_test(rows: int) -> None:
    by_row = np.sort(np.random.default_rng(rows).normal(0.3, 1, rows))
    expected = permutation_test(
        (by_row,),
        lambda it, axis: it.mean(axis=axis),
        permutation_type="samples",
        n_resamples=np.inf,
        vectorized=True,
    )
    assert sign_flips(by_row, confidence=0.95, seed=0).p == pytest.approx(expected.pvalue, abs=1e-12)


def test_the_interval_of_sign_flips_is_what_scipys_test_does_not_reject() -> None:
    by_row = np.sort(np.random.default_rng(8).normal(0.3, 1, 9))
    found = sign_flips(by_row, confidence=0.95, seed=0)

    def p_of(difference: float) -> float:
        return permutation_test(
            (by_row - difference,),
            lambda it, axis: it.mean(axis=axis),
            permutation_type="samples",
            n_resamples=np.inf,
            vectorized=True,
        ).pvalue

    assert p_of(found.low - 1e-6) <= 0.05 < p_of(found.low + 1e-6)
    assert p_of(found.high + 1e-6) <= 0.05 < p_of(found.high - 1e-6)
    assert found.low < found.at_least < found.at_most < found.high


def test_rows_that_do_not_differ_leave_the_p_value_of_sign_flips_as_it_is() -> None:
    differing = np.array([-0.25, 0.25, 0.5, 0.5, 0.75, 1.0, 1.0])
    alone = sign_flips(differing, confidence=0.95, seed=0)
    for alike in (1, 9, 10, 100):
        among = sign_flips(np.sort(np.append(differing, np.zeros(alike))), confidence=0.95, seed=0)
        assert among.p == pytest.approx(alone.p, abs=1e-12)


def test_many_rows_are_flipped_ten_thousand_times_and_no_p_value_is_zero() -> None:
    by_row = np.linspace(0.1, 1, 19)
    assert sign_flips(by_row, confidence=0.95, seed=0).p == 2 / 10_001
    mixed = np.sort(np.append(by_row, -np.linspace(0.1, 0.5, 18)))
    drawn = sign_flips(mixed, confidence=0.95, seed=3)
    expected = permutation_test(
        (mixed,),
        lambda it, axis: it.mean(axis=axis),
        permutation_type="samples",
        n_resamples=20_000,
        vectorized=True,
        rng=np.random.default_rng(1),
    )
    assert drawn.p == pytest.approx(expected.pvalue, abs=0.02)
    assert drawn == sign_flips(mixed, confidence=0.95, seed=3)


def test_three_rows_can_not_reject_anything_and_bound_nothing() -> None:
    found = sign_flips(np.array([0.9, 1.0, 1.1]), confidence=0.95, seed=0)
    assert (found.low, found.high) == (-math.inf, math.inf)
    assert found.p == 0.25


@pytest.mark.imports_much
def test_the_mid_p_value_is_mcnemars_exact_one_less_half_the_chance_of_what_was_seen() -> None:
    from statsmodels.stats.contingency_tables import mcnemar

    for higher, lower in ((0, 1), (4, 0), (9, 2), (3, 12), (6, 5), (18, 1)):
        exact = mcnemar([[5, higher], [lower, 5]], exact=True).pvalue
        seen = math.comb(higher + lower, lower) / 2 ** (higher + lower)
        assert mcnemar_mid_p(higher, lower) == pytest.approx(exact - seen, abs=1e-12)
    assert mcnemar_mid_p(3, 3) == 1.0


@pytest.mark.parametrize(
    ("higher", "lower", "rows"), [(7, 1, 21), (3, 5, 100), (2, 2, 10), (12, 6, 19), (9, 9, 18), (1, 1, 1000)]
)
def test_binary_attempts_have_tangos_interval(higher: int, lower: int, rows: int) -> None:
    found = score_interval(binary(higher, lower, rows), confidence=0.95)
    assert (found.low, found.high) == pytest.approx(tango(higher, lower, rows, Z), abs=1e-10)


def test_airway_responsiveness_has_the_interval_that_was_published() -> None:
    # Fagerland, Lydersen and Laake 2014 ("Recommended Tests and Confidence Intervals for Paired Binomial Proportions"): 1 and 7 of 21 children changed; -0.517 to -0.026.
    found = score_interval(binary(1, 7, 21), confidence=0.95)
    assert (found.low, found.high) == pytest.approx((-0.517, -0.026), abs=5e-4)


@pytest.mark.imports_much
@pytest.mark.parametrize("rows", [1, 10, 400])
def test_no_row_that_differs_has_wilsons_bound_of_zero(rows: int) -> None:
    from statsmodels.stats.proportion import proportion_confint

    found = score_interval(np.zeros(rows), confidence=0.95)
    upper = proportion_confint(0, rows, method="wilson")[1]
    assert (found.low, found.high) == pytest.approx((-upper, upper), abs=1e-10)
    assert found.p == 1.0


def test_the_score_test_takes_the_likeliest_distribution_with_the_mean_it_tests() -> None:
    by_row = np.array([-0.5, 0.0, 0.0, 0.25, 0.25, 0.75])
    found = score_interval(by_row, confidence=0.95)
    for bound in (found.low, found.high):
        # Owen's dual: the multiplier that maximises the sum of logs, within what both ends allow.
        ends = (-1 / (1 - bound), 1 / (1 + bound))
        multiplier = minimize_scalar(
            lambda it, bound=bound: -np.log1p(it * (by_row - bound)).sum(),
            bounds=ends,
            method="bounded",
            options={"xatol": 1e-12},
        ).x
        weights = 1 / (by_row.size * (1 + multiplier * (by_row - bound)))
        end = math.copysign(1.0, bound - by_row.mean())
        variance = weights @ np.square(by_row - bound) + max(1 - weights.sum(), 0) * (end - bound) ** 2
        assert abs(by_row.mean() - bound) / math.sqrt(variance / by_row.size) == pytest.approx(Z, abs=1e-4)


def test_differences_as_large_as_the_scale_bound_themselves() -> None:
    found = score_interval(np.ones(10), confidence=0.95)
    assert found.high == 1.0
    assert 0 < found.low < found.at_least < 1


def test_differences_that_cancel_but_for_rounding_have_an_interval_around_none() -> None:
    generator = np.random.default_rng(0)
    for _ in range(300):
        rows = generator.integers(1, 12, int(generator.integers(5, 25))) / generator.choice([7.0, 3e6, 1e150])
        by_row = np.sort(np.concatenate((rows, -rows)) / 13)
        found = score_interval(by_row, confidence=0.95)
        assert found.low <= by_row.mean() <= found.high
        assert found.p == pytest.approx(1.0)
