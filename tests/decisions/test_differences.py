"""Differences of two runs: methods, intervals and p-values."""

from __future__ import annotations

import math
from dataclasses import astuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq, minimize_scalar
from scipy.stats import ttest_1samp, ttest_ind, ttest_rel

from osmosis_ai.decisions.differences import (
    Difference,
    Pairs,
    PassCounts,
    difference_of_counts,
    difference_of_means,
    mean_by_row,
    mean_difference,
    ratio_of_means,
    score_interval,
    unpaired_difference,
)
from osmosis_ai.statistics.estimates import benjamini_hochberg, holm

UNIT = (0.0, 1.0)
BOUNDS = ("value", "low", "high", "at_least", "at_most")


def pairs_of(a, b, *, scale=UNIT) -> Pairs:
    """Return pairs from the attempts of each row: a list of numbers a row."""
    runs = [
        ([value for row in run for value in row], [place for place, row in enumerate(run) for _ in row])
        for run in (a, b)
    ]
    return Pairs.of(*runs[0], *runs[1], scale=scale)


def once(a, b, *, scale=UNIT) -> Pairs:
    return pairs_of([[value] for value in a], [[value] for value in b], scale=scale)


def compared(a, b, *, scale=UNIT, **options) -> Difference:
    return mean_difference(once(a, b, scale=scale), **options)


def test_paired_t_interval() -> None:
    draw = np.random.default_rng(2)
    a, b = draw.normal(5, 2, (2, 60))
    found, expected = compared(a, b, scale=None), ttest_rel(b, a)
    interval = expected.confidence_interval(0.95)
    assert (found.method, found.rows, found.samples) == ("paired-t", 60, 120)
    assert (found.low, found.high, found.p) == pytest.approx((*interval, expected.pvalue), abs=1e-10)
    one_sided = expected.confidence_interval(0.9)
    # The bound on the longer tail is a little farther out.
    assert found.low < found.at_least <= one_sided.low + 1e-10
    assert one_sided.high - 1e-10 <= found.at_most < found.high
    assert min(one_sided.low - found.at_least, found.at_most - one_sided.high) == pytest.approx(0, abs=1e-10)


def test_one_sided_bound_on_the_longer_tail() -> None:
    a, b = [1.0] * 100, [1.0] * 70 + [0.9] * 25 + [0.0] * 5
    found = compared(a, b, scale=(-100.0, 100.0))
    expected = ttest_rel(b, a).confidence_interval(0.9)
    assert found.low <= found.at_least < expected.low - 1e-4
    assert found.at_most == pytest.approx(expected.high, abs=1e-10)
    back = compared(b, a, scale=(-100.0, 100.0))
    assert (back.at_least, back.at_most) == (-found.at_most, -found.at_least)


def test_common_rows_weigh_the_same() -> None:
    found = Pairs.of([1.0, 1.0, 1.0, 0.0, 0.0], [1, 1, 1, 2, 3], [0.0, 0.5, 0.7], [2, 1, 4], scale=UNIT)
    assert found.by_row.tolist() == [-0.5, 0.0]
    assert (found.rows, found.samples) == (2, 6)
    assert Pairs.of([1.0], [0], [1.0], [1]) is None


def test_score_interval_of_few_differing_rows() -> None:
    found = compared([0] * 7 + [1] + [1] * 13, [1] * 7 + [0] + [1] * 13)
    assert found.method == "score"
    # Fagerland, Lydersen and Laake 2014 ("Recommended Tests and Confidence Intervals for Paired Binomial
    # Proportions"): 1 and 7 of 21 children changed.
    assert (found.value, found.low, found.high) == pytest.approx((6 / 21, 0.0260, 0.5172), abs=1e-4)
    # The score test of 7 rows to 1: (7 - 1) / sqrt(7 + 1) standard errors.
    assert found.p == pytest.approx(math.erfc(6 / math.sqrt(8) / math.sqrt(2)), abs=1e-9)
    four = compared([0] * 4 + [1] * 6, [1] * 10)
    assert four.p == pytest.approx(math.erfc(2 / math.sqrt(2)), abs=1e-9)
    assert four.excludes_none and not compared([0] * 3 + [1] * 7, [1] * 10).excludes_none


@pytest.mark.parametrize(("rows", "few"), [(3, 3), (10, 8), (20, 10), (31, 15), (100, 15)])
def test_method_by_number_of_differing_rows(rows: int, few: int) -> None:
    for differing, method in ((few - 1, "score"), (few, "paired-t")):
        b = [0.5 + 0.01 * place for place in range(differing)] + [0.0] * (rows - differing)
        assert compared([0.0] * rows, b).method == method
    a, b = [0.0] * rows, [0.5 + 0.01 * place for place in range(few)] + [0.0] * (rows - few)
    expected = ttest_rel(b, a)
    interval = expected.confidence_interval(0.95)
    found = compared(a, b)
    assert (found.low, found.high, found.p) == pytest.approx((*interval, expected.pvalue), abs=1e-10)


@pytest.mark.parametrize("confidence", [0.8, 0.9, 0.95, 0.99, 0.999])
def test_score_interval_agrees_with_p_value(confidence: float) -> None:
    for differing in range(20):
        for higher in range(differing + 1):
            lower = differing - higher
            a, b = [0] * higher + [1] * (30 - higher), [1] * (30 - lower) + [0] * lower
            found = compared(a, b, confidence=confidence)
            assert (found.p < 1 - confidence) == found.excludes_none, found


def test_equal_differences() -> None:
    # Wilson's bound of zero.
    agreeing = compared([1.0] * 10, [1.0] * 10)
    z2 = Z**2
    assert agreeing.method == "score"
    assert (agreeing.value, agreeing.low, agreeing.high) == pytest.approx(
        (0, -z2 / (10 + z2), z2 / (10 + z2))
    )
    wider = compared([7.0] * 10, [7.0] * 10, scale=(-3.0, 7.0))
    assert wider.high == pytest.approx(10 * agreeing.high)
    one = compared([1.0] * 10, [1.0] * 9 + [0.75])
    assert one.low <= agreeing.low and one.high >= agreeing.high / 2, "one that differs a little is no surer"
    shifted = mean_difference(pairs_of([[0, 0]] * 30, [[1, 1]] * 30))
    assert shifted.high == 1.0 and 0.7 < shifted.low < 1
    single = mean_difference(pairs_of([[0, 0, 1]], [[1, 1, 1]]))
    assert (single.low, single.high, single.p) == (-1.0, 1.0, 1.0)
    for a, b in (([3.0] * 10, [3.0] * 10), ([1.0] * 30, [2.5] * 30), ([0.0], [1.5])):
        found = compared(a, b, scale=None)
        assert (found.low, found.high, found.method) == (None, None, None)
        assert "the range of the rewards is unknown" in found.reason


def test_bootstrap_of_skewed_rewards() -> None:
    b = -np.log1p(-(np.arange(40) + 0.5) / 40)
    found = compared(np.zeros(40), b, scale=None)
    assert found.method == "bootstrap-t"
    assert "skewed" in found.warning
    # The long tail is on the right.
    assert found.high - found.value > found.value - found.low > 0
    assert found.excludes_none and found.p == 2 / 10_000
    many = compared(np.zeros(100), np.tile(b, 3)[:100], scale=None)
    assert (many.method, many.warning) == ("paired-t", None)


def test_one_differing_row_without_range() -> None:
    found = compared([0.0] * 10, [0.0] * 9 + [10.0], scale=None)
    assert (found.low, found.high) == (None, None)
    assert found.reason is not None and found.warning is not None


def test_huge_rewards() -> None:
    found = compared([1e308, -1e308] * 15, [-1e308, 1e308] * 15, scale=None)
    assert found.value == 0
    assert all(math.isfinite(bound) for bound in (found.low, found.high) if bound is not None)


@pytest.mark.parametrize(
    ("values", "rows", "said"),
    [([math.nan], [0], "finite"), ([1.5], [0], "between 0 and 1"), ([1.0], [0, 1], "one row per value")],
)
def test_invalid_values(values, rows, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Pairs.of(values, rows, [1.0], [0], scale=UNIT)


# Scores in quarters: rows that agree and ties among those that do not are common, as they are in runs.
scores = st.lists(st.integers(0, 4).map(lambda it: it / 4), min_size=1, max_size=3)
rows_of_both = st.lists(st.tuples(scores, scores), min_size=1, max_size=45)
scales = st.sampled_from([UNIT, None])


@given(rows_of_both, scales)
@settings(max_examples=60, deadline=None)
def test_swapped_runs(rows, scale) -> None:
    a, b = zip(*rows, strict=True)
    forth, back = mean_difference(pairs_of(a, b, scale=scale)), mean_difference(pairs_of(b, a, scale=scale))
    assert back.reversed() == forth
    assert back.p == forth.p


@given(rows_of_both, scales, st.randoms(use_true_random=False))
@settings(max_examples=60, deadline=None)
def test_order_of_rows_and_attempts(rows, scale, random) -> None:
    mixed = [(random.sample(a, len(a)), random.sample(b, len(b))) for a, b in random.sample(rows, len(rows))]
    first, second = (mean_difference(pairs_of(*zip(*it, strict=True), scale=scale)) for it in (rows, mixed))
    assert astuple(first) == astuple(second)


@given(rows_of_both, scales, st.sampled_from([0.5, 3.0, 1000.0]))
@settings(max_examples=60, deadline=None)
def test_scaled_rewards(rows, scale, factor: float) -> None:
    a, b = zip(*rows, strict=True)
    larger = [[[value * factor for value in row] for row in run] for run in (a, b)]
    one = mean_difference(pairs_of(a, b, scale=scale))
    other = mean_difference(pairs_of(*larger, scale=scale and (0.0, factor)))
    assert other.method == one.method
    for name in BOUNDS:
        expected = getattr(one, name)
        assert getattr(other, name) == (
            expected if expected is None else pytest.approx(expected * factor, rel=1e-9, abs=1e-9 * factor)
        )
    assert other.p == pytest.approx(one.p, abs=1e-9)


@given(rows_of_both, scores)
@settings(max_examples=60, deadline=None)
def test_equal_row_does_not_prove_a_regression(rows, same) -> None:
    a, b = zip(*rows, strict=True)
    before = mean_difference(pairs_of(a, b))
    after = mean_difference(pairs_of([*a, same], [*b, same]))
    # Student's quantile falls with the rows, by less than a thousandth of the bound's distance.
    hair = 1e-3 * (before.at_most - before.value)
    if before.at_most >= hair:
        assert after.at_most >= 0


@given(rows_of_both, scales)
@settings(max_examples=60, deadline=None)
def test_interval_agrees_with_p_value(rows, scale) -> None:
    found = mean_difference(pairs_of(*zip(*rows, strict=True), scale=scale))
    if found.low is None:
        assert found.reason is not None
        return
    assert found.low <= found.value <= found.high
    assert found.at_least <= found.value <= found.at_most
    # Without a scale the interval ends at the rewards observed, and the bounds that decide do not.
    assert scale is None or (found.low <= found.at_least and found.at_most <= found.high)
    assert (found.p < 0.05) == found.excludes_none


def test_mean_of_equal_attempts_is_exact() -> None:
    rows, means, counts = mean_by_row([0.1] * 7 + [0.3] * 3, [4] * 7 + [2] * 3)
    assert (rows.tolist(), means.tolist(), counts.tolist()) == ([2, 4], [0.3, 0.1], [3, 7])


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


@pytest.mark.parametrize(
    ("higher", "lower", "rows"), [(7, 1, 21), (3, 5, 100), (2, 2, 10), (12, 6, 19), (9, 9, 18), (1, 1, 1000)]
)
def test_tango_interval(higher: int, lower: int, rows: int) -> None:
    found = score_interval(binary(higher, lower, rows), confidence=0.95)
    assert (found.low, found.high) == pytest.approx(tango(higher, lower, rows, Z), abs=1e-10)
    one_sided = tango(higher, lower, rows, 1.6448536269514722)
    assert (found.at_least, found.at_most) == pytest.approx(one_sided, abs=1e-10)


def test_empirical_likelihood() -> None:
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


def test_rounding_errors() -> None:
    generator = np.random.default_rng(0)
    for _ in range(300):
        rows = generator.integers(1, 12, int(generator.integers(5, 25))) / generator.choice([7.0, 3e6, 1e150])
        by_row = np.sort(np.concatenate((rows, -rows)) / 13)
        found = score_interval(by_row, confidence=0.95)
        assert found.low <= by_row.mean() <= found.high
        assert found.p == pytest.approx(1.0)


def test_welch_interval() -> None:
    draw = np.random.default_rng(3)
    a, b = draw.normal(0, 1, 40), draw.normal(0.4, 3, 25)
    found = unpaired_difference(a, range(40), b, range(25))
    expected = ttest_ind(b, a, equal_var=False)
    interval = expected.confidence_interval(0.95)
    assert (found.method, found.rows, found.samples) == ("welch", 65, 65)
    assert (found.low, found.high, found.p) == pytest.approx((*interval, expected.pvalue), abs=1e-10)
    # Several attempts on a row count as one, and rewards may have any size.
    several = unpaired_difference(np.repeat(a, 4), np.arange(160) // 4, np.repeat(b, 4), np.arange(100) // 4)
    assert several.p == pytest.approx(expected.pvalue, abs=1e-10)
    for factor in (1e-300, 1e155):
        scaled = unpaired_difference(a * factor, range(40), b * factor, range(25))
        assert scaled.p == pytest.approx(expected.pvalue)
        assert (scaled.low, scaled.high) == pytest.approx(tuple(factor * end for end in interval), rel=1e-9)


def test_unpaired_runs_without_variance() -> None:
    found = unpaired_difference([10.0] * 10, range(10), [10.0] * 12, range(12), scale=(0.0, 10.0))
    assert found.value == 0 and found.p == 1
    assert -4 < found.low < -2 and 2 < found.high < 4
    assert unpaired_difference([1.0] * 10, range(10), [1.0] * 12, range(12)).reason is not None


def test_unpaired_runs_with_little_variance() -> None:
    alike = unpaired_difference([1.0] * 9 + [0.0], range(10), [1.0] * 10, range(10), scale=(0.0, 1.0))
    apart = unpaired_difference([0.0] * 10, range(10), [1.0] * 10, range(10), scale=(0.0, 1.0))
    assert not alike.excludes_none and alike.p > 0.05
    assert apart.excludes_none and apart.p < 0.001
    swapped = unpaired_difference([1.0] * 10, range(10), [1.0] * 9 + [0.0], range(10), scale=(0.0, 1.0))
    assert swapped.reversed().low == pytest.approx(alike.low)


@pytest.mark.imports_much
def test_newcombe_interval() -> None:
    from statsmodels.stats.proportion import confint_proportions_2indep

    found = difference_of_counts(PassCounts(56, 70, 70), PassCounts(48, 80, 80))
    expected = confint_proportions_2indep(48, 80, 56, 70, method="newcomb", compare="diff")
    assert (found.low, found.high) == pytest.approx(expected, abs=1e-10)
    assert found.warning is None
    assert (found.p < 0.05) == found.excludes_none
    at = difference_of_counts(PassCounts(56, 70, 70), PassCounts(48, 80, 80), confidence=1 - found.p)
    assert at.high == pytest.approx(0, abs=1e-9)


def test_counts_of_several_attempts() -> None:
    found = difference_of_counts(PassCounts(200, 400, 100), PassCounts(210, 400, 100))
    assert "each row counts once" in found.warning
    one_attempt = difference_of_counts(PassCounts(50, 100, 100), PassCounts(50, 100, 100))
    assert found.high - found.low == pytest.approx(one_attempt.high - one_attempt.low, abs=1e-3)
    assert found.samples == 800


def test_difference_of_means() -> None:
    found = difference_of_means(0.5, 0.03, 0.6, 0.04)
    assert (found.low, found.high) == pytest.approx((0.1 - 1.959964 * 0.05, 0.1 + 1.959964 * 0.05), abs=1e-6)
    assert found.p == pytest.approx(0.0455, abs=1e-4) and found.excludes_none
    assert difference_of_means(0.5, 0.0, 0.6, 0.0).low is None


def test_ratio_of_means() -> None:
    draw = np.random.default_rng(6)
    a, b = draw.lognormal(0, 1, (2, 30))
    counts = np.ones(30, dtype=np.int64)
    found = ratio_of_means(Pairs(a, 2 * b, counts, counts))
    expected = ttest_1samp(np.log(2 * b / a), 0)
    assert (found.kind, found.method, found.none) == ("ratio", "log-t", 1.0)
    assert (found.low, found.high) == pytest.approx(
        tuple(np.exp(expected.confidence_interval(0.95))), abs=1e-10
    )
    assert found.p == pytest.approx(expected.pvalue, abs=1e-10)
    back = ratio_of_means(Pairs(2 * b, a, counts, counts))
    assert 1 / back.high == pytest.approx(found.low)


def test_ratio_skips_free_rows() -> None:
    counts = np.ones(3, dtype=np.int64)
    found = ratio_of_means(Pairs(np.array([0.0, 1.0, 2.0]), np.array([1.0, 2.0, 4.0]), counts, counts))
    assert (found.value, found.rows) == (pytest.approx(2.0), 2)
    assert "1 of 3 rows" in found.warning
    assert found.low is None and found.reason is not None
    assert ratio_of_means(Pairs(np.zeros(3), np.ones(3), counts, counts)) is None


def test_adjusted_p_values() -> None:
    # Holm: 3 * 0.01, then 2 * 0.02, then 1 * 0.03, never below the one before. Benjamini-Hochberg: 3/1, 3/2, 3/3.
    assert holm([0.02, 0.01, 0.03]) == pytest.approx([0.04, 0.03, 0.04])
    assert holm([0.5, 0.4]) == pytest.approx([0.8, 0.8])
    assert benjamini_hochberg([0.02, 0.01, 0.03]) == pytest.approx([0.03, 0.03, 0.03])
    assert benjamini_hochberg([0.01, 0.02, 0.021]) == pytest.approx([0.021, 0.021, 0.021])
    assert benjamini_hochberg([0.04, 0.001, 0.9]) == pytest.approx([0.06, 0.003, 0.9])


@pytest.mark.parametrize("adjust", [holm, benjamini_hochberg])
def test_missing_p_values(adjust) -> None:
    with_gap = adjust([0.01, None, 0.04])
    assert [with_gap[0], with_gap[2]] == adjust([0.01, 0.04])
    assert with_gap[1] is None
    assert adjust([]) == [] and adjust([None]) == [None]
