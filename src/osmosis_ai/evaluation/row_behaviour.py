"""What a run says of its rows: how much of the spread lies between them, and which of them pass now and then.

Copies of a row are one row here, with the attempts of all of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from osmosis_ai.evaluation.metrics_models import FlakyRow, FlakyRows, VarianceShares
from osmosis_ai.evaluation.variance import VarianceComponents

if TYPE_CHECKING:
    from osmosis_ai.evaluation.statistics import Floats, Integers

LISTED_FLAKY_ROWS = 10


def variance_shares(rewards: Floats, rows: Integers) -> VarianceShares | None:
    """Return where the spread of rewards comes from (:mod:`~osmosis_ai.evaluation.variance`)."""
    import numpy as np

    if not rewards.size:
        return None
    # A share does not depend on the unit, and squares of huge rewards are no numbers.
    largest = float(np.abs(rewards).max()) or 1.0
    found = VarianceComponents.of(rewards / largest, rows)
    share = found.icc if found is not None else None
    if found is None or share is None:
        return None
    return VarianceShares(
        between_rows=share,
        between_attempts=1 - share,
        rows=found.rows,
        attempts_per_row=found.attempts,
        below_zero=found.negative,
    )


def flaky_rows(attempts: Integers, passes: Integers, clusters: Integers, sources: Integers) -> FlakyRows:
    """Return the rows of which some attempts passed and some did not, those that pass least first."""
    import numpy as np

    _, first, which = np.unique(clusters, return_index=True, return_inverse=True)
    which = which.reshape(-1)
    tried, passed = (
        np.bincount(which, weights=counts, minlength=first.size).astype(np.int64)
        for counts in (attempts, passes)
    )
    flaky = np.flatnonzero((passed > 0) & (passed < tried))
    # Of equal shares the one with more attempts is more certain; then the order of the rows.
    order = np.lexsort((first[flaky], -tried[flaky], passed[flaky] / tried[flaky]))
    worst = flaky[order][:LISTED_FLAKY_ROWS]
    return FlakyRows(
        count=int(flaky.size),
        of=int((tried > 0).sum()),
        worst=[
            FlakyRow(
                row_index=int(first[row]),
                source_row_index=int(sources[first[row]]) if sources[first[row]] >= 0 else None,
                passed=int(passed[row]),
                scored=int(tried[row]),
            )
            for row in worst
        ],
    )
