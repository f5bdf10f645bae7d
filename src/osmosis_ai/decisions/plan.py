"""Plan a comparison: sample sizes, the difference that each detects, its cost and duration.

A plan is about the difference of two runs of the same design on the same rows. With two runs, the variance between rows
is measured. With one run, half of the variance between its rows is assumed to be shared with the other run
(correlation 0.5), so that the difference varies between rows as a run does, and within rows as two do. Numbers from a
pilot allow for the pilot's own uncertainty (:func:`~osmosis_ai.statistics.power.allowing_for_the_pilot`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, TypeAlias

from osmosis_ai.decisions.differences import Difference, number_data
from osmosis_ai.statistics.estimates import CONFIDENCE
from osmosis_ai.statistics.power import (
    MOST_ROWS,
    POWER,
    allowing_for_the_pilot,
    best_n,
    detectable,
    power_of,
    rows_needed,
)
from osmosis_ai.statistics.variance import VarianceComponents

Basis: TypeAlias = Literal["two runs", "one run", "assumed"]

SMALL_PILOT = 10
ICC_RANGE = (0.1, 0.7)
USUAL_CHANGE = 0.03
"""The difference that a config is judged by unless one is given: three points of a rate."""

_ROWS = [step * 10**power for power in range(1, 7) for step in (1, 2, 5)]
_SHOWN_ROWS = 4
_ATTEMPTS = (1, 2, 4, 8)
_TRIED_ATTEMPTS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16)
_MANY_ATTEMPTS = (24, 32, 48, 64, 96, 128, 192, 256)


@dataclass(frozen=True, slots=True)
class Outlook:
    """The assumed variance of a difference before it is measured."""

    basis: Basis
    likely: VarianceComponents
    possible: tuple[VarianceComponents, ...] = ()
    samples: int = 0

    @classmethod
    def of_two_runs(cls, pair: VarianceComponents, goal: Goal, *, samples: int) -> Outlook:
        """Return that of a difference which was measured once."""
        possible = pair.interval() if pair.rows < SMALL_PILOT else ()
        likely = allowing_for_the_pilot(pair, confidence=goal.confidence, power=goal.power)
        return cls("two runs", likely, possible, samples)

    @classmethod
    def of_one_run(cls, run: VarianceComponents, goal: Goal, *, samples: int) -> Outlook:
        """Return that of the difference from another run; with one attempt a row, as if they had nothing in common."""
        if run.within is None:
            difference = replace(run, between=2 * run.between)
        else:
            difference = replace(run, within=2 * run.within)
        return replace(cls.of_two_runs(difference, goal, samples=samples), basis="one run")

    @classmethod
    def assumed(cls, pass_rate: float, icc: float) -> Outlook:
        """Return that of a pass rate, where nothing was run yet; ICCs of 0.1 to 0.7 are possible."""

        def spread(share: float) -> VarianceComponents:
            variance = pass_rate * (1 - pass_rate)
            return VarianceComponents(share * variance, 2 * (1 - share) * variance, rows=0, attempts=0.0)

        return cls("assumed", spread(icc), tuple(spread(share) for share in ICC_RANGE))


@dataclass(frozen=True, slots=True)
class Goal:
    """The difference to detect, and the limits of a plan."""

    detect: float | None = None
    power: float = POWER
    confidence: float = CONFIDENCE
    most_cost_usd: float | None = None
    most_rows: int | None = None
    row_cost_usd: float = 0.0
    width: float | None = 1.0
    pass_or_fail: bool = True

    @property
    def judged_by(self) -> float | None:
        """The difference that designs are judged by; None if none was given and rewards have no scale."""
        if self.detect is not None:
            return self.detect
        return None if self.width is None else USUAL_CHANGE * self.width


@dataclass(frozen=True, slots=True)
class AttemptPrice:
    """Cost and duration of one attempt; None if unknown."""

    cost_usd: float | None = None
    duration_s: float | None = None
    at_once: int = 1


@dataclass(frozen=True, slots=True)
class Design:
    """A sample size: rows, attempts on each, and the difference that it detects (``sees``)."""

    rows: int
    n: int
    sees: float | None
    least: float | None
    greatest: float | None
    power: float | None
    cost_usd: float | None
    duration_s: float | None

    @property
    def attempts(self) -> int:
        return self.rows * self.n


@dataclass(frozen=True, slots=True)
class EvalPlan:
    """Designs, and those among them that answer a question."""

    goal: Goal
    outlook: Outlook
    price: AttemptPrice
    designs: tuple[Design, ...]
    own: Design | None
    cheapest: Design | None
    rows_wanted: int | None
    best: Design | None
    best_n: int | None
    more_rows: Design | None
    more_attempts: Design | None

    def data(self) -> dict[str, Any]:
        goal, outlook = self.goal, self.outlook
        spread = {name: getattr(outlook.likely, name) for name in ("between", "within", "rows")}
        return {
            "detect": goal.detect,
            "power": goal.power,
            "confidence": goal.confidence,
            "max_cost_usd": goal.most_cost_usd,
            "rows_at_most": goal.most_rows,
            "spread": {
                "basis": outlook.basis,
                **spread,
                "samples": outlook.samples,
                "negative": outlook.likely.negative,
            },
            "attempt": asdict(self.price),
            "designs": [self._data(design) for design in self.designs],
            "config_design": self._data(self.own),
            "cheapest": self._data(self.cheapest),
            "rows_wanted": self.rows_wanted,
            "best_for_max_cost": self._data(self.best),
            "best_n": self.best_n,
        }

    def _data(self, design: Design | None) -> dict[str, Any] | None:
        if design is None:
            return None
        sees = number_data(None) | {"reason": "no difference within the scale is large enough"}
        if design.sees is not None:
            found = Difference(
                value=design.sees,
                low=design.least,
                high=design.greatest,
                rows=self.outlook.likely.rows,
                samples=self.outlook.samples,
                method="paired-t",
                reason=None if self.outlook.possible else "the spread is taken as known",
            )
            sees = number_data(found)
        known = {name: getattr(design, name) for name in ("power", "cost_usd", "duration_s")}
        return {"rows": design.rows, "n": design.n, "attempts": design.attempts, "sees": sees, **known}


def make_plan(
    goal: Goal, outlook: Outlook, price: AttemptPrice, *, own_rows: int | None, own_n: int
) -> EvalPlan:
    """Return the designs that reach a goal, with the design of the config, if its rows are known."""
    planner = _Planner(goal, outlook, price)
    own = None if own_rows is None else planner.design(own_rows, own_n)
    cheapest, best = planner.cheapest(), planner.best()
    more_rows = more_attempts = None
    if own is not None and planner.allowed(2 * own.rows):
        more_rows = planner.design(2 * own.rows, own.n)
    if own is not None and planner.parted:
        more_attempts = planner.design(own.rows, 2 * own.n)
    return EvalPlan(
        goal=goal,
        outlook=outlook,
        price=price,
        designs=planner.table(own_n, [each for each in (own, cheapest, best) if each is not None]),
        own=own,
        cheapest=cheapest,
        rows_wanted=None if goal.detect is None else planner.rows_needed(own_n),
        best=best,
        best_n=planner.best_n(),
        more_rows=more_rows,
        more_attempts=more_attempts,
    )


@dataclass(frozen=True, slots=True)
class _Planner:
    goal: Goal
    outlook: Outlook
    price: AttemptPrice

    @property
    def parted(self) -> bool:
        """Whether it is known what attempts bring."""
        return self.outlook.likely.within is not None

    def allowed(self, rows: int) -> bool:
        return self.goal.most_rows is None or rows <= self.goal.most_rows

    def design(self, rows: int, n: int) -> Design:
        sees = self.sees(self.outlook.likely, rows, n)
        possible = [self.sees(spread, rows, n) for spread in (self.outlook.likely, *self.outlook.possible)]
        known = [each for each in possible if each is not None] if len(possible) > 1 else []

        def within_scale(difference: float | None) -> float | None:
            width = self.goal.width
            return None if difference is None or (width is not None and difference > width) else difference

        power = duration = None
        if self.goal.judged_by is not None:
            test: dict[str, Any] = {key: self.test[key] for key in ("confidence", "pass_or_fail")}
            power = power_of(self.goal.judged_by, self.outlook.likely, rows, n, **test)
        if self.price.duration_s is not None:
            # The last round of attempts takes as long as a full one.
            duration = math.ceil(rows * n / self.price.at_once) * self.price.duration_s
        return Design(
            rows=rows,
            n=n,
            sees=within_scale(sees),
            least=within_scale(min(known, default=None)),
            greatest=within_scale(max(known, default=None)),
            power=power,
            cost_usd=self.cost(rows, n),
            duration_s=duration,
        )

    @property
    def test(self) -> dict[str, Any]:
        goal = self.goal
        return {"confidence": goal.confidence, "power": goal.power, "pass_or_fail": goal.pass_or_fail}

    def sees(self, spread: VarianceComponents, rows: int, n: int) -> float | None:
        return detectable(spread, rows, n, **self.test)

    def cost(self, rows: int, n: int) -> float | None:
        if self.price.cost_usd is None:
            return None
        return rows * (self.goal.row_cost_usd + n * self.price.cost_usd)

    def rows_needed(self, n: int) -> int | None:
        if self.goal.detect is None:
            return None
        return rows_needed(self.goal.detect, self.outlook.likely, n, **self.test)

    def cheapest(self) -> Design | None:
        """Return the design that reaches the goal for the least money; for the fewest attempts where none is known."""
        usual = self.cheapest_of(_TRIED_ATTEMPTS if self.parted else (1,))
        # Many attempts on a row are for those who have no more rows.
        return usual or (self.cheapest_of(_MANY_ATTEMPTS) if self.parted else None)

    def cheapest_of(self, attempts: Sequence[int]) -> Design | None:
        found = []
        for n in attempts:
            rows = self.rows_needed(n)
            if rows is not None and self.allowed(rows):
                cost = self.cost(rows, n)
                found.append((cost or rows * n, rows * n, rows, n))
        return self.design(*min(found)[2:]) if found else None

    def best(self) -> Design | None:
        """Return the design that sees the smallest difference for the most that may be spent."""
        price, most = self.price.cost_usd, self.goal.most_cost_usd
        if price is None or most is None:
            return None
        found = []
        for n in _TRIED_ATTEMPTS if self.parted else (1,):
            each = self.goal.row_cost_usd + n * price
            # A tenth of a cent's rounding shall not cost a row.
            rows = math.floor(most / each + 1e-9) if each * MOST_ROWS > most else MOST_ROWS
            rows = rows if self.goal.most_rows is None else min(rows, self.goal.most_rows)
            sees = self.sees(self.outlook.likely, rows, n)
            if sees is not None and rows < MOST_ROWS:
                found.append((sees, rows * n, rows, n))
        return self.design(*min(found)[2:]) if found else None

    def best_n(self) -> int | None:
        if self.goal.row_cost_usd and not self.price.cost_usd:
            return None
        return best_n(
            self.outlook.likely, cost_row=self.goal.row_cost_usd, cost_attempt=self.price.cost_usd or 0.0
        )

    def table(self, own_n: int, more: Iterable[Design]) -> tuple[Design, ...]:
        most = self.goal.most_rows
        shown = [50, 100, 200, 500, 1000]
        if most is not None:
            shown = [*[rows for rows in _ROWS if rows < most][-_SHOWN_ROWS:], most]
        attempts = {*_ATTEMPTS, own_n} if self.parted else {1}
        found = {(rows, n) for rows in shown for n in attempts} | {(design.rows, design.n) for design in more}
        return tuple(self.design(rows, n) for rows, n in sorted(found))
