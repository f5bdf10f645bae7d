"""What a run's result says in a line: the same words wherever it stands."""

from __future__ import annotations

import pytest

from osmosis_ai.datasets.selection import RowsDrawn, sample_rows, select_rows
from osmosis_ai.evaluation.headline import Headline, few_scored, spread_words
from osmosis_ai.evaluation.metrics import MetricsAccumulator
from osmosis_ai.evaluation.metrics_models import Estimates, VarianceShares
from osmosis_ai.evaluation.result_words import sentence


def estimates_of(*statuses: str, planned: int, clusters: list[int] | None = None) -> Estimates:
    metrics = MetricsAccumulator(planned, 1, clusters=clusters)
    for row, status in enumerate(statuses):
        scored = status in ("pass", "miss")
        metrics.add(
            row,
            0,
            "success" if scored else "skipped" if status == "skip" else "failed",
            float(status == "pass") if scored else None,
            boundary=None if scored or status == "skip" else status,
        )
    return metrics.summary().estimates


def test_a_headline_names_its_rule_its_denominator_its_failures_and_its_rows() -> None:
    statuses = [*["pass"] * 12, *["miss"] * 3, "agent", "agent", "provider", "skip"]
    headline = Headline.of(estimates_of(*statuses, planned=20), RowsDrawn(20, 200, "random", 0.1, 7))
    assert headline.words == (
        "pass rate 80.0 % (51.9 – 95.7 %) (reward >= 1.0, scored samples only); scored 15 of 20 planned; "
        "failed 3: 1 provider, 2 agent; 1 skipped; 1 pending; 20 of 200 rows, random 10 %, seed 7"
    )
    assert headline.brief == (
        "80.0 % pass (reward >= 1.0), 15 of 20 planned scored, failed 3: 1 provider, 2 agent"
    )
    told = headline.to_json()
    assert (told["words"], told["rule"]) == (headline.words, "reward >= 1.0, scored samples only")
    assert Headline.model_validate(told) == headline


def test_a_scored_share_under_nine_tenths_is_a_warning() -> None:
    enough = estimates_of(*["pass"] * 18, "agent", "agent", planned=25)
    few = estimates_of(*["pass"] * 17, "agent", "agent", "agent", planned=25)
    assert enough.warnings == []
    assert few.warnings == [
        "only 17 of 20 finished attempts have a score (85.0 %); the numbers leave out the rest"
    ]
    assert Headline.of(few).warnings == few.warnings
    assert few_scored(0, 0) is None


def test_skipped_and_pending_samples_are_no_missing_scores() -> None:
    assert estimates_of("pass", "skip", "skip", planned=9).warnings == []


def test_copies_of_rows_and_skewed_rewards_are_warned_about() -> None:
    copies = estimates_of(*["pass"] * 4, planned=4, clusters=[0, 0, 0, 3])
    assert copies.counts.copies == 2
    assert copies.warnings == ["2 of 4 rows are copies of another: copies count as one row in every interval"]
    metrics = MetricsAccumulator(20, 1)
    for row in range(20):
        metrics.add(row, 0, "success", 10.0 if row == 0 else 0.5)
    (warning,) = metrics.summary().estimates.warnings
    assert warning.startswith("the values are skewed (+4.1)")


def test_a_platform_that_knows_counts_alone_gets_the_same_words_from_them() -> None:
    results = {"graded": 8, "passed": 4, "failed": 1, "skipped": 1, "total_runs": 10, "pass_threshold": 0.5}
    headline = Headline.of_results(results, planned=12)
    assert headline is not None
    assert headline.words == (
        "pass rate 50.0 % (reward >= 0.5, scored samples only); scored 8 of 12 planned; failed 1; "
        "1 skipped; 2 pending"
    )
    assert headline.warnings == [
        "only 8 of 9 finished attempts have a score (88.9 %); the numbers leave out the rest"
    ]
    assert Headline.of_results({"total_runs": 0}, planned=12) is None
    kept = Headline.of(estimates_of("pass", planned=1)).to_json()
    found = Headline.of_results({**results, "headline": kept}, planned=12, rows=RowsDrawn(1, 1, "first"))
    assert found is not None and found.words.endswith("scored 1 of 1 planned; failed 0; the only row")
    garbled = Headline.of_results({**results, "headline": {"scored": "many"}}, planned=12)
    assert garbled == headline


def test_a_platform_that_does_not_say_how_many_passed_gets_no_pass_rate_of_zero() -> None:
    headline = Headline.of_results({"graded": 8, "failed": 1, "total_runs": 9}, planned=10)
    assert headline is not None
    assert headline.words.startswith("pass rate – (reward >= 1.0, scored samples only); scored 8 of 10")
    assert headline.brief == "pass rate not told, 8 of 10 planned scored, failed 1"


def test_nothing_scored_is_no_pass_rate_of_zero() -> None:
    headline = Headline.of(estimates_of("provider", planned=1))
    assert headline.words.startswith(
        "pass rate – (reward >= 1.0, scored samples only); scored 0 of 1 planned"
    )
    assert headline.brief.startswith("nothing scored, 0 of 1 planned")


@pytest.mark.parametrize(
    "drawn, words",
    [
        (select_rows(200, limit=None, rows=None).drawn, "all 200 rows"),
        (select_rows(200, limit=20, rows=None).drawn, "20 of 200 rows, the first"),
        (select_rows(200, limit=None, rows="3,7-9").drawn, "4 of 200 rows, chosen by number"),
        (select_rows(200, limit=None, rows="0-4").drawn, "5 of 200 rows, the first"),
        (sample_rows(200, fraction=0.1, seed=7).drawn, "20 of 200 rows, random 10 %, seed 7"),
        (RowsDrawn(20, 200), "20 of 200 rows"),
        (RowsDrawn(1, None), "1 row"),
    ],
)
def test_rows_say_how_many_of_how_many_they_are_and_how_they_were_chosen(
    drawn: RowsDrawn, words: str
) -> None:
    assert drawn.words == words


@pytest.mark.parametrize(
    ("between", "attempts", "below_zero", "words"),
    [
        (0.62, 4, False, "62 % of the spread is between rows: more rows help more than more attempts"),
        (0.1, 4, False, "10 % of the spread is between rows: more attempts help nearly as much as more rows"),
        (0.1, 20, False, "10 % of the spread is between rows: more rows help more than more attempts"),
        (0.0, 2, False, "none of the spread is between rows: more attempts help as much as more rows"),
        (
            0.0,
            2,
            True,
            "none of the spread is between rows (its estimate came out below zero): more attempts help as much as more rows",
        ),
    ],
)
def test_where_the_spread_lies_says_what_helps(
    between: float, attempts: float, below_zero: bool, words: str
) -> None:
    shares = VarianceShares(
        between_rows=between,
        between_attempts=1 - between,
        rows=30,
        attempts_per_row=attempts,
        below_zero=below_zero,
    )
    assert spread_words(shares) == words
    assert spread_words(shares.model_copy(update={"rows": 9})) is None


@pytest.mark.parametrize(
    ("headline", "goes_on", "said"),
    [
        (None, True, "No sample has a score yet."),
        (None, False, "No sample has a score."),
        (Headline(planned=4, failed=3, pending=1), True, "No sample has a score yet: 0 of 4 planned scored."),
        (Headline(planned=4, failed=3, pending=1), False, "No sample has a score: 0 of 4 planned scored."),
        (Headline(planned=4, failed=3, skipped=1), True, "No sample has a score: 0 of 4 planned scored."),
    ],
)
def test_a_score_is_expected_only_while_the_run_goes_on_and_a_sample_has_no_outcome(
    headline: Headline | None, goes_on: bool, said: str
) -> None:
    assert sentence(headline, goes_on=goes_on) == said
