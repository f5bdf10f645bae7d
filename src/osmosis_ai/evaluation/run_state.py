"""What a run has come to so far: the one place where a durable record becomes numbers and copies.

Everything here is derived from the journal: records of earlier sessions are replayed through the
same door that new ones come in by. Memory is a fixed number of bytes per work item.
"""

from __future__ import annotations

import asyncio
import copy
import threading
from dataclasses import dataclass
from pathlib import Path

from osmosis_ai.controller.dispatcher import LimitTally
from osmosis_ai.evaluation.budget import Spending
from osmosis_ai.evaluation.journal import Journal, JournalCorruptionError, replay, salvage_hint
from osmosis_ai.evaluation.journal_checkpoint import JournalCheckpoint
from osmosis_ai.evaluation.ledger import Ledger
from osmosis_ai.evaluation.metrics import MetricsAccumulator, RunMetrics
from osmosis_ai.evaluation.record import TerminalRecord
from osmosis_ai.evaluation.run_log import RunLog
from osmosis_ai.evaluation.sample_columns import RecordColumns
from osmosis_ai.evaluation.trajectory_export import Projector
from osmosis_ai.redaction import Redactor


@dataclass(frozen=True, slots=True)
class ProgressSnapshot:
    """How far a run is, for a live display."""

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

    @property
    def rate_per_s(self) -> float | None:
        """Items finished per second in this session."""
        return self.finished / self.elapsed_s if self.elapsed_s > 0 and self.finished else None


class RunState:
    """Ledger, metrics, spending, copies and log of a run, kept in step."""

    def __init__(
        self,
        *,
        ledger: Ledger,
        metrics: MetricsAccumulator,
        spending: Spending,
        projector: Projector,
        log: RunLog,
        redact: Redactor,
        pass_threshold: float,
    ) -> None:
        self.ledger = ledger
        self.metrics = metrics
        self.spending = spending
        self.projector = projector
        self.log = log
        self.redact = redact
        self.records = 0
        self._pass_threshold = pass_threshold
        self.tally = LimitTally()
        self._reward_sum = 0.0
        self._scored = 0
        self._passed = 0
        self._finished = 0
        # A snapshot reads the metrics in another thread.
        self._metrics_lock = threading.Lock()

    def replay(self, journal: Journal, checkpoint: JournalCheckpoint) -> None:
        """Take in what earlier sessions recorded: what the journal's checkpoint has of it, then the rest."""
        for columns in checkpoint.columns():
            require_all_part_of_run(self.ledger, columns, journal.path)
            self._count_columns(columns)
        self.spending.go_on_from(checkpoint.spent)
        for offset, _, record in journal.replay(checkpoint.chain(), checkpoint.end):
            require_part_of_run(self.ledger, record, journal.path)
            self.spend(record)
            self._count(record, offset)

    def spend(self, record: TerminalRecord) -> None:
        """Count what an attempt has cost; its place is free before its record is durable, the money is not."""
        self.spending.add_record(record)

    async def prepare(self, record: TerminalRecord) -> None:
        """Make way for a record that may replace an older one: the older one's copies go first."""
        if self.ledger.offset(record.row_index, record.run_index) >= 0:
            await asyncio.to_thread(self.projector.forget, record.row_index, record.run_index)

    def add(self, record: TerminalRecord, offset: int, *, expects_trajectory: bool) -> None:
        """Take in a record that has just become durable; what it cost has been counted."""
        self._count(record, offset)
        self._finished += 1
        self.projector.submit(
            record.row_index, record.run_index, record.rollout_id, expects_trajectory=expects_trajectory
        )
        self.log.write(
            "result",
            record.status if record.error is None else f"{record.status}: {record.error}",
            level="WARNING" if record.status == "failed" else "INFO",
            row_index=record.row_index,
            run_index=record.run_index,
            rollout_id=record.rollout_id,
            reward=record.reward,
            tokens=record.tokens,
            duration_ms=record.duration_ms,
            error_type=record.error_type,
            boundary=record.boundary,
        )

    def summary(self) -> RunMetrics:
        """Return the metrics over the records so far; may be called from another thread."""
        with self._metrics_lock:
            frozen = copy.deepcopy(self.metrics)
        summary = frozen.summary()
        limited, called = self.tally.limited_by(), summary.estimates.latency.model_call_mean_ms is not None
        if limited is not None and limited.most == "provider" and not called:
            limited = None  # a model that was never asked holds nothing back
        estimates = summary.estimates.model_copy(update={"limited_by": limited})
        return summary.model_copy(update={"estimates": estimates})

    def progress(self, *, in_flight: int | None, elapsed_s: float) -> ProgressSnapshot:
        """Return how far the run is."""
        total = len(self.ledger)
        return ProgressSnapshot(
            completed=total - self.ledger.open_count,
            total=total,
            passed=self._passed,
            failed=self.ledger.count("failed"),
            skipped=self.ledger.count("skipped"),
            scored=self._scored,
            reward_mean=self._reward_sum / self._scored if self._scored else None,
            tokens=self.spending.tokens,
            cost_usd=self.spending.cost_usd if self.spending.cost_known else None,
            in_flight=in_flight,
            elapsed_s=elapsed_s,
            finished=self._finished,
        )

    def _count(self, record: TerminalRecord, offset: int) -> None:
        self.records += 1
        self.ledger.settle(record.row_index, record.run_index, record.status, offset)
        # Only failed and skipped items are ever redone, so no reward is counted twice.
        if record.status == "success" and record.reward is not None:
            self._scored += 1
            self._reward_sum += record.reward
            self._passed += record.reward >= self._pass_threshold
        with self._metrics_lock:
            self.metrics.add_record(record)

    def _count_columns(self, columns: RecordColumns) -> None:
        self.records += len(columns)
        self.ledger.settle_columns(columns)
        rewards = columns.rewards
        self._scored += rewards.size
        self._reward_sum = sum(rewards.tolist(), self._reward_sum)
        self._passed += int((rewards >= self._pass_threshold).sum())
        self.metrics.add_columns(columns)


def settle_recorded(ledger: Ledger, events: Path, checkpoint: JournalCheckpoint) -> None:
    """Learn from a journal, and from its checkpoint, which items are finished; others' records are passed
    over."""
    for columns in checkpoint.columns():
        require_all_part_of_run(ledger, columns, events)
        ledger.settle_columns(columns)
    for offset, _, record in replay(events, checkpoint.end, chain=checkpoint.chain()):
        if ledger.holds(record.row_index, record.run_index):
            ledger.settle(record.row_index, record.run_index, record.status, offset)


def require_all_part_of_run(ledger: Ledger, columns: RecordColumns, journal: Path) -> None:
    """Check many results as :func:`require_part_of_run` does each."""
    foreign = ledger.foreign(columns)
    if foreign is not None:
        raise not_part_of_run(*foreign, journal)


def require_part_of_run(ledger: Ledger, record: TerminalRecord, journal: Path) -> None:
    """Check that a result is of an item of the run: rows left out of a manifest must not leave its numbers
    unseen."""
    if not ledger.holds(record.row_index, record.run_index):
        raise not_part_of_run(record.row_index, record.run_index, journal)


def not_part_of_run(row_index: int, run_index: int, journal: Path) -> JournalCorruptionError:
    """Return what to say of a result of an item that a run does not have."""
    return JournalCorruptionError(
        f"the journal `{journal}` is damaged: it has a result of row {row_index}, "
        f"attempt {run_index + 1}, which is not part of the run.",
        hint=salvage_hint(journal),
    )
