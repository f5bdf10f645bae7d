"""The directory of a run: names and paths of its files, the index, and snapshots that are complete or absent.

``events.jsonl``, ``conversations.jsonl`` and ``rollout_trials/`` are the source of every other file, which can be
written again. A snapshot is streamed: its cost in memory does not depend on the number of samples.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import msgspec

from osmosis_ai.controller.outcomes import Status
from osmosis_ai.controller.record import LARGEST_COUNT, MOST_TOKENS
from osmosis_ai.errors import OsmosisError
from osmosis_ai.evaluation.journal import JournalReader
from osmosis_ai.evaluation.metrics import RunMetrics
from osmosis_ai.evaluation.results import AttemptTable
from osmosis_ai.evaluation.spec import archive_name
from osmosis_ai.files import open_regular, replacing, sync_directory, write_atomic, write_json

INDEX, PROGRESS, LOG = "index.jsonl", "progress.json", "logs.txt"
TRIALS, ARTIFACTS = "rollout_trials", "artifacts"
TRAJECTORY_FILE = "trajectory.json"
ENVIRONMENT_FILE = "environment.txt"
"""One line about the agent's environment, for evaluations and training runs."""
RESERVED_ARTIFACT = "manifest.json"
"""Reserved for the rollout's server at the top of ``artifacts/``."""
MOST_OF_A_CONFIG = 256 * 1024
"""Limit of the config that is stored with a run."""
_MAX_PATH_BYTES, _MAX_NAME_BYTES, _MAX_LINE_BYTES = 1024, 255, 64 * 1024
_MAX_ERROR_CHARS = 64
ROLLOUT_ID = re.compile(r"[0-9a-f]{32}")
TRAJECTORY_NAME = re.compile(r"trajectory[A-Za-z0-9._-]{0,200}\.json")
_Count = Annotated[int, msgspec.Meta(ge=0, le=MOST_TOKENS)]
# No line breaks, escape codes or other control characters.
_Printable = Annotated[str, msgspec.Meta(pattern=r"^[^\x00-\x1f\x7f-\x9f\u2028\u2029]*$")]


class RunDirectory:
    """Paths and snapshots of one run directory."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.manifest = path / "manifest.json"
        self.config = path / "config.toml"
        self.events = path / "events.jsonl"
        self.conversations = path / "conversations.jsonl"
        self.log = path / LOG
        self.server_log = path / "rollout-server.log"
        self.index = path / INDEX
        self.summary = path / "summary.jsonl"
        self.progress = path / PROGRESS
        self.metrics = path / "metrics.json"
        self.trials = path / TRIALS
        self.trajectories = path / "trajectories"
        self.artifacts = path / ARTIFACTS

    def is_foreign(self) -> bool:
        """Whether the directory has files that do not belong to a run."""
        if self.manifest.exists() or not self.path.exists():
            return False
        return any(not entry.name.startswith(f".{self.manifest.name}.") for entry in self.path.iterdir())

    def create(self) -> None:
        """Create missing directories, and remove unfinished files of a killed process."""
        for entry in self.path.iterdir() if self.path.exists() else ():
            if entry.is_symlink():
                raise OsmosisError(
                    f"'{entry}' is a symbolic link, and a run writes only into its own directory.",
                    hint="remove the link, or start a new run with another '--name'",
                )
        for directory in (self.trials, self.trajectories, self.artifacts):
            directory.mkdir(parents=True, exist_ok=True)
        for unfinished in self.path.glob(".*.tmp"):
            unfinished.unlink(missing_ok=True)
        sync_directory(self.path.parent)

    def archive(self) -> Path | None:
        """Rename the run to ``<name>.archive-<stamp>``; None if the directory has no run."""
        if not self.manifest.exists():
            return None
        base = archive_name(self.path.name)
        target, number = self.path.with_name(base), 2
        while target.exists():
            target, number = self.path.with_name(f"{base}-{number}"), number + 1
        self.path.rename(target)
        sync_directory(self.path.parent)
        return target

    def trial(self, rollout_id: str) -> Path:
        """Return the directory of an attempt's files from the rollout's server."""
        return self.trials / rollout_id

    def write_config(self, text: str) -> None:
        """Store the config that the run begins with."""
        write_atomic(self.config, text.encode("utf-8", "replace")[:MOST_OF_A_CONFIG])

    def write_environment(self, description: str) -> None:
        """Store the description of the agent's environment, replacing that of an earlier session."""
        write_atomic(self.path / ENVIRONMENT_FILE, f"{description}\n")

    def write_results(
        self,
        eval_run: Mapping[str, Any],
        metrics: RunMetrics,
        *,
        journal_bytes: int | None = None,
        progress: Mapping[str, int] | None = None,
        index: Iterable[IndexEntry] | None = None,
    ) -> None:
        """Write ``metrics.json``, ``progress.json``, and ``index.jsonl`` with its twin ``summary.jsonl``."""
        if progress is not None:
            write_json(self.progress, progress)
        if index is not None:
            with replacing(self.index) as file, replacing(self.summary) as twin:
                for entry in index:
                    line = entry.to_line()
                    file.write(line)
                    twin.write(line)
        numbers = {"summary": metrics.summary, "estimates": metrics.estimates.model_dump(mode="json")}
        write_json(self.metrics, {"eval_run": dict(eval_run), **numbers, "journal_bytes": journal_bytes})

    def index_entries(
        self, table: AttemptTable, *, resumed_before: int, has_trajectory: Callable[[int, int], bool]
    ) -> Iterator[IndexEntry]:
        """Yield the results in the journal by row and attempt; those at smaller offsets were resumed."""
        with JournalReader(self.events) as journal:
            for row_index, run_index, offset in table.recorded():
                line = journal.line(offset)
                if line is None:
                    continue
                # This session has checked or written the record.
                entry = msgspec.json.decode(line, type=IndexEntry)
                trajectory = TRAJECTORY_FILE if has_trajectory(row_index, run_index) else None
                yield msgspec.structs.replace(
                    entry, trajectory_filename=trajectory, resumed=offset < resumed_before
                )

    def read_metrics(self) -> dict[str, Any] | None:
        """Return the last written metrics; None without readable ones."""
        try:
            with open_regular(self.metrics) as file:
                value = json.loads(
                    file.read(), parse_int=_number, parse_float=_number, parse_constant=_number
                )
        except (OSError, ValueError, RecursionError):
            return None
        return value if isinstance(value, dict) else None


def _number(digits: str) -> float:
    """Return a number that this package writes: a finite one, and no integer that some JSON readers round."""
    is_integer = digits.lstrip("-").isdigit()
    number = int(digits) if is_integer else float(digits)
    if not abs(number) <= (LARGEST_COUNT if is_integer else sys.float_info.max):
        raise ValueError(f"{digits} is out of range")
    return number


class IndexEntry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The outcome of attempt ``run_index`` on the selected row ``row_index``, as a line of the index."""

    row_index: _Count
    run_index: _Count
    rollout_id: Annotated[str, msgspec.Meta(pattern=f"^{ROLLOUT_ID.pattern}$")]
    trajectory_filename: Annotated[str, msgspec.Meta(pattern=f"^{TRAJECTORY_NAME.pattern}$")] | None = None
    status: Status
    reward: float | None = None
    tokens: _Count | None = None
    # Whole milliseconds stay integers.
    duration_ms: Annotated[int, msgspec.Meta(ge=0)] | Annotated[float, msgspec.Meta(ge=0)] | None = None
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
        if len(line) > _MAX_LINE_BYTES:
            raise _damaged(f"line {number} is longer than {_MAX_LINE_BYTES} bytes")
        try:
            entry = _decoder.decode(line)
        except ValueError as error:  # including those of msgspec
            raise _damaged(f"line {number} cannot be read: {error}") from None
        attempt = (entry.row_index, entry.run_index)
        where = f"row {entry.row_index}, attempt {entry.run_index}"
        if entry.row_index >= rows or entry.run_index >= n:
            run = f"the run has {rows} rows and {n} attempts on each"
            raise _damaged(f"line {number} is of {where}, and {run}")
        if attempt in found:
            raise _damaged(f"{where} is listed twice")
        if entry.rollout_id in rollouts:
            raise _damaged(f"two attempts have the rollout ID {entry.rollout_id}")
        if entry.error_type is not None:
            entry = msgspec.structs.replace(entry, error_type=entry.error_type[:_MAX_ERROR_CHARS])
        found[attempt] = entry
        rollouts.add(entry.rollout_id)
    missing = rows * n - len(found)
    if missing:
        row, run_index = next(
            (row, run) for row in range(rows) for run in range(n) if (row, run) not in found
        )
        first = f"the first is row {row}, attempt {run_index}"
        raise _damaged(f"{missing} of {rows * n} attempts are missing, {first}")
    return [found[attempt] for attempt in sorted(found)]


def _damaged(problem: str) -> OsmosisError:
    return OsmosisError(f"{INDEX} is not the index of a complete run: {problem}.", details={"path": INDEX})


def name_problem(path: str) -> str | None:
    """Return why a file cannot be stored under this relative path; None if it can."""
    try:
        encoded = path.encode("utf-8")
    except UnicodeEncodeError:
        return "its name is not text"
    if len(encoded) > _MAX_PATH_BYTES:
        return f"its path is longer than {_MAX_PATH_BYTES} bytes"
    if not path.isprintable() or "\\" in path:
        return "its name has characters that are not allowed"
    for part in path.split("/"):
        if part in ("", ".", ".."):
            return "its path is not below the run's directory"
        if len(part.encode("utf-8")) > _MAX_NAME_BYTES:
            return f"its name is longer than {_MAX_NAME_BYTES} bytes"
    return None
