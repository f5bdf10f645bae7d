"""Which rows one run passes and the other does not, beyond what chance does.

A row tried four times that passed three times and now twice tells nothing. Rows whose change an exact
test finds, all rows being tried at once, are broken or fixed; the others that changed are unstable.

Sources:
    Fisher 1935, "The Design of Experiments", chapter II (the exact test of a two by two table).
    Benjamini and Hochberg 1995, "Controlling the False Discovery Rate".
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from osmosis_ai.evaluation.comparison.multiplicity import benjamini_hochberg

if TYPE_CHECKING:
    from osmosis_ai.evaluation.statistics import Floats, Integers, Labels

FALSE_DISCOVERIES = 0.05


@dataclass(frozen=True, slots=True, eq=False)
class RowChanges:
    """Rows by what became of them: positions in the arrays they were found from.

    Attributes:
        fixed: B passes them more often, beyond chance; the surest first.
        broken: B passes them less often, beyond chance; the surest first.
        unstable: they changed, and chance may have done it; the largest change first.
        p, p_adjusted: of every row: Fisher's, and after Benjamini and Hochberg.
    """

    fixed: Integers
    broken: Integers
    unstable: Integers
    p: Floats
    p_adjusted: Floats


def row_changes(
    a_passes: Labels, a_counts: Labels, b_passes: Labels, b_counts: Labels, *, rate: float = FALSE_DISCOVERIES
) -> RowChanges:
    """Sort rows into fixed, broken and unstable by the exact test of ``c_a`` of ``n_a`` and ``c_b`` of ``n_b``.

    Args:
        a_passes, b_passes: how often each run passed each row.
        a_counts, b_counts: how often it tried.
        rate: the share of rows called fixed or broken that may be neither.

    Raises:
        ValueError: when a row has more passes than attempts.
    """
    import numpy as np

    table = np.column_stack(
        [np.asarray(part, dtype=np.int64) for part in (a_passes, a_counts, b_passes, b_counts)]
    )
    if np.any(table[:, 0] > table[:, 1]) or np.any(table[:, 2] > table[:, 3]) or np.any(table < 0):
        raise ValueError("a row cannot have more passes than attempts")
    p = _fisher_by_row(table)
    adjusted = np.array(benjamini_hochberg(p.tolist()), dtype=np.float64)
    change = table[:, 2] / np.maximum(table[:, 3], 1) - table[:, 0] / np.maximum(table[:, 1], 1)
    sure = adjusted <= rate
    order = np.lexsort((np.arange(p.size), -np.abs(change), adjusted))
    return RowChanges(
        fixed=order[(sure & (change > 0))[order]],
        broken=order[(sure & (change < 0))[order]],
        unstable=order[(~sure & (change != 0))[order]],
        p=p,
        p_adjusted=adjusted,
    )


def _fisher_by_row(table: Integers) -> Floats:
    """Return the two-sided p-value of each row's table; rows share few tables, and each is worked out once."""
    import numpy as np

    distinct, which = np.unique(table, axis=0, return_inverse=True)
    known = [fisher_exact_p(*(int(count) for count in counts)) for counts in distinct]
    by_row: Floats = np.array(known, dtype=np.float64)[which.reshape(-1)]
    return by_row


@cache
def fisher_exact_p(a_passes: int, a_count: int, b_passes: int, b_count: int) -> float:
    """Return Fisher's exact p-value, two-sided, in whole numbers.

    Of all ways to spread the passes over both runs' attempts, the share of those whose table is no likelier than
    the one seen.
    """
    passes = a_passes + b_passes
    seen = math.comb(a_count, a_passes) * math.comb(b_count, b_passes)
    ways = (
        math.comb(a_count, of_a) * math.comb(b_count, passes - of_a)
        for of_a in range(max(passes - b_count, 0), min(a_count, passes) + 1)
    )
    return sum(way for way in ways if way <= seen) / math.comb(a_count + b_count, passes)
