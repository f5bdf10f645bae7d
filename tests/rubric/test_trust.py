from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from osmosis_ai.rubric.trust import TrustReport, trust_report
from tests.rubric.tables import NAN, Floats, simulated, table


def encoded(report: TrustReport) -> Any:
    return json.loads(json.dumps(report.to_json(), allow_nan=False))


def figures(value: Any) -> Iterator[dict[str, Any]]:
    """Yield every figure of an encoded report."""
    if isinstance(value, dict):
        if "sentence" in value:
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
    report = trust_report(table(scores, human=human.tolist()))
    found = list(figures(encoded(report)))
    assert len(found) >= 19
    for figure in found:
        assert figure["sentence"]
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


def test_the_standard_error_counts_records_and_not_calls() -> None:
    base = np.random.default_rng(0).uniform(size=(50, 1, 1))
    once, often = trust_report(table(base)), trust_report(table(np.repeat(base, 20, axis=2)))
    assert often.judges[0].stderr == pytest.approx(once.judges[0].stderr)
    assert (often.judges[0].mean.records, often.judges[0].mean.scores) == (50, 1000)
    assert often.judges[0].stderr_by_call is not None and often.judges[0].stderr is not None
    assert often.judges[0].stderr_by_call < often.judges[0].stderr / 4
    assert "counts records" in often.judges[0].mean.sentence


def test_no_interval_of_a_mean_or_a_difference_goes_beyond_what_the_scale_allows() -> None:
    scores = np.array([[[1.0], [9.0]], [[9.0], [1.0]]])
    report = trust_report(table(scores, human=[9.0, 1.0], score_min=0.0, score_max=10.0))
    assert report.panel is not None
    means = [report.judges[0].mean, report.panel.consensus, report.panel.consensus_median]
    assert {(figure.low, figure.high) for figure in means if figure.low is not None} == {(0.0, 10.0)}
    calibration = report.judges[0].calibration
    assert (calibration.bias.low, calibration.bias.high) == (-10.0, 10.0)
    assert (report.panel.pairs[0].difference.low, report.panel.pairs[0].difference.high) == (-10.0, 10.0)


def test_an_unscored_call_is_counted_apart_and_is_no_zero() -> None:
    report = trust_report(table([[[0.8, NAN]], [[NAN, NAN]], [[0.6, 0.6]]]))
    counts = report.counts
    assert (counts.scored_calls, counts.unscored_calls, counts.scored_records, counts.complete_records) == (
        3,
        3,
        2,
        1,
    )
    # Each record weighs the same: 0.8 of one call, 0.6 of two.
    assert report.judges[0].mean.value == pytest.approx(0.7)
    assert "3 of 6 calls (50 %) gave no score" in report.findings[0].text
    assert report.findings[0].level == "bad"


def test_a_panel_is_measured_judge_by_judge_and_together() -> None:
    report = trust_report(simulated(400, models=3))
    panel = report.panel
    assert panel is not None and report.panel_reason is None
    assert [(pair.first, pair.second) for pair in panel.pairs] == [
        ("maker/judge-a", "maker/judge-b"),
        ("maker/judge-a", "maker/judge-c"),
        ("maker/judge-b", "maker/judge-c"),
    ]
    # The noisiest judge agrees least with the others; their mean is more reliable than one of them.
    rest = {judge.model: judge.pearson.value or 0 for judge in panel.left_out}
    assert min(rest, key=lambda name: rest[name]) == "maker/judge-c"
    assert (panel.absolute.average.value or 0) > (panel.absolute.single.value or 0)
    assert report.consensus_calibration is not None
    errors = [judge.calibration.mean_absolute_error.value for judge in report.judges]
    assert (report.consensus_calibration.mean_absolute_error.value or 1) <= max(
        error or 0 for error in errors
    )


def test_one_judge_is_no_panel_and_says_how_to_form_one() -> None:
    report = trust_report(simulated(30, models=1))
    assert report.panel is None and report.consensus_calibration is None
    assert "`--model`" in (report.panel_reason or "")


def test_a_judge_that_sits_higher_than_another_agrees_in_order_but_not_in_value() -> None:
    base = np.random.default_rng(0).uniform(0, 0.5, size=(60, 1))
    report = trust_report(table(np.concatenate((base, base + 0.4), axis=1)[:, :, None]))
    assert report.panel is not None
    assert report.panel.consistency.single.value == pytest.approx(1.0)
    assert (report.panel.absolute.single.value or 1) < 0.4
    assert report.panel.pairs[0].difference.value == pytest.approx(-0.4)


def test_the_most_disputed_records_come_first() -> None:
    scores = [
        [[0.5, 0.5], [0.5, 0.5]],
        [[0.1, 0.1], [0.9, 0.9]],
        [[0.2, 0.8], [0.5, 0.5]],
        [[NAN, NAN], [1.0, 1.0]],
    ]
    report = trust_report(table(scores, human=[0.5, 0.0, 0.5, 0.4], labels=["a", "b", "c", "d"]))
    assert [(found.record, found.label, found.gap) for found in report.disputed] == [
        (2, "b", pytest.approx(0.8))
    ]
    assert [(found.label, found.scores) for found in report.unstable] == [("c", (0.2, 0.8))]
    assert [(found.label, found.scores) for found in report.far_from_people] == [
        ("d", (1.0, 0.4)),
        ("b", (0.5, 0.0)),
    ]


def test_findings_say_what_matters_first_and_only_biases_that_are_clear() -> None:
    rng = np.random.default_rng(1)
    people = rng.integers(0, 5, size=300) / 4
    lengths = 2 ** rng.uniform(5, 11, size=300)
    drawn = 0.6 * people + 0.05 * (np.log2(lengths) - 5) + rng.normal(size=300) * 0.02
    scores = np.repeat(np.clip(drawn, 0, 1)[:, None, None], 3, axis=2)
    report = trust_report(table(scores, human=people.tolist(), lengths=lengths))
    assert [(found.topic, found.level) for found in report.findings][:2] == [
        ("Scored", "good"),
        ("Repeatability", "good"),
    ]
    assert [found.topic for found in report.findings][2:] == ["People", "Length"]
    assert "Twice the length adds +0.0" in report.findings[-1].text


@pytest.mark.integration
def test_at_most_one_report_in_twenty_on_unbiased_judges_finds_a_bias() -> None:
    """Three judges with both orders quoted: at the level of a single test 25 of 100 reports found one."""
    rng, found = np.random.default_rng(7), 0
    for _ in range(100):
        quality = rng.uniform(size=19)
        people = np.clip(np.round((quality + rng.normal(size=19) * 0.1) * 4) / 4, 0, 1)
        scores = quality[:, None, None] + rng.normal(size=(19, 3, 2)) * 0.15
        report = trust_report(
            table(
                np.clip(np.round(scores * 20) / 20, 0, 1),
                human=people.tolist(),
                lengths=rng.lognormal(6, 0.8, size=19).round(),
                presentations=("usual", "reversed"),
            )
        )
        found += any(finding.topic in ("Length", "Position", "Order") for finding in report.findings)
    assert found <= 5


def test_repeatability_that_was_not_measured_is_no_good_news() -> None:
    report = trust_report(table(np.random.default_rng(0).uniform(size=(40, 1, 1))))
    finding = next(found for found in report.findings if found.topic == "Repeatability")
    assert finding.level == "note"
    assert "`-n 5`" in finding.text


def test_a_grade_goes_by_the_bound_of_the_interval_and_not_by_the_point() -> None:
    rng = np.random.default_rng(7)
    quality = rng.uniform(size=30)
    noisy = np.clip(quality[:, None, None] + rng.normal(size=(30, 1, 3)) * 0.14, 0, 1)
    report = trust_report(table(noisy))
    alpha = report.judges[0].alpha
    assert alpha.value is not None and alpha.low is not None
    assert alpha.value > 0.8 > alpha.low > 0.667
    finding = next(found for found in report.findings if found.topic == "Repeatability")
    assert finding.level == "fair"
    assert "agree enough for tentative conclusions" in alpha.sentence


def test_under_twenty_records_nothing_is_graded() -> None:
    quality = np.random.default_rng(0).uniform(size=(19, 1, 1)).round(1)
    report = trust_report(table(np.repeat(quality, 3, axis=2), human=quality.ravel().tolist()))
    levels = {found.topic: found.level for found in report.findings}
    assert (levels["Repeatability"], levels["People"]) == ("note", "note")
    graded = (report.judges[0].alpha, report.judges[0].retest.single, report.judges[0].calibration.kappa)
    assert all("not graded (too few records, under 20)" in figure.sentence for figure in graded)


def test_copies_of_a_record_count_once_in_every_figure_and_are_said() -> None:
    rng = np.random.default_rng(3)
    scores = rng.uniform(size=(25, 2, 3))
    human = rng.uniform(size=25)
    once = trust_report(table(scores, human=human.tolist()))
    places = [*range(25), *[4] * 10]
    thrice = trust_report(table(scores[places], human=human[places].tolist(), copy_of=places))
    assert (thrice.counts.records, thrice.counts.copied_records) == (35, 10)
    assert thrice.judges[0].mean == once.judges[0].mean
    assert thrice.judges[0].alpha == once.judges[0].alpha
    assert thrice.judges[0].calibration == once.judges[0].calibration
    assert thrice.panel == once.panel
    (said,) = (found for found in thrice.findings if found.topic == "Copies")
    assert said.text == "10 of 35 records are copies of another: each counts once in every figure."
    assert not [found for found in once.findings if found.topic == "Copies"]


def test_of_copies_the_one_that_people_scored_and_judges_scored_most_is_kept() -> None:
    scores = [[[0.5, NAN]], [[0.4, 0.6]], [[0.1, 0.1]], [[0.2, NAN]]]
    sheet = table(scores, human=[NAN, NAN, NAN, 0.3], copy_of=[0, 0, 2, 2])
    assert list(sheet.distinct().labels) == ["record[2]", "record[4]"]


def test_the_same_table_and_seed_give_the_same_report() -> None:
    sheet = simulated(60)
    assert encoded(trust_report(sheet, seed=3)) == encoded(trust_report(sheet, seed=3))
    assert encoded(trust_report(sheet, seed=3)) != encoded(trust_report(sheet, seed=4))


def test_digits_follow_the_scale() -> None:
    base = np.random.default_rng(0).uniform(size=(40, 1, 2))
    wide = trust_report(table(base * 100, score_max=100.0)).judges[0].mean.sentence
    narrow = trust_report(table(base)).judges[0].mean.sentence
    assert wide.split(" scores ")[1].split()[0].count(".") == 1
    assert len(wide.split(" scores ")[1].split()[0].split(".")[1]) == 1
    assert len(narrow.split(" scores ")[1].split()[0].split(".")[1]) == 3
