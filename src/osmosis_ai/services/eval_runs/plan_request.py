"""What `osmosis eval plan` is asked for, and whether it has a meaning: known before any run or dataset is looked at."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

from osmosis_ai.config.decisions import MOST_CONFIDENCE
from osmosis_ai.errors import OsmosisError

_MOST_USD = 1e12

PlannedMetric: TypeAlias = Literal["pass_rate", "reward"]


class PlanUsageError(OsmosisError):
    """What was asked for has no meaning, whatever the runs say."""


@dataclass(frozen=True)
class PlanRequest:
    """What the user asked for; every field but ``config`` may be left out.

    Attributes:
        config: a file of ``configs/eval/``.
        pilot, against: runs that tell the spread; with both it is that of their difference.
        detect: the difference to be seen, on the scale of the metric: three points of a rate are 0.03.
        power: in how many of all cases.
        confidence: of the interval that has to leave out no difference; that of the decide file when None.
        max_cost: US dollars for one run.
        rows_at_most: as many as there are in the dataset when None.
        row_cost: US dollars that one more row costs to make, besides its attempts.
        pass_rate, icc: what is assumed without a pilot.
    """

    config: Path
    metric: PlannedMetric = "pass_rate"
    pilot: str | None = None
    against: str | None = None
    detect: float | None = None
    power: float = 0.8
    confidence: float | None = None
    max_cost: float | None = None
    rows_at_most: int | None = None
    row_cost: float = 0.0
    pass_rate: float | None = None
    icc: float | None = None

    @property
    def from_runs(self) -> bool:
        """Whether a run tells the spread."""
        return self.pilot is not None or self.against is not None

    def check(self) -> None:
        """Check what can be checked without looking at anything.

        Raises:
            PlanUsageError: it has no meaning.
        """
        for option, number, low, high, said in (
            ("--power", self.power, 0.5, 1, "between 0.5 and 1, such as 0.8"),
            (
                "--confidence",
                self.confidence,
                0.5,
                math.nextafter(MOST_CONFIDENCE, 1),
                "between 0.5 and 1, such as 0.95",
            ),
            ("--pass-rate", self.pass_rate, 0, 1, "between 0 and 1: write 60 % as 0.6"),
        ):
            if number is not None and not low < number < high:
                raise PlanUsageError(f"{option} must lie {said}, got {number:g}.")
        if "" in (self.pilot, self.against):
            raise PlanUsageError("--pilot and --against name a run; leave them out to plan without one.")
        if self.icc is not None and not 0 <= self.icc <= 1:
            raise PlanUsageError(f"--icc is a share, from 0 to 1, got {self.icc:g}.")
        if self.detect is not None and not (math.isfinite(self.detect) and self.detect > 0):
            raise PlanUsageError(f"--detect must be a difference above 0, got {self.detect:g}.")
        for option, cost in (("--max-cost", self.max_cost), ("--row-cost", self.row_cost)):
            if cost is not None and not 0 <= cost <= _MOST_USD:
                raise PlanUsageError(
                    f"{option} must be an amount of US dollars, from 0 to {_MOST_USD:g}, got {cost:g}."
                )
        if self.rows_at_most is not None and self.rows_at_most < 2:
            raise PlanUsageError(
                "--rows-at-most must be 2 or more: one row says nothing about others, whatever its attempts."
            )
        if self.from_runs and (self.pass_rate is not None or self.icc is not None):
            raise PlanUsageError("--pass-rate and --icc are what is assumed without a run; leave them out.")
        if self.metric == "pass_rate":
            self.check_scale(1.0)
        elif not self.from_runs:
            raise PlanUsageError(
                "--metric reward needs a --pilot: nobody can assume how far rewards lie apart."
            )

    def check_scale(self, width: float | None) -> None:
        """Check that there can be such a difference.

        Raises:
            PlanUsageError: there is none.
        """
        if self.detect is None or width is None or self.detect <= width:
            return
        what = f"a {self.metric.replace('_', ' ')} can change by {width:g} at most"
        points = f": write {self.detect:g} points as {self.detect / 100:g}" if width == 1 else ""
        raise PlanUsageError(
            f"no number of rows or attempts will show a difference of {self.detect:g}: {what}{points}."
        )
