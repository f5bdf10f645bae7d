"""The numbers of a run directory: those in ``metrics.json`` if they cover the whole journal, otherwise computed again."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from osmosis_ai.config.lines import parse_toml
from osmosis_ai.errors import OsmosisError, reason_of
from osmosis_ai.evaluation.attempt_files import read_config
from osmosis_ai.evaluation.journal import load_results
from osmosis_ai.evaluation.lenient_json import as_number, as_table
from osmosis_ai.evaluation.manifest import Manifest
from osmosis_ai.evaluation.metrics import Estimates, RunMetrics, compute_metrics
from osmosis_ai.evaluation.record import TerminalRecord
from osmosis_ai.evaluation.results import AttemptTable
from osmosis_ai.evaluation.run_directory import RunDirectory
from osmosis_ai.evaluation.run_lock import is_running
from osmosis_ai.files import size_of

_MOST_ATTEMPTS = 10**7
"""Each takes some bytes from the beginning: a manifest that tells of more would take the machine's memory."""
_READ_UNASKED_BYTES = 4 << 20
"""Of a journal without numbers beside it: who has many runs to look at does not read more of one."""


@dataclass(frozen=True)
class LocalResults:
    """What a run on this machine has come to."""

    directory: Path
    name: str
    rows: int
    pending: int
    running: bool
    pass_threshold: float
    metrics: RunMetrics
    table: AttemptTable

    @property
    def unfinished(self) -> str | None:
        """Why it is not all there, in a sentence; None for a run that is."""
        return unfinished_words(self.pending, self.metrics.estimates.counts.planned, running=self.running)


class JournalNumbers:
    """The numbers of a run, followed from its journal's first byte on."""

    def __init__(self, directory: Path) -> None:
        self._directory = RunDirectory(directory)
        manifest = Manifest.load(self._directory.manifest)
        self.run_id = manifest.local_run_id
        try:
            self.rows, n = manifest.sampled_rows, int(manifest.inputs["n"])
            if n < 1 or self.rows * n > _MOST_ATTEMPTS:
                raise ValueError(f"{self.rows:,} rows with {n:,} attempts each")
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
            raise OsmosisError(
                f"{self._directory.manifest} does not tell what the run is ({error})."
            ) from None
        self.table = AttemptTable(self.rows, n)
        self.pass_threshold, self._reward_range = pass_threshold_of(self._directory), manifest.reward_range
        self._computed: tuple[RunMetrics | None, int] = (None, 0)
        self.read = 0

    def still_holds(self) -> bool:
        """Tell whether the directory still has the run that was followed, and its journal what was read of it."""
        try:
            same = Manifest.load(self._directory.manifest).local_run_id == self.run_id
            size = self._directory.events.stat().st_size if self.read else 0
        except (OsmosisError, OSError):
            return False
        return same and size >= self.read and self.pass_threshold == pass_threshold_of(self._directory)

    def advance(self) -> None:
        """Read what has been committed since."""
        self.read = load_results(self._directory.events, self.table, start=self.read, each=self._note_row)

    def summary(self) -> RunMetrics:
        """Return the numbers of what has been read; worked out once while there is no more of it."""
        known, at = self._computed
        if known is None or at != self.read:
            known = compute_metrics(
                self.table, pass_threshold=self.pass_threshold, reward_range=self._reward_range
            )
            self._computed = (known, self.read)
        return known

    def _note_row(self, record: TerminalRecord) -> None:
        if record.row_digest is not None:
            self.table.set_row_digest(record.row_index, record.row_digest)


def read_local_results(directory: Path) -> LocalResults:
    """Read a run and work out its numbers; a run that is under way is read as far as it is."""
    # The lock first: whoever releases it has written everything before.
    running = is_running(directory.parent, directory.name)
    numbers = JournalNumbers(directory)
    numbers.advance()
    return LocalResults(
        directory=directory,
        # A copy of a run's directory has the run's manifest, and its own name.
        name=directory.name,
        rows=numbers.rows,
        pending=numbers.table.open_count,
        running=running,
        pass_threshold=numbers.pass_threshold,
        metrics=numbers.summary(),
        table=numbers.table,
    )


def known_numbers(
    found: RunDirectory, written: Mapping[str, Any], follow: Callable[[], JournalNumbers] | None
) -> tuple[Estimates | None, Mapping[str, Any] | None, tuple[str, ...]]:
    """Return a run's estimates and summary, and what is wrong with them, a sentence each."""
    estimates, summary = Estimates.read(written.get("estimates")), written.get("summary")
    if estimates is not None and isinstance(summary, dict) and _is_current(found, written):
        return estimates, summary, ()
    lost = lost_results(found, written)
    if lost and estimates is not None and not found.events.exists():
        return estimates, summary, (f"{lost} The numbers are those of the run's last end.",)
    if follow is None and size_of(found.events) > _READ_UNASKED_BYTES:
        return estimates, summary, ()
    try:
        followed = follow() if follow is not None else JournalNumbers(found.path)
        followed.advance()
    except (OsmosisError, OSError) as error:
        problem = (
            f"`{found.events}` can not be read ({reason_of(error)})."
            if isinstance(error, OSError)
            else error.with_hint
        )
        if estimates is not None:
            return estimates, summary, (f"{problem} The numbers are those of the run's last end.",)
        return None, None, (problem,)
    except (ValueError, KeyError, TypeError, OverflowError, MemoryError) as error:
        return None, None, (f"{found.manifest} does not tell what the run is ({error}).",)
    metrics = followed.summary()
    return metrics.estimates, metrics.summary, (lost,) if lost else ()


def lost_results(found: RunDirectory, written: Mapping[str, Any]) -> str | None:
    """Return that a journal has less than the run's numbers were made of, in a sentence; None where it does not."""
    counted = as_number(written.get("journal_bytes")) or 0
    if not found.events.exists():
        return f"`{found.events}` is not there." if counted else None
    missing = int(counted) - size_of(found.events)
    if missing <= 0:
        return None
    return (
        f"`{found.events}` has {missing:,} bytes less than when the run last ended: results are missing, "
        "which going on with the run makes again."
    )


def _is_current(found: RunDirectory, written: Mapping[str, Any]) -> bool:
    """Tell whether the numbers are of the whole journal; where they do not say of how much, it is counted."""
    counted = written.get("journal_bytes")
    return bool(counted == size_of(found.events)) if counted is not None else not found.events.exists()


def unfinished_words(pending: int, planned: int, *, running: bool) -> str | None:
    """Return why a run is not all there, in a sentence; None for one that is."""
    if running:
        return f"the run is still going on: {pending} of {planned} attempts are pending."
    if pending:
        return f"the run is not finished: {pending} of {planned} attempts are pending; run it again to go on."
    return None


def pass_threshold_of(directory: RunDirectory, written: Mapping[str, Any] | None = None) -> float:
    """Return what passed when the run was last looked at; where its metrics do not say, what its config began
    with."""
    metrics = written if written is not None else directory.read_metrics() or {}
    known = as_number(as_table(metrics.get("summary")).get("pass_threshold"))
    if known is None:
        config = _config_of(directory)
        # That of `osmosis eval -m` has no sections.
        known = as_number(as_table(config.get("evaluation", config)).get("pass_threshold"))
    return 1.0 if known is None else known


def _config_of(directory: RunDirectory) -> Mapping[str, Any]:
    """Return the config that a run began with; empty where it was not kept, or can not be read."""
    try:
        return parse_toml(read_config(directory) or "", directory.config.name)
    except OsmosisError:
        return {}
