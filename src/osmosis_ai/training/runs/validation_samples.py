"""What became of each sample of a run's newest validation, in one file: an index of the conversations that are kept.

The file is replaced by the next validation's in one step, so that it is always of one validation, and of a whole one.
Only the worst are in it, so that neither a disk nor a page depends on how many rows are held out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import orjson

from osmosis_ai.errors import OsmosisError
from osmosis_ai.evaluation.record import TerminalRecord

MOST_KEPT = 500
LARGEST_BYTES = 32 << 20


@dataclass(frozen=True)
class ValidationSamples:
    """The samples of a validation."""

    step: int
    total: int
    pass_threshold: float
    records: Sequence[TerminalRecord]

    @classmethod
    def of(cls, records: Sequence[TerminalRecord], *, step: int, pass_threshold: float) -> ValidationSamples:
        """Return the samples of a validation that has ended."""
        worst_first = sorted(records, key=_badness)
        return cls(step, len(records), pass_threshold, worst_first[:MOST_KEPT])

    def to_bytes(self) -> bytes:
        """Return the file: a line about the validation, then one a sample."""
        about = {"step": self.step, "total": self.total, "pass_threshold": self.pass_threshold}
        lines = [orjson.dumps(about, option=orjson.OPT_APPEND_NEWLINE)]
        return b"".join([*lines, *(record.to_line() for record in self.records)])

    @classmethod
    def from_bytes(cls, content: bytes) -> ValidationSamples:
        """Read what :meth:`to_bytes` wrote."""
        try:
            first, *lines = content.splitlines()
            about = orjson.loads(first)
            step, total, threshold = (about[name] for name in ("step", "total", "pass_threshold"))
            if type(step) is not int or type(total) is not int or type(threshold) not in (int, float):
                raise ValueError("the first line is of something else")
            return cls(step, total, threshold, [TerminalRecord.from_line(line) for line in lines[:MOST_KEPT]])
        except (ValueError, LookupError, TypeError) as error:
            raise OsmosisError(f"the list of the newest validation's samples is damaged: {error}.") from None


def reward_of(record: TerminalRecord) -> float | None:
    """Return the reward of a sample, where it counts."""
    reward = record.reward if record.status == "success" else None
    return reward if reward is not None and math.isfinite(reward) else None


def _badness(record: TerminalRecord) -> tuple[bool, float, int, int]:
    reward = reward_of(record)
    return reward is not None, reward or 0.0, record.row_index, record.run_index
