"""Pairs of runs drawn from a known truth, and how often what is said of them is true.

A cell is two runs on the same rows: every row has its chance to pass in run A, from a beta distribution
whose spread is the intraclass correlation, and in run B, whose mean is higher by the difference. Rows
are hard for both alike, or, in cells that say so, hard for one without regard to the other.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import betaincinv
from scripts import interval_coverage
from scripts.interval_coverage import SEED

from osmosis_ai.decisions.differences import Difference, Pairs, mean_difference


@dataclass(frozen=True)
class Cell:
    """Two runs to simulate."""

    rows: int
    attempts: int
    correlation: float
    rate: float
    difference: float
    alike: bool = True


@dataclass
class Coverage(interval_coverage.Coverage):
    """How often intervals held the truth, and contradicted their p-values."""

    contradicted: int = 0

    def add(self, found: Difference, truth: float) -> None:  # type: ignore[override]
        """Count one interval."""
        super().add(found, truth)
        if found.low is not None:
            assert found.p is not None
            self.contradicted += (found.p < 0.05) != found.excludes_none


def run_passes(
    cell: Cell, replications: int, seed: int = SEED
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return how often either run passes each row: two arrays (replications, rows)."""
    key = (
        cell.rows,
        cell.attempts,
        *(round(1000 * (1 + it)) for it in (cell.correlation, cell.rate, cell.difference)),
    )
    draw = np.random.default_rng([seed, *key, cell.alike])
    shape = (replications, cell.rows)
    hard_for_a = draw.random(shape)
    hard_for_b = hard_for_a if cell.alike else draw.random(shape)
    either = ((cell.rate, hard_for_a), (cell.rate + cell.difference, hard_for_b))
    a, b = (draw.binomial(cell.attempts, chances(rate, cell.correlation, hard)) for rate, hard in either)
    return a, b


def chances(rate: float, correlation: float, quantiles: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the rows' chances to pass at quantiles of their beta distribution."""
    size = 1 / correlation - 1
    # The quantile function is slow, and smooth: a table of it serves.
    at = np.concatenate(
        (
            [0.0],
            np.geomspace(1e-9, 0.01, 300),
            np.linspace(0.01, 0.99, 1000)[1:-1],
            1 - np.geomspace(0.01, 1e-9, 300),
            [1.0],
        )
    )
    found: NDArray[np.float64] = np.interp(quantiles, at, betaincinv(rate * size, (1 - rate) * size, at))
    return found


def simulate(cell: Cell, replications: int) -> Coverage:
    """Return how often the difference of pass rates held the cell's."""
    coverage, known = Coverage(), {}
    counts = np.full(cell.rows, cell.attempts)
    for passes_a, passes_b in zip(*run_passes(cell, replications), strict=True):
        # The same differences come again and again, and are worked out once.
        key = np.sort(passes_b - passes_a).tobytes()
        if key not in known:
            pairs = Pairs(passes_a / cell.attempts, passes_b / cell.attempts, counts, counts, (0.0, 1.0))
            known[key] = mean_difference(pairs)
        coverage.add(known[key], cell.difference)
    return coverage
