"""Plans against simulations: a design that a pilot leads to has the power that was asked for."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import special

from osmosis_ai.evaluation.comparison.design import rows_needed
from osmosis_ai.evaluation.comparison.planning import AttemptPrice, EvalPlan, Goal, Outlook, make_plan
from osmosis_ai.evaluation.variance import VarianceComponents

PILOTS, ANALYSES, POOL = 500, 20, 40_000
Chances = NDArray[np.float64]


def chances(
    random: np.random.Generator, shape: tuple[int, ...], rate: float, gain: float
) -> tuple[Chances, Chances]:
    """Return each row's chance to pass in two runs, of which the second is better by ``gain`` on average.

    The first is beta with an intraclass correlation of 0.3. On half of the rows the second has a chance of its own, on
    the others it solves a share of what was not solved.
    """
    odds = 0.7 / 0.3
    first = random.beta(rate * odds, (1 - rate) * odds, shape)
    own = random.beta((rate + gain) * odds, (1 - rate - gain) * odds, shape)
    return first, np.where(random.random(shape) < 0.5, own, first + (1 - first) * gain / (1 - rate))


def power_reached(
    rows_of_pilots: list[int], n: int, rate: float, gain: float, random: np.random.Generator
) -> float:
    """Return how often the paired t-test finds the difference in fresh runs of so many rows."""
    first, second = chances(random, (POOL,), rate, gain)
    found = []
    for rows in rows_of_pilots:
        chosen = random.integers(0, POOL, (ANALYSES, rows))
        by_row = (random.binomial(n, second[chosen]) - random.binomial(n, first[chosen])) / n
        t = by_row.mean(axis=1) / (by_row.std(axis=1, ddof=1) / math.sqrt(rows))
        found.append(float((np.abs(t) > special.stdtrit(rows - 1, 0.975)).mean()))
    return float(np.mean(found))


@pytest.mark.integration
@pytest.mark.parametrize(
    ("pilot_rows", "n", "rate", "gain"),
    [
        (30, 4, 0.5, 0.1),
        (30, 2, 0.3, 0.15),
        (30, 4, 0.8, 0.1),
        (30, 4, 0.9, 0.05),
        (40, 4, 0.95, 0.03),
        (60, 4, 0.6, 0.05),
        (100, 1, 0.5, 0.1),
    ],
)
def test_the_rows_that_pilots_lead_to_reach_the_power_that_was_asked(
    pilot_rows: int, n: int, rate: float, gain: float
) -> None:
    random = np.random.default_rng(pilot_rows + n)
    first, second = chances(random, (PILOTS, pilot_rows), rate, gain)
    passes = [random.binomial(1, each[..., None], (PILOTS, pilot_rows, n)) for each in (first, second)]
    labels = np.repeat(np.arange(pilot_rows), n)
    wanted = []
    for pilot in range(PILOTS):
        spread = VarianceComponents.of_pairs(
            passes[0][pilot].ravel(), labels, passes[1][pilot].ravel(), labels
        )
        assert spread is not None
        outlook = Outlook.of_two_runs(spread, Goal(), samples=2 * labels.size)
        rows = rows_needed(gain, outlook.likely, n)
        assert rows is not None
        wanted.append(rows)
    assert power_reached(wanted, n, rate, gain, random) == pytest.approx(0.8, abs=0.03)


def spread(between: float = 0.04, within: float | None = 0.16, rows: int = 100_000) -> VarianceComponents:
    return VarianceComponents(between, within, rows, 4.0)


def plan(
    goal: Goal, *, of: VarianceComponents | None = None, cost: float | None = 0.01, rows: int = 100
) -> EvalPlan:
    outlook = Outlook.of_two_runs(of or spread(), goal, samples=400)
    return make_plan(goal, outlook, AttemptPrice(cost, 2.0, at_once=8), own_rows=rows, own_n=4)


def test_a_config_is_judged_by_what_its_design_sees() -> None:
    found = plan(Goal(most_rows=200))
    assert found.own is not None and found.own.sees is not None
    # 2.83 standard errors of sqrt(0.08 / 100).
    assert found.own.sees == pytest.approx(0.0801, abs=1e-4)
    assert found.own.power == pytest.approx(0.18, abs=0.01)
    assert (found.own.cost_usd, found.own.duration_s) == (pytest.approx(4.0), 100.0)
    assert {design.rows for design in found.designs} == {10, 20, 50, 100, 200}
    assert {design.n for design in found.designs} == {1, 2, 4, 8}
    assert found.more_rows is not None and found.more_attempts is not None
    assert found.more_rows.sees is not None and found.more_attempts.sees is not None
    assert found.more_rows.sees < found.more_attempts.sees < found.own.sees


def test_the_cheapest_design_reaches_the_goal_and_nothing_cheaper_does() -> None:
    found = plan(Goal(detect=0.05, most_rows=300))
    cheapest = found.cheapest
    assert cheapest is not None and cheapest.sees is not None
    assert cheapest.sees <= 0.05 and cheapest.rows <= 300 and cheapest in found.designs
    others = [design for design in found.designs if design.sees is not None and design.sees <= 0.05]
    assert min(design.attempts for design in others) == cheapest.attempts


def test_where_rows_are_few_attempts_are_many_and_where_those_do_not_help_none_is_proposed() -> None:
    few = plan(Goal(detect=0.05, most_rows=150))
    assert few.cheapest is not None and few.cheapest.n > 16
    none = plan(Goal(detect=0.03, most_rows=150))
    assert none.cheapest is None
    assert none.rows_wanted is not None and none.rows_wanted > 150


def test_rows_that_cost_something_are_used_for_more_attempts() -> None:
    free = plan(Goal(detect=0.05)).cheapest
    dear = plan(Goal(detect=0.05, row_cost_usd=0.64))
    assert free is not None and free.n == 1
    assert (
        dear.cheapest is not None and dear.cheapest.n == dear.best_n == 16
    )  # sqrt(0.64 / 0.01 * 0.16 / 0.04)


def test_the_best_design_for_the_money_costs_no_more_and_sees_most() -> None:
    found = plan(Goal(most_cost_usd=20.0, most_rows=300))
    best = found.best
    assert best is not None and best.sees is not None and best.cost_usd is not None
    assert best.cost_usd <= 20.0 and best.rows <= 300
    affordable = [
        each.sees
        for each in found.designs
        if each.sees is not None and each.cost_usd is not None and each.cost_usd <= 20
    ]
    assert best.sees <= min(affordable)
    assert plan(Goal(most_cost_usd=0.001)).best is None
    assert plan(Goal(most_cost_usd=20.0), cost=None).best is None


def test_a_pilot_of_one_attempt_plans_with_rows_only() -> None:
    found = plan(Goal(detect=0.05), of=spread(within=None))
    assert {design.n for design in found.designs if design != found.own} == {1}
    assert found.cheapest is not None and found.cheapest.n == 1
    assert (found.more_attempts, found.best_n) == (None, None)


def test_a_single_run_shares_half_of_what_differs_between_rows_with_the_other() -> None:
    goal = Goal()
    one = Outlook.of_one_run(spread(), goal, samples=400)
    assert one.likely.between == pytest.approx(0.04, rel=1e-3)
    assert one.likely.within == pytest.approx(0.32, rel=1e-3)
    blind = Outlook.of_one_run(spread(within=None), goal, samples=100)
    assert blind.likely.between == pytest.approx(0.08, rel=1e-3)


def test_a_small_pilot_gives_a_range_around_what_it_says() -> None:
    found = plan(Goal(), of=spread(rows=6)).own
    assert (
        found is not None
        and found.least is not None
        and found.greatest is not None
        and found.sees is not None
    )
    assert found.least < found.sees < found.greatest
    large = plan(Goal()).own
    assert large is not None and (large.least, large.greatest) == (None, None)


def test_assumptions_show_the_range_over_what_rows_may_have_in_common() -> None:
    goal = Goal(most_rows=200)
    found = make_plan(goal, Outlook.assumed(0.6, 0.3), AttemptPrice(), own_rows=100, own_n=4).own
    low, high = (
        make_plan(goal, Outlook.assumed(0.6, icc), AttemptPrice(), own_rows=100, own_n=4).own
        for icc in (0.1, 0.7)
    )
    assert found is not None and low is not None and high is not None
    assert (found.least, found.greatest) == (low.sees, high.sees)
    assert (found.cost_usd, found.duration_s) == (None, None)


def test_what_is_larger_than_the_scale_is_seen_by_no_design() -> None:
    tiny = plan(Goal(), of=spread(0.3, 0.3), rows=2).own
    assert tiny is not None and tiny.sees is None
    assert plan(Goal(width=None), of=spread(0.3, 0.3), rows=2).own != tiny
    data = plan(Goal(), of=spread(0.3, 0.3), rows=2).data()["config_design"]["sees"]
    assert (data["value"], data["reason"]) == (None, "no difference within the scale is large enough")
