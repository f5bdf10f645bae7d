"""The interface between the engine and its caller: plan, progress, questions and the summary of a session.

The defaults of :class:`RunHooks` suit an unattended program: they show nothing, confirm the dispatch and read secrets
from the environment.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from osmosis_ai.api.models.base import wire_time
from osmosis_ai.controller.record import TerminalRecord
from osmosis_ai.evaluation.journal import JournalReader
from osmosis_ai.evaluation.manifest import Manifest, RunPlan
from osmosis_ai.evaluation.metrics import RunScore
from osmosis_ai.evaluation.run_directory import RunDirectory
from osmosis_ai.evaluation.run_log import LogEvent
from osmosis_ai.evaluation.spec import EvalRunSpec

if TYPE_CHECKING:
    from osmosis_ai.controller.dispatcher import Stop
    from osmosis_ai.datasets.selection import RowsDrawn
    from osmosis_ai.evaluation.metrics import RunMetrics
    from osmosis_ai.evaluation.results import AttemptTable

# The journal has all of them.
_MAX_FAILURES = 1000
_FAILURE_KEYS = "row_index", "source_row_index", "run_index", "rollout_id", "error_type", "boundary", "error"


@dataclass(frozen=True, slots=True)
class ProgressSnapshot:
    """Progress of a run, for a live display; ``finished`` attempts in the ``elapsed_s`` of this session."""

    completed: int
    total: int
    passed: int
    failed: int
    skipped: int
    scored: int
    reward_mean: float | None
    tokens: int
    cost_usd: float | None
    in_flight: int | None
    elapsed_s: float
    finished: int

    @classmethod
    def of(cls, table: AttemptTable, pass_threshold: float, **measured: Any) -> ProgressSnapshot:
        """Return the progress of a run with these results; ``measured`` has the fields that are not in the table."""
        import numpy as np

        # As in the metrics, each row has the same weight, however many of its attempts have a score.
        rewards, rows = table.rewards, np.flatnonzero(table.is_scored) // table.n
        scored = np.bincount(rows)
        means = np.bincount(rows, rewards)[scored > 0] / scored[scored > 0]
        return cls(
            completed=len(table) - table.open_count,
            total=len(table),
            passed=int((rewards >= pass_threshold).sum()),
            failed=table.count("failed"),
            skipped=table.count("skipped"),
            scored=rewards.size,
            reward_mean=float(means.mean()) if rewards.size else None,
            **measured,
        )

    @property
    def rate_per_s(self) -> float | None:
        """Attempts finished per second in this session."""
        return self.finished / self.elapsed_s if self.elapsed_s > 0 and self.finished else None


class RunHooks:
    """Override what the caller needs. All methods are called on the run's event loop."""

    def plan(self, plan: RunPlan) -> None:
        """Show the plan, before anything is started or asked."""

    def note(self, message: str) -> None:
        """Show a message."""

    def stage(self, message: str) -> None:
        """Show the current stage (``starting the rollout's server``)."""

    def environment(self, description: str) -> None:
        """Receive the description of the agent's environment; not called for a remote agent."""

    def log_event(self, event: LogEvent) -> None:
        """Receive an event of the run's log; only with ``verbose``."""

    def recorded(self, record: TerminalRecord) -> None:
        """Receive the record of an attempt after it became durable."""

    def progress(self, snapshot: ProgressSnapshot) -> None:
        """Show the progress; called several times per second."""

    async def confirm_dispatch(self, *, pending: int, model_path: str) -> bool:
        """Ask whether to run the ``pending`` attempts; not called if there are none."""
        return True

    def resolve_secrets(self, names: Sequence[str]) -> dict[str, str]:
        """Return the values of the secrets; called only if attempts are dispatched."""
        return {name: os.environ[name] for name in names}

    def started(self, interrupt: Callable[[], None]) -> None:
        """Receive the function that stops the run gracefully; the run costs money from now on."""

    def ended(self) -> None:
        """Called when the run no longer costs money; only its files are still written."""


@dataclass(frozen=True)
class RunSummary:
    """Outcome of a session of a run."""

    run_dir: Path
    local_run_id: str
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
    failures: tuple[TerminalRecord, ...]
    rows: RowsDrawn

    @property
    def headline(self) -> RunScore:
        """The score of the run."""
        return RunScore.of(self.metrics.estimates, self.rows)

    @property
    def failed_rows(self) -> list[dict[str, Any]]:
        """The failures as JSON values, each with the directory of its files."""
        trials = RunDirectory(self.run_dir).trials
        return [
            {name: getattr(record, name) for name in _FAILURE_KEYS}
            | {"rollout_dir": str(trials / record.rollout_id)}
            for record in self.failures
        ]

    @property
    def complete(self) -> bool:
        """Whether every attempt has a result."""
        return self.stop is None and self.pending == 0


def first_failures(directory: RunDirectory, table: AttemptTable) -> tuple[TerminalRecord, ...]:
    """Return the first thousand failed attempts, by row and attempt."""
    if not table.count("failed"):
        return ()
    with JournalReader(directory.events) as journal:
        records = [journal.record(offset) for _, _, offset in islice(table.recorded("failed"), _MAX_FAILURES)]
    return tuple(record for record in records if record is not None)


def describe_run(
    spec: EvalRunSpec, manifest: Manifest, rows: RowsDrawn, *, status: str, duration_ms: int
) -> dict[str, Any]:
    """Return the ``eval_run`` object of ``metrics.json``."""
    described = {
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
        described["completed_at"] = wire_time(datetime.now(timezone.utc))
    return described
