"""Two runs with their rows laid side by side: what every number about both is computed from.

A row has one label for both runs where they are paired; a sample of a row that only one of them has carries none and is
in no number. Runs on different rows keep labels of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from osmosis_ai.config.decisions import LARGEST_REWARD
from osmosis_ai.driving.classify import STATUSES

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from osmosis_ai.evaluation.comparison.matching import MatchedRows
    from osmosis_ai.evaluation.comparison.run_samples import RunSamples
    from osmosis_ai.evaluation.statistics import Floats, Integers

_FAILED, _SKIPPED = STATUSES.index("failed"), STATUSES.index("skipped")
NOWHERE = -1
HUGE = LARGEST_REWARD


class Attempts(NamedTuple):
    """A number of each attempt of a run, and the label of its row."""

    values: Floats
    rows: Integers


class Passes(NamedTuple):
    """Of each row of a pair, how many attempts a run has with a score, and how many of them passed."""

    counts: Integers
    passes: Integers


@dataclass(frozen=True, eq=False)
class LabelledRun:
    """A run of a pair."""

    run: RunSamples
    rows: Integers
    index: Integers

    def with_copies_apart(self) -> tuple[LabelledRun, Integers]:
        """Return the run with a label for each copy of a row, and for each label the one that its copies share."""
        import numpy as np

        mine = self.rows >= 0
        index, first, labels = np.unique(
            self.run.samples["selected"][mine], return_index=True, return_inverse=True
        )
        rows = np.full(self.rows.shape, NOWHERE, dtype=np.int64)
        rows[mine] = labels.reshape(-1)
        return replace(self, rows=rows, index=index), self.rows[mine][first]

    def tried(self) -> NDArray[np.bool_]:
        """Of each sample, whether it takes part and was not skipped."""
        found: NDArray[np.bool_] = (self.rows >= 0) & (self.run.samples["status"] != _SKIPPED)
        return found

    def rewards(self, unscored_as: float | None = None) -> Attempts:
        """Return the rewards of scored attempts; of the unscored ones what is given, if anything is."""
        return self._scored_or(self.run.samples["reward"], unscored_as)

    def passed(self, unscored_as: float | None = None) -> Attempts:
        """Return 1 for each scored attempt that passed and 0 for the others, the unscored as :meth:`rewards`."""
        return self._scored_or(self.run.passed.astype("f8"), unscored_as)

    def unscored(self) -> Attempts:
        """Return 1 for each attempt without a score and 0 for the others."""
        tried = self.tried()
        return Attempts((~self.run.scored[tried]).astype("f8"), self.rows[tried])

    def failed(self) -> Attempts:
        """Return 1 for each attempt that failed and 0 for the others."""
        tried = self.tried()
        return Attempts((self.run.samples["status"][tried] == _FAILED).astype("f8"), self.rows[tried])

    def row_costs(self) -> Attempts:
        """Return what all attempts of a row cost together, in US dollars, of rows where each attempt tells."""
        import numpy as np

        tried = self.tried()
        costs, rows = self.run.samples["cost_usd"][tried], self.rows[tried]
        # One that is not known makes the sum not known.
        sums = np.bincount(rows, weights=costs, minlength=self.index.size).astype(np.float64)
        known = np.flatnonzero((np.bincount(rows, minlength=self.index.size) > 0) & (np.abs(sums) < HUGE))
        return Attempts(sums[known], known)

    def recorded(self, field: str) -> Attempts:
        """Return a quantity of every attempt that has it recorded."""
        import numpy as np

        values = self.run.samples[field]
        known = self.tried() & (np.abs(values) < HUGE)
        return Attempts(values[known], self.rows[known])

    def unreported(self, metric: str) -> int:
        """Return how many attempts did not report an amount."""
        import numpy as np

        field = {"cost_per_row": "cost_usd", "tokens": "tokens", "latency": "duration_ms"}[metric]
        return int((self.tried() & ~(np.abs(self.run.samples[field]) < HUGE)).sum())

    def pass_counts(self, unscored_as: float | None = None) -> Passes:
        """Return scored attempts and passes of each label."""
        import numpy as np

        values, rows = self.passed(unscored_as)
        counts = np.bincount(rows, minlength=self.index.size)
        passes = np.bincount(rows, weights=values, minlength=self.index.size)
        return Passes(counts, np.rint(passes).astype(np.int64))

    def _scored_or(self, values: Floats, unscored_as: float | None) -> Attempts:
        import numpy as np

        scored = self.run.scored & (self.rows >= 0)
        if unscored_as is None:
            return Attempts(values[scored], self.rows[scored])
        tried = self.tried()
        return Attempts(np.where(scored, values, unscored_as)[tried], self.rows[tried])


@dataclass(frozen=True, eq=False)
class RunPair:
    """A baseline and a candidate."""

    a: LabelledRun
    b: LabelledRun
    paired: bool

    @classmethod
    def of(cls, a: RunSamples, b: RunSamples, matched: MatchedRows | None) -> RunPair:
        """Lay two runs side by side by the rows that they share; without ``matched`` all rows of either take part."""
        import numpy as np

        if matched is None:
            every_a, every_b = (np.arange(len(run.row_keys)) for run in (a, b))
            return cls(_labelled(a, every_a), _labelled(b, every_b), paired=False)
        return cls(_labelled(a, matched.index_a), _labelled(b, matched.index_b), paired=True)

    def of_rows(self, chosen_a: Sequence[bool], chosen_b: Sequence[bool]) -> RunPair:
        """Return the pair with only the chosen labels of either run; of a paired one, the same labels."""
        return replace(self, a=_only(self.a, chosen_a), b=_only(self.b, chosen_b))


def mean_rewards(a: RunSamples, b: RunSamples, matched: MatchedRows) -> tuple[Floats, Integers]:
    """Return the pairs of mean rewards (to three digits) that common rows have in two runs, and how many have
    each."""
    import numpy as np

    pair, means = RunPair.of(a, b, matched), []
    for side in (pair.a, pair.b):
        values, labels = side.rewards()
        counts = np.bincount(labels, minlength=matched.common)
        sums = np.bincount(labels, weights=values, minlength=matched.common)
        means.append(np.where(counts > 0, sums / np.maximum(counts, 1), np.nan))
    both = np.round(np.stack(means, axis=1), 3)
    return np.unique(both[~np.isnan(both).any(axis=1)], axis=0, return_counts=True)


def _labelled(run: RunSamples, index: Integers) -> LabelledRun:
    import numpy as np

    labels = np.full(len(run.row_keys), NOWHERE, dtype=np.int64)
    labels[index] = np.arange(index.size)
    rows = labels[run.samples["row"]] if labels.size else np.zeros(0, dtype=np.int64)
    return LabelledRun(run, rows, index)


def _only(side: LabelledRun, chosen: Sequence[bool]) -> LabelledRun:
    import numpy as np

    # One more for NOWHERE, which is the last place.
    labels = np.append(np.where(chosen, np.arange(len(chosen)), NOWHERE), NOWHERE)
    return replace(side, rows=labels[side.rows])
