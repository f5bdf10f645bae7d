"""Compute an evaluation's numbers from its accepted journal if its worker did not send the final ones.

A worker sends numbers periodically and at its end. A killed worker leaves samples that its numbers do not include.
Final numbers state the journal length they cover, and are kept if that equals the accepted length.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ConfigDict, Field
from sqlalchemy import func, select

from osmosis_ai.controller.record import TerminalRecord
from osmosis_ai.errors import ConflictError
from osmosis_ai.evaluation.metrics import Estimates, RunMetrics, WireSummary, compute_metrics
from osmosis_ai.evaluation.results import AttemptTable
from osmosis_ai.platform.blobs.store import BlobError, BlobStore
from osmosis_ai.platform.db.engine import Database
from osmosis_ai.platform.db.tables import DbRun, DbSample
from osmosis_ai.platform.runs.eval_results import summarised_results
from osmosis_ai.platform.runs.journal_segments import run_records
from osmosis_ai.platform.runs.leases import Leases, that_are_free
from osmosis_ai.platform.runs.submit.eval_request import read_eval_request

logger = logging.getLogger("osmosis_ai.platform.runs")

_COUNTED = "journal_bytes"
_BATCH = 5000
_MEASURED = (
    "row_index",
    "run_index",
    "status",
    "reward",
    "tokens",
    "prompt_tokens",
    "completion_tokens",
    "cost_usd",
    "duration_ms",
    "model_latency_ms",
    "model_calls",
    "boundary",
    "error_type",
    "lost_attempts",
    "finish_reasons",
    "source_row_index",
)
_COLUMNS = tuple(getattr(DbSample, name) for name in ("row_digest", "position", *_MEASURED))


class MeasuredRun(BaseModel):
    """The numbers of a run as a platform stores them; ``duration_ms`` is the engine's working time."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    duration_ms: float = Field(ge=0, allow_inf_nan=False)
    summary: WireSummary
    estimates: Estimates
    journal_bytes: int | None

    def record(self) -> dict[str, Any]:
        """Return them as JSON values, as the engine writes them."""
        summary = self.summary.model_dump(mode="json", exclude_none=True)
        return {**self.model_dump(mode="json"), "summary": summary}


@dataclass(frozen=True)
class CountedNumbers:
    """The numbers of all that was accepted of a run's journal, as its row keeps them."""

    journal: tuple[int, int]
    metrics: dict[str, Any]

    def write(self, run: DbRun) -> None:
        """Have a run's row say them; where more was accepted meanwhile nothing is changed."""
        if self.journal != (run.journal_generation, run.journal_bytes):
            return
        planned = self.metrics["estimates"]["counts"]["planned"]
        run.metrics = self.metrics
        run.results = summarised_results(run.results or {}, self.metrics)
        run.progress = {"completed": self.metrics["summary"]["total_samples"], "total": planned}


class AcceptedNumbers:
    """Counts what was accepted of one platform's runs; every method blocks."""

    def __init__(self, db: Database, blobs: BlobStore, leases: Leases) -> None:
        self._db = db
        self._blobs = blobs
        self._leases = leases
        self._known: dict[str, tuple[Any, ...]] = {}

    def counted(self, run: DbRun, still_mine: Callable[[], None] = lambda: None) -> CountedNumbers | None:
        """Return a run's numbers if its row has none or others; None if it has these, or has no journal."""
        said = run.metrics or {}
        is_silent = run.metrics is None and run.progress is None and not run.journal_bytes
        if run.kind != "eval" or is_silent or said.get(_COUNTED) == run.journal_bytes:
            return None
        if (run.results or {}).get("sampled_rows") is None:
            return None
        try:
            found = self._measure(run, still_mine)
        except ValueError as error:
            # No sample outside of its run is accepted. Where there is one all the same, a run ends with what was said of it.
            logger.warning("the samples of the run %s cannot be counted: %s", run.id, error)
            return None
        # What held the work back is known to the worker alone.
        last = Estimates.read(said.get("estimates"))
        estimates = found.estimates.model_copy(update={"limited_by": last and last.limited_by})
        measured = MeasuredRun(
            duration_ms=self._worked_ms(run, said.get("duration_ms")),
            summary=found.wire,
            estimates=estimates,
            journal_bytes=run.journal_bytes,
        )
        return CountedNumbers((run.journal_generation, run.journal_bytes), measured.record())

    def catch_up(self) -> None:
        """Have the rows of all runs that nobody works on say what was accepted of them."""
        seen = (DbRun.id, DbRun.heartbeat_at, DbRun.journal_generation, DbRun.journal_bytes)
        with self._db.session() as session:
            is_free = that_are_free(self._leases.now(session), self._leases.term)
            asked = select(*seen).where(DbRun.status == "running", DbRun.kind == "eval", is_free)
            waiting = {row.id: tuple(row) for row in session.execute(asked)}
        self._known = {run_id: how for run_id, how in self._known.items() if waiting.get(run_id) == how}
        for run_id in waiting.keys() - self._known.keys():
            self._catch_up(run_id)
            self._known[run_id] = waiting[run_id]

    def _catch_up(self, run_id: str) -> None:
        with self._db.session() as session:
            found = session.get(DbRun, run_id)
        counted = self.counted(found) if found is not None else None
        if counted is None:
            return
        with self._db.transaction() as session:
            run = session.get(DbRun, run_id, with_for_update=True)
            if run is not None and self._leases.is_open(session, run):
                counted.write(run)

    def _measure(self, run: DbRun, still_mine: Callable[[], None]) -> RunMetrics:
        settings = read_eval_request(run.request).evaluation
        table = AttemptTable(int((run.results or {}).get("sampled_rows") or 0), settings.n)
        samples = select(*_COLUMNS).where(DbSample.run_id == run.id).execution_options(yield_per=_BATCH)
        with self._db.session() as session:
            for place, sample in enumerate(session.execute(samples)):
                if place % _BATCH == 0:
                    still_mine()
                # An attempt without a score that a retry has not repeated yet is pending.
                is_scored = sample.status == "success" and sample.reward is not None
                is_old = run.revision and (sample.position or 0) <= run.reopened_at
                if is_old and not is_scored and sample.status != "skipped":
                    continue
                measured = {name: getattr(sample, name) for name in _MEASURED}
                table.set_result(TerminalRecord(rollout_id="", **measured))
                if sample.row_digest:
                    table.set_row_digest(sample.row_index, sample.row_digest)
        warnings = []
        try:
            for place, record in enumerate(run_records(self._db, self._blobs, run.id)):
                if place % _BATCH == 0:
                    still_mine()
                table.set_judge_calls(record)
        except (BlobError, ConflictError, OSError, ValueError):
            warnings = ["the calls of judges are not counted: the journal is gone"]
        found = compute_metrics(table, pass_threshold=settings.pass_threshold)
        said = {"warnings": [*warnings, *found.estimates.warnings]}
        return found.model_copy(update={"estimates": found.estimates.model_copy(update=said)})

    def _worked_ms(self, run: DbRun, said: float | None) -> float:
        """Return how long the engine has worked: as it last said, and as long as the longest attempt at least."""
        with self._db.session() as session:
            longest = session.scalar(select(func.max(DbSample.duration_ms)).where(DbSample.run_id == run.id))
        return max(said or 0.0, longest or 0.0)
