"""The numbers of a run directory, worked out anew from its journal.

What an earlier release has written into ``metrics.json`` may lack what this one knows; the records lack nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from osmosis_ai.evaluation.journal import replay
from osmosis_ai.evaluation.ledger import Ledger
from osmosis_ai.evaluation.manifest import Manifest
from osmosis_ai.evaluation.metrics import EvalMetrics, MetricsAccumulator
from osmosis_ai.evaluation.row_copies import RowCopies
from osmosis_ai.evaluation.run_directory import RunDirectory
from osmosis_ai.evaluation.run_lock import is_running


@dataclass(frozen=True)
class LocalResults:
    """What a run on this machine has come to.

    Attributes:
        rows: how many rows were selected.
        pending: work items without a result.
        running: whether a process works on it.
        metrics: over all results that are there.
    """

    directory: Path
    name: str
    rows: int
    pending: int
    running: bool
    metrics: EvalMetrics


def read_local_results(directory: Path) -> LocalResults:
    """Read a run and work out its numbers; a run that is under way is read as far as it is.

    Raises:
        OsmosisError: there is no run in ``directory``, or its manifest or journal is damaged.
    """
    found = RunDirectory(directory)
    # The lock first: whoever releases it has written everything before.
    running = is_running(directory.parent, directory.name)
    manifest = Manifest.load(found.manifest)
    rows, n = manifest.sampled_rows, int(manifest.inputs["n"])
    ledger = Ledger(rows, n)
    metrics = MetricsAccumulator(rows=rows, n=n, pass_threshold=_pass_threshold(found))
    copies = RowCopies(rows)
    if found.events.exists():
        for offset, _, record in replay(found.events):
            if ledger.holds(record.row_index, record.run_index):
                ledger.settle(record.row_index, record.run_index, record.status, offset)
                metrics.add_record(record)
                if record.row_digest is not None:
                    copies.note(record.row_index, record.row_digest)
    metrics.cluster(copies.clusters())
    return LocalResults(directory, manifest.run_name, rows, ledger.open_count, running, metrics.summary())


def _pass_threshold(directory: RunDirectory) -> float:
    """Return what passed when the run was last looked at; it is no input of the results, so only its metrics say."""
    written: Any = (directory.read_metrics() or {}).get("summary", {}).get("pass_threshold")
    return float(written) if isinstance(written, (int, float)) else 1.0
