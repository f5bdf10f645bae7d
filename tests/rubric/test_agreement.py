"""Agreement and bias of judges, and their intervals: against textbooks, SciPy and definitions."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy import stats

from osmosis_ai.rubric.agreement import (
    MIN_RECORDS,
    AgreementReport,
    Levels,
    ScoreTable,
    biases,
    bootstrap_interval,
    calibrate,
    cohen_kappa,
    krippendorff_alpha,
    length_bias_p,
    levels_of,
    measure_agreement,
    partial_correlation,
    position_bias,
    slope,
    spearman,
    spread_of_calls,
)
from tests.rubric.tables import NAN, Floats, excludes_zero, simulated, table


def encoded(report: AgreementReport) -> Any:
    return json.loads(json.dumps(msgspec.to_builtins(report), allow_nan=False))


def figures(value: Any) -> Iterator[dict[str, Any]]:
    """Yield every figure of an encoded report."""
    if isinstance(value, dict):
        if "reason" in value:
            yield value
        for part in value.values():
            yield from figures(part)
    elif isinstance(value, list):
        for part in value:
            yield from figures(part)


@st.composite
def sessions(draw: st.DrawFn) -> tuple[Floats, Floats]:
    shape = (draw(st.integers(0, 25)), draw(st.integers(1, 3)), draw(st.integers(1, 3)))
    score = st.one_of(st.sampled_from([0.0, 0.5, 1.0, NAN]), st.floats(0, 1))
    return draw(arrays(np.float64, shape, elements=score)), draw(
        arrays(np.float64, shape[:1], elements=score)
    )


@given(sessions())
def test_whatever_was_scored_the_report_has_no_nan_and_a_reason_for_every_gap(
    session: tuple[Floats, Floats],
) -> None:
    scores, human = session
    report = measure_agreement(table(scores, human=human.tolist()))
    found = list(figures(encoded(report)))
    assert len(found) >= 14
    for figure in found:
        if figure["value"] is None:
            assert figure["reason"] and figure["low"] is None and figure["high"] is None
        elif figure["low"] is None:
            assert figure["reason"]
        else:
            assert figure["low"] <= figure["high"]
            assert figure["method"]
        assert figure["value"] is None or figure["records"] > 0
    counts = report.counts
    assert counts.scored_calls + counts.unscored_calls == counts.calls == scores.size


def test_the_interval_of_a_mean_counts_records_and_not_calls() -> None:
    base = np.random.default_rng(0).uniform(size=(50, 1, 1))
    once, often = measure_agreement(table(base)), measure_agreement(table(np.repeat(base, 20, axis=2)))
    assert often.judges[0].figures["mean"].low == pytest.approx(once.judges[0].figures["mean"].low)
    mean = often.judges[0].figures["mean"]
    assert (mean.records, mean.scores) == (50, 1000)


def test_no_interval_of_a_mean_or_a_difference_goes_beyond_what_the_scale_allows() -> None:
    scores = np.array([[[1.0], [9.0]], [[9.0], [1.0]]])
    report = measure_agreement(table(scores, human=[9.0, 1.0], score_min=0.0, score_max=10.0))
    assert report.panel is not None
    judge = report.judges[0].figures
    means = [judge["mean"], report.panel.figures["mean"]]
    assert {(figure.low, figure.high) for figure in means if figure.low is not None} == {(0.0, 10.0)}
    for name in ("bias", "others_difference"):
        assert (judge[name].low, judge[name].high) == (-10.0, 10.0)


def test_an_unscored_call_is_counted_apart_and_is_no_zero() -> None:
    report = measure_agreement(table([[[0.8, NAN]], [[NAN, NAN]], [[0.6, 0.6]]]))
    counts = report.counts
    assert (counts.scored_calls, counts.unscored_calls, counts.scored_records) == (3, 3, 2)
    # Each record weighs the same: 0.8 of one call, 0.6 of two.
    assert report.judges[0].figures["mean"].value == pytest.approx(0.7)


def test_a_panel_is_measured_judge_by_judge_and_together() -> None:
    report = measure_agreement(simulated(400, models=3))
    assert report.panel is not None
    # The noisiest judge agrees least with the others.
    rest = {judge.model: judge.figures["others_spearman"].value or 0 for judge in report.judges}
    assert min(rest, key=lambda name: rest[name]) == "maker/judge-c"
    assert 0.7 < (report.panel.figures["alpha_between_judges"].value or 0) < 1
    errors = [judge.figures["mean_absolute_error"].value or 0 for judge in report.judges]
    assert (report.panel.figures["mean_absolute_error"].value or 1) <= max(errors)


def test_the_most_disputed_records_come_first() -> None:
    scores = [
        [[0.5, 0.5], [0.5, 0.5]],
        [[0.1, 0.1], [0.9, 0.9]],
        [[0.2, 0.8], [0.5, 0.5]],
        [[NAN, NAN], [1.0, 1.0]],
    ]
    report = measure_agreement(table(scores, human=[0.5, 0.0, 0.5, 0.4], labels=["a", "b", "c", "d"]))
    assert [(found.between, found.label, found.scores) for found in report.disputed] == [
        ("judges (lowest, highest)", "b", (0.1, 0.9)),
        ("calls of one judge (lowest, highest)", "c", (0.2, 0.8)),
        ("judge and people", "d", (1.0, 0.4)),
        ("judge and people", "b", (0.5, 0.0)),
    ]


@pytest.mark.integration
def test_at_most_one_report_in_twenty_on_unbiased_judges_finds_a_bias() -> None:
    """Three judges with both orders quoted: at the level of a single test 25 of 100 reports found one."""
    rng, found = np.random.default_rng(7), 0
    for _ in range(100):
        quality = rng.uniform(size=19)
        people = np.clip(np.round((quality + rng.normal(size=19) * 0.1) * 4) / 4, 0, 1)
        scores = quality[:, None, None] + rng.normal(size=(19, 3, 2)) * 0.15
        report = measure_agreement(
            table(
                np.clip(np.round(scores * 20) / 20, 0, 1),
                human=people.tolist(),
                lengths=rng.lognormal(6, 0.8, size=19).round(),
                swapped=True,
            )
        )
        found += any(
            excludes_zero(judge.figures[name])
            for judge in report.judges
            for name in ("per_doubling_beyond_people", "position", "order_in_file")
        )
    assert found <= 5


def test_copies_of_a_record_count_once_in_every_figure() -> None:
    rng = np.random.default_rng(3)
    scores = rng.uniform(size=(25, 2, 3))
    human = rng.uniform(size=25)
    once = measure_agreement(table(scores, human=human.tolist()))
    places = [*range(25), *[4] * 10]
    thrice = measure_agreement(table(scores[places], human=human[places].tolist(), copy_of=places))
    assert (thrice.counts.records, thrice.counts.copied_records) == (35, 10)
    assert thrice.judges == once.judges
    assert thrice.panel == once.panel


def test_of_copies_the_one_that_people_scored_and_judges_scored_most_is_kept() -> None:
    scores = [[[0.5, NAN]], [[0.4, 0.6]], [[0.1, 0.1]], [[0.2, NAN]]]
    sheet = table(scores, human=[NAN, NAN, NAN, 0.3], copy_of=[0, 0, 2, 2])
    assert list(sheet.distinct().labels) == ["record[2]", "record[4]"]


def test_people_and_judge_are_compared_on_the_records_that_have_both() -> None:
    judge = np.array([0.2, 0.6, NAN, 1.0, 0.8, 0.1])
    people = np.array([0.0, 0.5, 1.0, 1.0, NAN, 0.0])
    found, bins = calibrate(judge, a_table(people))
    assert found["bias"].records == 4
    assert found["bias"].value == pytest.approx((0.2 + 0.1 + 0.0 + 0.1) / 4)
    assert found["mean_absolute_error"].value == pytest.approx(0.1)
    assert [place.name for place in bins] == ["0", "0.5", "1"]
    assert [place.bias.records for place in bins] == [2, 1, 1]
    assert bins[0].judge == pytest.approx(0.15)
    assert bins[0].bias.value == pytest.approx(0.15)
    assert found["same_category"].value == 1.0


def test_bias_by_bin_finds_where_a_judge_is_lenient() -> None:
    people = np.random.default_rng(2).integers(1, 6, size=2000).astype(float)
    _, bins = calibrate(np.maximum(people, 3.0), a_table(people, score_min=1.0, score_max=5.0))
    by_name = {place.name: place.bias for place in bins}
    assert excludes_zero(by_name["3"]) and (by_name["3"].value or 0) > 0.5
    assert by_name["5"].value == 0
    assert by_name["1"].value is None and by_name["1"].reason == "no record has such a score"


def a_table(people: Floats, **scale: Any) -> ScoreTable:
    return table(np.zeros((people.size, 1, 1)), human=people.tolist(), **scale)


@pytest.mark.parametrize(
    "people, low, high, names",
    [
        ([0, 1], 0, 1, ["0", "1"]),
        ([0, 0.5], 0, 1, ["0", "0.5", "1"]),
        ([3, 5], 1, 5, ["1", "2", "3", "4", "5"]),
        ([0.13, 0.27, 0.9], 0, 1, ["0–0.2", "0.2–0.4", "0.4–0.6", "0.6–0.8", "0.8–1"]),
        ([10, 70], 0, 100, [f"{n}" for n in range(0, 101, 10)]),
        ([0.1, 0.3], 0, 1, ["0", "0.1", "0.2", "0.3", "0.4", "0.5", "0.6", "0.7", "0.8", "0.9", "1"]),
    ],
)
def test_categories_are_those_people_used_over_the_whole_scale(
    people: list[float], low: float, high: float, names: list[str]
) -> None:
    assert levels_of(np.array(people, dtype=np.float64), low, high).names == names


def test_a_score_belongs_to_the_nearest_level_or_to_the_part_it_lies_in() -> None:
    assert Levels(1, 5, 4, centred=True).of(np.array([1.0, 1.49, 1.5, 4.6, 5.0])).tolist() == [0, 0, 1, 4, 4]
    assert Levels(0, 1, 5, centred=False).of(np.array([0.0, 0.19, 0.6, 0.1 + 0.2 + 0.3, 1.0])).tolist() == [
        0,
        0,
        3,
        3,
        4,
    ]


RNG = np.random.default_rng(7)
PEOPLE = RNG.uniform(size=400)
LENGTHS = 2 ** (6 + 3 * PEOPLE + RNG.normal(size=400))


NOISE = RNG.normal(size=(2, 400))


@pytest.mark.parametrize(
    ("judge", "people", "excluding_zero", "is_biased"),
    [
        # The judge likes length.
        (
            PEOPLE + 0.04 * np.log2(LENGTHS) + NOISE[0] * 0.05,
            PEOPLE,
            {"length", "length_beyond_people", "per_doubling_beyond_people"},
            True,
        ),
        # Better answers happen to be longer.
        (PEOPLE + NOISE[0] * 0.05, PEOPLE, {"length"}, False),
        # Held fixed, a noisy score leaves quality behind, and with it the length of good answers.
        (PEOPLE + NOISE[0] * 0.05, PEOPLE + NOISE[1] * 0.3, {"length", "length_beyond_people"}, False),
        # The judge drifts through the file.
        (PEOPLE + NOISE[0] * 0.1 + np.arange(400) / 1000, PEOPLE, {"length", "order_in_file"}, False),
    ],
)
def test_a_bias_is_what_the_judge_adds_to_the_scores_of_people(
    judge: Floats, people: Floats, excluding_zero: set[str], is_biased: bool
) -> None:
    found = biases(judge, a_table(people, lengths=LENGTHS))
    assert {name for name, figure in found.items() if excludes_zero(figure)} == excluding_zero
    p = length_bias_p(found)
    assert p is not None and (p < 0.05) == is_biased
    if is_biased:
        assert found["per_doubling_beyond_people"].value == pytest.approx(0.04, abs=0.01)


def test_without_scores_of_people_length_is_only_associated() -> None:
    found = biases(PEOPLE, a_table(np.full(400, NAN), lengths=LENGTHS))
    assert excludes_zero(found["length"]) and excludes_zero(found["per_doubling"])
    assert found["order_in_file"].value is found["length_beyond_people"].value is None
    assert length_bias_p(found) is None


def test_position_is_measured_when_runs_quote_in_another_order_and_only_then() -> None:
    base = RNG.uniform(0.2, 0.8, size=(200, 1))
    scores = base + np.array([0.1, 0.0, 0.1, 0.0]) + RNG.normal(size=(200, 4)) * 0.05
    scores[0, :2] = NAN
    found = position_bias(scores)
    assert found.value == pytest.approx(0.1, abs=0.02)
    assert excludes_zero(found)
    assert (found.records, found.scores) == (200, 798)
    for missing in (position_bias(scores, swapped=False), position_bias(scores[:, :1])):
        assert missing.value is None
        assert "same order" in (missing.reason or "")
    nothing = position_bias(np.array([[0.5, NAN, 0.5, NAN]]))
    assert nothing.reason == "no record was scored in both orders"


# Krippendorff 2011, "Computing Krippendorff's Alpha-Reliability", section C: four observers, twelve units.
KRIPPENDORFF = np.array(
    [
        [1, 2, 3, 3, 2, 1, 4, 1, 2, NAN, NAN, NAN],
        [1, 2, 3, 3, 2, 2, 4, 1, 2, 5, NAN, 3],
        [NAN, 3, 3, 3, 2, 3, 4, 2, 2, 5, 1, NAN],
        [1, 2, 3, 3, 2, 4, 4, 1, 2, 5, 1, NAN],
    ]
).T


def test_alpha_is_krippendorffs_own() -> None:
    interval = krippendorff_alpha(KRIPPENDORFF)
    assert interval.value == pytest.approx(0.849, abs=5e-4)
    assert (interval.records, interval.scores) == (11, 40)


@pytest.mark.integration
def test_intervals_hold_the_truth_about_as_often_as_they_say() -> None:
    rng = np.random.default_rng(11)
    held = 0
    for _ in range(100):
        ratings = rng.normal(size=(60, 1)) * 2 + rng.normal(size=(60, 4))
        ratings[rng.random(ratings.shape) < 0.1] = np.nan
        found = krippendorff_alpha(ratings)
        assert found.low is not None and found.high is not None
        held += found.low <= 0.8 <= found.high
    # 95 of 100 are promised; a binomial of 0.93 falls below 86 once in some hundred.
    assert held >= 86


def test_one_run_or_equal_scores_say_why_there_is_no_reliability() -> None:
    once = krippendorff_alpha(np.array([[0.1], [0.9]]))
    assert (once.value, once.reason) == (None, "each record was scored once; repeat calls with `-n 5`")
    assert {figure.reason for figure in spread_of_calls(np.array([[0.1], [0.9]]))} == {once.reason}
    equal = krippendorff_alpha(np.full((5, 3), 0.5))
    assert equal.value is None and "every score is the same" in (equal.reason or "")
    apart = np.array([[0.1, NAN], [NAN, 0.9], [0.4, 0.5]])
    assert "fewer than two records" in (krippendorff_alpha(apart).reason or "")


def test_a_judge_that_always_repeats_itself_is_reliable_as_far_as_so_few_records_show() -> None:
    ratings = np.repeat(np.linspace(0, 1, 30)[:, None], 4, axis=1)
    few, alpha, many = (
        krippendorff_alpha(each) for each in (ratings[:10], ratings, np.repeat(ratings, 20, axis=0))
    )
    assert (few.value, few.low) == (1.0, None) and few.reason
    assert (alpha.value, alpha.high, many.high) == (1.0, 1.0, 1.0)
    assert alpha.low is not None and many.low is not None and 0 < alpha.low < 0.8 < many.low < 1
    # The bound is alpha of a table in which the largest share of records that 30 alike ones allow differs.
    share = 1 - 0.025 ** (1 / 600)
    worst = np.repeat(np.repeat(np.linspace(0, 1, 30), 2000)[:, None], 4, axis=1)
    worst[:: round(1 / share)] = [0, 0, 1, 1]
    assert krippendorff_alpha(worst).value == pytest.approx(many.low, abs=0.002)
    deviation, identical = spread_of_calls(ratings)
    assert (deviation.low, deviation.reason) == (None, "every record got the same score each time")
    assert identical.value == 1.0


def test_the_spread_of_calls_is_the_pooled_standard_deviation() -> None:
    scores = np.array([[0.2, 0.4, NAN], [0.5, 0.5, 0.5], [0.1, NAN, NAN], [0.0, 0.6, 0.9]])
    repeated = [scores[0, :2], scores[1], scores[3]]
    pooled = sum(each.var(ddof=1) * (each.size - 1) for each in repeated) / sum(
        each.size - 1 for each in repeated
    )
    deviation, identical = spread_of_calls(scores)
    assert deviation.value == pytest.approx(math.sqrt(pooled))
    assert (deviation.records, deviation.scores) == (3, 8)
    assert (identical.value, identical.records, identical.scores) == (pytest.approx(1 / 3), 3, 8)


pairs = st.lists(
    st.tuples(st.floats(0, 1, width=32), st.floats(0, 1, width=32)), min_size=5, max_size=40
).map(lambda values: np.array(values, dtype=np.float64).T)


@settings(deadline=None)
@given(pairs)
def test_rank_correlations_are_scipys(both: Floats) -> None:
    x, y = both
    assume(np.ptp(x) > 1e-3 and np.ptp(y) > 1e-3)
    assert spearman(x, y).value == pytest.approx(stats.spearmanr(x, y).statistic, abs=1e-9)


def test_the_interval_of_a_rank_correlation_is_bonett_and_wrights() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=67)
    found = spearman(x, x + rng.normal(size=67))
    assert found.value is not None
    z, half = np.arctanh(found.value), 1.959964 * np.sqrt((1 + found.value**2 / 2) / 64)
    assert (found.low, found.high) == pytest.approx((np.tanh(z - half), np.tanh(z + half)), abs=1e-6)


def test_a_partial_correlation_is_that_of_what_the_fixed_variable_leaves() -> None:
    rng = np.random.default_rng(1)
    z = rng.normal(size=500)
    x, y = z + rng.normal(size=500), z + rng.normal(size=500)
    left = [v - np.polyval(np.polyfit(z, v, 1), z) for v in (x, y)]
    found = partial_correlation(x, y, z)
    assert found.value == pytest.approx(np.corrcoef(left)[0, 1], abs=1e-9)
    half = 1.959964 / np.sqrt(500 - 4)
    around = np.arctanh(found.value)
    assert (found.low, found.high) == pytest.approx(
        (np.tanh(around - half), np.tanh(around + half)), abs=1e-6
    )
    assert np.corrcoef(x, y)[0, 1] > 0.4
    assert not excludes_zero(found)
    assert partial_correlation(x, y, x).reason == "it is indistinguishable from the human score"


def test_cohens_kappa_is_the_published_one() -> None:
    # Two readers, 50 grant proposals, yes or no: 20 both yes, 15 both no, 5 and 10 apart: kappa 0.4.
    a = np.repeat([0, 0, 1, 1], [20, 5, 10, 15])
    b = np.repeat([0, 1, 0, 1], [20, 5, 10, 15])
    found = cohen_kappa(a, b, 2)
    assert found.value == pytest.approx(0.4)
    # Fleiss, Cohen and Everitt 1969: with two categories the weights change nothing.
    assert cohen_kappa(a, b, 2, weighted=True).value == pytest.approx(0.4)
    assert found.low is not None and found.high is not None
    # The large-sample standard error of that table is 0.127.
    assert (found.low, found.high) == pytest.approx((0.4 - 1.96 * 0.127, 0.4 + 1.96 * 0.127), abs=0.05)


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=2, max_size=60), st.booleans())
def test_kappa_is_its_definition_on_the_table_of_counts(rated: list[tuple[int, int]], weighted: bool) -> None:
    a, b = np.array(rated).T
    assume(np.ptp(a) > 0 and np.ptp(b) > 0)
    counts = np.zeros((5, 5))
    np.add.at(counts, (a, b), 1)
    i, j = np.indices((5, 5))
    weights = (i - j) ** 2 if weighted else (i != j).astype(float)
    expected = np.outer(counts.sum(axis=1), counts.sum(axis=0)) / counts.sum()
    kappa = 1 - (weights * counts).sum() / (weights * expected).sum()
    assert cohen_kappa(a, b, 5, weighted=weighted).value == pytest.approx(kappa, abs=1e-9)


def test_a_slope_is_that_of_least_squares_with_errors_that_know_uneven_spread() -> None:
    rng = np.random.default_rng(7)
    x = rng.normal(size=300)
    y = 2 * x + rng.normal(size=300) * (0.2 + np.abs(x))
    found, theirs = slope(y, x), stats.linregress(x, y)
    assert found.value == pytest.approx(theirs.slope)
    assert found.low is not None and found.high is not None
    # HC3, from its definition.
    design = np.column_stack((np.ones(300), x))
    inverse = np.linalg.inv(design.T @ design)
    hat = np.diag(design @ inverse @ design.T)
    residuals = y - design @ (inverse @ design.T @ y)
    sandwich = inverse @ design.T @ np.diag((residuals / (1 - hat)) ** 2) @ design @ inverse
    half = stats.t.ppf(0.975, 298) * np.sqrt(sandwich[1, 1])
    assert (found.low, found.high) == pytest.approx((theirs.slope - half, theirs.slope + half))
    assert half > 1.2 * theirs.stderr * stats.t.ppf(0.975, 298)


def mean_of(totals: Floats) -> Floats:
    return totals[:, 1] / totals[:, 0]


def sums_of(values: Floats) -> Floats:
    return np.column_stack((np.ones_like(values), values))


def test_the_interval_is_that_of_scipys_bootstrap() -> None:
    apart = []
    for seed in range(10):
        values = np.random.default_rng(seed).exponential(size=60)
        ours = bootstrap_interval(sums_of(values), mean_of, seed=seed)
        theirs = stats.bootstrap(
            (values,), np.mean, method="BCa", n_resamples=2000, rng=np.random.default_rng(seed + 1)
        ).confidence_interval
        assert ours is not None
        apart.append((np.array(ours) - theirs) / (theirs.high - theirs.low))
    # Two runs of 2,000 draws differ by chance; 12% of the width is about four of its standard errors.
    assert np.abs(apart).max() < 0.12
    assert np.abs(np.mean(apart, axis=0)).max() < 0.04, "four standard errors of the mean of ten"


def test_very_many_records_give_the_interval_of_theory_at_the_cost_of_few() -> None:
    values = np.random.default_rng(3).normal(size=200_000)
    found = bootstrap_interval(sums_of(values), mean_of)
    half = 1.96 * values.std() / len(values) ** 0.5
    assert found == pytest.approx((values.mean() - half, values.mean() + half), abs=0.1 * half)


def test_there_is_no_interval_where_records_are_few_or_all_alike() -> None:
    few = np.random.default_rng(0).normal(size=MIN_RECORDS - 1)
    assert bootstrap_interval(sums_of(few), mean_of) is None
    assert bootstrap_interval(sums_of(np.ones(100)), mean_of) is None
    enough = sums_of(np.random.default_rng(0).normal(size=MIN_RECORDS))
    assert bootstrap_interval(enough, mean_of, seed=1) == bootstrap_interval(enough, mean_of, seed=1)


def test_a_statistic_that_most_resamples_leave_undefined_has_no_interval() -> None:
    values = np.zeros(30)
    values[0] = 1.0

    def defined_with_the_one(totals: Floats) -> Floats:
        return np.where(totals[:, 1] > 0, totals[:, 1] / totals[:, 0], np.nan)

    assert bootstrap_interval(sums_of(values), defined_with_the_one) is None


def test_every_model_has_one_vote_in_the_consensus_however_many_runs_it_scored() -> None:
    sheet = table([[[0.0, NAN, NAN], [1.0, 1.0, 1.0], [0.2, 0.2, 0.2]], [[NAN] * 3] * 3])
    assert sheet.consensus().tolist() == [pytest.approx(0.4), pytest.approx(NAN, nan_ok=True)]


def test_means_that_are_equal_on_paper_are_equal() -> None:
    sheet = table([[[0.1, 0.5]], [[0.3, 0.3]], [[0.2, 0.4]]])
    assert set(sheet.model_means()[:, 0].tolist()) == {0.3}
