"""The results of a run as one table: the latest result of each attempt, in about 100 bytes."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from operator import attrgetter
from typing import TYPE_CHECKING

from osmosis_ai.controller.outcomes import ERROR_SOURCES, STATUSES, Status
from osmosis_ai.controller.record import TerminalRecord
from osmosis_ai.llm.replies import FLAGGED

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_JUDGE_NUMBERS = {
    "judge_calls": "f4",
    "judge_outside_scale": "f4",
    "judge_tokens": "f8",
    "judge_cost_usd": "f8",
}
# Fields of TerminalRecord that are columns; unknown values are NaN. Counts are exact up to 2**24 as f4, 2**53 as f8.
_NUMBERS = {
    "reward": "f8",
    "cost_usd": "f8",
    "duration_ms": "f8",
    "model_latency_ms": "f8",
    "prompt_tokens": "f8",
    "completion_tokens": "f8",
    "model_calls": "f4",
    "lost_attempts": "f4",
    **_JUDGE_NUMBERS,
}
COLUMNS = [
    ("offset", "i8"),  # of the journal line; -1 without one
    ("status", "u1"),
    ("boundary", "u1"),  # position in ERROR_SOURCES, from 1; 0 is unknown
    ("reason", "u2"),  # position in `AttemptTable.reasons`
    ("finish", "u1"),  # bits of FLAGGED, in its order, and STATED
    ("tokens", "f8"),
    *_NUMBERS.items(),
]
STATED = 1 << len(FLAGGED)
PENDING, SUCCESS, FAILED, SKIPPED = range(4)
UNKNOWN = "unknown"
_numbers_of = attrgetter(*_NUMBERS)
_STATUS_CODES = {name: code for code, name in enumerate(STATUSES, start=1)}
_BOUNDARY_CODES = {name: code for code, name in enumerate((None, *ERROR_SOURCES))}
# The limit protects the memory from a rollout with ever new error types.
_LONGEST_REASON = 100
_MAX_REASONS = 1000
# By chance, two different rows of 100,000 have the same key in one of three billion datasets.
_KEY_DIGITS = 16


def _row_key(digest: str) -> int:
    return int(digest[:_KEY_DIGITS], 16) or 1


class AttemptTable:
    """``rows`` x ``n`` attempts, addressed by (row_index, run_index)."""

    def __init__(self, rows: int, n: int) -> None:
        import numpy as np

        if rows < 0 or n < 1:
            raise ValueError(f"cannot count {n} attempts on {rows} rows")
        self.rows, self.n = rows, n
        self.columns = np.zeros(rows * n, dtype=np.dtype(COLUMNS))
        self.columns["offset"] = -1
        self.source_rows = np.full(rows, -1, dtype=np.int64)
        self.reasons = [UNKNOWN]
        self._reason_codes = {UNKNOWN: 0}
        self._row_keys = np.zeros(rows, dtype=np.uint64)
        self._clusters: NDArray[np.int64] | None = None
        self.pending = np.ones(rows * n, dtype=np.bool_)

    def __len__(self) -> int:
        return self.rows * self.n

    def holds(self, row_index: int, run_index: int) -> bool:
        """Whether the attempt belongs to the run."""
        return 0 <= row_index < self.rows and 0 <= run_index < self.n

    def belongs(self, record: TerminalRecord) -> bool:
        """Whether a record is of an attempt of the run, and of the row it has there."""
        if not self.holds(record.row_index, record.run_index):
            return False
        known, digest = int(self._row_keys[record.row_index]), record.row_digest
        return digest is None or not known or known == _row_key(digest)

    def set_result(self, record: TerminalRecord, offset: int = -1) -> None:
        """Set an attempt's latest result and the offset of its journal line; ValueError if the run does not have it."""
        row, run = record.row_index, record.run_index
        if not self.belongs(record):
            raise ValueError(f"row {row}, attempt {run} is not part of the run")
        item = row * self.n + run
        reasons = record.finish_reasons
        # NumPy stores None as NaN.
        self.columns[item] = (
            offset,
            _STATUS_CODES[record.status],
            _BOUNDARY_CODES[record.boundary],
            self._reason_code(record.category or record.error_type),
            STATED + sum(1 << bit for bit, name in enumerate(FLAGGED) if name in reasons) if reasons else 0,
            record.total_tokens,
            *_numbers_of(record),
        )
        self.pending[item] = False
        if record.source_row_index is not None:
            self.source_rows[row] = record.source_row_index

    def set_row_digest(self, row_index: int, digest: str) -> None:
        """Set the digest of a row (``row_digest``); duplicate rows have the same."""
        self._row_keys[row_index], self._clusters = _row_key(digest), None

    def clusters(self) -> NDArray[np.int64]:
        """Return for each row the position of the first row with the same digest; its own if it has no digest.

        Duplicates add no information, so they are one cluster in every interval.
        """
        import numpy as np

        if self._clusters is None:
            _, firsts, positions = np.unique(self._row_keys, return_index=True, return_inverse=True)
            self._clusters = np.where(self._row_keys == 0, np.arange(self.rows), firsts[positions])
        return self._clusters

    @property
    def copied_rows(self) -> int:
        """Rows that are duplicates of an earlier row."""
        import numpy as np

        return self.rows - len(np.unique(self.clusters()))

    def reopen_failed(self) -> None:
        """Open all failed and skipped attempts again; their old records stay until new ones are set."""
        self.pending |= self.columns["status"] >= FAILED  # or SKIPPED

    def restrict(self, only: Callable[[int, int], bool]) -> None:
        """Close all attempts except those (row_index, run_index) for which ``only`` is true."""
        for row in range(self.rows):
            for run in range(self.n):
                if not only(row, run):
                    self.pending[row * self.n + run] = False

    def is_open(self, row_index: int, run_index: int) -> bool:
        """Whether the attempt is pending."""
        return bool(self.pending[row_index * self.n + run_index])

    @property
    def open_count(self) -> int:
        """Number of pending attempts."""
        return int(self.pending.sum())

    @property
    def done_count(self) -> int:
        """Number of attempts that have a record and are not pending."""
        return int(((self.columns["offset"] >= 0) & ~self.pending).sum())

    def count(self, status: Status) -> int:
        """Attempts that are not pending and whose result has ``status``."""
        return int(((self.columns["status"] == _STATUS_CODES[status]) & ~self.pending).sum())

    def offset(self, row_index: int, run_index: int) -> int:
        """Return the journal offset of the attempt's latest record; -1 without one."""
        return int(self.columns["offset"][row_index * self.n + run_index])

    def recorded(self, status: Status | None = None) -> Iterator[tuple[int, int, int]]:
        """Yield (row_index, run_index, offset) of each attempt that has a record (of ``status``), in order."""
        found = self.columns["offset"] >= 0
        if status is not None:
            found &= self.columns["status"] == _STATUS_CODES[status]
        for item in found.nonzero()[0].tolist():
            yield item // self.n, item % self.n, int(self.columns["offset"][item])

    @property
    def is_scored(self) -> NDArray[np.bool_]:
        """Whether each attempt succeeded and has a reward."""
        import numpy as np

        scored: NDArray[np.bool_] = (self.columns["status"] == SUCCESS) & np.isfinite(self.columns["reward"])
        return scored

    @property
    def rewards(self) -> NDArray[np.float64]:
        """Rewards of the scored attempts."""
        found: NDArray[np.float64] = self.columns["reward"][self.is_scored]
        return found

    def snapshot(self) -> AttemptTable:
        """Return a copy that later results do not change."""
        clone = copy.copy(self)
        clone.columns, clone.reasons = self.columns.copy(), self.reasons.copy()
        return clone

    def _reason_code(self, reason: str | None) -> int:
        if reason is None:
            return 0
        reason = reason[:_LONGEST_REASON]
        if reason not in self._reason_codes:
            if len(self.reasons) >= _MAX_REASONS:
                return 0
            self._reason_codes[reason] = len(self.reasons)
            self.reasons.append(reason)
        return self._reason_codes[reason]
