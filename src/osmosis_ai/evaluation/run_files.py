"""The files of a run that leave its directory: their names, and ``index.jsonl`` with one line per attempt."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import orjson

from osmosis_ai.controller.outcomes import STATUSES, Status
from osmosis_ai.errors import OsmosisError

ROLLOUT_ID = re.compile(r"[0-9a-f]{32}")
TRAJECTORY_NAME = re.compile(r"trajectory[A-Za-z0-9._-]{0,200}\.json")
_KEYS = (
    *("row_index", "run_index", "rollout_id", "trajectory_filename", "status"),
    *("reward", "tokens", "duration_ms", "error_type", "resumed"),
)
_LARGEST_COUNT = 2**31 - 1
_MOST_ERROR_CHARS = 64
_LONGEST_LINE = 64 * 1024


@dataclass(frozen=True, slots=True)
class IndexEntry:
    """The outcome of an attempt (``run_index``) on a selected row (``row_index``), as the index tells it."""

    row_index: int
    run_index: int
    rollout_id: str
    status: Status
    duration_ms: float | None = None
    trajectory_filename: str | None = None
    reward: float | None = None
    tokens: int | None = None
    error_type: str | None = None
    resumed: bool = False

    def to_line(self) -> bytes:
        """Return the entry as a line, newline included; what is not known is left out."""
        known = {name: value for name in _KEYS if (value := getattr(self, name)) is not None}
        if not self.resumed:
            del known["resumed"]
        return orjson.dumps(known, option=orjson.OPT_APPEND_NEWLINE)

    @classmethod
    def from_line(cls, line: bytes) -> IndexEntry:
        """Read a line."""
        if len(line) > _LONGEST_LINE:
            raise ValueError(f"it is longer than {_LONGEST_LINE} bytes")
        value = orjson.loads(line)  # its JSONDecodeError is a ValueError
        if not isinstance(value, dict):
            raise ValueError("it is no JSON object")
        known = {name: value.get(name) for name in cls.__slots__}
        for name in ("row_index", "run_index", "rollout_id", "status"):
            if known[name] is None:
                raise ValueError(f"it has no `{name}`")
        for name, content in known.items():
            if content is not None and not _fits(name, content):
                raise ValueError(f"`{name}` cannot be {str(content)[:80]!r}")
        if known["error_type"] is not None:
            known["error_type"] = known["error_type"][:_MOST_ERROR_CHARS]
        return cls(**{name: content for name, content in known.items() if content is not None})


def read_index(lines: Iterable[bytes], *, rows: int, n: int) -> list[IndexEntry]:
    """Read the whole index of a run that is complete, by row and attempt."""
    found: dict[tuple[int, int], IndexEntry] = {}
    rollouts: set[str] = set()
    for number, line in enumerate(lines, start=1):
        try:
            entry = IndexEntry.from_line(line)
        except ValueError as error:
            raise _damaged(f"line {number} cannot be read: {error}") from None
        item = (entry.row_index, entry.run_index)
        where = f"row {entry.row_index}, attempt {entry.run_index + 1}"
        if entry.row_index >= rows or entry.run_index >= n:
            raise _damaged(
                f"line {number} is of {where}, and the run has {rows} rows and {n} attempts on each"
            )
        if item in found:
            raise _damaged(f"{where} is there twice")
        if entry.rollout_id in rollouts:
            raise _damaged(f"two samples have the rollout id {entry.rollout_id}")
        found[item] = entry
        rollouts.add(entry.rollout_id)
    if len(found) < rows * n:
        missing = next((row, run) for row in range(rows) for run in range(n) if (row, run) not in found)
        raise _damaged(
            f"{rows * n - len(found)} of {rows * n} samples are missing, the first is row {missing[0]}, "
            f"attempt {missing[1] + 1}"
        )
    return [found[item] for item in sorted(found)]


def _fits(name: str, content: Any) -> bool:
    if name in ("row_index", "run_index", "tokens"):
        return type(content) is int and 0 <= content <= _LARGEST_COUNT
    if name in ("reward", "duration_ms"):
        is_number = type(content) in (int, float) and math.isfinite(content)
        return is_number and (name == "reward" or content >= 0)
    if name == "status":
        return content in STATUSES
    if name == "resumed":
        return isinstance(content, bool)
    if not isinstance(content, str):
        return False
    pattern = {"rollout_id": ROLLOUT_ID, "trajectory_filename": TRAJECTORY_NAME}.get(name)
    return pattern.fullmatch(content) is not None if pattern is not None else content.isprintable()


def _damaged(what: str) -> OsmosisError:
    return OsmosisError(
        f"index.jsonl is not that of a complete run: {what}.", details={"path": "index.jsonl"}
    )


INDEX, PROGRESS = "index.jsonl", "progress.json"
TRIALS, ARTIFACTS = "rollout_trials", "artifacts"
MAX_PATH_BYTES, _MAX_NAME_BYTES = 1024, 255
RESERVED_ARTIFACT = "manifest.json"
"""At the top of ``artifacts/`` it belongs to the rollout's server."""


class TrialFile(NamedTuple):
    """A file of one attempt: its trajectory, or the artifact at ``artifact``, relative to its artifacts."""

    rollout_id: str
    trajectory: str | None = None
    artifact: str | None = None


def trial_file(path: str) -> TrialFile | None:
    """Return what the file at ``path``, relative to the run's directory, is of an attempt; None when it is none."""
    parts = path.split("/")
    if len(parts) < 3 or parts[0] != TRIALS or not ROLLOUT_ID.fullmatch(parts[1]):
        return None
    if len(parts) == 3 and TRAJECTORY_NAME.fullmatch(parts[2]):
        return TrialFile(parts[1], trajectory=parts[2])
    if len(parts) > 3 and parts[2] == ARTIFACTS and parts[3:] != [RESERVED_ARTIFACT]:
        return TrialFile(parts[1], artifact="/".join(parts[3:]))
    return None


def name_problem(path: str) -> str | None:
    """Return why a file cannot travel under this relative path."""
    try:
        encoded = path.encode("utf-8")
    except UnicodeEncodeError:
        return "its name is no text"
    if len(encoded) > MAX_PATH_BYTES:
        return f"its path is longer than {MAX_PATH_BYTES} bytes"
    if not path.isprintable() or "\\" in path:
        return "its name has characters that are not allowed"
    for part in path.split("/"):
        if part in ("", ".", ".."):
            return "it is no path below the run's directory"
        if len(part.encode("utf-8")) > _MAX_NAME_BYTES:
            return f"its name is longer than {_MAX_NAME_BYTES} bytes"
    return None
