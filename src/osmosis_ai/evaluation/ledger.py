"""What is known of every work item, in ten bytes each.

A work item is a selected row and an attempt on it. The ledger holds no result: it says where in
the journal the latest one is, and how it ended. Whatever the number of rows, this is all the
engine remembers of them.
"""

from __future__ import annotations

from array import array
from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING

from osmosis_ai.controller.attempt import STATUSES, Status

if TYPE_CHECKING:
    from osmosis_ai.evaluation.sample_columns import RecordColumns

WorkItem = tuple[int, int]
"""A work item as (row_index, run_index)."""

_PENDING = 255
_LEFT_OUT = 254
_CODES: dict[Status, int] = {status: code for code, status in enumerate(STATUSES)}


class Ledger:
    """The state of ``rows`` x ``n`` work items, addressed by (row_index, run_index)."""

    def __init__(self, rows: int, n: int, *, only: Collection[WorkItem] | None = None) -> None:
        self.rows = rows
        self.n = n
        self._offsets = array("q", [-1]) * (rows * n)
        self._states = bytearray([_PENDING if only is None else _LEFT_OUT]) * (rows * n)
        self._todo = bytearray([only is None]) * (rows * n)
        for row_index, run_index in only or ():
            item = row_index * n + run_index
            self._states[item], self._todo[item] = _PENDING, 1
        self._size = rows * n if only is None else self._todo.count(1)

    def __len__(self) -> int:
        return self._size

    def holds(self, row_index: int, run_index: int) -> bool:
        """Tell whether such a work item belongs to the run."""
        if not (0 <= row_index < self.rows and 0 <= run_index < self.n):
            return False
        return self._states[row_index * self.n + run_index] != _LEFT_OUT

    def settle(self, row_index: int, run_index: int, status: Status, offset: int) -> None:
        """Note the latest record of an item: how it ended and where its line starts."""
        item = row_index * self.n + run_index
        self._offsets[item] = offset
        self._states[item] = _CODES[status]
        self._todo[item] = 0

    def settle_columns(self, columns: RecordColumns) -> None:
        """Note many records in their order, as :meth:`settle` does each; all are of items of the run."""
        import numpy as np

        items = columns.items(self.n)
        # Of several records of one item the last counts: so NumPy assigns.
        np.frombuffer(self._offsets, dtype=np.int64)[items] = columns["offset"]
        np.frombuffer(self._states, dtype=np.uint8)[items] = columns["sample"]["status"] - 1
        np.frombuffer(self._todo, dtype=np.uint8)[items] = 0

    def foreign(self, columns: RecordColumns) -> WorkItem | None:
        """Return the first of many items that does not belong to the run."""
        import numpy as np

        rows, runs = columns["row"], columns["run"]
        inside = (rows >= 0) & (rows < self.rows) & (runs >= 0) & (runs < self.n)
        held = inside.copy()
        states = np.frombuffer(self._states, dtype=np.uint8)
        held[inside] = states[columns.items(self.n)[inside]] != _LEFT_OUT
        absent = np.flatnonzero(~held)
        return (int(rows[absent[0]]), int(runs[absent[0]])) if absent.size else None

    def reopen_failed(self) -> None:
        """Ask for another attempt on every item that failed or was skipped; its record stands meanwhile."""
        success = _CODES["success"]
        for item, state in enumerate(self._states):
            if state not in (success, _PENDING, _LEFT_OUT):
                self._todo[item] = 1

    def is_open(self, row_index: int, run_index: int) -> bool:
        """Tell whether the item still asks for an attempt."""
        return self._todo[row_index * self.n + run_index] == 1

    def row_is_open(self, row_index: int) -> bool:
        """Tell whether any attempt on the row is still asked for."""
        start = row_index * self.n
        return 1 in self._todo[start : start + self.n]

    @property
    def open_count(self) -> int:
        """Items that ask for an attempt."""
        return self._todo.count(1)

    def count(self, status: Status) -> int:
        """Items whose latest record has ``status``."""
        return self._states.count(_CODES[status])

    @property
    def unrecorded_count(self) -> int:
        """Items without any record."""
        return self._states.count(_PENDING)

    def offset(self, row_index: int, run_index: int) -> int:
        """Return where the item's latest record starts in the journal, -1 without one."""
        return self._offsets[row_index * self.n + run_index]

    def recorded(self, status: Status | None = None) -> Iterator[tuple[int, int, int]]:
        """Yield (row_index, run_index, offset) of every item that has a record (of ``status``), in order."""
        code = None if status is None else _CODES[status]
        for item, offset in enumerate(self._offsets):
            if offset >= 0 and (code is None or self._states[item] == code):
                yield item // self.n, item % self.n, offset
