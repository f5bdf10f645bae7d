"""What a finished session hands back, and the same facts as ``metrics.json`` keeps them."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from osmosis_ai.controller.dispatcher import Stop
from osmosis_ai.evaluation.headline import Headline
from osmosis_ai.evaluation.journal import JournalReader
from osmosis_ai.evaluation.manifest import utc_now
from osmosis_ai.evaluation.record import TerminalRecord
from osmosis_ai.evaluation.run_directory import RunDirectory

if TYPE_CHECKING:
    from osmosis_ai.datasets.selection import RowsDrawn
    from osmosis_ai.evaluation.manifest import Manifest
    from osmosis_ai.evaluation.metrics import RunMetrics
    from osmosis_ai.evaluation.results import AttemptTable
    from osmosis_ai.evaluation.spec import EvalRunSpec

# Enough to see what goes wrong; the journal has them all.
MAX_FAILURES = 1000


@dataclass(frozen=True)
class FailedRow:
    """A failed attempt, and where its files are."""

    record: TerminalRecord
    rollout_dir: Path

    def to_json(self) -> dict[str, Any]:
        """Return it as scripts see it."""
        record = self.record
        return {
            "row_index": record.row_index,
            "source_row_index": record.source_row_index,
            "run_index": record.run_index,
            "rollout_id": record.rollout_id,
            "error_type": record.error_type,
            "boundary": record.boundary,
            "error": record.error,
            "rollout_dir": str(self.rollout_dir),
        }


@dataclass(frozen=True)
class RunSummary:
    """How a session of a run ended."""

    run_dir: Path
    local_run_id: str
    run_name: str
    total_work_items: int
    dispatched: int
    succeeded: int
    failed: int
    skipped: int
    pending: int
    resumed: int
    stop: Stop | None
    duration_ms: int
    metrics: RunMetrics
    failures: tuple[FailedRow, ...]
    rows: RowsDrawn

    @property
    def headline(self) -> Headline:
        """The result in a line."""
        return Headline.of(self.metrics.estimates, self.rows)

    @property
    def cancelled(self) -> bool:
        """Whether the session ended before its work did."""
        return self.stop is not None

    @property
    def complete(self) -> bool:
        """Whether every work item is terminal."""
        return self.stop is None and self.pending == 0


def first_failures(directory: RunDirectory, table: AttemptTable) -> tuple[FailedRow, ...]:
    """Return the first :data:`MAX_FAILURES` failed attempts, by row and attempt."""
    if not table.count("failed"):
        return ()
    found: list[FailedRow] = []
    with JournalReader(directory.events) as journal:
        for _, _, offset in table.recorded("failed"):
            record = journal.record(offset)
            if record is not None:
                found.append(FailedRow(record, directory.trial(record.rollout_id)))
            if len(found) == MAX_FAILURES:
                break
    return tuple(found)


def describe_run(
    spec: EvalRunSpec, manifest: Manifest, rows: RowsDrawn, *, status: str, duration_ms: int
) -> dict[str, Any]:
    """Return the ``eval_run`` object of ``metrics.json``."""
    described: dict[str, Any] = {
        "id": manifest.local_run_id,
        "status": status,
        "name": manifest.run_name,
        "dataset_name": spec.experiment.dataset,
        "model_name": spec.experiment.model_path,
        "rollout_name": spec.experiment.rollout,
        "duration_ms": duration_ms,
        "started_at": manifest.created_at,
        "rows": asdict(rows),
    }
    if status == "finished":
        described["completed_at"] = utc_now()
    return described
