"""What became of every call: a line in the journal each, and a few bytes each in memory.

A call is a record, a judge and a run. It has a score, or the reason why there is none: *unscored* when the
judge answered and no score could be read from it, *failed* when it could not be asked. Neither is a number.
"""

from __future__ import annotations

import json
import math
from array import array
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, Literal

import orjson

CallStatus = Literal["scored", "unscored", "failed"]
STATUSES: tuple[CallStatus, ...] = ("scored", "unscored", "failed")
_NO_RESULT = 255


@dataclass(frozen=True, slots=True)
class CallRecord:
    """A call that ended."""

    record: int
    model: int
    run: int
    status: CallStatus
    score: float | None
    stated_score: float | None
    explanation: str | None
    reason: str | None
    error: str | None
    input_tokens: int
    output_tokens: int
    cost_usd: float | None
    duration_s: float
    retries: int
    started_at: str
    completed_at: str
    raw: Any = None

    def to_line(self) -> bytes:
        """Return the record as a line of JSON; what is None is left out."""
        return json_bytes({key: value for key, value in asdict(self).items() if value is not None}) + b"\n"

    @classmethod
    def from_line(cls, line: bytes) -> CallRecord:
        """Read a line of the journal."""
        try:
            fields = orjson.loads(line)
            call = cls(**{**_ABSENT, **fields})
            if call.status not in STATUSES or (call.score is None) != (call.status != "scored"):
                raise ValueError("its status is not that of a call")
        except TypeError as error:
            raise ValueError(str(error)) from None
        return call


_ABSENT: dict[str, Any] = dict.fromkeys(
    ("score", "stated_score", "explanation", "reason", "error", "cost_usd")
)


class CallStates:
    """How every call of a session stands, addressed by record, model (both from 0) and run (from 0)."""

    def __init__(self, records: int, models: int, runs: int) -> None:
        self.shape = (records, models, runs)
        total = records * models * runs
        self.scores = array("d", [math.nan]) * total
        self._offsets = array("q", [-1]) * total
        self._states = bytearray([_NO_RESULT]) * total
        self._open = bytearray([1]) * total
        self._outside_scale = bytearray(total)
        self._reasons: list[str] = []
        self._reason_codes = bytearray(total)

    def __len__(self) -> int:
        return len(self._open)

    def holds(self, call: CallRecord) -> bool:
        """Tell whether the call belongs to the session."""
        records, models, runs = self.shape
        return 1 <= call.record <= records and 0 <= call.model < models and 1 <= call.run <= runs

    def settle(self, call: CallRecord, offset: int) -> None:
        """Note the latest result of a call, and where in the journal it is."""
        item = self._item(call.record - 1, call.model, call.run - 1)
        self.scores[item] = call.score if call.score is not None else math.nan
        self._outside_scale[item] = call.stated_score is not None
        self._offsets[item] = offset
        self._states[item] = STATUSES.index(call.status)
        self._reason_codes[item] = self._code_of(call.reason or call.status)
        self._open[item] = 0

    def reopen_scoreless(self) -> None:
        """Ask again for every call without a score; what is known of it stands meanwhile."""
        for item, state in enumerate(self._states):
            if state != 0:
                self._open[item] = 1

    def is_open(self, record: int, model: int, run: int) -> bool:
        """Tell whether the call is still to be made."""
        return self._open[self._item(record, model, run)] == 1

    def open_runs(self, record: int, model: int) -> Iterator[int]:
        """Yield the runs that a judge still owes a record."""
        start = self._item(record, model, 0)
        return (run for run in range(self.shape[2]) if self._open[start + run])

    def open_count(self, model: int | None = None) -> int:
        """Count the calls still to be made, of one judge or of all."""
        if model is None:
            return self._open.count(1)
        _, models, runs = self.shape
        return sum(self._open[model * runs + run :: models * runs].count(1) for run in range(runs))

    def count(self, status: CallStatus) -> int:
        """Count the calls that ended that way."""
        return self._states.count(STATUSES.index(status))

    @property
    def outside_scale(self) -> int:
        """Number of scores that were outside the scale and were clamped to it."""
        return self._outside_scale.count(1)

    def reasons(self, status: CallStatus) -> dict[str, int]:
        """Count the calls that ended that way by the reason, the most frequent first."""
        code = STATUSES.index(status)
        found = Counter(
            reason for state, reason in zip(self._states, self._reason_codes, strict=True) if state == code
        )
        return {self._reasons[reason]: count for reason, count in found.most_common()}

    @property
    def pending(self) -> int:
        """Calls without any result."""
        return self._states.count(_NO_RESULT)

    def offsets(self, record: int) -> list[int]:
        """Return where the record's calls are in the journal, by model and run; -1 without a result."""
        start, width = self._item(record, 0, 0), self.shape[1] * self.shape[2]
        return list(self._offsets[start : start + width])

    def records_with(self, status: CallStatus | None) -> int:
        """Count the records with a call of that status; None counts those with a pending one."""
        code = _NO_RESULT if status is None else STATUSES.index(status)
        width = self.shape[1] * self.shape[2]
        return sum(code in self._states[start : start + width] for start in range(0, len(self), width))

    def _code_of(self, reason: str) -> int:
        # A byte is plenty: reasons are words of a closed list.
        if reason not in self._reasons:
            self._reasons.append(reason)
        return min(self._reasons.index(reason), 255)

    def _item(self, record: int, model: int, run: int) -> int:
        return (record * self.shape[1] + model) * self.shape[2] + run


def json_bytes(value: Any, *, indent: bool = False) -> bytes:
    """Return ``value`` as UTF-8 JSON, whatever its texts and numbers are."""
    options = orjson.OPT_INDENT_2 if indent else None
    try:
        return orjson.dumps(value, option=options)
    except TypeError:  # integers beyond 64 bits, halves of characters
        text = json.dumps(value, ensure_ascii=False, default=str, indent=2 if indent else None)
        return text.encode("utf-8", "replace")
