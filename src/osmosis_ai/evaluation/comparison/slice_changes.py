"""The deciding metric by the values of a column: where a candidate is better, and where it is not.

Many slices are many chances to be fooled: p-values are adjusted for all slices of a candidate at once, and a slice of a
few rows gets a number but no verdict.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from osmosis_ai.evaluation.comparison.metric_changes import ChangeSettings, MetricChange, adjust, change_of
from osmosis_ai.evaluation.comparison.multiplicity import benjamini_hochberg
from osmosis_ai.evaluation.comparison.verdict import Direction, direction_of

if TYPE_CHECKING:
    from osmosis_ai.evaluation.comparison.run_pairs import LabelledRun, RunPair

FEWEST_ROWS = 10
"""A slice of fewer rows has no verdict."""


@dataclass(frozen=True, slots=True)
class SliceChange:
    """The rows of one value of a column."""

    column: str
    value: str | None
    change: MetricChange
    verdict: Direction | None

    @property
    def rows(self) -> int:
        """How many rows the change is of."""
        return self.change.change.rows if self.change.change is not None else 0

    def data(self) -> dict[str, Any]:
        """Return it as scripts see it."""
        return {"column": self.column, "value": self.value, "verdict": self.verdict, **self.change.data()}


def slice_changes(
    pair: RunPair, columns: Sequence[str], metric: str, settings: ChangeSettings
) -> tuple[SliceChange, ...]:
    """Return the change of a metric in every slice of every column, columns as they were asked, values by
    name."""
    found = [
        SliceChange(column, value, change_of(chosen, metric, settings), None)
        for column in columns
        for value, chosen in pairs_by_value(pair, column).items()
    ]
    large = [each.change for each in found if each.rows >= FEWEST_ROWS]
    adjusted = iter(adjust(large, benjamini_hochberg))
    return tuple(
        _judged(each, next(adjusted), settings) if each.rows >= FEWEST_ROWS else each for each in found
    )


def _judged(found: SliceChange, adjusted: MetricChange, settings: ChangeSettings) -> SliceChange:
    return replace(found, change=adjusted, verdict=direction_of(adjusted, settings.confidence))


def pairs_by_value(pair: RunPair, column: str) -> Mapping[str | None, RunPair]:
    """Return the pair of each value; where rows are paired, they have the values of the baseline's dataset."""
    values_a = _values(pair.a, column)
    values_b = values_a if pair.paired else _values(pair.b, column)
    names = sorted({*values_a, *values_b}, key=lambda value: (value is None, value))
    return {
        name: pair.of_rows([value == name for value in values_a], [value == name for value in values_b])
        for name in names
    }


def _values(side: LabelledRun, column: str) -> list[str | None]:
    of_rows = side.run.slice_values(column)
    return [of_rows[row] for row in side.index.tolist()]
