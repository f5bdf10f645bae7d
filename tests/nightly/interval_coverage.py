"""Simulate how often the intervals that runs, comparisons and plans print contain the true value.

    python -m tests.nightly.interval_coverage [--replications 2000]

The cells are of five kinds:

- Runs: rows x attempts, a pass rate, and the intraclass correlation of attempts on a row; each row has its own chance
  to pass, from a beta distribution. A tenth of the attempts has no score.
- Graded runs: rewards with a known range, drawn from a few values with given weights.
- Pairs of runs on the same rows, with and without a difference of pass rates.
- Plans: the smallest difference that a plan promises to detect, and how often a comparison detects it.
- Verdicts: how often `eval compare` and a margin rule of `eval gate` are wrong, with unscored attempts that all would
  have failed, and with a difference inside the margin.

The functions that make the intervals of real runs make these. Each interval is judged by itself: two-sided, and each
one-sided bound. An interval that is not printed does not count.

The script fails if an interval contains the true value in fewer than 93% of replications, if the power of a
comparison is more than 5 points away from the one planned, or if more than 5% of verdicts are wrong. All allow for
three binomial standard errors.
"""

from __future__ import annotations

import argparse
import itertools
import math
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from scipy.special import betaincinv, ndtr

from osmosis_ai.decisions.changes import ChangeSettings, change_of
from osmosis_ai.decisions.compare import direction_of
from osmosis_ai.decisions.differences import Difference, Pairs, mean_difference
from osmosis_ai.decisions.gate import Rule, judge_pair
from osmosis_ai.decisions.plan import AttemptPrice, EvalPlan, Goal, Outlook
from osmosis_ai.decisions.samples import SAMPLE_FIELDS, ComparedInputs, LabelledRun, RunPair, RunSamples
from osmosis_ai.statistics.estimates import Estimate, estimate_rate, estimate_reward
from osmosis_ai.statistics.pass_at_k import estimate_pass_at_k

ROWS = (10, 30, 100, 400)
ATTEMPTS = (1, 4, 16)
CORRELATIONS = (0.05, 0.6)
RATES = (0.02, 0.1, 0.5, 0.9, 0.98)
UNSCORED = 0.1
LEAST = 0.93
MOST_WRONG = 0.05
SEED = 20261122

REWARDS: dict[str, dict[float, float]] = {
    "mostly right": {1.0: 0.93, 0.37: 0.05, 0.0: 0.02},
    "mostly wrong": {0.0: 0.93, 0.63: 0.05, 1.0: 0.02},
    "all near the top": {1.0: 0.6, 0.95: 0.37, 0.6: 0.03},
    "all near the bottom": {0.05: 0.5, 0.1: 0.47, 1.0: 0.03},
    "three grades": {0.0: 0.2, 0.5: 0.3, 1.0: 0.5},
}
"""Values in the range 0 to 1, with their probabilities."""
GRADED_DESIGNS = ((10, 1), (10, 4), (13, 9), (30, 1), (30, 4), (100, 4))
PAIR_DESIGNS = tuple(itertools.product((10, 31, 131), (1, 4, 12)))
PLAN_DESIGNS = ((10, 4), (10, 12), (31, 4))
PROMISED = 0.8
"""The power of plans, unless asked otherwise."""
KEPT_WITHIN = 0.05


@dataclass(frozen=True)
class Cell:
    """A run to simulate; ``correlation`` is the intraclass correlation of its attempts."""

    rows: int
    attempts: int
    correlation: float
    rate: float

    def __str__(self) -> str:
        return f"{self.rows} rows x {self.attempts}, correlation {self.correlation}, rate {self.rate}"

    def pass_at(self, k: int) -> float:
        """Return the true pass@k: 1 less the k-th moment of a row's chance to fail."""
        a, b = _beta(self.rate, self.correlation)
        return 1 - math.exp(math.lgamma(b + k) + math.lgamma(a + b) - math.lgamma(b) - math.lgamma(a + b + k))


@dataclass
class Coverage:
    """How often the intervals of one number were printed, held the truth, and how wide they were."""

    printed: int = 0
    held: int = 0
    at_least: int = 0
    at_most: int = 0
    width: float = 0.0

    def add(self, estimate: Estimate | Difference | None, truth: float) -> None:
        """Count one interval."""
        if estimate is None or estimate.low is None or estimate.high is None:
            return
        assert estimate.at_least is not None and estimate.at_most is not None
        self.printed += 1
        self.held += estimate.low <= truth <= estimate.high
        self.at_least += estimate.at_least <= truth
        self.at_most += estimate.at_most >= truth
        self.width += estimate.high - estimate.low

    @property
    def share(self) -> float:
        """The share of printed intervals that held the truth."""
        return self.held / self.printed

    @property
    def enough(self) -> bool:
        """Whether every kind of interval held the truth often enough to be told from luck."""
        least = LEAST - 3 * math.sqrt(LEAST * (1 - LEAST) / self.printed) if self.printed else 0.0
        return min(self.held, self.at_least, self.at_most) >= least * self.printed

    def __str__(self) -> str:
        shares = (
            f"{count / self.printed:.1%} {name}"
            for name, count in (("held", self.held), ("above", self.at_least), ("below", self.at_most))
        )
        return f"{', '.join(shares)}; {self.printed} printed, mean width {self.width / self.printed:.3f}"


@dataclass
class Simulated:
    """What became of a cell: the coverage of each of its numbers."""

    cell: Cell
    numbers: dict[str, Coverage] = field(default_factory=lambda: defaultdict(Coverage))


def grid() -> Iterator[Cell]:
    """Yield all cells; with one attempt a row there is nothing to resemble."""
    for rows, attempts, correlation, rate in itertools.product(ROWS, ATTEMPTS, CORRELATIONS, RATES):
        if attempts > 1 or correlation == CORRELATIONS[0]:
            yield Cell(rows, attempts, correlation, rate)


def simulate(cell: Cell, replications: int, *, seed: int = SEED) -> Simulated:
    """Draw the cell's run many times, the same ones for the same seed."""
    draw = np.random.default_rng([seed, cell.rows, cell.attempts, int(cell.rate * 100)])
    shape = (replications, cell.rows)
    passes = (
        draw.random((*shape, cell.attempts))
        < draw.beta(*_beta(cell.rate, cell.correlation), shape)[..., None]
    )
    lost = (
        draw.random((*shape, cell.attempts)) < draw.beta(*_beta(UNSCORED, cell.correlation), shape)[..., None]
    )
    rows = np.repeat(np.arange(cell.rows), cell.attempts)
    found = Simulated(cell)
    for passed, unscored in zip(passes, lost, strict=True):
        known = ~unscored.ravel()
        values, labels = passed.ravel()[known].astype(np.float64), rows[known]
        found.numbers["pass rate"].add(estimate_rate(values, labels), cell.rate)
        found.numbers["reward"].add(estimate_reward(values, labels), cell.rate)
        found.numbers["unscored"].add(estimate_rate(unscored.ravel().astype(np.float64), rows), UNSCORED)
        scored, successes = (~unscored).sum(axis=1), (passed & ~unscored).sum(axis=1)
        for k in sorted({2, cell.attempts} if cell.attempts > 1 else ()):
            found.numbers[f"pass@{k}"].add(estimate_pass_at_k(scored, successes, k), cell.pass_at(k))
    return found


@dataclass(frozen=True)
class VerdictCell:
    """Two runs on the same rows, and a verdict on B that would be wrong, or right.

    Attributes:
        difference: of the true pass rates, B minus A.
        unscored: the share of B's attempts without a score.
        margin: of a gate; None for a comparison.
        counted: verdicts to count.
        at_random: whether the unscored attempts are any; otherwise all of them would have failed.
        least: how often the verdict should be found; None if it is wrong.
    """

    rows: int
    attempts: int
    difference: float
    unscored: float
    margin: float | None
    counted: tuple[str, ...]
    at_random: bool = False
    least: float | None = None
    rate: float = 0.6
    correlation: float = 0.3

    def __str__(self) -> str:
        kind = "compare" if self.margin is None else f"gate with a margin of {100 * self.margin:g} points"
        how = "at random" if self.at_random else "that would have failed"
        return (
            f"{kind}, {self.rows} rows x {self.attempts}, {100 * self.difference:+g} points, "
            f"{100 * self.unscored:g}% unscored {how}: {' or '.join(self.counted)}"
        )

    def as_expected(self, share: float, replications: int) -> bool:
        """Whether a share of verdicts keeps its bar, allowing three standard errors of the simulation."""
        bar = MOST_WRONG if self.least is None else self.least
        slack = 3 * math.sqrt(bar * (1 - bar) / replications)
        return share <= bar + slack if self.least is None else share >= bar - slack


VERDICT_CELLS = (
    VerdictCell(397, 4, 0.0, 0.03, None, ("better", "worse")),
    VerdictCell(397, 10, 0.0, 0.03, None, ("better", "worse")),
    VerdictCell(997, 4, 0.0, 0.03, None, ("better", "worse")),
    VerdictCell(397, 8, -0.05, 0.03, 0.05, ("pass",)),
    VerdictCell(397, 8, -0.05, 0.06, 0.05, ("pass",)),
    VerdictCell(131, 4, -0.05, 0.0, 0.10, ("fail",)),
    VerdictCell(131, 4, -0.10, 0.0, 0.10, ("fail",)),
    VerdictCell(131, 4, -0.10, 0.0, 0.10, ("pass",)),
    VerdictCell(397, 4, 0.06, 0.02, None, ("better",), at_random=True, least=0.75),
)


def verdict_share(cell: VerdictCell, replications: int, *, seed: int = 20261122) -> float:
    """Return how often the counted verdicts come out, the same for the same seed."""
    draw = np.random.default_rng([seed, cell.rows, cell.attempts, int(1000 * cell.unscored)])
    rule = Rule("pass_rate", "margin", cell.margin or 0.0)
    settings, hits = ChangeSettings(), 0
    for _ in range(replications):
        # Rows are hard for both runs alike: a row's chance is at the same quantile of either distribution.
        hard = draw.random((cell.rows, 1))
        shape = (cell.rows, cell.attempts)
        a, b = (
            (draw.random(shape) < betaincinv(*_beta(rate, cell.correlation), hard)).astype(np.float64)
            for rate in (cell.rate, cell.rate + cell.difference)
        )
        losable = np.arange(b.size) if cell.at_random else np.flatnonzero(b.ravel() == 0)
        lost = draw.permutation(losable)[: round(cell.unscored * b.size)]
        b.ravel()[lost] = np.nan
        pair = RunPair(_labelled("a", a), _labelled("b", b), paired=True)
        if cell.margin is None:
            verdict: str = direction_of(change_of(pair, "pass_rate", settings), settings.confidence)
        else:
            verdict = judge_pair(rule, pair, settings).verdict
        hits += verdict in cell.counted
    return hits / replications


def _labelled(name: str, rewards: NDArray[np.float64]) -> LabelledRun:
    rows, attempts = rewards.shape
    samples = np.zeros(rewards.size, dtype=np.dtype(SAMPLE_FIELDS))
    samples["row"] = samples["selected"] = np.repeat(np.arange(rows), attempts)
    samples["reward"] = rewards.ravel()
    run = RunSamples(
        name, name, "local", name, "finished", ComparedInputs(), tuple(map(str, range(rows))), "row_digest",
        np.arange(rows), samples, rewards.size,
    )  # fmt: skip
    return LabelledRun(run, samples["row"].astype(np.int64), np.arange(rows))


@dataclass(frozen=True)
class GradedCell:
    """A graded run to simulate; attempts on a row share a normal factor of weight ``correlation``."""

    rows: int
    attempts: int
    correlation: float
    rewards: str

    def __str__(self) -> str:
        return f"{self.rows} rows x {self.attempts}, correlation {self.correlation}, {self.rewards}"


@dataclass(frozen=True)
class PairCell:
    """Two runs on the same rows; ``shared`` is the correlation of what makes a row hard for either."""

    rows: int
    attempts: int
    rate: float
    difference: float
    shared: float = 0.5
    correlation: float = 0.3

    def __str__(self) -> str:
        rates = f"pass rates {self.rate:g} and {self.rate + self.difference:g}"
        return f"{self.rows} rows x {self.attempts}, {rates}, {self.shared:g} shared"


def graded_grid() -> Iterator[GradedCell]:
    """Yield all cells of graded runs."""
    for (rows, attempts), correlation, rewards in itertools.product(GRADED_DESIGNS, (0.0, 0.5), REWARDS):
        if attempts > 1 or not correlation:
            yield GradedCell(rows, attempts, correlation, rewards)


def pair_grid() -> Iterator[PairCell]:
    """Yield all cells of pairs of runs."""
    for (rows, attempts), (rate, difference), shared in itertools.product(
        PAIR_DESIGNS,
        (
            (0.5, 0.0),
            (0.5, -0.1),
            (0.9, 0.0),
            (0.9, -0.05),
            (0.98, 0.0),
            (0.98, -0.1),
            (0.9, -0.8),
            (0.02, 0.9),
        ),
        (0.5, 1.0),
    ):
        yield PairCell(rows, attempts, rate, difference, shared)


def simulate_graded(cell: GradedCell, replications: int) -> Coverage:
    """Draw a graded run many times; its range is known."""
    draw = np.random.default_rng([SEED, cell.rows, cell.attempts, *REWARDS[cell.rewards].__repr__().encode()])
    values, weights = (np.array(each) for each in zip(*REWARDS[cell.rewards].items(), strict=True))
    ends, truth = np.cumsum(weights)[:-1], float(values @ weights)
    rows, found = np.repeat(np.arange(cell.rows), cell.attempts), Coverage()
    for _ in range(replications):
        by_row, alone = draw.standard_normal((cell.rows, 1)), draw.standard_normal((cell.rows, cell.attempts))
        ranks = ndtr(math.sqrt(cell.correlation) * by_row + math.sqrt(1 - cell.correlation) * alone)
        rewards = values[np.searchsorted(ends, ranks.ravel())]
        found.add(estimate_reward(rewards, rows, reward_range=(0.0, 1.0)), truth)
    return found


def simulate_pairs(cell: PairCell, replications: int) -> tuple[Coverage, float]:
    """Draw two runs many times; return the coverage and how often the interval leaves out no difference."""
    draw = np.random.default_rng(
        [SEED, cell.rows, cell.attempts, int(cell.rate * 100), int(cell.shared * 10)]
    )
    first, other = draw.standard_normal((2, replications, cell.rows))
    hard = first, cell.shared * first + math.sqrt(1 - cell.shared**2) * other
    rates = cell.rate, cell.rate + cell.difference
    a, b = (
        draw.binomial(cell.attempts, _chances(rate, cell.correlation, ndtr(each))) / cell.attempts
        for rate, each in zip(rates, hard, strict=True)
    )
    counts, found, detected = np.full(cell.rows, cell.attempts), Coverage(), 0
    known: dict[bytes, Difference] = {}
    for passed_a, passed_b in zip(a, b, strict=True):
        key = np.sort(passed_b - passed_a).tobytes()
        if key not in known:
            known[key] = mean_difference(Pairs(passed_a, passed_b, counts, counts, (0.0, 1.0)))
        found.add(known[key], cell.difference)
        detected += known[key].excludes_none
    return found, detected / replications


def planned(rows: int, attempts: int) -> PairCell:
    """Return runs that differ by as much as a plan promises to detect, with what it assumes by default."""
    plan = EvalPlan(Goal(), Outlook.assumed(0.5, 0.3), AttemptPrice(), own_rows=rows, own_n=attempts)
    assert plan.own is not None and plan.own.sees is not None
    return PairCell(rows, attempts, 0.5 - plan.own.sees / 2, plan.own.sees)


def keeps_promise(power: float, replications: int) -> bool:
    """Whether a power is as planned, within 5 points and what is luck."""
    return abs(power - PROMISED) <= KEPT_WITHIN + 3 * math.sqrt(PROMISED * (1 - PROMISED) / replications)


def _chances(rate: float, correlation: float, ranks: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the quantiles of the rows' chances to pass; exact quantiles would take most of the time."""
    at = np.concatenate(([0.0], np.geomspace(1e-9, 0.01, 300), np.linspace(0.01, 0.5, 500)[1:]))
    at = np.concatenate((at, 1 - at[-2::-1]))
    found: NDArray[np.float64] = np.interp(ranks, at, betaincinv(*_beta(rate, correlation), at))
    return found


def _beta(rate: float, correlation: float) -> tuple[float, float]:
    """Return the beta distribution of a row's chance with this mean and intraclass correlation."""
    total = 1 / correlation - 1
    return rate * total, (1 - rate) * total


def main() -> None:
    """Simulate the grid and print the worst of each number."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--replications", type=int, default=2000, help="runs drawn for each cell (2000)")
    parser.add_argument("--shown", type=int, default=5, help="cells shown for each number (5)")
    arguments = parser.parse_args()
    found = [simulate(cell, arguments.replications) for cell in grid()]
    for name in ("pass rate", "reward", "unscored", "pass@2", "pass@4", "pass@16"):
        cells = [(each.numbers[name], each.cell) for each in found if each.numbers[name].printed]
        print(f"{name}, the worst of {len(cells)} cells:")
        for coverage, cell in sorted(cells, key=lambda pair: pair[0].share)[: arguments.shown]:
            print(f"  {cell}: {coverage}")
    failed = [f"{each}" for each in _wrong_verdicts(arguments.replications)]
    failed += [
        f"{name} of {each.cell}"
        for each in found
        for name, coverage in each.numbers.items()
        if not coverage.enough
    ]
    cells = len(found)
    for kind, every in (
        ("reward with a range", [(simulate_graded(it, arguments.replications), it) for it in graded_grid()]),
        ("difference", [(simulate_pairs(it, arguments.replications)[0], it) for it in pair_grid()]),
    ):
        cells += len(every)
        print(f"{kind}, the worst of {len(every)} cells:")
        for coverage, each in sorted(every, key=lambda pair: pair[0].share)[: arguments.shown]:
            print(f"  {each}: {coverage}")
        failed += [f"{kind} of {each}" for coverage, each in every if not coverage.enough]
    print(f"plans, promised {PROMISED:.0%}:")
    for rows, attempts in PLAN_DESIGNS:
        cell = planned(rows, attempts)
        power = simulate_pairs(cell, arguments.replications)[1]
        print(f"  {cell}: detected in {power:.1%}")
        if not keeps_promise(power, arguments.replications):
            failed.append(f"plan of {rows} rows x {attempts}: detected in {power:.1%}")
    if failed:
        raise SystemExit(f"failed: {'; '.join(failed)}")
    print(f"every interval of {cells} cells contains the true value often enough")


def _wrong_verdicts(replications: int) -> list[VerdictCell]:
    """Print how often each verdict comes out, and return the cells that miss their bar."""
    print("verdicts:")
    missed = []
    for cell in VERDICT_CELLS:
        share = verdict_share(cell, replications)
        print(f"  {cell}: {share:.1%}", flush=True)
        if not cell.as_expected(share, replications):
            missed.append(cell)
    return missed


if __name__ == "__main__":
    main()
