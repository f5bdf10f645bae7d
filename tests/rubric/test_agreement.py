from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from osmosis_ai.rubric.agreement import (
    AgreementReport,
    Levels,
    ScoreTable,
    calibrate,
    length_bias,
    length_bias_p,
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
    rng = np.random.default_rng(2)
    people = rng.integers(1, 6, size=2000).astype(float)
    judge = np.maximum(people, 3.0)
    _, bins = calibrate(judge, a_table(people, score_min=1.0, score_max=5.0))
    by_name = {place.name: place.bias for place in bins}
    assert excludes_zero(by_name["3"]) and (by_name["3"].value or 0) > 0.5
    assert by_name["5"].value == 0
    assert by_name["1"].value is None and by_name["1"].reason == "no record has such a score"


def a_table(people: Floats, **scale: float) -> ScoreTable:
    return table(np.zeros((people.size, 1, 1)), human=people.tolist(), **scale)


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
    p, per_doubling = length_bias_p(found), found["per_doubling_beyond_people"]
    assert p is not None and p < 0.05
    assert per_doubling.value == pytest.approx(0.04, abs=0.01)
    assert per_doubling.low is not None and per_doubling.high is not None
    assert per_doubling.low < 0.04 < per_doubling.high


def test_better_answers_that_happen_to_be_longer_are_no_bias() -> None:
    judge = PEOPLE + RNG.normal(size=400) * 0.05
    found = length_bias(judge, LENGTHS, PEOPLE)
    assert excludes_zero(found["length"])
    assert (found["length"].value or 0) > 0.4
    assert not excludes_zero(found["length_beyond_people"])
    assert not excludes_zero(found["per_doubling_beyond_people"])
    p = length_bias_p(found)
    assert p is not None and p > 0.05


def test_noise_in_peoples_scores_does_not_make_a_bias_of_quality() -> None:
    rng = np.random.default_rng(8)
    noisy = PEOPLE + rng.normal(size=400) * 0.3
    found = length_bias(PEOPLE + rng.normal(size=400) * 0.05, LENGTHS, noisy)
    # Held fixed, a noisy score leaves quality behind, and with it the length of good answers.
    assert excludes_zero(found["length_beyond_people"])
    assert not excludes_zero(found["per_doubling_beyond_people"])
    p = length_bias_p(found)
    assert p is not None and p > 0.05


def test_a_judge_that_drifts_through_the_file_is_found_out() -> None:
    steady = PEOPLE + np.random.default_rng(0).normal(size=400) * 0.1
    assert excludes_zero(order_in_file(steady + np.arange(400) / 1000, PEOPLE))
    assert not excludes_zero(order_in_file(steady, PEOPLE))
    assert order_in_file(PEOPLE, np.full(400, NAN)).value is None


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
