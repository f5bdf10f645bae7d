"""The directory of a run: which file is where, and snapshots that are whole or absent.

``events.jsonl`` and ``rollout_trials/`` are the truth; every other file is made from them and can
be made again. A snapshot is streamed: its cost in memory does not depend on the number of samples.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import orjson

from osmosis_ai.evaluation.journal import JournalReader
from osmosis_ai.evaluation.lenient_json import has_usual_numbers
from osmosis_ai.evaluation.metrics import RunMetrics
from osmosis_ai.evaluation.results import AttemptTable
from osmosis_ai.evaluation.run_files import IndexEntry
from osmosis_ai.evaluation.spec import archive_name
from osmosis_ai.files import open_regular, replacing, sync_directory, write_atomic, write_json

TRAJECTORY_FILE = "trajectory.json"
MOST_OF_A_CONFIG = 256 * 1024
"""Bytes of a config that are kept with a run, and read of it."""
ENVIRONMENT_FILE = "environment.txt"
"""What the agent ran in, a line: of an evaluation as of a training run."""


class RunDirectory:
    """Paths and snapshots of one run directory."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.manifest = path / "manifest.json"
        self.config = path / "config.toml"
        self.events = path / "events.jsonl"
        self.log = path / "logs.txt"
        self.server_log = path / "rollout-server.log"
        self.index = path / "index.jsonl"
        self.summary = path / "summary.jsonl"
        self.progress = path / "progress.json"
        self.metrics = path / "metrics.json"
        self.trials = path / "rollout_trials"
        self.trajectories = path / "trajectories"
        self.artifacts = path / "artifacts"

    def is_foreign(self) -> bool:
        """Tell whether the directory holds something that no run put there."""
        if self.manifest.exists() or not self.path.exists():
            return False
        return any(not entry.name.startswith(f".{self.manifest.name}.") for entry in self.path.iterdir())

    def create(self) -> None:
        """Make what is not there yet, and clear away what a killed process was writing."""
        for directory in (self.trials, self.trajectories, self.artifacts):
            directory.mkdir(parents=True, exist_ok=True)
        for unfinished in self.path.glob(".*.tmp"):
            unfinished.unlink(missing_ok=True)
        sync_directory(self.path.parent)

    def remove_copies(self) -> None:
        """Remove the copies of trajectories and artifacts; the run's next session makes them again."""
        for directory in (self.trajectories, self.artifacts):
            shutil.rmtree(directory, ignore_errors=True)

    def archive(self) -> Path | None:
        """Rename the run to ``<name>.archive-<stamp>``; None if the directory has no run."""
        if not self.manifest.exists():
            return None
        base = archive_name(self.path.name)
        target, again = self.path.with_name(base), 2
        while target.exists():
            target, again = self.path.with_name(f"{base}-{again}"), again + 1
        self.path.rename(target)
        sync_directory(self.path.parent)
        return target

    def trial(self, rollout_id: str) -> Path:
        """Return where the rollout's server keeps the files of an attempt."""
        return self.trials / rollout_id

    def write_config(self, text: str) -> None:
        """Keep the config that the run begins with, as it was written."""
        write_atomic(self.config, text.encode("utf-8", "replace")[:MOST_OF_A_CONFIG])

    def write_environment(self, words: str) -> None:
        """Keep what the agent runs in; that of the newest session counts."""
        write_atomic(self.path / ENVIRONMENT_FILE, f"{words}\n")

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
        """Yield the results in the journal by row and attempt."""
        with JournalReader(self.events) as journal:
            for row_index, run_index, offset in table.recorded():
                line = journal.line(offset)
                if line is None:
                    continue
                # The session has read and checked this record, or written it.
                record = orjson.loads(line)
                yield IndexEntry(
                    row_index,
                    run_index,
                    record["rollout_id"],
                    record["status"],
                    duration_ms=record["duration_ms"],
                    trajectory_filename=TRAJECTORY_FILE if has_trajectory(row_index, run_index) else None,
                    reward=record.get("reward"),
                    tokens=record.get("tokens"),
                    error_type=record.get("error_type"),
                    resumed=offset < resumed_before,
                )

    def read_metrics(self) -> dict[str, Any] | None:
        """Return the last written metrics, or None when there are none to be read."""
        return _read_object(self.metrics)


def _read_object(path: Path) -> dict[str, Any] | None:
    try:
        with open_regular(path) as file:
            value = json.loads(file.read())
    except (OSError, ValueError, RecursionError):
        return None
    # Nothing of ours writes others: such a file is as good as none, and is made again.
    return value if isinstance(value, dict) and has_usual_numbers(value) else None
