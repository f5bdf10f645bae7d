"""Coverage of intervals and error rates of verdicts, in simulated pairs of runs."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray

from osmosis_ai.decisions.differences import Pairs, mean_difference, unpaired_difference
from osmosis_ai.statistics.estimates import benjamini_hochberg, holm
from tests.nightly.interval_coverage import (
    SEED,
    VERDICT_CELLS,
    Coverage,
    PairCell,
    VerdictCell,
    simulate_pairs,
    verdict_share,
)

pytestmark = pytest.mark.integration

REPLICATIONS = 400
FEWER = 300  # for slow methods

# rows, attempts, pass rate, difference, correlation of the rows' difficulty, intraclass correlation
CELLS = [
    PairCell(10, 1, 0.98, 0.0, 1, 0.05),
    PairCell(10, 4, 0.98, -0.1, 1, 0.6),
    PairCell(10, 16, 0.5, 0.1, 0),
    PairCell(30, 1, 0.9, -0.1, 1),
    PairCell(30, 16, 0.02, 0.03, 1, 0.6),
    PairCell(30, 16, 0.9, -0.03, 1),
    PairCell(100, 1, 0.5, 0.03, 1),
    PairCell(100, 4, 0.98, -0.03, 1),
    PairCell(100, 4, 0.5, 0.0, 0),
    PairCell(100, 16, 0.02, 0.1, 1, 0.05),
    PairCell(400, 4, 0.98, -0.03, 1, 0.6),
    PairCell(400, 16, 0.7, -0.1, 0),
]


@pytest.mark.parametrize("cell", CELLS, ids=str)
def test_paired_intervals(cell: PairCell) -> None:
    found, _ = simulate_pairs(cell, REPLICATIONS)
    assert found.printed == REPLICATIONS
    assert found.enough, str(found)


def pass_rates(draw: np.random.Generator, rate: float, shape: tuple[int, ...]) -> NDArray[np.float64]:
    """Draw the pass rates of rows with 4 attempts and an intraclass correlation of 0.3."""
    chances = draw.beta(rate * 7 / 3, (1 - rate) * 7 / 3, shape)
    return draw.binomial(4, chances) / 4


@pytest.mark.parametrize(("rows", "rate"), [(10, 0.98), (30, 0.5)])
def test_unpaired_intervals(rows: int, rate: float) -> None:
    draw, coverage = np.random.default_rng(SEED), Coverage()
    a, b = (pass_rates(draw, each, (FEWER, rows)) for each in (rate, rate - 0.1))
    for first, second in zip(a, b, strict=True):
        found = unpaired_difference(first, range(rows), second, range(rows), scale=(0.0, 1.0))
        coverage.add(found, -0.1)
        assert (found.p < 0.05) == found.excludes_none
    assert coverage.printed == FEWER
    assert coverage.enough, str(coverage)


def test_intervals_of_skewed_rewards() -> None:
    draw, coverage = np.random.default_rng(SEED), Coverage()
    counts = np.ones(30, dtype=np.int64)
    for rewards in draw.lognormal(0, 1, (100, 30)):
        found = mean_difference(Pairs(np.zeros(30), rewards, counts, counts))
        coverage.add(found, math.exp(0.5))
        assert found.low is None or (found.p < 0.05) == found.excludes_none
    assert coverage.enough, str(coverage)


def tolerated(share: float) -> float:
    """Return the most errors within three standard errors of a share of the replications."""
    return REPLICATIONS * share + 3 * math.sqrt(REPLICATIONS * share * (1 - share))


def test_false_positives_among_candidates() -> None:
    draw = np.random.default_rng(SEED)
    # A pass rate of 0.6 and an intraclass correlation of 0.3.
    chances = draw.beta(1.4, 2.8 / 3, (REPLICATIONS, 1, 100))
    runs = draw.binomial(4, np.broadcast_to(chances, (REPLICATIONS, 6, 100))) / 4
    counts = np.full(100, 4)
    called = unadjusted = 0
    for baseline, *candidates in runs:
        found = [mean_difference(Pairs(baseline, it, counts, counts, (0.0, 1.0))) for it in candidates]
        adjusted = holm([it.p for it in found])
        called += any(it.value > 0 and p < 0.05 for it, p in zip(found, adjusted, strict=True))
        unadjusted += any(it.value > 0 and it.excludes_none for it in found)
    assert called <= tolerated(0.05)
    assert unadjusted > called


def test_false_positives_among_slices() -> None:
    a, b = pass_rates(np.random.default_rng(SEED), 0.6, (2, REPLICATIONS, 10, 40))
    counts = np.full(40, 4)
    called = 0
    for slices in zip(a, b, strict=True):
        found = [
            mean_difference(Pairs(one, other, counts, counts, (0.0, 1.0))).p
            for one, other in zip(*slices, strict=True)
        ]
        called += min(benjamini_hochberg(found)) < 0.05
    assert called <= tolerated(0.05)


MARGIN_CELLS = [
    *(
        VerdictCell(rows, attempts, -0.05, 0.0, 0.05, ("pass",), rate=rate, correlation=correlation)
        for rows, attempts, rate, correlation in (
            (10, 4, 0.5, 0.3),
            (10, 4, 0.9, 0.6),
            (30, 1, 0.9, 0.3),
            (30, 16, 0.98, 0.3),
            (100, 4, 0.9, 0.6),
            (400, 1, 0.7, 0.6),
        )
    ),
    # By the formula of the interval, 52% and 96% pass.
    VerdictCell(100, 4, 0.0, 0.0, 0.05, ("pass",), rate=0.5, least=0.5),
    VerdictCell(400, 4, 0.0, 0.0, 0.05, ("pass",), rate=0.5, least=0.95),
    VerdictCell(100, 4, 0.0, 0.0, 0.05, ("fail",), rate=0.5),
]


@pytest.mark.parametrize(
    "cell",
    [*MARGIN_CELLS, *(each for each in VERDICT_CELLS if each.rows * each.attempts < 3500)],
    ids=lambda cell: f"{cell}, rate {cell.rate}",
)
def test_verdict_rates(cell: VerdictCell) -> None:
    replications = 150 if cell in VERDICT_CELLS else REPLICATIONS
    share = verdict_share(cell, replications)
    assert cell.as_expected(share, replications), f"{share:.3f}"
