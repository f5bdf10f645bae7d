"""Rules of a gate: what passes, what fails, and what a run is too small to tell."""

from __future__ import annotations

import numpy as np
import pytest

from osmosis_ai.errors import OsmosisError
from osmosis_ai.evaluation.gating import (
    Evidence,
    Rule,
    RuleResult,
    evidence_of,
    evidence_of_mean,
    evidence_of_share,
    judge,
    overall,
    parse_rules,
    require_rules,
    weakest,
)
from osmosis_ai.evaluation.metrics import MetricsAccumulator

MEASURED = Evidence(value=0.8, at_least=0.7, at_most=0.88, rows=50, samples=200)


@pytest.mark.parametrize(
    ("rule", "verdict"),
    [
        (Rule("pass_rate", "min", 0.70), "pass"),
        (Rule("pass_rate", "min", 0.71), "unclear"),
        (Rule("pass_rate", "min", 0.88), "unclear"),
        (Rule("pass_rate", "min", 0.89), "fail"),
        (Rule("pass_rate", "max", 0.88), "pass"),
        (Rule("pass_rate", "max", 0.87), "unclear"),
        (Rule("pass_rate", "max", 0.70), "unclear"),
        (Rule("pass_rate", "max", 0.69), "fail"),
    ],
)
def test_a_rule_is_decided_by_the_bound_and_not_by_the_value(rule: Rule, verdict: str) -> None:
    found = judge(rule, MEASURED)
    assert found.verdict == verdict
    assert "200 samples of 50 rows" in found.reason


def test_nothing_is_decided_without_evidence() -> None:
    rule = Rule("pass_rate", "min", 0.1)
    assert judge(rule, MEASURED, unfinished="3 attempts are pending.").verdict == "unclear"
    none = judge(rule, Evidence(note="no sample of the run has a score."))
    assert (none.verdict, none.reason) == ("unclear", "no sample of the run has a score.")
    one_row = judge(rule, Evidence(value=1.0, rows=1, samples=4))
    assert one_row.verdict == "unclear" and "one row alone" in one_row.reason


@pytest.mark.parametrize(
    ("verdicts", "expected"),
    [("pass pass", "pass"), ("pass unclear", "unclear"), ("unclear fail pass", "fail")],
)
def test_all_rules_must_pass_and_one_that_fails_decides(verdicts: str, expected: str) -> None:
    rule = Rule("reward", "min", 0)
    assert overall([RuleResult(rule, MEASURED, each, "") for each in verdicts.split()]) == expected  # type: ignore[arg-type]


def test_a_limit_of_none_at_all_is_meant_as_it_stands() -> None:
    rule = Rule("unscored", "max", 0.0)
    assert judge(rule, evidence_of_share(0, 40, 10)).verdict == "pass"
    assert judge(rule, evidence_of_share(1, 40, 10)).verdict == "fail"
    assert judge(Rule("unscored", "max", 0.05), evidence_of_share(0, 40, 10)).verdict == "unclear"
    assert judge(Rule("unscored", "max", 0.05), evidence_of_share(0, 400, 100)).verdict == "pass"


def test_what_costs_nothing_at_all_is_within_every_limit() -> None:
    free = Evidence(value=0.0, rows=10, samples=40, note="all rows have the same mean.")
    assert judge(Rule("cost_per_row", "max", 0.02), free).verdict == "pass"
    assert judge(Rule("cost_per_row", "min", 0.02), free).verdict == "unclear"


def test_counts_have_the_exact_bounds_and_rows_are_what_counts() -> None:
    # Clopper and Pearson: with 0 of n, the upper bound is 1 - 0.05 ** (1 / n).
    assert evidence_of_share(0, 20, None).at_most == pytest.approx(1 - 0.05 ** (1 / 20))
    assert evidence_of_share(20, 20, None).at_least == pytest.approx(0.05 ** (1 / 20))
    assert evidence_of_share(0, 80, 20).at_most == pytest.approx(1 - 0.05 ** (1 / 20))
    loose, tight = evidence_of_mean(0.5, 0.3, 80, 20), evidence_of_mean(0.5, 0.3, 80, None)
    assert loose.at_least is not None and tight.at_least is not None
    assert loose.at_least < tight.at_least < 0.5


@pytest.mark.integration
def test_an_agent_below_the_limit_passes_at_most_once_in_twenty_however_small_the_run() -> None:
    draws = np.random.default_rng(7)
    rule, runs, passed = Rule("pass_rate", "min", 0.75), 300, 0
    for _ in range(runs):
        # 10 rows x 4 attempts, 70 % on average, rows differ.
        chances = draws.beta(0.7 * 3, 0.3 * 3, size=10)
        metrics = MetricsAccumulator(10, 4)
        for row, chance in enumerate(chances):
            for attempt in range(4):
                metrics.add(row, attempt, "success", float(draws.random() < chance))
        estimates = metrics.summary().estimates.model_dump(mode="json")
        passed += judge(rule, evidence_of("pass_rate", estimates)).verdict == "pass"
    # Three standard errors of a share of 5 % in 300 runs.
    assert passed / runs <= 0.05 + 3 * (0.05 * 0.95 / runs) ** 0.5


def test_metrics_that_estimates_lack_are_counted_or_unknown() -> None:
    estimates = {
        "pass_at_k": {"2": {"value": 0.9, "at_least": 0.81, "at_most": 0.96, "n": 40, "clusters": 10}},
        "counts": {"planned": 40, "pending": 0, "skipped": 0, "scored": 40, "infrastructure_failures": 2},
    }
    assert evidence_of("pass@2", estimates).at_least == 0.81
    assert "but pass@2" in evidence_of("pass@3", estimates).note
    assert evidence_of("unscored", estimates, rows=10).value == 0
    assert evidence_of("infrastructure", estimates, rows=10).value == 0.05
    assert evidence_of("reward", estimates).value is None


def test_of_several_judges_the_one_that_meets_a_rule_least_decides() -> None:
    good, bad, unknown = Evidence(0.9, 0.8, 0.95), Evidence(0.6, 0.5, 0.7), Evidence(note="no spread")
    assert weakest(Rule("alpha", "min", 0.5), [good, bad]) is bad
    assert weakest(Rule("score", "max", 0.5), [good, bad]) is good
    assert weakest(Rule("alpha", "min", 0.5), [good, unknown, bad]) is unknown


@pytest.mark.parametrize(
    ("text", "said", "hint"),
    [
        ("pas_rate=0.5", "there is no metric 'pas_rate'", "did you mean 'pass_rate'?"),
        ("pass@0=0.5", "there is no metric 'pass@0'", "did you mean"),
        ("pass_rate", "is no rule", "--min METRIC=NUMBER"),
        ("pass_rate=", "is no rule", "--min METRIC=NUMBER"),
        ("pass_rate=most", "'most' is no number", "--min pass_rate=0.8"),
        ("reward=nan", "'nan' is no number", "--min reward=0.8"),
        ("pass_rate=80", "is a share, from 0 to 1: write 80 % as 0.8", ""),
        ("pass@4=1.5", "is a share, from 0 to 1: write 80 % as 0.8", ""),
        ("cost_per_row=-1", "is never below 0, got -1", ""),
    ],
)
def test_what_is_no_rule_is_told_with_what_is(text: str, said: str, hint: str) -> None:
    with pytest.raises(OsmosisError, match=said) as caught:
        parse_rules([text], [])
    assert hint in (caught.value.hint or "")


def test_rules_are_read_in_the_order_they_are_given() -> None:
    assert parse_rules(["reward=-2", " pass@4 = 0.5 "], ["unscored=0"]) == [
        Rule("reward", "min", -2.0),
        Rule("pass@4", "min", 0.5),
        Rule("unscored", "max", 0.0),
    ]
    assert parse_rules([], [], ["pass^2=0.1", "latency=0"])[0].kind == "pass^K"
    with pytest.raises(OsmosisError, match="at least one rule"):
        require_rules(parse_rules([], []))


def test_limits_that_contradict_each_other_are_no_gate() -> None:
    require_rules(parse_rules(["pass_rate=0.5", "reward=0.9"], ["pass_rate=0.5", "unscored=0.1"]))
    with pytest.raises(OsmosisError, match=r"no run meets both `pass_rate >= 0.9` and `pass_rate <= 0.1`"):
        require_rules(parse_rules(["reward=2", "pass_rate=0.9"], ["reward=3", "pass_rate=0.1"]))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("pass_rate=-0.1", "0 or more, got -0.1"),
        ("pass_rate=3", "a margin of 3 accepts every run"),
        ("cost_per_row=20", "accepts 21 times as much: write 10 % as 0.1"),
        ("infrastructure=0.1", "is not compared with a baseline"),
        ("alpha=0.1", "alpha is not compared with a baseline; give it a limit with min"),
        ("pass_rate=inf", "'inf' is no number"),
    ],
)
def test_a_margin_that_makes_no_sense_is_told(text: str, said: str) -> None:
    with pytest.raises(OsmosisError, match=said):
        parse_rules([], [], [text])


def test_a_rule_reads_as_what_it_asks() -> None:
    assert [
        str(rule)
        for rule in parse_rules(
            [], ["cost_per_row=0.02"], ["pass_rate=0.03", "latency=0.1", "unscored=0.02", "reward=0.5"]
        )
    ] == [
        "cost_per_row <= 0.02",
        "pass_rate >= baseline - 3 points",
        "latency <= baseline + 10 %",
        "unscored <= baseline + 2 points",
        "reward >= baseline - 0.5",
    ]
    assert (
        str(Rule("pass_rate", "min", 0.5, ("difficulty", None)))
        == "pass_rate >= 0.5 where difficulty is missing"
    )
