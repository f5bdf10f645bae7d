"""The directory of a run: the paths of its files, and snapshots that are complete or absent.

``events.jsonl``, ``conversations.jsonl`` and ``rollout_trials/`` are the source of every other file, which can be
written again. A snapshot is streamed: its cost in memory does not depend on the number of samples.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from osmosis_ai.evaluation.journal import JournalReader
from osmosis_ai.evaluation.lenient_json import has_usual_numbers
from osmosis_ai.evaluation.metrics import RunMetrics
from osmosis_ai.evaluation.results import AttemptTable
from osmosis_ai.evaluation.run_files import IndexEntry
from osmosis_ai.evaluation.spec import archive_name
from osmosis_ai.files import open_regular, replacing, sync_directory, write_atomic, write_json

TRAJECTORY_FILE = "trajectory.json"
MOST_OF_A_CONFIG = 256 * 1024
"""Limit of the config that is stored with a run."""
ENVIRONMENT_FILE = "environment.txt"
"""One line about the agent's environment, for evaluations and training runs."""


class RunDirectory:
    """Paths and snapshots of one run directory."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.manifest = path / "manifest.json"
        self.config = path / "config.toml"
        self.events = path / "events.jsonl"
        self.conversations = path / "conversations.jsonl"
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
        """Whether the directory has files that do not belong to a run."""
        if self.manifest.exists() or not self.path.exists():
            return False
        return any(not entry.name.startswith(f".{self.manifest.name}.") for entry in self.path.iterdir())

    def create(self) -> None:
        """Create missing directories, and remove unfinished files of a killed process."""
        for directory in (self.trials, self.trajectories, self.artifacts):
            directory.mkdir(parents=True, exist_ok=True)
        for unfinished in self.path.glob(".*.tmp"):
            unfinished.unlink(missing_ok=True)
        sync_directory(self.path.parent)

    def put_aside(self) -> Path | None:
        """Rename the run to ``<name>.archive-<stamp>``; None when there is no run here."""
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
        """Return the directory of an attempt's files from the rollout's server."""
        return self.trials / rollout_id

    def write_config(self, text: str) -> None:
        """Store the config that the run begins with."""
        write_atomic(self.config, text.encode("utf-8", "replace")[:MOST_OF_A_CONFIG])

    def write_environment(self, words: str) -> None:
        """Store the description of the agent's environment, replacing that of an earlier session."""
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
                # The session has checked this record, or written it.
                entry = msgspec.json.decode(line, type=IndexEntry)
                trajectory = TRAJECTORY_FILE if has_trajectory(row_index, run_index) else None
                yield msgspec.structs.replace(
                    entry, trajectory_filename=trajectory, resumed=offset < resumed_before
                )

    def read_metrics(self) -> dict[str, Any] | None:
        """Return the last written metrics; None without readable ones."""
        try:
            with open_regular(self.metrics) as file:
                value = json.loads(file.read())
        except (OSError, ValueError, RecursionError):
            return None
        # This package writes no infinities: a file with them is written again.
        return value if isinstance(value, dict) and has_usual_numbers(value) else None
