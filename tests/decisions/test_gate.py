"""Rules of a gate: pass, fail and unclear."""

from __future__ import annotations

import pytest

from osmosis_ai.decisions.gate import (
    Evidence,
    Rule,
    evidence_of_mean,
    evidence_of_share,
    judge,
    weakest,
)

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
def test_verdict_by_bound(rule: Rule, verdict: str) -> None:
    found = judge(rule, MEASURED)
    assert found.verdict == verdict
    assert "200 samples of 50 rows" in found.reason


def test_missing_evidence() -> None:
    rule = Rule("pass_rate", "min", 0.1)
    assert judge(rule, MEASURED, unfinished="3 attempts are pending.").verdict == "unclear"
    none = judge(rule, Evidence(note="no attempt of the run has a score."))
    assert (none.verdict, none.reason) == ("unclear", "no attempt of the run has a score.")
    one_row = judge(rule, Evidence(value=1.0, rows=1, samples=4))
    assert one_row.verdict == "unclear" and "from one row" in one_row.reason


def test_limit_of_zero() -> None:
    rule = Rule("unscored", "max", 0.0)
    assert judge(rule, evidence_of_share(0, 40, 10)).verdict == "pass"
    assert judge(rule, evidence_of_share(1, 40, 10)).verdict == "fail"
    assert judge(Rule("unscored", "max", 0.05), evidence_of_share(0, 40, 10)).verdict == "unclear"
    assert judge(Rule("unscored", "max", 0.05), evidence_of_share(0, 400, 100)).verdict == "pass"


def test_zero_cost() -> None:
    free = Evidence(value=0.0, rows=10, samples=40, note="all rows have the same mean.")
    assert judge(Rule("cost_per_row", "max", 0.02), free).verdict == "pass"
    assert judge(Rule("cost_per_row", "min", 0.02), free).verdict == "unclear"


def test_bounds_of_counts() -> None:
    # Clopper and Pearson: with 0 of n, the upper bound is 1 - 0.05 ** (1 / n).
    assert evidence_of_share(0, 20, None).at_most == pytest.approx(1 - 0.05 ** (1 / 20))
    assert evidence_of_share(20, 20, None).at_least == pytest.approx(0.05 ** (1 / 20))
    assert evidence_of_share(0, 80, 20).at_most == pytest.approx(1 - 0.05 ** (1 / 20))
    loose, tight = evidence_of_mean(0.5, 0.3, 80, 20), evidence_of_mean(0.5, 0.3, 80, None)
    assert loose.at_least < tight.at_least < 0.5


def test_weakest_judge_decides() -> None:
    good, bad, unknown = Evidence(0.9, 0.8, 0.95), Evidence(0.6, 0.5, 0.7), Evidence(note="no spread")
    assert weakest(Rule("alpha", "min", 0.5), [good, bad]) is bad
    assert weakest(Rule("score", "max", 0.5), [good, bad]) is good
    assert weakest(Rule("alpha", "min", 0.5), [good, unknown, bad]) is unknown
