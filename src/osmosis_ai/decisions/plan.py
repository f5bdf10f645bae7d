"""Plan a comparison: sample sizes, the difference that each detects, its cost and duration.

A plan is about the difference of two runs of the same design on the same rows. With two runs, the variance between rows
is measured. With one run, half of the variance between its rows is assumed to be shared with the other run
(correlation 0.5), so that the difference varies between rows as a run does, and within rows as two do. Numbers from a
pilot allow for the pilot's own uncertainty (:func:`~osmosis_ai.statistics.power.allowing_for_the_pilot`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
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
        """Return the assumption for a pass rate before the first run; ICCs of 0.1 to 0.7 are possible."""

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
    """Cost of an attempt and number of attempts that finish per second; None if unknown."""

    cost_usd: float | None = None
    per_second: float | None = None


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


@dataclass(frozen=True)
class EvalPlan:
    """The designs that answer a question about the config's ``own_rows``, if known, and ``own_n`` attempts."""

    goal: Goal
    outlook: Outlook
    price: AttemptPrice
    own_rows: int | None
    own_n: int

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

    @cached_property
    def own(self) -> Design | None:
        """The design of the config."""
        return None if self.own_rows is None else self._design(self.own_rows, self.own_n)

    @cached_property
    def cheapest(self) -> Design | None:
        """The design that reaches the goal for the least money, or without a price with the fewest attempts."""
        # Many attempts on a row are for those who have no more rows.
        return self._cheapest_of(self._tried) or (self._cheapest_of(_MANY_ATTEMPTS) if self._parted else None)

    @cached_property
    def rows_wanted(self) -> int | None:
        """The rows that reach the goal with the attempts of the config."""
        return None if self.goal.detect is None else self._rows_needed(self.own_n)

    @cached_property
    def best(self) -> Design | None:
        """The design that detects the smallest difference within the budget."""
        price, most = self.price.cost_usd, self.goal.most_cost_usd
        if price is None or most is None:
            return None
        found = []
        for n in self._tried:
            each = self.goal.row_cost_usd + n * price
            # A tenth of a cent's rounding shall not cost a row.
            rows = math.floor(most / each + 1e-9) if each * MOST_ROWS > most else MOST_ROWS
            rows = rows if self.goal.most_rows is None else min(rows, self.goal.most_rows)
            sees = self._sees(self.outlook.likely, rows, n)
            if sees is not None and rows < MOST_ROWS:
                found.append((sees, rows * n, rows, n))
        return self._design(*min(found)[2:]) if found else None

    @property
    def best_n(self) -> int | None:
        """The most cost-effective number of attempts a row."""
        row, attempt = self.goal.row_cost_usd, self.price.cost_usd
        if row and not attempt:
            return None
        return best_n(self.outlook.likely, cost_row=row, cost_attempt=attempt or 0.0)

    @cached_property
    def more_rows(self) -> Design | None:
        """The config's design with twice the rows."""
        if self.own is None or not self._allowed(2 * self.own.rows):
            return None
        return self._design(2 * self.own.rows, self.own.n)

    @cached_property
    def more_attempts(self) -> Design | None:
        """The config's design with twice the attempts."""
        return self._design(self.own.rows, 2 * self.own.n) if self.own and self._parted else None

    @cached_property
    def designs(self) -> tuple[Design, ...]:
        """A table of designs, with those above."""
        most = self.goal.most_rows
        shown = [50, 100, 200, 500, 1000]
        if most is not None:
            shown = [*[rows for rows in _ROWS if rows < most][-_SHOWN_ROWS:], most]
        attempts = {*_ATTEMPTS, self.own_n} if self._parted else {1}
        more = {(each.rows, each.n) for each in (self.own, self.cheapest, self.best) if each is not None}
        sizes = {(rows, n) for rows in shown for n in attempts} | more
        return tuple(self._design(rows, n) for rows, n in sorted(sizes))

    @property
    def _parted(self) -> bool:
        """Whether the variance within rows is known, and with it the gain of attempts."""
        return self.outlook.likely.within is not None

    @property
    def _tried(self) -> Sequence[int]:
        return _TRIED_ATTEMPTS if self._parted else (1,)

    @property
    def _test(self) -> dict[str, Any]:
        goal = self.goal
        return {"confidence": goal.confidence, "power": goal.power, "pass_or_fail": goal.pass_or_fail}

    def _allowed(self, rows: int) -> bool:
        return self.goal.most_rows is None or rows <= self.goal.most_rows

    def _design(self, rows: int, n: int) -> Design:
        sees = self._sees(self.outlook.likely, rows, n)
        possible = [self._sees(spread, rows, n) for spread in (self.outlook.likely, *self.outlook.possible)]
        known = [each for each in possible if each is not None] if len(possible) > 1 else []

        def within_scale(difference: float | None) -> float | None:
            width = self.goal.width
            return None if difference is None or (width is not None and difference > width) else difference

        power = duration = cost = None
        if self.goal.judged_by is not None:
            test: dict[str, Any] = {key: self._test[key] for key in ("confidence", "pass_or_fail")}
            power = power_of(self.goal.judged_by, self.outlook.likely, rows, n, **test)
        if self.price.per_second:
            duration = rows * n / self.price.per_second
        if self.price.cost_usd is not None:
            cost = rows * (self.goal.row_cost_usd + n * self.price.cost_usd)
        return Design(
            rows=rows,
            n=n,
            sees=within_scale(sees),
            least=within_scale(min(known, default=None)),
            greatest=within_scale(max(known, default=None)),
            power=power,
            cost_usd=cost,
            duration_s=duration,
        )

    def _sees(self, spread: VarianceComponents, rows: int, n: int) -> float | None:
        return detectable(spread, rows, n, **self._test)

    def _rows_needed(self, n: int) -> int | None:
        if self.goal.detect is None:
            return None
        return rows_needed(self.goal.detect, self.outlook.likely, n, **self._test)

    def _cheapest_of(self, attempts: Sequence[int]) -> Design | None:
        sizes = [(rows, n) for n in attempts if (rows := self._rows_needed(n)) is not None]
        found = [self._design(rows, n) for rows, n in sizes if self._allowed(rows)]
        if not found:
            return None
        return min(found, key=lambda each: (each.cost_usd or each.attempts, each.attempts, each.rows, each.n))
