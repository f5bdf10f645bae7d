"""Margin rules: what is proved to be no worse than a baseline, what is worse, and what nobody can tell."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from scipy.special import stdtrit

from osmosis_ai.decisions.changes import MetricChange, UnscoredBounds
from osmosis_ai.decisions.differences import Difference, Pairs, mean_difference
from osmosis_ai.decisions.gate import Rule, RuleResult, judge_margin, judge_together
from tests.decisions.simulation import Cell, run_passes

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
def test_a_margin_is_decided_by_the_bounds_of_the_difference(
    value: float, half: float, p: float, verdict: str
) -> None:
    found = judged(RATE, change(value, half, p))
    assert (found.verdict, found.evidence.value) == (verdict, value)
    assert "100 rows" in found.reason and "points" in found.reason


@pytest.mark.parametrize("metric", ["unscored", "failed"])
def test_where_less_is_better_a_margin_is_mirrored(metric: str) -> None:
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
def test_a_margin_of_an_amount_is_a_share_of_the_baselines(
    value: float, at_least: float, at_most: float, p: float, verdict: str
) -> None:
    rule = Rule("cost_per_row", "margin", 0.1)
    ratio = replace(
        CHANGE, value=value, at_least=at_least, at_most=at_most, p=p, kind="ratio", method="log-t"
    )
    found = judged(rule, ratio)
    assert found.verdict == verdict and "%" in found.reason and "points" not in found.reason


def test_a_margin_of_0_passes_only_what_is_proved_better() -> None:
    rule = Rule("pass_rate", "margin", 0.0)
    assert str(rule) == "pass_rate > baseline"
    assert judged(rule, change(0.0, 0.01)).verdict == "unclear"
    assert judged(rule, change(0.05, 0.05)).verdict == "unclear"
    assert judged(rule, change(0.05, 0.04)).verdict == "pass"


def test_of_several_rules_that_fail_by_chance_alone_none_does() -> None:
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


def test_unscored_attempts_count_with_the_interval_of_either_extreme() -> None:
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


def test_nothing_is_decided_without_a_difference_or_where_none_may_be() -> None:
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


# How often gates err


def verdicts(cell: Cell, replications: int, margin: float = MARGIN) -> Counter[str]:
    """Return how often a gate on the pass rate comes to which verdict, as shares."""
    rule, counts, known = Rule("pass_rate", "margin", margin), np.full(cell.rows, cell.attempts), {}
    found: Counter[str] = Counter()
    for passes_a, passes_b in zip(*run_passes(cell, replications), strict=True):
        key = np.sort(passes_b - passes_a).tobytes()
        if key not in known:
            pairs = Pairs(passes_a / cell.attempts, passes_b / cell.attempts, counts, counts, (0.0, 1.0))
            known[key] = judged(rule, mean_difference(pairs)).verdict
        found[known[key]] += 1
    return Counter({verdict: count / replications for verdict, count in found.items()})  # type: ignore[misc]


def tolerance(share: float, replications: int) -> float:
    """Return three standard errors of a share."""
    return 3 * math.sqrt(share * (1 - share) / replications)


CELLS = [
    Cell(10, 4, 0.3, 0.5, -MARGIN),
    Cell(10, 4, 0.6, 0.9, -MARGIN),
    Cell(30, 1, 0.3, 0.9, -MARGIN),
    Cell(30, 4, 0.3, 0.5, -MARGIN, alike=False),
    Cell(30, 16, 0.3, 0.98, -MARGIN),
    Cell(100, 4, 0.3, 0.5, -MARGIN),
    Cell(100, 4, 0.6, 0.9, -MARGIN),
    Cell(400, 1, 0.6, 0.7, -MARGIN, alike=False),
]


@pytest.mark.integration
@pytest.mark.parametrize("cell", CELLS, ids=str)
def test_what_is_worse_by_the_margin_passes_at_most_once_in_twenty(cell: Cell) -> None:
    assert verdicts(cell, 400)["pass"] <= 0.05 + tolerance(0.05, 400)


@pytest.mark.integration
@pytest.mark.parametrize(("rows", "passes"), [(100, 0.50), (400, 0.95)])
def test_what_is_no_worse_mostly_passes_and_seldom_fails(rows: int, passes: float) -> None:
    # At 100 x 4 the formula gives 52%, at 400 x 4 96%.
    found = verdicts(Cell(rows, 4, 0.3, 0.5, 0.0), 400)
    assert found["pass"] >= passes - tolerance(passes, 400)
    assert found["fail"] <= 0.05 + tolerance(0.05, 400)
