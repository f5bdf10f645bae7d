"""File of the samples of a run's newest validation, an index of the kept conversations.

Each validation replaces the file atomically, so it is always one complete validation. Only the worst samples are
included, so that disk use and page size do not depend on the number of held-out rows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import orjson

from osmosis_ai.controller.record import TerminalRecord
from osmosis_ai.errors import OsmosisError

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
        return b"".join([*lines, *(msgspec.json.encode(record) + b"\n" for record in self.records)])

    @classmethod
    def from_bytes(cls, content: bytes) -> ValidationSamples:
        """Read what :meth:`to_bytes` wrote."""
        try:
            first, *lines = content.splitlines()
            about = orjson.loads(first)
            step, total, threshold = (about[name] for name in ("step", "total", "pass_threshold"))
            if type(step) is not int or type(total) is not int or type(threshold) not in (int, float):
                raise ValueError("the first line is of something else")
            records = [TerminalRecord.from_line(line, without_crc=True) for line in lines[:MOST_KEPT]]
            return cls(step, total, threshold, records)
        except (ValueError, LookupError, TypeError) as error:
            raise OsmosisError(f"the list of the newest validation's samples is damaged: {error}.") from None


def reward_of(record: TerminalRecord) -> float | None:
    """Return the reward of a sample, where it counts."""
    reward = record.reward if record.status == "success" else None
    return reward if reward is not None and math.isfinite(reward) else None


def _badness(record: TerminalRecord) -> tuple[bool, float, int, int]:
    reward = reward_of(record)
    return reward is not None, reward or 0.0, record.row_index, record.run_index
