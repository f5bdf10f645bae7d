"""An evaluation that leaves no files: the same attempts, verdicts, records and numbers, kept in memory.

It is for whoever measures a policy on the way to something else, such as a trainer that validates.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec

from osmosis_ai.controller.attempt import Attempt, AttemptResult, AttemptResults, attempt_seeds
from osmosis_ai.datasets import row_digest
from osmosis_ai.evaluation.metrics import RunMetrics, compute_metrics
from osmosis_ai.evaluation.record import TerminalRecord
from osmosis_ai.evaluation.recording import record_of
from osmosis_ai.evaluation.results import AttemptTable
from osmosis_ai.redaction import Redactor

if TYPE_CHECKING:
    from osmosis_ai.controller.dispatcher import RolloutRunner
    from osmosis_ai.controller.model_proxy import RolloutUsage
    from osmosis_ai.datasets import DatasetRow


@dataclass(frozen=True)
class MeasuredRows:
    """What an evaluation came to."""

    metrics: RunMetrics
    rewards: list[float | None]
    records: list[TerminalRecord] = field(default_factory=list)


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
    """Make ``n`` attempts on each of ``rows`` and return what they came to."""
    attempts = [
        Attempt(
            row,
            row.source_row_index,
            run_index,
            attempt_seeds(seed, row.source_row_index, run_index),
            name=f"{name}-row-{row.source_row_index}-{run_index}",
        )
        for row in rows
        for run_index in range(n)
    ]
    recorder = _MetricsRecorder(
        rows,
        n=n,
        pass_threshold=pass_threshold,
        finished=finished,
        forget=forget,
        redact=redact or Redactor(()),
    )
    await runner.run_all(attempts, recorder)
    return recorder.measured()


class _MetricsRecorder(AttemptResults):
    """Counts the results of ``n`` attempts on each of ``rows``."""

    def __init__(
        self,
        rows: Sequence[DatasetRow],
        *,
        n: int,
        pass_threshold: float,
        finished: Callable[[AttemptResult], None],
        forget: Callable[[str], None],
        redact: Redactor,
    ) -> None:
        self._places = {row.source_row_index: place for place, row in enumerate(rows)}
        self._rewards: list[list[float | None]] = [[None] * n for _ in rows]
        self._table = AttemptTable(len(rows), n)
        self._table.set_row_digests(map(row_digest, rows))
        self._pass_threshold = pass_threshold
        self._records: list[TerminalRecord] = []
        self._redact = redact
        self._finished = finished
        self._forget = forget

    async def record(self, result: AttemptResult) -> None:
        place, run_index = self._places[result.attempt.row.source_row_index], result.attempt.run_index
        self._rewards[place][run_index] = result.reward
        record = msgspec.structs.replace(record_of(result, self._redact, previews=True), row_index=place)
        self._table.set_result(record)
        self._records.append(record)
        self._forget(result.rollout_id)
        self._finished(result)

    def unrecorded(self, rollout_id: str, usage: RolloutUsage) -> None:
        self._forget(rollout_id)

    def measured(self) -> MeasuredRows:
        rewards = [_mean(rewards) for rewards in self._rewards]
        metrics = compute_metrics(self._table, pass_threshold=self._pass_threshold)
        return MeasuredRows(metrics, rewards, self._records)


def _mean(rewards: Sequence[float | None]) -> float | None:
    scored = [reward for reward in rewards if reward is not None]
    return sum(scored) / len(scored) if scored else None
