"""Several judges as a panel: how well they agree, and what each is worth beside the others.

Each judge enters with the mean of its runs, so that a judge with more scored runs has no more votes.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING

from osmosis_ai.rubric.agreement import Intraclass, krippendorff_alpha, two_way_icc
from osmosis_ai.rubric.correlation import pearson, spearman
from osmosis_ai.rubric.estimate import TrustEstimate
from osmosis_ai.rubric.scores import mean_where_known

if TYPE_CHECKING:
    from osmosis_ai.rubric.scores import Floats, ScoreTable

ONE_JUDGE = "one model judged; name several with `--model` to form a panel"


@dataclass(frozen=True, slots=True)
class Pair:
    """Two judges on the records that both scored; the difference is the first minus the second."""

    first: str
    second: str
    pearson: TrustEstimate
    spearman: TrustEstimate
    difference: TrustEstimate


@dataclass(frozen=True, slots=True)
class LeftOut:
    """One judge against the mean of the others, on the records that it and any other scored."""

    model: str
    pearson: TrustEstimate
    spearman: TrustEstimate
    difference: TrustEstimate
    mean_absolute_difference: TrustEstimate


@dataclass(frozen=True, slots=True)
class Panel:
    """The agreement of several judges, and their consensus."""

    alpha: TrustEstimate
    alpha_ordinal: TrustEstimate
    absolute: Intraclass
    consistency: Intraclass
    consensus: TrustEstimate
    consensus_median: TrustEstimate
    pairs: tuple[Pair, ...]
    left_out: tuple[LeftOut, ...]


def measure_panel(table: ScoreTable, *, seed: int = 0) -> Panel | None:
    """Return how well the judges of ``table`` agree; None when there is only one."""
    if len(table.models) < 2:
        return None
    means = table.model_means()
    places = range(len(table.models))
    widest = table.score_max - table.score_min
    return Panel(
        alpha=krippendorff_alpha(means, seed=seed),
        alpha_ordinal=krippendorff_alpha(means, level="ordinal", seed=seed),
        absolute=two_way_icc(means, seed=seed),
        consistency=two_way_icc(means, consistency=True, seed=seed),
        consensus=_mean_of_known(table.consensus(), table),
        consensus_median=_mean_of_known(table.consensus_median(), table),
        pairs=tuple(
            Pair(table.models[a], table.models[b], *_compared(means[:, a], means[:, b], widest)[:3])
            for a, b in combinations(places, 2)
        ),
        left_out=tuple(
            LeftOut(table.models[place], *_compared(means[:, place], _mean_of_others(means, place), widest))
            for place in places
        ),
    )


def _compared(
    a: Floats, b: Floats, widest: float
) -> tuple[TrustEstimate, TrustEstimate, TrustEstimate, TrustEstimate]:
    """Return (Pearson, Spearman, mean difference, mean distance) of two scores by record, ``widest`` apart at most."""
    import numpy as np

    both = ~np.isnan(a) & ~np.isnan(b)
    a, b = a[both], b[both]
    return (
        pearson(a, b),
        spearman(a, b),
        TrustEstimate.of_mean(a - b, low=-widest, high=widest),
        TrustEstimate.of_mean(np.abs(a - b), low=0.0, high=widest),
    )


def _mean_of_others(means: Floats, place: int) -> Floats:
    import numpy as np

    return mean_where_known(np.delete(means, place, axis=1))


def _mean_of_known(values: Floats, table: ScoreTable) -> TrustEstimate:
    import numpy as np

    return TrustEstimate.of_mean(values[~np.isnan(values)], low=table.score_min, high=table.score_max)
