"""The numbers of one run by the values of a column of its dataset."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from osmosis_ai.errors import OsmosisError
from osmosis_ai.evaluation.comparison.numbers import number_data
from osmosis_ai.evaluation.statistics import estimate_rate, estimate_reward, fitting_range

if TYPE_CHECKING:
    from osmosis_ai.evaluation.comparison.run_samples import RunSamples
    from osmosis_ai.evaluation.statistics import Estimate, Integers


@dataclass(frozen=True, slots=True)
class RunSlice:
    """The rows of one value of a column."""

    column: str
    value: str | None
    rows: int
    reward: Estimate | None
    pass_rate: Estimate | None

    def data(self) -> dict[str, Any]:
        """Return it as scripts see it."""
        return {
            "column": self.column,
            "value": self.value,
            "rows": self.rows,
            "reward": number_data(self.reward),
            "pass_rate": number_data(self.pass_rate),
        }


def run_slices(run: RunSamples, columns: Sequence[str]) -> tuple[RunSlice, ...]:
    """Return the slices of every column, columns as they were asked, values by name."""
    if columns and run.summary is not None:
        raise OsmosisError(
            f"the platform does not tell the attempts of {run.name}, so it can not be cut into slices.",
            hint="leave out --slice",
        )
    return tuple(found for column in dict.fromkeys(columns) for found in _slices(run, column))


def _slices(run: RunSamples, column: str) -> list[RunSlice]:
    import numpy as np

    values = run.slice_values(column)
    names = sorted(set(values), key=lambda value: (value is None, value))
    places = {name: place for place, name in enumerate(names)}
    slice_of_row: Integers = np.array([places[value] for value in values], dtype=np.int64)
    scored = run.samples[run.scored]
    slice_of_sample, passed = slice_of_row[scored["row"]], run.passed[run.scored].astype(np.float64)
    reward_range, _ = fitting_range(scored["reward"], run.reward_range)
    found = []
    for name, place in places.items():
        mine = slice_of_sample == place
        rows = scored["row"][mine].astype(np.int64)
        reward = estimate_reward(scored["reward"][mine], rows, reward_range=reward_range)
        rate = estimate_rate(passed[mine], rows)
        found.append(RunSlice(column, name, int((slice_of_row == place).sum()), reward, rate))
    return found
