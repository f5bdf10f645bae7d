"""Margin rules: not worse than a baseline, worse, or unclear."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from scipy.special import stdtrit

from osmosis_ai.decisions.changes import MetricChange, UnscoredBounds
from osmosis_ai.decisions.differences import Difference
from osmosis_ai.decisions.gate import Rule, RuleResult, judge_margin, judge_together

MARGIN = 0.05
RATE = Rule("pass_rate", "margin", MARGIN)
CHANGE = Difference(
    value=0.0,
    low=-0.05,
    high=0.05,
    at_least=-0.04,
    at_most=0.04,
    rows=100,
    samples=800,
    method="paired-t",
    p=0.9,
)


def judged(rule: Rule, change: Difference | None, **known: object) -> RuleResult:
    return judge_margin(rule, MetricChange(rule.metric, None, None, change, **known))  # type: ignore[arg-type]


def change(value: float, half: float, p: float = 0.5) -> Difference:
    bounds = {"low": value - 1.2 * half, "high": value + 1.2 * half}
    return replace(CHANGE, value=value, at_least=value - half, at_most=value + half, p=p, **bounds)


@pytest.mark.parametrize(
    ("value", "half", "p", "verdict"),
    [
        (0.00, 0.04, 0.9, "pass"),
        (0.00, 0.05, 0.9, "unclear"),
        (-0.04, 0.005, 0.001, "pass"),  # worse, but surely by less than the margin
        (-0.04, 0.02, 0.001, "unclear"),  # surely worse, but by less or by more than the margin
        (-0.07, 0.02, 0.001, "unclear"),
        (-0.10, 0.02, 0.001, "fail"),  # worse by more than the margin
        (-0.10, 0.12, 0.2, "unclear"),
        (0.20, 0.10, 0.01, "pass"),
    ],
)
def test_margin_verdict_by_bounds(value: float, half: float, p: float, verdict: str) -> None:
    found = judged(RATE, change(value, half, p))
    assert (found.verdict, found.evidence.value) == (verdict, value)
    assert "100 rows" in found.reason and "points" in found.reason


@pytest.mark.parametrize("metric", ["unscored", "failed"])
def test_margin_of_metrics_where_less_is_better(metric: str) -> None:
    rule = Rule(metric, "margin", MARGIN)
    assert judged(rule, change(0.00, 0.04, 0.9)).verdict == "pass"
    assert judged(rule, change(-0.2, 0.1, 0.01)).verdict == "pass"
    assert judged(rule, change(0.10, 0.02, 0.001)).verdict == "fail"
    assert judged(rule, change(0.06, 0.02, 0.001)).verdict == "unclear"
    assert judged(rule, change(0.04, 0.1)).verdict == "unclear"


@pytest.mark.parametrize(
    ("value", "at_least", "at_most", "p", "verdict"),
    [
        (1.00, 0.95, 1.09, 0.9, "pass"),
        (1.00, 0.90, 1.11, 0.9, "unclear"),
        (1.20, 1.15, 1.25, 0.001, "fail"),
        (1.15, 1.05, 1.25, 0.001, "unclear"),
        (0.50, 0.40, 0.60, 0.001, "pass"),
    ],
)
def test_relative_margin(value: float, at_least: float, at_most: float, p: float, verdict: str) -> None:
    rule = Rule("cost_per_row", "margin", 0.1)
    ratio = replace(
        CHANGE, value=value, at_least=at_least, at_most=at_most, p=p, kind="ratio", method="log-t"
    )
    found = judged(rule, ratio)
    assert found.verdict == verdict and "%" in found.reason and "points" not in found.reason


def test_margin_of_zero() -> None:
    rule = Rule("pass_rate", "margin", 0.0)
    assert str(rule) == "pass_rate > baseline"
    assert judged(rule, change(0.0, 0.01)).verdict == "unclear"
    assert judged(rule, change(0.05, 0.05)).verdict == "unclear"
    assert judged(rule, change(0.05, 0.04)).verdict == "pass"


def test_multiple_rules() -> None:
    # Student's t at 100 rows: 1.66 standard errors at 95%, 2.15 at 1 - 0.05 / 3.
    def at(value: float) -> Callable[[float], RuleResult]:
        def judge_at(confidence: float) -> RuleResult:
            half = 0.01 * float(stdtrit(99, confidence))
            found = MetricChange("pass_rate", None, None, change(value, half))
            return judge_margin(RATE, found, confidence=confidence)

        return judge_at

    rules = [Rule("pass_rate", "margin", MARGIN, ("part", name)) for name in "abc"]
    (alone,) = judge_together({rules[0]: at(-0.069)}).values()
    assert alone.verdict == "fail"
    among = judge_together(dict(zip(rules, (at(-0.069), at(0.0), at(0.0)), strict=True)))
    assert [each.verdict for each in among.values()] == ["unclear", "pass", "pass"]
    assert "not significant among 3 rules" in among[rules[0]].reason
    # The first failure holds among three rules, and the second among the two that are left (1.99 at 97.5%).
    steps = judge_together(dict(zip(rules, (at(-0.08), at(-0.071), at(0.0)), strict=True)))
    assert [each.verdict for each in steps.values()] == ["fail", "fail", "pass"]


def test_unscored_attempts() -> None:
    fine, worse = change(0.0, 0.02), change(-0.2, 0.02, 1e-6)
    turned = UnscoredBounds(worst=change(-0.06, 0.02), best=change(0.06, 0.02))
    found = judged(RATE, fine, bounds=turned, unscored=24)
    assert found.verdict == "unclear"
    assert (
        "between -8.0 points and -4.0 points with the 24 unscored attempts counted against it" in found.reason
    )
    # The value of the worst case is within the margin, and its interval is not.
    within = replace(turned, worst=change(-0.04, 0.02))
    assert judged(RATE, fine, bounds=within, unscored=24).verdict == "unclear"
    assert judged(RATE, fine, bounds=replace(turned, worst=change(-0.02, 0.02))).verdict == "pass"
    assert judged(RATE, worse, bounds=replace(turned, best=change(-0.06, 0.02))).verdict == "unclear"
    lost = replace(turned, worst=change(-0.3, 0.02), best=change(-0.08, 0.02))
    assert judged(RATE, worse, bounds=lost).verdict == "fail"


def test_missing_difference() -> None:
    assert judged(RATE, None).verdict == "unclear"
    no_spread = replace(
        CHANGE, at_least=None, at_most=None, low=None, high=None, p=None, reason="one row says nothing"
    )
    assert (judged(RATE, no_spread).verdict, "one row says nothing" in judged(RATE, no_spread).reason) == (
        "unclear",
        True,
    )
    partial = judged(RATE, change(0.1, 0.01), undecided="run-b: 3 attempts are pending.")
    assert (partial.verdict, partial.reason) == ("unclear", "run-b: 3 attempts are pending.")
