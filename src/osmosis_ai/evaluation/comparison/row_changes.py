"""The rows of a paired comparison whose reward or pass rate changed most.

A single row has too few attempts for a test: 4 of 4 passes against 0 of 4 has p = 0.029, which may be chance among 100 rows.
So rows are listed by the size of their change, and there is no verdict on any of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from osmosis_ai.evaluation.comparison.run_pairs import RunPair

_ROUNDING = 1e-12


@dataclass(frozen=True, slots=True)
class RowOfRun:
    """Passes and mean reward of one run on a row, over scored attempts."""

    passes: int
    attempts: int
    reward: float

    def data(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return {"passes": self.passes, "attempts": self.attempts, "reward": self.reward}


@dataclass(frozen=True, slots=True)
class RowChange:
    """A row on which the runs differ."""

    source_row: int
    key: str
    baseline: RowOfRun
    candidate: RowOfRun
    change: float

    def data(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return {
            "source_row_index": self.source_row,
            "digest": self.key,
            "baseline": self.baseline.data(),
            "candidate": self.candidate.data(),
            "change": self.change,
        }


@dataclass(frozen=True, slots=True)
class RowChanges:
    """How the rows with a score in both runs changed."""

    metric: Literal["reward", "pass_rate"]
    compared: int
    higher: int
    lower: int
    largest: tuple[RowChange, ...]

    def data(self) -> dict[str, Any]:
        """Return them as JSON values."""
        return {
            "metric": self.metric,
            "compared": self.compared,
            "higher": self.higher,
            "lower": self.lower,
            "largest": [row.data() for row in self.largest],
        }


def row_changes(pair: RunPair, metric: str, *, shown: int) -> RowChanges:
    """Find the rows with the largest change of a paired comparison."""
    import numpy as np

    counted = [side.pass_counts() for side in (pair.a, pair.b)]
    both = np.flatnonzero((counted[0].counts > 0) & (counted[1].counts > 0))
    attempts, passes = (
        np.stack([getattr(each, name)[both] for each in counted]) for name in ("counts", "passes")
    )
    rewards = np.empty(attempts.shape)
    for place, side in enumerate((pair.a, pair.b)):
        values, rows = side.rewards()
        rewards[place] = np.bincount(rows, weights=values, minlength=side.index.size)[both] / attempts[place]
    before, after = rewards if metric == "reward" else passes / attempts
    change = after - before
    change[np.abs(change) <= _ROUNDING * np.maximum(np.abs(before), np.abs(after))] = 0.0
    order = np.lexsort((both, change, -np.abs(change)))[: np.count_nonzero(change)][:shown]

    def row(place: int) -> RowChange:
        at = int(pair.a.index[both[place]])
        sides = [
            RowOfRun(int(passes[side, place]), int(attempts[side, place]), float(rewards[side, place]))
            for side in (0, 1)
        ]
        run = pair.a.run
        return RowChange(int(run.source_rows[at]), run.row_keys[at], sides[0], sides[1], float(change[place]))

    return RowChanges(
        metric="reward" if metric == "reward" else "pass_rate",
        compared=int(both.size),
        higher=int(np.count_nonzero(change > 0)),
        lower=int(np.count_nonzero(change < 0)),
        largest=tuple(row(place) for place in order.tolist()),
    )
