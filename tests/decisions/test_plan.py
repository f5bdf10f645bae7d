"""Plans and what would settle a rule, against simulations and hand-worked numbers."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import special

from osmosis_ai.decisions.gate import settle
from osmosis_ai.decisions.plan import AttemptPrice, EvalPlan, Goal, Outlook
from osmosis_ai.statistics.power import n_needed, rows_needed
from osmosis_ai.statistics.variance import VarianceComponents


def spread(between: float = 0.04, within: float | None = 0.16, rows: int = 100) -> VarianceComponents:
    return VarianceComponents(between, within, rows, 4.0)


def test_settle() -> None:
    rows, n = rows_needed(0.06, spread(), 4, sides=1), n_needed(0.06, spread(), 100, sides=1)
    assert (rows - 100, n) == (39, 10)
    assert settle(spread(), 0.06, 100, 4, cost_attempt=0.005) == "about 39 more rows: $0.78, or n = 10: $3.00"


@pytest.mark.parametrize(
    ("components", "distance", "words"),
    [
        (spread(), 0.0, "no number of rows or attempts: the value is on the limit"),
        (None, 0.1, "more rows: one row has no variance"),
        (spread(0.0, 0.0), 0.1, "more rows: all rows have the same result, so the variance is unknown"),
    ],
)
def test_settle_when_impossible(components: VarianceComponents | None, distance: float, words: str) -> None:
    assert settle(components, distance, 100, 4) == words


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
def test_power_of_plans_from_pilots(pilot_rows: int, n: int, rate: float, gain: float) -> None:
    random = np.random.default_rng(pilot_rows + n)
    first, second = chances(random, (PILOTS, pilot_rows), rate, gain)
    passes = [random.binomial(1, each[..., None], (PILOTS, pilot_rows, n)) for each in (first, second)]
    labels = np.repeat(np.arange(pilot_rows), n)
    wanted = []
    for pilot in range(PILOTS):
        spread = VarianceComponents.of_pairs(
            passes[0][pilot].ravel(), labels, passes[1][pilot].ravel(), labels
        )
        outlook = Outlook.of_two_runs(spread, Goal(), samples=2 * labels.size)
        rows = rows_needed(gain, outlook.likely, n)
        wanted.append(rows)
    assert power_reached(wanted, n, rate, gain, random) == pytest.approx(0.8, abs=0.03)


def plan(
    goal: Goal, *, of: VarianceComponents | None = None, cost: float | None = 0.01, rows: int = 100
) -> EvalPlan:
    outlook = Outlook.of_two_runs(of or spread(rows=100_000), goal, samples=400)
    return EvalPlan(goal, outlook, AttemptPrice(cost, per_second=4.0), own_rows=rows, own_n=4)


def test_plan_of_the_config() -> None:
    found = plan(Goal(most_rows=200))
    # 2.83 standard errors of sqrt(0.08 / 100).
    assert found.own.sees == pytest.approx(0.0801, abs=1e-4)
    assert found.own.power == pytest.approx(0.18, abs=0.01)
    assert (found.own.cost_usd, found.own.duration_s) == (pytest.approx(4.0), 100.0)
    assert {design.rows for design in found.designs} == {10, 20, 50, 100, 200}
    assert {design.n for design in found.designs} == {1, 2, 4, 8}


def test_cheapest_design() -> None:
    found = plan(Goal(detect=0.05, most_rows=300))
    cheapest = found.cheapest
    assert cheapest.sees <= 0.05 and cheapest.rows <= 300 and cheapest in found.designs
    enough = [design.attempts for design in found.designs if design.sees <= 0.05]
    assert min(enough) == cheapest.attempts


def test_few_rows() -> None:
    few = plan(Goal(detect=0.05, most_rows=150))
    assert few.cheapest.n > 16
    none = plan(Goal(detect=0.03, most_rows=150))
    assert none.cheapest is None
    assert none.rows_wanted > 150


def test_best_design_within_a_budget() -> None:
    found = plan(Goal(most_cost_usd=20.0, most_rows=300))
    best = found.best
    assert best.cost_usd <= 20.0 and best.rows <= 300
    assert best.sees <= min(design.sees for design in found.designs if design.cost_usd <= 20)
    assert plan(Goal(most_cost_usd=0.001)).best is None
    assert plan(Goal(most_cost_usd=20.0), cost=None).best is None


def test_pilot_of_single_attempts() -> None:
    found = plan(Goal(detect=0.05), of=spread(within=None, rows=100_000))
    assert {design.n for design in found.designs if design != found.own} == {1}
    assert found.cheapest.n == 1
    assert (found.more_attempts, found.best_n) == (None, None)


def test_variance_from_one_run() -> None:
    goal = Goal()
    one = Outlook.of_one_run(spread(rows=100_000), goal, samples=400)
    assert one.likely.between == pytest.approx(0.04, rel=1e-3)
    assert one.likely.within == pytest.approx(0.32, rel=1e-3)
    blind = Outlook.of_one_run(spread(within=None, rows=100_000), goal, samples=100)
    assert blind.likely.between == pytest.approx(0.08, rel=1e-3)
