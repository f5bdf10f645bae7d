"""What a judging session scored, as one array: records by models by runs.

A call without a usable score is NaN and stays apart in every figure: it is never a zero. All
scores lie on one scale, from ``score_min`` to ``score_max``, so that they can be compared across
records; records that set bounds of their own are brought to it first (:func:`rescaled`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats: TypeAlias = NDArray[np.float64]
    Integers: TypeAlias = NDArray[np.int64]
    Booleans: TypeAlias = NDArray[np.bool_]

# Of the scale: a mean of 0.1 and 0.5 is the score 0.3, and ties with it.
_DIGITS = 12


@dataclass(frozen=True, eq=False)
class ScoreTable:
    """The scores of a session and what is known of each record.

    Attributes:
        models: the judges' names, as shown; the second axis of ``scores``.
        labels: one name per record; the first axis of ``scores``. People count records from 1.
        scores: (records, models, runs); NaN where a call gave no score.
        score_min, score_max: the scale of every score.
        human: (records,) scores given by people, on the same scale; NaN where there is none.
        lengths: (records,) characters of the scored text.
        presentations: one word per run that names the order in which the prompt quoted its blocks,
            when the runs differ in it; None when every call used the same order.
        copy_of: (records,) the place of the first record that each is a copy of, its own where it is none; None
            when no record is a copy.
    """

    models: Sequence[str]
    labels: Sequence[str]
    scores: Floats = field(repr=False)
    score_min: float
    score_max: float
    human: Floats = field(repr=False)
    lengths: Floats = field(repr=False)
    presentations: Sequence[str] | None = None
    copy_of: Sequence[int] | None = None

    def __post_init__(self) -> None:
        import numpy as np

        for name in ("scores", "human", "lengths"):
            object.__setattr__(self, name, np.asarray(getattr(self, name), dtype=np.float64))
        object.__setattr__(self, "scores", self._settled(self.scores))
        object.__setattr__(self, "human", self._settled(self.human))

    @property
    def records(self) -> int:
        """Records in the session, scored or not."""
        return int(self.scores.shape[0])

    @property
    def runs(self) -> int:
        """Calls asked of each model for each record."""
        return int(self.scores.shape[2])

    @property
    def span(self) -> float:
        """The width of the scale."""
        return self.score_max - self.score_min

    def distinct(self) -> ScoreTable:
        """Return the table with one record of each group of copies: one that people scored, with most scores."""
        import numpy as np

        if self.copy_of is None:
            return self
        groups = np.asarray(self.copy_of, dtype=np.int64)
        known = (~np.isnan(self.scores)).sum(axis=(1, 2))
        # Sorted by group, the best of each group first; ties by place in the file.
        order = np.lexsort((-known, np.isnan(self.human), groups))
        _, first = np.unique(groups[order], return_index=True)
        kept = np.sort(order[first])
        return replace(
            self,
            labels=[self.labels[place] for place in kept],
            scores=self.scores[kept],
            human=self.human[kept],
            lengths=self.lengths[kept],
            copy_of=None,
        )

    def model_means(self) -> Floats:
        """Return (records, models): each model's mean over its runs; NaN where it scored none."""
        return self._settled(mean_where_known(self.scores))

    def consensus(self) -> Floats:
        """Return (records,): the mean of the models' means, so that every model has one vote."""
        return self._settled(mean_where_known(self.model_means()))

    def consensus_median(self) -> Floats:
        """Return (records,): the median of the models' means, which one odd model does not move."""
        return self._settled(median_where_known(self.model_means()))

    def _settled(self, values: Floats) -> Floats:
        """Return ``values`` without the rounding errors that would tell equal scores apart."""
        import numpy as np

        rounded: Floats = np.round(values, _DIGITS - math.ceil(math.log10(self.span)))
        return rounded


def mean_where_known(values: Floats) -> Floats:
    """Return the mean over the last axis of what is not NaN; NaN where nothing is."""
    import numpy as np

    known = ~np.isnan(values)
    counts = known.sum(axis=-1)
    sums = np.where(known, values, 0.0).sum(axis=-1)
    means: Floats = np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)
    return means


def median_where_known(values: Floats) -> Floats:
    """Return the median over the last axis of what is not NaN; NaN where nothing is."""
    import numpy as np

    # NaN sorts last, so the known values of each row come first.
    ordered = np.sort(values, axis=-1)
    counts = (~np.isnan(values)).sum(axis=-1, keepdims=True)
    low = np.take_along_axis(ordered, np.maximum(counts - 1, 0) // 2, axis=-1)
    high = np.take_along_axis(ordered, np.minimum(counts // 2, values.shape[-1] - 1), axis=-1)
    medians: Floats = np.where(counts > 0, (low + high) / 2, np.nan)[..., 0]
    return medians


def rescaled(
    values: float | Floats, low: float | Floats, high: float | Floats, *, to_low: float, to_high: float
) -> Floats:
    """Return ``values`` moved linearly from the scale ``low`` … ``high`` to ``to_low`` … ``to_high``."""
    import numpy as np

    # A file's bounds may be so far apart, or so near, that what comes out is no number; callers look.
    with np.errstate(all="ignore"):
        share = (np.asarray(values, dtype=np.float64) - low) / (np.asarray(high) - np.asarray(low))
        moved: Floats = to_low + share * (to_high - to_low)
    return moved


def score_ranges(scores: Floats) -> Floats:
    """Return the greatest minus the least score along the last axis; 0 with one, NaN without any."""
    import numpy as np

    known = ~np.isnan(scores)
    highest = np.where(known, scores, -np.inf).max(axis=-1)
    lowest = np.where(known, scores, np.inf).min(axis=-1)
    scored = known.any(axis=-1)
    ranges: Floats = np.full(scored.shape, np.nan)
    ranges[scored] = highest[scored] - lowest[scored]
    return ranges


def most_disputed(table: ScoreTable, most: int) -> set[int]:
    """Return the places of the records on which scores differ most, from each other or from people's; ``most`` at most."""
    import numpy as np

    spread = score_ranges(table.scores.reshape(table.records, -1))
    gap = np.abs(table.consensus() - table.human)
    # A record without any score has the most to explain.
    interest = np.fmax(np.nan_to_num(spread, nan=table.span), np.nan_to_num(gap, nan=0.0))
    return set(np.argsort(-interest, kind="stable")[:most].tolist())
