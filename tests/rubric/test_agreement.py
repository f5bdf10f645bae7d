from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from osmosis_ai.rubric.agreement import Intraclass, krippendorff_alpha, one_way_icc, two_way_icc
from osmosis_ai.rubric.estimate import TrustEstimate
from tests.rubric.tables import NAN, Floats

# Krippendorff 2011, "Computing Krippendorff's Alpha-Reliability", section C: four observers, twelve units.
KRIPPENDORFF = np.array(
    [
        [1, 2, 3, 3, 2, 1, 4, 1, 2, NAN, NAN, NAN],
        [1, 2, 3, 3, 2, 2, 4, 1, 2, 5, NAN, 3],
        [NAN, 3, 3, 3, 2, 3, 4, 2, 2, 5, 1, NAN],
        [1, 2, 3, 3, 2, 4, 4, 1, 2, 5, 1, NAN],
    ]
).T

# Shrout and Fleiss 1979, table 2: six targets, four judges.
SHROUT_FLEISS = np.array(
    [[9, 2, 5, 8], [6, 1, 3, 2], [8, 4, 6, 8], [7, 1, 2, 6], [10, 5, 6, 9], [6, 2, 4, 7]], dtype=np.float64
)

ratings_with_gaps = arrays(
    np.float64,
    st.tuples(st.integers(2, 8), st.integers(2, 5)),
    elements=st.one_of(st.integers(0, 4).map(float), st.just(NAN)),
)
complete_ratings = arrays(
    np.float64, st.tuples(st.integers(3, 10), st.integers(2, 5)), elements=st.integers(0, 9).map(float)
)


def test_alpha_is_krippendorffs_own() -> None:
    interval = krippendorff_alpha(KRIPPENDORFF)
    assert interval.value == pytest.approx(0.849, abs=5e-4)
    assert (interval.records, interval.scores) == (11, 40)
    assert krippendorff_alpha(KRIPPENDORFF, level="ordinal").value == pytest.approx(0.815, abs=5e-4)


def by_definition(ratings: Floats, *, ordinal: bool) -> float | None:
    """Alpha, pair by pair: slow, and as it is written down."""
    units = [unit[~np.isnan(unit)] for unit in ratings]
    units = [unit for unit in units if unit.size >= 2]
    values = np.concatenate(units) if units else np.array([])
    frequency = {value: int((values == value).sum()) for value in set(values.tolist())}

    def squared(a: float, b: float) -> float:
        if not ordinal:
            return (a - b) ** 2
        between = sum(count for value, count in frequency.items() if min(a, b) <= value <= max(a, b))
        return (between - (frequency[a] + frequency[b]) / 2) ** 2

    n = values.size
    expected = sum(squared(a, b) for a, b in itertools.permutations(values.tolist(), 2)) / max(n * (n - 1), 1)
    if len(units) < 2 or expected == 0:
        return None
    observed = (
        sum(
            sum(squared(a, b) for a, b in itertools.permutations(u.tolist(), 2)) / (u.size - 1) for u in units
        )
        / n
    )
    return 1 - observed / expected


@settings(deadline=None)
@given(ratings_with_gaps, st.booleans())
def test_alpha_is_its_definition_pair_by_pair(ratings: Floats, ordinal: bool) -> None:
    found = krippendorff_alpha(ratings, level="ordinal" if ordinal else "interval")
    expected = by_definition(ratings, ordinal=ordinal)
    if expected is None:
        assert found.value is None and found.reason
    else:
        assert found.value == pytest.approx(expected, abs=1e-9)


@settings(deadline=None)
@given(ratings_with_gaps, st.floats(0.01, 100), st.floats(-1000, 1000))
def test_alpha_depends_neither_on_the_unit_nor_on_the_zero_of_the_scale(
    ratings: Floats, unit: float, zero: float
) -> None:
    before, after = krippendorff_alpha(ratings), krippendorff_alpha(ratings * unit + zero)
    assert (before.value is None) == (after.value is None)
    if before.value is not None:
        assert after.value == pytest.approx(before.value, abs=1e-6)


def test_intraclass_correlations_and_intervals_are_those_of_the_textbook() -> None:
    # Estimates: Shrout and Fleiss 1979, table 4. Intervals of the same data: McGraw and Wong's formulas,
    # as published with R's psych package.
    assert figures(one_way_icc(SHROUT_FLEISS)) == rounded((0.17, -0.13, 0.72), (0.44, -0.88, 0.91))
    assert figures(two_way_icc(SHROUT_FLEISS)) == rounded((0.29, 0.02, 0.76), (0.62, 0.07, 0.93))
    assert figures(two_way_icc(SHROUT_FLEISS, consistency=True)) == rounded(
        (0.71, 0.34, 0.95), (0.91, 0.68, 0.99)
    )


def figures(found: Intraclass) -> list[float]:
    def three(figure: TrustEstimate) -> tuple[float, float, float]:
        assert figure.value is not None and figure.low is not None and figure.high is not None
        return figure.value, figure.low, figure.high

    return [*three(found.single), *three(found.average)]


def rounded(*parts: tuple[float, float, float]) -> object:
    return pytest.approx([number for part in parts for number in part], abs=5.01e-3)


@settings(deadline=None)
@given(complete_ratings)
def test_intraclass_correlations_are_those_of_the_analysis_of_variance(ratings: Floats) -> None:
    n, k = ratings.shape
    rows, columns, grand = ratings.mean(axis=1), ratings.mean(axis=0), ratings.mean()
    msr = k * ((rows - grand) ** 2).sum() / (n - 1)
    msw = ((ratings - rows[:, None]) ** 2).sum() / (n * (k - 1))
    msc = n * ((columns - grand) ** 2).sum() / (k - 1)
    mse = ((ratings - rows[:, None] - columns + grand) ** 2).sum() / ((n - 1) * (k - 1))
    assume(msr > 1e-9)
    one, two, three = one_way_icc(ratings), two_way_icc(ratings), two_way_icc(ratings, consistency=True)
    assert one.single.value == pytest.approx((msr - msw) / (msr + (k - 1) * msw), abs=1e-9)
    assert two.single.value == pytest.approx(
        (msr - mse) / (msr + (k - 1) * mse + k * (msc - mse) / n), abs=1e-9
    )
    assert three.single.value == pytest.approx((msr - mse) / (msr + (k - 1) * mse), abs=1e-9)
    assert one.average.value == pytest.approx((msr - msw) / msr, abs=1e-6)
    assert three.average.value == pytest.approx((msr - mse) / msr, abs=1e-6)


def test_reliability_is_the_share_of_variance_between_records_also_with_gaps() -> None:
    rng = np.random.default_rng(5)
    ratings = rng.normal(size=(20_000, 1)) * 2 + rng.normal(size=(20_000, 5))
    ratings[rng.random(ratings.shape) < 0.3] = np.nan
    for found in (one_way_icc(ratings).single, two_way_icc(ratings).single, krippendorff_alpha(ratings)):
        assert found.low is not None and found.high is not None
        assert found.low < 0.8 < found.high
        assert found.high - found.low < 0.02


@pytest.mark.integration
@pytest.mark.parametrize("measure", [krippendorff_alpha, lambda r: one_way_icc(r).single])
def test_intervals_hold_the_truth_about_as_often_as_they_say(measure: object) -> None:
    rng = np.random.default_rng(11)
    held = 0
    for _ in range(100):
        found = measure(rng.normal(size=(60, 1)) * 2 + rng.normal(size=(60, 4)))  # type: ignore[operator]
        held += found.low <= 0.8 <= found.high
    # 95 of 100 are promised; a binomial of 0.93 falls below 86 once in some hundred.
    assert held >= 86


def test_one_run_or_equal_scores_say_why_there_is_no_reliability() -> None:
    once = krippendorff_alpha(np.array([[0.1], [0.9]]))
    assert (once.value, once.reason) == (None, "each record was scored once")
    assert one_way_icc(np.array([[0.1], [0.9]])).average.reason == "each record was scored once"
    equal = np.full((5, 3), 0.5)
    for figure in (krippendorff_alpha(equal), one_way_icc(equal).single, two_way_icc(equal).single):
        assert figure.value is None
        assert figure.reason is not None and "every score is the same" in figure.reason
    apart = np.array([[0.1, NAN], [NAN, 0.9], [0.4, 0.5]])
    assert "fewer than two records" in (krippendorff_alpha(apart).reason or "")


def test_a_judge_that_always_repeats_itself_is_perfectly_reliable_without_an_interval() -> None:
    ratings = np.repeat(np.linspace(0, 1, 30)[:, None], 4, axis=1)
    for figure in (krippendorff_alpha(ratings), one_way_icc(ratings).single, one_way_icc(ratings).average):
        assert figure.value == 1.0
        assert figure.low is None and figure.reason
    assert math.isclose(two_way_icc(ratings).single.value or 0.0, 1.0)
