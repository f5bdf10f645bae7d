"""The results of a run as one table: the latest result of each attempt, in about 100 bytes."""

from __future__ import annotations

import copy
import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from osmosis_ai.controller.outcomes import ERROR_SOURCES, STATUSES, Status
from osmosis_ai.evaluation.record import TerminalRecord
from osmosis_ai.llm.finish_reasons import FLAGGED

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

AttemptId = tuple[int, int]
"""An attempt as (row_index, run_index)."""

COLUMNS = [
    ("status", "u1"),
    ("boundary", "u1"),  # position in ERROR_SOURCES, from 1; 0 is unknown
    ("reason", "u2"),  # position in `AttemptTable.reasons`
    ("lost", "i8"),
    ("finish", "i8"),  # bits of FLAGGED, in its order, and STATED
    ("model_calls", "i8"),
    ("reward", "f8"),  # NaN: absent, as in all floats here
    ("cost_usd", "f8"),
    ("duration_ms", "f8"),
    ("model_latency_ms", "f8"),
    ("tokens", "i8"),
    ("prompt_tokens", "i8"),
    ("completion_tokens", "i8"),
    ("offset", "i8"),  # of the journal line; -1 without one
]
JUDGE_COLUMNS = [("calls", "i8"), ("outside_scale", "i8"), ("tokens", "i8"), ("cost_usd", "f8")]
STATED = 1 << len(FLAGGED)
PENDING, SUCCESS, FAILED, SKIPPED, LEFT_OUT = range(5)
ABSENT = -1
UNKNOWN = "unknown"
_STATUS_CODES = {name: code for code, name in enumerate(STATUSES, start=1)}
_BOUNDARY_CODES = {name: code for code, name in enumerate((None, *ERROR_SOURCES))}
# A rollout that invents error types does not fill the memory.
_MOST_REASONS = 1000
# Two different rows of 100,000 share so much of their digests by chance once in three billion datasets.
_KEY_DIGITS = 16


class AttemptTable:
    """``rows`` x ``n`` attempts, addressed by (row_index, run_index); with ``only``, just these belong to the run."""

    def __init__(self, rows: int, n: int, *, only: Collection[AttemptId] | None = None) -> None:
        import numpy as np

        if rows < 0 or n < 1:
            raise ValueError(f"cannot count {n} attempts on {rows} rows")
        self.rows, self.n = rows, n
        self.columns = np.zeros(rows * n, dtype=np.dtype(COLUMNS))
        self.columns["offset"] = ABSENT
        self.source_rows = np.full(rows, ABSENT, dtype=np.int64)
        self.reasons = [UNKNOWN]
        self._reason_codes: dict[str | None, int] = {None: 0, UNKNOWN: 0}
        self.judges: NDArray[np.void] | None = None  # allocated when a grader has called a judge
        self._row_keys = np.zeros(rows, dtype=np.uint64)
        self._open = np.ones(rows * n, dtype=np.bool_)
        if only is not None:
            wanted = [row * n + run for row, run in only]
            self.columns["status"], self._open[:] = LEFT_OUT, False
            self.columns["status"][wanted], self._open[wanted] = PENDING, True

    def __len__(self) -> int:
        return int((self.columns["status"] != LEFT_OUT).sum())

    def holds(self, row_index: int, run_index: int) -> bool:
        """Whether the attempt belongs to the run."""
        if not (0 <= row_index < self.rows and 0 <= run_index < self.n):
            return False
        return bool(self.columns["status"][row_index * self.n + run_index] != LEFT_OUT)

    def set_result(self, record: TerminalRecord, offset: int = ABSENT) -> None:
        """Set an attempt's latest result, and the offset of its line in the journal.

        Raises:
            ValueError: the attempt is outside the table.
        """
        row, run = record.row_index, record.run_index
        if not (0 <= row < self.rows and 0 <= run < self.n):
            raise ValueError(f"row {row} run {run} is outside the run")
        item = row * self.n + run
        self.columns[item] = self._values(record, offset)
        self._open[item] = False
        if record.source_row_index is not None:
            self.source_rows[row] = record.source_row_index
        self.set_judge_calls(record)

    def set_results(self, records: Sequence[TerminalRecord], offsets: Sequence[int]) -> None:
        """Set many results in their order, as :meth:`set_result` does each, but faster."""
        import numpy as np

        rows = np.array([record.row_index for record in records], dtype=np.int64)
        items = rows * self.n + np.array([record.run_index for record in records], dtype=np.int64)
        values = [self._values(record, offset) for record, offset in zip(records, offsets, strict=True)]
        # Of several results of one attempt the last one is assigned last.
        self.columns[items] = np.array(values, dtype=self.columns.dtype)
        self._open[items] = False
        for record in records:
            if record.source_row_index is not None:
                self.source_rows[record.row_index] = record.source_row_index
            self.set_judge_calls(record)

    def set_judge_calls(self, record: TerminalRecord) -> None:
        """Set what the grader of an attempt asked of judges."""
        import numpy as np

        if self.judges is None:
            if not record.judge_calls:
                return
            self.judges = np.zeros(self.columns.size, dtype=np.dtype(JUDGE_COLUMNS))
            self.judges["cost_usd"] = np.nan
        self.judges[record.row_index * self.n + record.run_index] = (
            record.judge_calls or 0,
            record.judge_outside_scale or 0,
            record.judge_tokens or 0,
            _number(record.judge_cost_usd),
        )

    def set_row_digest(self, row_index: int, digest: str) -> None:
        """Set the digest of a row (``row_digest``), which tells copies of a row."""
        self._row_keys[row_index] = int(digest[:_KEY_DIGITS], 16) or 1

    def set_row_digests(self, digests: Iterable[str]) -> None:
        """Set the digests of all rows, in their order."""
        for row_index, digest in enumerate(digests):
            self.set_row_digest(row_index, digest)

    def clusters(self) -> NDArray[np.int64]:
        """Return for each row the position of the first row that it is a copy of, its own without one.

        Copies add no information, so they are one cluster in every interval.
        """
        import numpy as np

        _, firsts, places = np.unique(self._row_keys, return_index=True, return_inverse=True)
        return np.where(self._row_keys == 0, np.arange(self.rows), firsts[places]).astype(np.int64)

    @property
    def copied_rows(self) -> int:
        """Rows that are copies of an earlier row."""
        import numpy as np

        known = self._row_keys[self._row_keys != 0]
        return int(known.size - np.unique(known).size)

    def reopen_failed(self) -> None:
        """Ask for another attempt on everything that failed or was skipped; the old result stays until then."""
        status = self.columns["status"]
        self._open |= (status == FAILED) | (status == SKIPPED)

    def is_open(self, row_index: int, run_index: int) -> bool:
        """Whether the attempt still has to be made."""
        return bool(self._open[row_index * self.n + run_index])

    def row_is_open(self, row_index: int) -> bool:
        """Whether any attempt on the row still has to be made."""
        return bool(self._open[row_index * self.n : (row_index + 1) * self.n].any())

    @property
    def open_count(self) -> int:
        """Attempts that still have to be made."""
        return int(self._open.sum())

    def count(self, status: Status) -> int:
        """Attempts whose latest result has ``status``."""
        return int((self.columns["status"] == _STATUS_CODES[status]).sum())

    @property
    def unrecorded_count(self) -> int:
        """Attempts without any result."""
        return int((self.columns["status"] == PENDING).sum())

    def offset(self, row_index: int, run_index: int) -> int:
        """Return where the attempt's latest record starts in the journal, -1 without one."""
        return int(self.columns["offset"][row_index * self.n + run_index])

    def recorded(self, status: Status | None = None) -> Iterator[tuple[int, int, int]]:
        """Yield (row_index, run_index, offset) of each attempt that has a record (of ``status``), in order."""
        import numpy as np

        found = self.columns["offset"] >= 0
        if status is not None:
            found &= self.columns["status"] == _STATUS_CODES[status]
        for item in np.flatnonzero(found).tolist():
            yield item // self.n, item % self.n, int(self.columns["offset"][item])

    @property
    def rewards(self) -> NDArray[np.float64]:
        """Rewards of the attempts that succeeded and have one."""
        given = self.columns["reward"]
        found: NDArray[np.float64] = given[(self.columns["status"] == SUCCESS) & (given == given)]
        return found

    def snapshot(self) -> AttemptTable:
        """Return a copy that later results do not change."""
        return copy.deepcopy(self)

    def _values(self, record: TerminalRecord, offset: int) -> tuple[Any, ...]:
        tokens, prompt, completion = record.tokens, record.prompt_tokens, record.completion_tokens
        if tokens is None and prompt is not None and completion is not None:
            tokens = prompt + completion
        return (
            _STATUS_CODES[record.status],
            _BOUNDARY_CODES[record.boundary],
            self._reason(record.error_type),
            record.lost_attempts or 0,
            _finish_bits(record),
            _count(record.model_calls),
            _number(record.reward),
            _number(record.cost_usd),
            _number(record.duration_ms),
            _number(record.model_latency_ms),
            _count(tokens),
            _count(prompt),
            _count(completion),
            offset,
        )

    def _reason(self, error_type: str | None) -> int:
        code = self._reason_codes.get(error_type)
        if code is None:
            if error_type is None or len(self.reasons) >= _MOST_REASONS:
                return 0
            code = self._reason_codes[error_type] = len(self.reasons)
            self.reasons.append(error_type)
        return code


def _finish_bits(record: TerminalRecord) -> int:
    reasons = record.finish_reasons
    if not reasons:
        return 0
    return STATED + sum(1 << place for place, reason in enumerate(FLAGGED) if reason in reasons)


def _number(value: float | None) -> float:
    return value if value is not None and math.isfinite(value) else math.nan


def _count(value: int | None) -> int:
    return value if value is not None else ABSENT
