"""The numbers of a run directory, worked out anew from its journal.

What an earlier release has written into ``metrics.json`` may lack what this one knows; the records lack nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from osmosis_ai.errors import OsmosisError
from osmosis_ai.evaluation.journal import replay
from osmosis_ai.evaluation.journal_chain import Chain
from osmosis_ai.evaluation.ledger import Ledger
from osmosis_ai.evaluation.manifest import Manifest
from osmosis_ai.evaluation.metrics import MetricsAccumulator, RunMetrics
from osmosis_ai.evaluation.row_copies import RowCopies
from osmosis_ai.evaluation.run_directory import RunDirectory
from osmosis_ai.evaluation.run_lock import is_running
from osmosis_ai.evaluation.run_state import require_part_of_run

_MOST_ATTEMPTS = 10**7
"""Each takes some bytes from the beginning: a manifest that tells of more would take the machine's memory."""


@dataclass(frozen=True)
class LocalResults:
    """What a run on this machine has come to.

    Attributes:
        rows: how many rows were selected.
        pending: work items without a result.
        running: whether a process works on it.
        pass_threshold: the reward at which a sample passes.
        unverified: records without a digest, so that a change of them could not be seen.
        metrics: over all results that are there.
        ledger: where in the journal each result is.
    """

    directory: Path
    name: str
    rows: int
    pending: int
    running: bool
    pass_threshold: float
    unverified: int
    metrics: RunMetrics
    ledger: Ledger

    @property
    def unfinished(self) -> str | None:
        """Why it is not all there, in a sentence; None for a run that is."""
        return unfinished_words(self.pending, self.metrics.estimates.counts.planned, running=self.running)


class JournalNumbers:
    """The numbers of a run, followed from its journal's first byte on.

    Raises:
        OsmosisError: there is no run in ``directory``, or its manifest is damaged.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = RunDirectory(directory)
        manifest = Manifest.load(self._directory.manifest)
        self.run_id, self.name = manifest.local_run_id, manifest.run_name
        try:
            self.rows, n = manifest.sampled_rows, int(manifest.inputs["n"])
            if n < 1 or self.rows * n > _MOST_ATTEMPTS:
                raise ValueError(f"{self.rows:,} rows with {n:,} attempts each")
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
            raise OsmosisError(
                f"{self._directory.manifest} does not tell what the run is ({error})."
            ) from None
        self.ledger = Ledger(self.rows, n)
        self.pass_threshold = pass_threshold_of(self._directory)
        self._metrics = MetricsAccumulator(rows=self.rows, n=n, pass_threshold=self.pass_threshold)
        self._copies, self._chain = RowCopies(self.rows), Chain()
        self._summed_up: tuple[RunMetrics | None, int] = (None, 0)
        self.read = 0

    @property
    def unverified(self) -> int:
        """Records without a digest, so that a change of them could not be seen."""
        return self._chain.without_digest

    def still_holds(self) -> bool:
        """Tell whether the directory still has the run that was followed, and its journal what was read of it."""
        try:
            same = Manifest.load(self._directory.manifest).local_run_id == self.run_id
            size = self._directory.events.stat().st_size if self.read else 0
        except (OsmosisError, OSError):
            return False
        return same and size >= self.read and self.pass_threshold == pass_threshold_of(self._directory)

    def advance(self) -> None:
        """Read what has been committed since.

        Raises:
            JournalCorruptionError: a line is no record of this run; what stands before it is counted.
        """
        events = self._directory.events
        if not events.exists():
            return
        for offset, end, record in replay(events, self.read, chain=self._chain):
            require_part_of_run(self.ledger, record, events)
            self.ledger.settle(record.row_index, record.run_index, record.status, offset)
            self._metrics.add_record(record)
            if record.row_digest is not None:
                self._copies.note(record.row_index, record.row_digest)
            self.read = end

    def summary(self) -> RunMetrics:
        """Return the numbers of what has been read; worked out once while there is no more of it."""
        known, at = self._summed_up
        if known is None or at != self.read:
            self._metrics.cluster(self._copies.clusters())
            known = self._metrics.summary()
            self._summed_up = (known, self.read)
        return known


def read_local_results(directory: Path) -> LocalResults:
    """Read a run and work out its numbers; a run that is under way is read as far as it is.

    Raises:
        OsmosisError: there is no run in ``directory``, or its manifest or journal is damaged.
    """
    # The lock first: whoever releases it has written everything before.
    running = is_running(directory.parent, directory.name)
    numbers = JournalNumbers(directory)
    numbers.advance()
    return LocalResults(
        directory=directory,
        name=numbers.name,
        rows=numbers.rows,
        pending=numbers.ledger.open_count,
        running=running,
        pass_threshold=numbers.pass_threshold,
        unverified=numbers.unverified,
        metrics=numbers.summary(),
        ledger=numbers.ledger,
    )


def unfinished_words(pending: int, planned: int, *, running: bool) -> str | None:
    """Return why a run is not all there, in a sentence; None for one that is."""
    if running:
        return f"the run is still going on: {pending} of {planned} attempts are pending."
    if pending:
        return f"the run is not finished: {pending} of {planned} attempts are pending; run it again to go on."
    return None


def pass_threshold_of(directory: RunDirectory) -> float:
    """Return what passed when the run was last looked at; it is no input of the results, so only its metrics say."""
    summary = (directory.read_metrics() or {}).get("summary")
    written: Any = summary.get("pass_threshold") if isinstance(summary, dict) else None
    return float(written) if isinstance(written, (int, float)) else 1.0
