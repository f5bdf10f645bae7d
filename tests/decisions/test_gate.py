"""Rules of a gate: what passes, what fails, and what a run is too small to tell."""

from __future__ import annotations

import numpy as np
import pytest

from osmosis_ai.decisions.gate import (
    Evidence,
    Rule,
    evidence_of,
    evidence_of_mean,
    evidence_of_share,
    judge,
    weakest,
)
from tests.evaluation.builders import MeasuredResults

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
    none = judge(rule, Evidence(note="no attempt of the run has a score."))
    assert (none.verdict, none.reason) == ("unclear", "no attempt of the run has a score.")
    one_row = judge(rule, Evidence(value=1.0, rows=1, samples=4))
    assert one_row.verdict == "unclear" and "from one row" in one_row.reason


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
        # 10 rows x 4 attempts, 70% on average, rows differ.
        chances = draws.beta(0.7 * 3, 0.3 * 3, size=10)
        metrics = MeasuredResults(10, 4)
        for row, chance in enumerate(chances):
            for attempt in range(4):
                metrics.add(row, attempt, "success", float(draws.random() < chance))
        estimates = metrics.summary().estimates.model_dump(mode="json")
        passed += judge(rule, evidence_of("pass_rate", estimates)).verdict == "pass"
    # Three standard errors of a share of 5% in 300 runs.
    assert passed / runs <= 0.05 + 3 * (0.05 * 0.95 / runs) ** 0.5


def test_of_several_judges_the_one_that_meets_a_rule_least_decides() -> None:
    good, bad, unknown = Evidence(0.9, 0.8, 0.95), Evidence(0.6, 0.5, 0.7), Evidence(note="no spread")
    assert weakest(Rule("alpha", "min", 0.5), [good, bad]) is bad
    assert weakest(Rule("score", "max", 0.5), [good, bad]) is good
    assert weakest(Rule("alpha", "min", 0.5), [good, unknown, bad]) is unknown
