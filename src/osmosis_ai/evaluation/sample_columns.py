"""An attempt's outcome as a row of numbers: how the metrics keep it, and a journal's checkpoint stores it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypedDict

from osmosis_ai.controller.attempt import BOUNDARIES, STATUSES
from osmosis_ai.evaluation.record import TerminalRecord
from osmosis_ai.llm.finish_reasons import FLAGGED

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

SAMPLE = [
    ("status", "u1"),
    ("boundary", "u1"),  # position in BOUNDARIES, from 1; 0 is unknown
    ("reason", "u2"),  # position in a list of `Reasons`
    ("finish", "i8"),  # bits of FLAGGED, in its order, and STATED
    ("model_calls", "i4"),
    ("reward", "f8"),  # NaN: absent, as in all floats here
    ("cost_usd", "f8"),
    ("duration_ms", "f8"),
    ("model_latency_ms", "f8"),
    ("tokens", "i8"),
    ("prompt_tokens", "i8"),
    ("completion_tokens", "i8"),
]
JUDGES = [("calls", "i4"), ("outside_scale", "i4"), ("tokens", "i8"), ("cost_usd", "f8")]
RECORD = [
    *(("row", "i8"), ("run", "i8"), ("offset", "i8"), ("source", "i8"), ("lost", "i8")),
    *(("sample", SAMPLE), ("judges", JUDGES)),
]
_MOST_REASONS_OF_COLUMNS = 1 << 16

STATED = 1 << len(FLAGGED)
PENDING, SUCCESS, FAILED, SKIPPED, LEFT_OUT = range(5)
UNKNOWN = "unknown"
ABSENT = -1
_STATUS_CODES: dict[str, int] = {name: code for code, name in enumerate(STATUSES, start=1)}
_BOUNDARY_CODES: dict[str | None, int] = {name: code for code, name in enumerate((None, *BOUNDARIES))}


class Reasons:
    """Words of failures, numbered as they appear; 0 is the unknown one."""

    def __init__(self, most: int) -> None:
        self._most = most
        self.words = [UNKNOWN]
        self._codes = {UNKNOWN: 0}

    def code(self, reason: str | None) -> int:
        """Return the number of a word, 0 for one too many."""
        if reason is None:
            return 0
        code = self._codes.get(reason)
        if code is None:
            if len(self.words) >= self._most:
                return 0
            code = self._codes[reason] = len(self.words)
            self.words.append(reason)
        return code


class SampleNumbers(TypedDict, total=False):
    """What is known of an attempt beside its status, its reward and its reason; absent is as None."""

    tokens: int | None
    prompt_tokens: int | None
    completion_tokens: int | None
    cost_usd: float | None
    duration_ms: float | None
    model_latency_ms: float | None
    model_calls: int | None
    boundary: str | None
    finish_reasons: Mapping[str, int] | None


def sample_of(record: TerminalRecord, *, reason: int) -> tuple[float, ...]:
    """Return an outcome in the order of :data:`SAMPLE`; what the words mean says ``MetricsAccumulator.add``."""
    tokens, read, written = record.tokens, record.prompt_tokens, record.completion_tokens
    if record.status not in _STATUS_CODES:
        raise ValueError(f"unknown status {record.status!r}")
    if record.boundary not in _BOUNDARY_CODES:
        raise ValueError(f"unknown boundary {record.boundary!r}")
    if tokens is None and read is not None and written is not None:
        tokens = read + written
    return (
        _STATUS_CODES[record.status],
        _BOUNDARY_CODES[record.boundary],
        reason,
        _finish_bits(record.finish_reasons),
        _integer(record.model_calls),
        _number(record.reward),
        _number(record.cost_usd),
        _number(record.duration_ms),
        _number(record.model_latency_ms),
        _integer(tokens),
        _integer(read),
        _integer(written),
    )


def _finish_bits(reasons: Mapping[str, int] | None) -> int:
    if not reasons:
        return 0
    return STATED + sum(1 << place for place, reason in enumerate(FLAGGED) if reason in reasons)


def judges_of(record: TerminalRecord) -> tuple[float, ...]:
    """Return what a record says of its judges, in the order of :data:`JUDGES`."""
    return (
        record.judge_calls or 0,
        record.judge_outside_scale or 0,
        record.judge_tokens or 0,
        _number(record.judge_cost_usd),
    )


def _number(value: float | None) -> float:
    return value if value is not None and math.isfinite(value) else math.nan


def _integer(value: int | None) -> int:
    return value if value is not None and value >= 0 else ABSENT


@dataclass(frozen=True)
class RecordColumns:
    """Records in the order of their journal, as far as ledger and metrics need them."""

    table: NDArray[np.void]
    reasons: Sequence[str]

    @classmethod
    def of(cls, records: Iterable[tuple[int, TerminalRecord]], count: int) -> RecordColumns:
        """Return those of ``count`` records, each with the offset of its line."""
        import numpy as np

        reasons = Reasons(_MOST_REASONS_OF_COLUMNS)
        rows = (_row_of(offset, record, reasons) for offset, record in records)
        return cls(np.fromiter(rows, dtype=np.dtype(RECORD), count=count), reasons.words)

    def __len__(self) -> int:
        return len(self.table)

    def __getitem__(self, name: str) -> NDArray[Any]:
        """Return a column."""
        column: NDArray[Any] = self.table[name]
        return column

    def items(self, n: int) -> NDArray[np.int64]:
        """Return the places of the work items, in a run of ``n`` attempts on each row."""
        places: NDArray[np.int64] = self["row"] * n + self["run"]
        return places

    @property
    def rewards(self) -> NDArray[np.float64]:
        """Return the rewards of those that succeeded and have one."""
        sample = self["sample"]
        given = sample["reward"]
        found: NDArray[np.float64] = given[(sample["status"] == SUCCESS) & (given == given)]
        return found


def _row_of(offset: int, record: TerminalRecord, reasons: Reasons) -> tuple[Any, ...]:
    sample = sample_of(record, reason=reasons.code(record.error_type))
    source = ABSENT if record.source_row_index is None else record.source_row_index
    lost = record.lost_attempts or 0
    return (record.row_index, record.run_index, offset, source, lost, sample, judges_of(record))
