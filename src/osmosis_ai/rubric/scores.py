"""Scores of a judging session as one array: records by models by runs.

An unscored call is NaN and never counts as zero. All scores are on one scale from ``score_min`` to ``score_max``.
Records with their own bounds are rescaled to it first (:func:`rescaled`).
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

# Round means relative to the scale, so that the mean of 0.1 and 0.5 ties with a score of 0.3.
_DIGITS = 12


@dataclass(frozen=True, eq=False)
class ScoreTable:
    """The scores of a session and the known properties of each record.

    Attributes:
        models: Display names of the judges; the second axis of ``scores``.
        labels: One name per record; the first axis of ``scores``. Numbering starts at 1.
        scores: (records, models, runs); NaN for unscored calls.
        score_min, score_max: The scale of all scores.
        human: (records,) human scores on the same scale; NaN if missing.
        lengths: (records,) characters of the scored text.
        presentations: Name of the block order in each run's prompt; None if all calls use the same order.
        copy_of: (records,) index of the first identical record, or its own; None if there are no copies.
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
        """Number of records, scored or not."""
        return int(self.scores.shape[0])

    @property
    def runs(self) -> int:
        """Number of calls per model and record."""
        return int(self.scores.shape[2])

    @property
    def span(self) -> float:
        return self.score_max - self.score_min

    def distinct(self) -> ScoreTable:
        """Return the table with one record per group of copies, preferring human scores, then most scores."""
        import numpy as np

        if self.copy_of is None:
            return self
        groups = np.asarray(self.copy_of, dtype=np.int64)
        known = (~np.isnan(self.scores)).sum(axis=(1, 2))
        # Sort by group, the best record of each group first, ties in file order.
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
        """Return (records, models): each model's mean over its runs; NaN without a score."""
        return self._settled(mean_where_known(self.scores))

    def consensus(self) -> Floats:
        """Return (records,): the mean of the models' means, which weighs models equally."""
        return self._settled(mean_where_known(self.model_means()))

    def consensus_median(self) -> Floats:
        """Return (records,): the median of the models' means, which is robust to one outlier."""
        return self._settled(median_where_known(self.model_means()))

    def _settled(self, values: Floats) -> Floats:
        """Round away floating-point errors, so that equal scores tie."""
        import numpy as np

        rounded: Floats = np.round(values, _DIGITS - math.ceil(math.log10(self.span)))
        return rounded


def mean_where_known(values: Floats) -> Floats:
    """Return the mean over the last axis, ignoring NaN; NaN if all values are."""
    import numpy as np

    known = ~np.isnan(values)
    counts = known.sum(axis=-1)
    sums = np.where(known, values, 0.0).sum(axis=-1)
    means: Floats = np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)
    return means


def median_where_known(values: Floats) -> Floats:
    """Return the median over the last axis, ignoring NaN; NaN if all values are."""
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
    """Map ``values`` linearly from the scale ``low`` … ``high`` to ``to_low`` … ``to_high``."""
    import numpy as np

    # Extreme bounds in a file can give a non-finite result, which callers check.
    with np.errstate(all="ignore"):
        share = (np.asarray(values, dtype=np.float64) - low) / (np.asarray(high) - np.asarray(low))
        moved: Floats = to_low + share * (to_high - to_low)
    return moved


def score_ranges(scores: Floats) -> Floats:
    """Return maximum minus minimum along the last axis; 0 for one score, NaN for none."""
    import numpy as np

    known = ~np.isnan(scores)
    highest = np.where(known, scores, -np.inf).max(axis=-1)
    lowest = np.where(known, scores, np.inf).min(axis=-1)
    scored = known.any(axis=-1)
    ranges: Floats = np.full(scored.shape, np.nan)
    ranges[scored] = highest[scored] - lowest[scored]
    return ranges


def most_disputed(table: ScoreTable, most: int) -> set[int]:
    """Return up to ``most`` records whose scores differ most from each other or from human scores."""
    import numpy as np

    spread = score_ranges(table.scores.reshape(table.records, -1))
    gap = np.abs(table.consensus() - table.human)
    # A record without any score needs the most explanation.
    interest = np.fmax(np.nan_to_num(spread, nan=table.span), np.nan_to_num(gap, nan=0.0))
    return set(np.argsort(-interest, kind="stable")[:most].tolist())
