"""Result of a session: the score table, the calls by record, and the cost."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from osmosis_ai.evaluation.journal import JournalReader
from osmosis_ai.rubric.session_journal import CallRecord

if TYPE_CHECKING:
    from osmosis_ai.controller.dispatcher import Stop
    from osmosis_ai.rubric.records import RecordIndex, RubricRecord
    from osmosis_ai.rubric.scores import ScoreTable
    from osmosis_ai.rubric.session_journal import CallStates, SessionSpec


@dataclass(slots=True)
class JudgeUsage:
    """Usage of one judge, including earlier sessions."""

    calls: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cost_usd: float | None = None
    retries: int = 0
    uncounted: int = 0

    def add(self, call: CallRecord) -> None:
        self.calls += 1
        self.uncounted += not call.input_tokens
        self.input_tokens += call.input_tokens
        self.output_tokens += call.output_tokens
        self.retries += call.retries
        if call.cost_usd is not None:
            self.cost_usd = (self.cost_usd or 0.0) + call.cost_usd


@dataclass(frozen=True)
class JudgedRecord:
    """A record and the results of its calls."""

    record: RubricRecord
    calls: list[CallRecord | None]

    @property
    def scores(self) -> list[float]:
        return [call.score for call in self.calls if call is not None and call.score is not None]

    def with_status(self, status: str) -> list[CallRecord]:
        return [call for call in self.calls if call is not None and call.status == status]


@dataclass(frozen=True)
class SessionResult:
    """Result of a session."""

    spec: SessionSpec
    index: RecordIndex
    call_states: CallStates
    usage: list[JudgeUsage]
    journal: Path
    stop: Stop | None
    resumed: int
    elapsed_s: float
    session_calls: int
    session_s: float

    @property
    def complete(self) -> bool:
        return self.call_states.count("scored") == len(self.call_states)

    @property
    def cost_usd(self) -> float | None:
        """Total cost of all judges; None if no price is known."""
        known = [usage.cost_usd for usage in self.usage if usage.cost_usd is not None]
        return sum(known) if known else None

    @cached_property
    def table(self) -> ScoreTable:
        """The scores on the session's scale."""
        import numpy as np

        from osmosis_ai.rubric.scores import ScoreTable, rescaled

        low, high = self.spec.bounds
        lows = np.frombuffer(self.index.lows)
        highs = np.frombuffer(self.index.highs)
        scores = np.frombuffer(self.call_states.scores).reshape(self.call_states.shape)
        human = np.frombuffer(self.index.human)
        if (lows != low).any() or (highs != high).any():
            scores = rescaled(scores, lows[:, None, None], highs[:, None, None], to_low=low, to_high=high)
            human = rescaled(human, lows, highs, to_low=low, to_high=high)
        return ScoreTable(
            models=self.spec.model_names,
            labels=self.index.labels,
            scores=scores,
            score_min=low,
            score_max=high,
            human=human,
            lengths=np.asarray(self.index.lengths, dtype=np.float64),
            presentations=self.spec.presentations,
            copy_of=self.index.copy_of if self.index.has_copies else None,
        )

    def records(self) -> Iterator[JudgedRecord]:
        """Yield every record with its calls, in file order."""
        with JournalReader(self.journal) as journal:
            for record in self.index.records():
                yield JudgedRecord(record, _calls(journal, self.call_states.offsets(record.index - 1)))


def _calls(journal: JournalReader, offsets: list[int]) -> list[CallRecord | None]:
    lines = (journal.line(offset) if offset >= 0 else None for offset in offsets)
    return [CallRecord.from_line(line) if line is not None else None for line in lines]


def statistics(scores: Iterable[float]) -> dict[str, float]:
    """Return mean, population variance, standard deviation and extremes of the scores, ignoring NaN."""
    known = [score for score in scores if not math.isnan(score)]
    if not known:
        return dict.fromkeys(("average", "variance", "stdev", "min", "max"), 0.0)
    # Relative to the first score, so that the mean of equal scores is that score.
    average = known[0] + math.fsum(score - known[0] for score in known) / len(known)
    variance = math.fsum((score - average) ** 2 for score in known) / len(known)
    return {
        "average": average,
        "variance": variance,
        "stdev": math.sqrt(variance),
        "min": min(known),
        "max": max(known),
    }


def counts(result: SessionResult) -> dict[str, Any]:
    """Return the counts of records and calls by outcome."""
    call_states = result.call_states
    return {
        "records": len(result.index),
        "calls": len(call_states),
        "scored": call_states.count("scored"),
        "unscored": call_states.count("unscored"),
        "failed": call_states.count("failed"),
        "pending": call_states.pending,
        "records_unscored": call_states.records_with("unscored"),
        "records_failed": call_states.records_with("failed"),
        "records_pending": call_states.records_with(None),
        "unscored_by_reason": call_states.reasons("unscored"),
        "failed_by_reason": call_states.reasons("failed"),
        "outside_scale": call_states.outside_scale,
    }


def describe_outside_scale(outside: int, scored: int) -> str:
    """Describe how many scores were clamped; "" if there are none."""
    if not outside:
        return ""
    return f"{outside:,} of {scored:,} {'score' if scored == 1 else 'scores'} outside the scale, clamped"


def usage(result: SessionResult) -> dict[str, Any]:
    """Return the session's usage, in total and by judge."""
    return {
        "input_tokens": sum(judge.input_tokens for judge in result.usage),
        "output_tokens": sum(judge.output_tokens for judge in result.usage),
        "cost_usd": result.cost_usd,
        "elapsed_s": round(result.elapsed_s, 3),
        "judges": [
            {
                "model": model.name,
                "calls": judge.calls,
                "input_tokens": judge.input_tokens,
                "output_tokens": judge.output_tokens,
                "cost_usd": judge.cost_usd,
                "retries": judge.retries,
                **({"calls_without_tokens": judge.uncounted} if judge.uncounted else {}),
            }
            for model, judge in zip(result.spec.judges, result.usage, strict=True)
        ],
    }
