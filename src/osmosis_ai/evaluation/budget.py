"""A run stops starting attempts when its budget is spent; what is in flight may finish.

Spending counts everything the run has cost, in this session and in earlier ones, attempts that
never became a result included as far as this session saw them. What cannot be measured is not
taken for free: under a limit on cost or tokens, a call whose cost or tokens are unknown ends
the budget with that reason.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from osmosis_ai.errors import OsmosisError

if TYPE_CHECKING:
    from osmosis_ai.evaluation.record import TerminalRecord


_UNKEPT = ", so the budget cannot be kept"


@dataclass(frozen=True, slots=True)
class Budget:
    """Limits of a run; None is no limit."""

    max_cost_usd: float | None = None
    max_tokens: int | None = None
    max_time_s: float | None = None
    tokens_option: str = "--max-tokens"

    def __post_init__(self) -> None:
        for option, limit in (
            ("--max-cost", self.max_cost_usd),
            (self.tokens_option, self.max_tokens),
            ("--max-time", self.max_time_s),
        ):
            if limit is not None and not (0 < limit < float("inf")):
                raise OsmosisError(f"`{option}` must be a positive number, not {limit}.")

    def __bool__(self) -> bool:
        return (self.max_cost_usd, self.max_tokens, self.max_time_s) != (None, None, None)


class Spent(NamedTuple):
    """What some attempts have used."""

    tokens: int
    cost_usd: float


NOTHING = Spent(0, 0.0)


class Spendings(NamedTuple):
    """What all that was counted comes to: enough to go on counting from."""

    tokens: int = 0
    cost_usd: float = 0.0
    cost_known: bool = False
    without_tokens: bool = False
    without_cost: bool = False


class Spending:
    """What a run has cost so far, measured against its budget."""

    def __init__(
        self, budget: Budget, *, earlier_s: float = 0.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._budget = budget
        self._earlier_s = earlier_s
        self._clock = clock
        self._started = clock()
        self.go_on_from(Spendings())

    def go_on_from(self, counted: Spendings) -> None:
        """Have ``counted`` in place of what was."""
        self.tokens, self.cost_usd, self.cost_known = counted[:3]
        self._without_tokens, self._without_cost = counted[3:]

    @property
    def counted(self) -> Spendings:
        """What all that was counted comes to."""
        return Spendings(
            self.tokens, self.cost_usd, self.cost_known, self._without_tokens, self._without_cost
        )

    def add_record(self, record: TerminalRecord) -> None:
        """Count what an attempt has cost, its judges included."""
        self.add(calls=record.model_calls or 0, tokens=record.tokens or 0, cost_usd=record.cost_usd)
        self.add_judges(tokens=record.judge_tokens or 0, cost_usd=record.judge_cost_usd)

    def add(self, *, calls: int, tokens: int, cost_usd: float | None) -> None:
        """Count the model calls of an attempt."""
        self.tokens += tokens
        if cost_usd is not None:
            self.cost_usd += cost_usd
            self.cost_known = True
        self._without_tokens |= bool(calls and not tokens)
        self._without_cost |= bool(calls and cost_usd is None)

    def add_judges(self, *, tokens: int, cost_usd: float | None) -> None:
        """Count what an attempt's grader asked of judges; a price that is not known ends no budget."""
        self.tokens += tokens
        self.cost_usd += cost_usd or 0.0
        self.cost_known = self.cost_known or cost_usd is not None

    def start_clock(self) -> None:
        """Start this session's wall clock now instead of when the object was made."""
        self._started = self._clock()

    @property
    def elapsed_s(self) -> float:
        """Wall-clock seconds of the run, earlier sessions included."""
        return self._earlier_s + self._clock() - self._started

    def exhausted(self, in_flight: Callable[[], Spent] = lambda: NOTHING) -> str | None:
        """Return why no further attempt may start, naming the option to raise; None while one may."""
        limits = self._budget
        if limits.max_time_s is not None and self.elapsed_s >= limits.max_time_s:
            return f"{self.elapsed_s:.0f} s passed of `--max-time {limits.max_time_s:g}`"
        if limits.max_cost_usd is None and limits.max_tokens is None:
            return None
        under_way = in_flight()
        cost_usd, tokens = self.cost_usd + under_way.cost_usd, self.tokens + under_way.tokens
        if limits.max_cost_usd is not None and cost_usd >= limits.max_cost_usd:
            return f"${cost_usd:.4f} spent of `--max-cost {limits.max_cost_usd:g}`"
        if limits.max_tokens is not None and tokens >= limits.max_tokens:
            return f"{tokens:,} tokens used of `{limits.tokens_option} {limits.max_tokens}`"
        if self._without_tokens:
            return f"the model's endpoint does not report how many tokens it used{_UNKEPT}"
        if self._without_cost and limits.max_cost_usd is not None:
            return f"the cost of a model call is not known{_UNKEPT}"
        return None
