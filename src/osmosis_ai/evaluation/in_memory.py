"""An evaluation without files, with the same attempts, records and numbers; for a trainer that validates."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING

from osmosis_ai.controller.attempt import Attempt, AttemptResult, AttemptResults, attempt_seeds
from osmosis_ai.datasets import row_digest
from osmosis_ai.evaluation.metrics import RunMetrics, compute_metrics
from osmosis_ai.evaluation.record import TerminalRecord, record_of
from osmosis_ai.evaluation.results import AttemptTable
from osmosis_ai.redaction import Redactor

if TYPE_CHECKING:
    from osmosis_ai.controller.dispatcher import RolloutRunner
    from osmosis_ai.controller.model_proxy import RolloutUsage
    from osmosis_ai.datasets import DatasetRow


@dataclass(frozen=True)
class MeasuredRows:
    """Numbers, the mean reward of each row, and records."""

    metrics: RunMetrics
    rewards: list[float | None]
    records: list[TerminalRecord]


async def evaluate_in_memory(
    runner: RolloutRunner,
    rows: Sequence[DatasetRow],
    *,
    n: int,
    pass_threshold: float,
    seed: int,
    name: str,
    finished: Callable[[AttemptResult], None],
    forget: Callable[[str], None],
    redact: Redactor | None = None,
) -> MeasuredRows:
    """Make ``n`` attempts on each of ``rows``.

    Args:
        name: prefix of the rollout ids.
        finished: called with each result.
        forget: called with a rollout's id when it is no longer needed.
    """
    attempts = []
    for position, row in enumerate(rows):
        for run in range(n):
            seeds = attempt_seeds(seed, row.source_row_index, run)
            attempts.append(Attempt(row, position, run, seeds, f"{name}-row-{row.source_row_index}-{run}"))
    rewards: list[list[float]] = [[] for _ in rows]
    table = AttemptTable(len(rows), n)
    table.set_row_digests(map(row_digest, rows))
    records: list[TerminalRecord] = []
    redactor = redact or Redactor(())

    class Recorder(AttemptResults):
        async def record(self, result: AttemptResult) -> None:
            if result.reward is not None:
                rewards[result.attempt.row_index].append(result.reward)
            record = record_of(result, redactor, previews=True)
            table.set_result(record)
            records.append(record)
            forget(result.rollout_id)
            finished(result)

        def unrecorded(self, rollout_id: str, usage: RolloutUsage) -> None:
            forget(rollout_id)

    await runner.run_all(attempts, Recorder())
    metrics = compute_metrics(table, pass_threshold=pass_threshold)
    return MeasuredRows(metrics, [fmean(known) if known else None for known in rewards], records)
