"""The files of a run that leave its directory: their names, and ``index.jsonl`` with one line per attempt."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Annotated, NamedTuple

import msgspec

from osmosis_ai.controller.outcomes import Status
from osmosis_ai.errors import OsmosisError

ROLLOUT_ID = re.compile(r"[0-9a-f]{32}")
TRAJECTORY_NAME = re.compile(r"trajectory[A-Za-z0-9._-]{0,200}\.json")
_MOST_ERROR_CHARS = 64
_LONGEST_LINE = 64 * 1024

_Count = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
_RolloutId = Annotated[str, msgspec.Meta(pattern=f"^{ROLLOUT_ID.pattern}$")]
_TrajectoryName = Annotated[str, msgspec.Meta(pattern=f"^{TRAJECTORY_NAME.pattern}$")]
# Whole milliseconds stay integers.
_Duration = Annotated[int, msgspec.Meta(ge=0)] | Annotated[float, msgspec.Meta(ge=0)]
# No line breaks, escape codes or other control characters.
_Printable = Annotated[str, msgspec.Meta(pattern=r"^[^\x00-\x1f\x7f-\x9f\u2028\u2029]*$")]


class IndexEntry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The outcome of attempt ``run_index`` on the selected row ``row_index``, as a line of the index."""

    row_index: _Count
    run_index: _Count
    rollout_id: _RolloutId
    trajectory_filename: _TrajectoryName | None = None
    status: Status
    reward: float | None = None
    tokens: _Count | None = None
    duration_ms: _Duration | None = None
    error_type: _Printable | None = None
    resumed: bool = False

    def to_line(self) -> bytes:
        """Return the entry as a line, newline included; unknown values are left out."""
        return msgspec.json.encode(self) + b"\n"


_decoder = msgspec.json.Decoder(IndexEntry)


def read_index(lines: Iterable[bytes], *, rows: int, n: int) -> list[IndexEntry]:
    """Read the whole index of a complete run, by row and attempt."""
    found: dict[tuple[int, int], IndexEntry] = {}
    rollouts: set[str] = set()
    for number, line in enumerate(lines, start=1):
        if len(line) > _LONGEST_LINE:
            raise _damaged(f"line {number} is longer than {_LONGEST_LINE} bytes")
        try:
            entry = _decoder.decode(line)
        except ValueError as error:  # msgspec's errors are
            raise _damaged(f"line {number} cannot be read: {error}") from None
        item = (entry.row_index, entry.run_index)
        where = f"row {entry.row_index}, attempt {entry.run_index + 1}"
        if entry.row_index >= rows or entry.run_index >= n:
            raise _damaged(
                f"line {number} is of {where}, and the run has {rows} rows and {n} attempts on each"
            )
        if item in found:
            raise _damaged(f"{where} is listed twice")
        if entry.rollout_id in rollouts:
            raise _damaged(f"two samples have the rollout ID {entry.rollout_id}")
        if entry.error_type is not None:
            entry = msgspec.structs.replace(entry, error_type=entry.error_type[:_MOST_ERROR_CHARS])
        found[item] = entry
        rollouts.add(entry.rollout_id)
    if len(found) < rows * n:
        missing = next((row, run) for row in range(rows) for run in range(n) if (row, run) not in found)
        raise _damaged(
            f"{rows * n - len(found)} of {rows * n} samples are missing, the first is row {missing[0]}, "
            f"attempt {missing[1] + 1}"
        )
    return [found[item] for item in sorted(found)]


def _damaged(what: str) -> OsmosisError:
    return OsmosisError(
        f"index.jsonl is not the index of a complete run: {what}.", details={"path": "index.jsonl"}
    )


INDEX, PROGRESS = "index.jsonl", "progress.json"
TRIALS, ARTIFACTS = "rollout_trials", "artifacts"
MAX_PATH_BYTES, _MAX_NAME_BYTES = 1024, 255
RESERVED_ARTIFACT = "manifest.json"
"""Reserved for the rollout's server at the top of ``artifacts/``."""


class TrialFile(NamedTuple):
    """A file of one attempt: its trajectory, or an artifact by its path below ``artifacts/``."""

    rollout_id: str
    trajectory: str | None = None
    artifact: str | None = None


def trial_file(path: str) -> TrialFile | None:
    """Return the attempt and kind of the file at ``path``, relative to the run's directory; None for other files."""
    parts = path.split("/")
    if len(parts) < 3 or parts[0] != TRIALS or not ROLLOUT_ID.fullmatch(parts[1]):
        return None
    if len(parts) == 3 and TRAJECTORY_NAME.fullmatch(parts[2]):
        return TrialFile(parts[1], trajectory=parts[2])
    if len(parts) > 3 and parts[2] == ARTIFACTS and parts[3:] != [RESERVED_ARTIFACT]:
        return TrialFile(parts[1], artifact="/".join(parts[3:]))
    return None


def name_problem(path: str) -> str | None:
    """Return why a file cannot be stored under this relative path; None if it can."""
    try:
        encoded = path.encode("utf-8")
    except UnicodeEncodeError:
        return "its name is not text"
    if len(encoded) > MAX_PATH_BYTES:
        return f"its path is longer than {MAX_PATH_BYTES} bytes"
    if not path.isprintable() or "\\" in path:
        return "its name has characters that are not allowed"
    for part in path.split("/"):
        if part in ("", ".", ".."):
            return "its path is not below the run's directory"
        if len(part.encode("utf-8")) > _MAX_NAME_BYTES:
            return f"its name is longer than {_MAX_NAME_BYTES} bytes"
    return None
