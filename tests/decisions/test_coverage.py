"""What is said of two runs holds as often as it claims, in pairs of runs drawn from a known truth."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scripts.interval_coverage import VERDICT_CELLS, VerdictCell, verdict_share

from osmosis_ai.decisions.differences import Pairs, mean_difference, unpaired_difference
from osmosis_ai.statistics.estimates import benjamini_hochberg, holm
from tests.decisions.simulation import SEED, Cell, Coverage, chances, run_passes, simulate

pytestmark = pytest.mark.integration

REPLICATIONS = 400
# Where a method draws ten thousand times for each pair.
FEWER = 300

# rows, attempts, intraclass correlation, pass rate, difference, hard for both alike
CELLS = {
    "a_few_rows_that_nearly_always_pass": Cell(10, 1, 0.05, 0.98, 0.0),
    "a_few_rows_of_which_some_stop_passing": Cell(10, 4, 0.6, 0.98, -0.1),
    "a_few_rows_tried_often": Cell(10, 16, 0.3, 0.5, 0.1, alike=False),
    "some_rows_tried_once_of_which_some_stop_passing": Cell(30, 1, 0.3, 0.9, -0.1),
    "some_rows_that_seldom_pass": Cell(30, 16, 0.6, 0.02, 0.03),
    "some_rows_of_which_few_stop_passing": Cell(30, 16, 0.3, 0.9, -0.03),
    "many_rows_tried_once": Cell(100, 1, 0.3, 0.5, 0.03),
    "many_rows_of_which_few_stop_passing": Cell(100, 4, 0.3, 0.98, -0.03),
    "many_rows_in_the_middle": Cell(100, 4, 0.3, 0.5, 0.0, alike=False),
    "many_rows_that_begin_to_pass": Cell(100, 16, 0.05, 0.02, 0.1),
    "very_many_rows_that_nearly_always_pass": Cell(400, 4, 0.6, 0.98, -0.03),
    "very_many_rows_of_which_many_stop_passing": Cell(400, 16, 0.3, 0.7, -0.1, alike=False),
}


@pytest.mark.parametrize("name", CELLS)
def test_printed_intervals_hold_the_true_difference_of(name: str) -> None:
    cell = CELLS[name]
    replications = FEWER if cell.rows in (30, 100) and cell.attempts > 1 else REPLICATIONS
    found = simulate(cell, replications)
    assert found.printed == replications
    assert found.contradicted == 0
    assert found.enough, f"{cell}: {found}"


def test_the_simulation_sees_an_interval_that_is_too_narrow() -> None:
    cell, pretending = Cell(30, 16, 0.6, 0.5, 0.0, alike=False), Coverage()
    for passes in zip(*run_passes(cell, REPLICATIONS), strict=True):
        # Attempts taken for rows of their own.
        a, b = ((np.arange(16) < it[:, None]).ravel().astype(np.float64) for it in passes)
        pretending.add(mean_difference(Pairs(a, b, np.ones(480), np.ones(480), (0.0, 1.0))), cell.difference)
    assert not pretending.enough


@pytest.mark.parametrize(("rows", "rate"), [(10, 0.98), (30, 0.5)])
def test_unpaired_intervals_hold_the_true_difference(rows: int, rate: float) -> None:
    coverage = Coverage()
    runs = run_passes(Cell(rows, 4, 0.3, rate, -0.1, alike=False), FEWER)
    known = {}
    for a, b in zip(*(np.sort(passes / 4, axis=1) for passes in runs), strict=True):
        key = a.tobytes() + b.tobytes()
        if key not in known:
            known[key] = unpaired_difference(a, range(rows), b, range(rows), scale=(0.0, 1.0))
        coverage.add(known[key], -0.1)
    assert coverage.printed == FEWER
    assert coverage.enough and coverage.contradicted == 0, str(coverage)


def test_intervals_of_skewed_rewards_without_a_range_hold_the_true_difference() -> None:
    draw, coverage = np.random.default_rng(SEED), Coverage()
    counts = np.ones(30, dtype=np.int64)
    for rewards in draw.lognormal(0, 1, (100, 30)):
        coverage.add(mean_difference(Pairs(np.zeros(30), rewards, counts, counts)), math.exp(0.5))
    assert coverage.enough and coverage.contradicted == 0, str(coverage)


def tolerated(share: float) -> float:
    """Return how many of the replications an error of that share may reach by luck: three standard errors."""
    return REPLICATIONS * share + 3 * math.sqrt(REPLICATIONS * share * (1 - share))


def test_of_five_candidates_of_which_none_is_better_any_is_called_so_in_one_of_twenty() -> None:
    draw = np.random.default_rng(SEED)
    hard = chances(0.6, 0.3, draw.random((REPLICATIONS, 1, 100)))
    runs = draw.binomial(4, np.broadcast_to(hard, (REPLICATIONS, 6, 100))) / 4
    counts = np.full(100, 4)
    called = unadjusted = 0
    for baseline, *candidates in runs:
        found = [mean_difference(Pairs(baseline, it, counts, counts, (0.0, 1.0))) for it in candidates]
        adjusted = holm([it.p for it in found])
        called += any(it.value > 0 and p < 0.05 for it, p in zip(found, adjusted, strict=True))
        unadjusted += any(it.value > 0 and it.excludes_none for it in found)
    assert called <= tolerated(0.05)
    assert unadjusted > called


def test_of_ten_slices_of_which_none_differs_one_is_called_different_in_one_of_twenty() -> None:
    a, b = (passes / 4 for passes in run_passes(Cell(400, 4, 0.3, 0.6, 0.0, alike=False), REPLICATIONS))
    counts = np.full(40, 4)
    called = 0
    for row in range(REPLICATIONS):
        slices = [slice(40 * at, 40 * at + 40) for at in range(10)]
        found = [
            mean_difference(Pairs(a[row, it], b[row, it], counts, counts, (0.0, 1.0))).p for it in slices
        ]
        called += min(benjamini_hochberg(found)) < 0.05
    assert called <= tolerated(0.05)


@pytest.mark.parametrize(
    "cell", [each for each in VERDICT_CELLS if each.rows * each.attempts < 3500], ids=str
)
def test_a_verdict_is_wrong_in_one_of_twenty_at_most_and_found_as_often_as_expected(
    cell: VerdictCell,
) -> None:
    share = verdict_share(cell, 150)
    assert cell.as_expected(share, 150), f"{share:.3f}"
