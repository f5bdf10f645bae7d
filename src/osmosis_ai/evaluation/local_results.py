"""The numbers of a run: from ``metrics.json`` if it covers the whole journal, otherwise from the journal."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

from osmosis_ai.config.toml_text import parse_toml
from osmosis_ai.controller.record import TerminalRecord
from osmosis_ai.errors import OsmosisError, reason_of
from osmosis_ai.evaluation.attempt_files import read_config
from osmosis_ai.evaluation.journal import load_results
from osmosis_ai.evaluation.lenient_json import as_number, as_table
from osmosis_ai.evaluation.manifest import Manifest, is_running
from osmosis_ai.evaluation.metrics import Estimates, RunMetrics, compute_metrics
from osmosis_ai.evaluation.results import AttemptTable
from osmosis_ai.evaluation.run_directory import RunDirectory
from osmosis_ai.files import size_of

# Lists of runs do not read larger journals.
MAX_LISTED_BYTES = 4 << 20


class LocalResults:
    """The results of a local run; :meth:`advance` reads its journal."""

    def __init__(self, path: Path) -> None:
        self.directory = RunDirectory(path)
        # A copy of a run has the same manifest, but its own name.
        self.name = path.name
        self.manifest = Manifest.load(self.directory.manifest)
        self.rows, n = self.manifest.planned(self.directory.manifest)
        self.table = AttemptTable(self.rows, n)
        self.pass_threshold = pass_threshold_of(self.directory)
        self._running = False
        self._metrics: RunMetrics | None = None
        self._read_bytes = 0

    def is_current(self) -> bool:
        """Return whether the directory still has the same run, with a journal that has only grown."""
        try:
            same = Manifest.load(self.directory.manifest).local_run_id == self.manifest.local_run_id
        except OsmosisError:
            return False
        has_grown = size_of(self.directory.events) >= self._read_bytes
        return same and has_grown and self.pass_threshold == pass_threshold_of(self.directory)

    def advance(self, each: Callable[[TerminalRecord], None] = lambda _: None) -> None:
        """Read the results that were committed since the last call; ``each`` receives their records."""

        def add(record: TerminalRecord) -> None:
            each(record)
            if record.row_digest is not None:
                self.table.set_row_digest(record.row_index, record.row_digest)

        # Check the lock first: a process writes everything before it releases the lock.
        self._running = is_running(self.directory.path.parent, self.name)
        end = load_results(self.directory.events, self.table, start=self._read_bytes, each=add)
        if end != self._read_bytes:
            self._read_bytes, self._metrics = end, None

    @property
    def metrics(self) -> RunMetrics:
        """The numbers of the results that have been read."""
        if self._metrics is None:
            self._metrics = compute_metrics(
                self.table, pass_threshold=self.pass_threshold, reward_range=self.manifest.reward_range
            )
        return self._metrics

    @property
    def status(self) -> Literal["running", "incomplete", "finished"]:
        """``incomplete`` if no process works on the run and attempts are pending."""
        return "running" if self._running else "incomplete" if self.table.open_count else "finished"

    @property
    def unfinished(self) -> str | None:
        """Why the results are incomplete, as a sentence; None if they are complete."""
        pending = f"{self.table.open_count} of {len(self.table)} attempts are pending"
        return {
            "running": f"the run is still running: {pending}.",
            "incomplete": f"the run is not finished: {pending}; repeat its `osmosis eval run` to continue.",
            "finished": None,
        }[self.status]


def read_local_results(path: Path) -> LocalResults:
    """Read the results of a local run, complete or not."""
    results = LocalResults(path)
    results.advance()
    return results


def current_numbers(
    directory: RunDirectory, written: Mapping[str, Any], follow: Callable[[], LocalResults] | None
) -> tuple[Estimates | None, Mapping[str, Any] | None, tuple[str, ...]]:
    """Return a run's estimates and summary, and a sentence for each problem.

    ``written`` is the content of ``metrics.json``. ``follow`` returns the run's results; without it, only small journals
    are read.
    """
    estimates, summary = Estimates.read(written.get("estimates")), written.get("summary")
    counted, events = written.get("journal_bytes"), directory.events
    is_complete = counted == size_of(events) if counted is not None else not events.exists()
    if estimates is not None and isinstance(summary, dict) and is_complete:
        return estimates, summary, ()
    lost = describe_lost_results(directory, written)
    if lost is not None and estimates is not None and not events.exists():
        problem = lost
    elif follow is None and size_of(events) > MAX_LISTED_BYTES:
        return estimates, summary, ()
    else:
        try:
            results = follow() if follow is not None else LocalResults(directory.path)
            results.advance()
            return results.metrics.estimates, results.metrics.summary, (lost,) if lost else ()
        except OsmosisError as error:
            problem = error.with_hint
        except OSError as error:
            problem = f"`{events}` cannot be read ({reason_of(error)})."
    if estimates is None:
        return None, None, (problem,)
    return estimates, summary, (f"{problem} The numbers are those of the run's last session.",)


def describe_lost_results(directory: RunDirectory, written: Mapping[str, Any]) -> str | None:
    """Return a sentence if the journal is smaller than when ``metrics.json`` was written; None otherwise."""
    counted = int(as_number(written.get("journal_bytes")) or 0)
    if not directory.events.exists():
        return f"`{directory.events}` does not exist." if counted else None
    missing = counted - size_of(directory.events)
    if missing <= 0:
        return None
    less = (
        f"`{directory.events}` has {missing:,} bytes less than when the run last ended: results are missing."
    )
    return f"{less} Continuing the run repeats them."


def pass_threshold_of(directory: RunDirectory, written: Mapping[str, Any] | None = None) -> float:
    """Return the pass threshold of a run's metrics (``written``, read by default), else of its config."""
    metrics = written if written is not None else directory.read_metrics() or {}
    threshold = as_number(as_table(metrics.get("summary")).get("pass_threshold"))
    if threshold is None:
        try:
            config: Mapping[str, Any] = parse_toml(read_config(directory) or "", directory.config.name)
        except OsmosisError:
            config = {}
        # The config of `osmosis eval -m` has no sections.
        threshold = as_number(as_table(config.get("evaluation", config)).get("pass_threshold"))
    return 1.0 if threshold is None else threshold
