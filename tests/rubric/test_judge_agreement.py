from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from osmosis_ai.rubric.judge_agreement import (
    AgreementReport,
    Levels,
    calibrate,
    length_bias,
    levels_of,
    measure_agreement,
    order_in_file,
    position_bias,
)
from tests.rubric.tables import NAN, Floats, excludes_zero, simulated, table


def encoded(report: AgreementReport) -> Any:
    return json.loads(json.dumps(report.to_json(), allow_nan=False))


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
    assert len(found) >= 19
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
    assert often.judges[0].mean.low == pytest.approx(once.judges[0].mean.low)
    assert (often.judges[0].mean.records, often.judges[0].mean.scores) == (50, 1000)


def test_no_interval_of_a_mean_or_a_difference_goes_beyond_what_the_scale_allows() -> None:
    scores = np.array([[[1.0], [9.0]], [[9.0], [1.0]]])
    report = measure_agreement(table(scores, human=[9.0, 1.0], score_min=0.0, score_max=10.0))
    assert report.panel is not None
    means = [report.judges[0].mean, report.panel.consensus, report.panel.consensus_median]
    assert {(figure.low, figure.high) for figure in means if figure.low is not None} == {(0.0, 10.0)}
    calibration = report.judges[0].calibration
    assert (calibration.bias.low, calibration.bias.high) == (-10.0, 10.0)
    assert (report.panel.pairs[0].difference.low, report.panel.pairs[0].difference.high) == (-10.0, 10.0)


def test_an_unscored_call_is_counted_apart_and_is_no_zero() -> None:
    report = measure_agreement(table([[[0.8, NAN]], [[NAN, NAN]], [[0.6, 0.6]]]))
    counts = report.counts
    assert (counts.scored_calls, counts.unscored_calls, counts.scored_records, counts.complete_records) == (
        3,
        3,
        2,
        1,
    )
    # Each record weighs the same: 0.8 of one call, 0.6 of two.
    assert report.judges[0].mean.value == pytest.approx(0.7)


def test_a_panel_is_measured_judge_by_judge_and_together() -> None:
    report = measure_agreement(simulated(400, models=3))
    panel = report.panel
    assert panel is not None
    assert [(pair.first, pair.second) for pair in panel.pairs] == [
        ("maker/judge-a", "maker/judge-b"),
        ("maker/judge-a", "maker/judge-c"),
        ("maker/judge-b", "maker/judge-c"),
    ]
    # The noisiest judge agrees least with the others; their mean is more reliable than one of them.
    rest = {judge.first: judge.pearson.value or 0 for judge in panel.left_out}
    assert min(rest, key=lambda name: rest[name]) == "maker/judge-c"
    assert (panel.absolute.average.value or 0) > (panel.absolute.single.value or 0)
    assert report.consensus_calibration is not None
    errors = [judge.calibration.mean_absolute_error.value for judge in report.judges]
    assert (report.consensus_calibration.mean_absolute_error.value or 1) <= max(
        error or 0 for error in errors
    )


def test_the_most_disputed_records_come_first() -> None:
    scores = [
        [[0.5, 0.5], [0.5, 0.5]],
        [[0.1, 0.1], [0.9, 0.9]],
        [[0.2, 0.8], [0.5, 0.5]],
        [[NAN, NAN], [1.0, 1.0]],
    ]
    report = measure_agreement(table(scores, human=[0.5, 0.0, 0.5, 0.4], labels=["a", "b", "c", "d"]))
    assert [(found.record, found.label, found.gap) for found in report.disputed] == [
        (2, "b", pytest.approx(0.8))
    ]
    assert [(found.label, found.scores) for found in report.unstable] == [("c", (0.2, 0.8))]
    assert [(found.label, found.scores) for found in report.far_from_people] == [
        ("d", (1.0, 0.4)),
        ("b", (0.5, 0.0)),
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
                presentations=("usual", "reversed"),
            )
        )
        found += any(
            excludes_zero(figure)
            for judge in report.judges
            for figure in (judge.length.per_doubling, judge.position, judge.order_in_file)
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
    assert thrice.judges[0].mean == once.judges[0].mean
    assert thrice.judges[0].alpha == once.judges[0].alpha
    assert thrice.judges[0].calibration == once.judges[0].calibration
    assert thrice.panel == once.panel


def test_of_copies_the_one_that_people_scored_and_judges_scored_most_is_kept() -> None:
    scores = [[[0.5, NAN]], [[0.4, 0.6]], [[0.1, 0.1]], [[0.2, NAN]]]
    sheet = table(scores, human=[NAN, NAN, NAN, 0.3], copy_of=[0, 0, 2, 2])
    assert list(sheet.distinct().labels) == ["record[2]", "record[4]"]


def test_people_and_judge_are_compared_on_the_records_that_have_both() -> None:
    judge = np.array([0.2, 0.6, NAN, 1.0, 0.8, 0.1])
    people = np.array([0.0, 0.5, 1.0, 1.0, NAN, 0.0])
    found = calibrate(judge, people, low=0, high=1)
    assert found.bias.records == 4
    assert found.bias.value == pytest.approx((0.2 + 0.1 + 0.0 + 0.1) / 4)
    assert found.mean_absolute_error.value == pytest.approx(0.1)
    assert found.levels == ("0", "0.5", "1")
    assert [place.name for place in found.bins] == ["0", "0.5", "1"]
    assert [place.bias.records for place in found.bins] == [2, 1, 1]
    assert found.bins[0].judge == pytest.approx(0.15)
    assert found.bins[0].bias.value == pytest.approx(0.15)
    assert found.exact.value == 1.0


def test_bias_by_bin_finds_where_a_judge_is_lenient() -> None:
    rng = np.random.default_rng(2)
    people = rng.integers(1, 6, size=2000).astype(float)
    judge = np.maximum(people, 3.0)
    found = calibrate(judge, people, low=1, high=5)
    by_name = {place.name: place.bias for place in found.bins}
    assert excludes_zero(by_name["3"]) and (by_name["3"].value or 0) > 0.5
    assert by_name["5"].value == 0
    assert by_name["1"].value is None and by_name["1"].reason == "no record has such a score"


def test_people_on_another_scale_leave_the_correlations_and_say_so() -> None:
    people = np.array([1.0, 3.0, 5.0, 4.0, 2.0])
    found = calibrate(people / 5, people, low=0, high=1)
    assert found.pearson.value == pytest.approx(1.0)
    assert found.bias.value is None
    assert found.bias.reason == "people's scores run from 1 to 5, the judge's scale from 0 to 1"


@pytest.mark.parametrize(
    "people, low, high, names",
    [
        ([0, 1], 0, 1, ["0", "1"]),
        ([0, 0.5], 0, 1, ["0", "0.5", "1"]),
        ([3, 5], 1, 5, ["1", "2", "3", "4", "5"]),
        ([0.13, 0.27, 0.9], 0, 1, ["0 – 0.2", "0.2 – 0.4", "0.4 – 0.6", "0.6 – 0.8", "0.8 – 1"]),
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


def test_a_judge_that_likes_length_is_found_out_with_peoples_scores_held_fixed() -> None:
    judge = PEOPLE + 0.04 * np.log2(LENGTHS) + RNG.normal(size=400) * 0.05
    found = length_bias(judge, LENGTHS, PEOPLE)
    assert found.against_people and found.p is not None and found.p < 0.05
    assert found.per_doubling.value == pytest.approx(0.04, abs=0.01)
    assert found.per_doubling.low is not None and found.per_doubling.high is not None
    assert found.per_doubling.low < 0.04 < found.per_doubling.high


def test_better_answers_that_happen_to_be_longer_are_no_bias() -> None:
    judge = PEOPLE + RNG.normal(size=400) * 0.05
    found = length_bias(judge, LENGTHS, PEOPLE)
    assert excludes_zero(found.correlation)
    assert (found.correlation.value or 0) > 0.4
    assert not excludes_zero(found.controlled)
    assert not excludes_zero(found.per_doubling)
    assert found.p is not None and found.p > 0.05


def test_noise_in_peoples_scores_does_not_make_a_bias_of_quality() -> None:
    rng = np.random.default_rng(8)
    noisy = PEOPLE + rng.normal(size=400) * 0.3
    found = length_bias(PEOPLE + rng.normal(size=400) * 0.05, LENGTHS, noisy)
    # Held fixed, a noisy score leaves quality behind, and with it the length of good answers.
    assert excludes_zero(found.controlled)
    assert not excludes_zero(found.per_doubling)
    assert found.p is not None and found.p > 0.05


def test_a_judge_that_drifts_through_the_file_is_found_out() -> None:
    steady = PEOPLE + np.random.default_rng(0).normal(size=400) * 0.1
    assert excludes_zero(order_in_file(steady + np.arange(400) / 1000, PEOPLE))
    assert not excludes_zero(order_in_file(steady, PEOPLE))
    assert order_in_file(PEOPLE, np.full(400, NAN)).value is None


def test_position_is_measured_when_runs_quote_in_another_order_and_only_then() -> None:
    base = RNG.uniform(0.2, 0.8, size=(200, 1))
    scores = base + np.array([0.1, 0.0, 0.1, 0.0]) + RNG.normal(size=(200, 4)) * 0.05
    scores[0, :2] = NAN
    orders = ["candidate first", "reference first"] * 2
    found = position_bias(scores, orders)
    assert found.value == pytest.approx(0.1, abs=0.02)
    assert excludes_zero(found)
    assert (found.records, found.scores) == (200, 798)
    for same in (None, ["candidate first"] * 4):
        missing = position_bias(scores, same)
        assert missing.value is None
        assert "same order" in (missing.reason or "")
    nothing = position_bias(np.array([[0.5, NAN, 0.5, NAN]]), orders)
    assert nothing.reason == "no record was scored in both orders"
