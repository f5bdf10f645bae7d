"""What a run prints as a 95 % interval holds the truth about that often, also where it is hard to."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.integration

SCRIPT = Path(__file__).parents[2] / "scripts" / "interval_coverage.py"
REPLICATIONS, FEWER = 400, 200

# rows, attempts, intraclass correlation, pass rate
CELLS = {
    "a_few_rows_that_hardly_ever_pass": (10, 4, 0.6, 0.02),
    "a_few_rows_tried_often_that_hardly_ever_pass": (10, 16, 0.05, 0.02),
    "a_few_rows_of_which_most_pass": (10, 16, 0.6, 0.9),
    "a_few_rows_tried_once": (10, 1, 0.05, 0.1),
    "some_rows_that_hardly_ever_pass": (30, 16, 0.6, 0.02),
    "some_rows_that_nearly_always_pass": (30, 16, 0.6, 0.98),
    "some_rows_alike_that_nearly_always_pass": (30, 16, 0.05, 0.98),
    "some_rows_in_the_middle": (30, 4, 0.6, 0.5),
    "many_rows_that_nearly_always_pass": (100, 16, 0.6, 0.98),
    "many_rows_alike_that_seldom_pass": (100, 4, 0.05, 0.1),
    "many_rows_tried_once_that_nearly_always_pass": (100, 1, 0.05, 0.98),
    "very_many_rows_that_hardly_ever_pass": (400, 4, 0.6, 0.02),
}
# Of these, others above are alike; `make nightly` tries them, and the whole grid.
RARELY_TELLING = (
    "a_few_rows_of_which_most_pass",
    "some_rows_alike_that_nearly_always_pass",
    "some_rows_in_the_middle",
    "many_rows_that_nearly_always_pass",
    "many_rows_alike_that_seldom_pass",
)


@pytest.fixture(scope="module")
def coverage() -> Any:
    spec = importlib.util.spec_from_file_location("interval_coverage", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.nightly] * (name in RARELY_TELLING)) for name in CELLS]
)
def test_printed_intervals_hold_the_truth_of(name: str, coverage: Any) -> None:
    rows, attempts, correlation, rate = CELLS[name]
    found = coverage.simulate(coverage.Cell(rows, attempts, correlation, rate), REPLICATIONS)
    expected = {"pass rate", "reward", "unscored"} | (
        {"pass@2", f"pass@{attempts}"} if attempts > 1 else set()
    )
    assert set(found.numbers) == expected
    for number, held in found.numbers.items():
        assert held.enough, f"{number}: {held}"
    assert found.numbers["pass rate"].printed == REPLICATIONS


@pytest.mark.parametrize("rewards", ["mostly right", "all near the bottom"])
@pytest.mark.parametrize("correlation", [0.0, 0.5])
def test_intervals_of_graded_rewards_with_a_range_contain_the_true_mean(
    rewards: str, correlation: float, coverage: Any
) -> None:
    found = coverage.simulate_graded(coverage.GradedCell(13, 9, correlation, rewards), REPLICATIONS)
    assert found.printed == REPLICATIONS
    assert found.held >= 0.93 * REPLICATIONS and found.enough, str(found)


@pytest.mark.parametrize(
    ("rows", "attempts", "rate", "difference"),
    [(10, 4, 0.9, -0.8), (10, 4, 0.5, 0.0), (31, 4, 0.9, -0.05), (31, 12, 0.5, -0.1)],
)
def test_intervals_of_pairs_contain_the_true_difference(
    rows: int, attempts: int, rate: float, difference: float, coverage: Any
) -> None:
    found, _ = coverage.simulate_pairs(coverage.PairCell(rows, attempts, rate, difference), FEWER)
    assert found.printed == FEWER
    assert found.enough, str(found)


@pytest.mark.parametrize(("rows", "attempts"), [(10, 4), (10, 12), (31, 4)])
def test_a_comparison_detects_what_the_plan_promises(rows: int, attempts: int, coverage: Any) -> None:
    _, power = coverage.simulate_pairs(coverage.planned(rows, attempts), 600)
    assert 0.75 <= power <= 0.85


def test_the_simulation_sees_an_interval_that_is_too_narrow(coverage: Any) -> None:
    cell = coverage.Cell(30, 16, 0.6, 0.02)
    pretending = coverage.Coverage()
    draw = coverage.np.random.default_rng(1)
    for _ in range(REPLICATIONS):
        chances = draw.beta(0.02 / 0.6 - 0.02, 0.98 / 0.6 - 0.98, cell.rows)
        attempts = (draw.random((cell.rows, cell.attempts)) < chances[:, None]).ravel().astype(float)
        # Attempts taken for independent, as though each were a row of its own.
        pretending.add(coverage.estimate_rate(attempts, range(attempts.size)), cell.rate)
    assert not pretending.enough
