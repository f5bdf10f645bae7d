"""Which of a run's rows are copies of one another, in 8 bytes each.

Copies say nothing new: a dataset that holds each row three times is a third as large as it looks, and an interval
that takes it for larger is too narrow. So copies are one cluster in every estimate.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from typing import TYPE_CHECKING

from osmosis_ai.datasets import DatasetRow, row_digest

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

# Of a digest: two different rows of 100,000 share these by chance once in three billion datasets.
_KEY_DIGITS = 16


class RowCopies:
    """Takes the rows of a run in any order and tells which are the same."""

    def __init__(self, rows: int) -> None:
        self._keys = array("Q", [0]) * rows

    @classmethod
    def of(cls, rows: Iterable[DatasetRow]) -> RowCopies:
        """Return those of all the rows of a run, in their order."""
        keys = array("Q", (_key(row_digest(row)) for row in rows))
        copies = cls(0)
        copies._keys = keys
        return copies

    def note(self, row_index: int, digest: str) -> None:
        """Learn the digest of a row, as ``row_digest`` gives it and as records have it."""
        self._keys[row_index] = _key(digest)

    def clusters(self) -> NDArray[np.int64]:
        """Return of each row the position of the first row that it is a copy of, its own where there is none."""
        import numpy as np

        keys = np.frombuffer(self._keys, dtype=np.uint64)
        _, firsts, places = np.unique(keys, return_index=True, return_inverse=True)
        own = np.arange(keys.size)
        return np.where(keys == 0, own, firsts[places]).astype(np.int64)

    @property
    def count(self) -> int:
        """How many rows are copies of an earlier one."""
        known = [key for key in self._keys if key]
        return len(known) - len(set(known))


def _key(digest: str) -> int:
    return int(digest[:_KEY_DIGITS], 16) or 1
