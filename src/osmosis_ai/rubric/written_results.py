"""Result files of judging sessions, read as what anybody may have written: of `osmosis eval rubric` and of `eval-rubric`.

What is no number is no score, and what can not be read is left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from osmosis_ai.evaluation.lenient_json import as_number, as_table, as_text, loads
from osmosis_ai.rubric.report import ReportJudgement
from osmosis_ai.rubric.session_result import describe_outside_scale
from osmosis_ai.ui import numbers

if TYPE_CHECKING:
    from osmosis_ai.rubric.judge_agreement import AgreementReport
    from osmosis_ai.rubric.scores import ScoreTable

_LARGEST_BYTES = 64 << 20
_MOST_SCORES = 10_000_000


@dataclass(frozen=True)
class ReadRecord:
    """A record and what was said of it; ``mean`` is None where no call has a score, ``people`` is their
    score."""

    label: str
    mean: float | None
    people: float | None
    calls: Sequence[ReportJudgement]

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> ReadRecord:
        """Return a record of either form."""
        calls = list(_calls(record))
        # The statistics of a record that no call scored say 0.0, which is no score.
        is_scored = any(call.score is not None for call in calls)
        mean = as_number(as_table(record.get("statistics")).get("average")) if is_scored else None
        consensus = as_number(record.get("consensus"))
        return cls(
            label=str(record.get("label", record.get("conversation_id")) or ""),
            mean=mean if consensus is None else consensus,
            people=as_number(record.get("human_score")),
            calls=calls,
        )

    @property
    def is_scored(self) -> bool:
        """Whether any call gave a score."""
        return any(call.score is not None for call in self.calls)


@dataclass(frozen=True)
class ReadResult:
    """A result file's document; one that can not be read is empty."""

    document: Mapping[str, Any]

    @cached_property
    def records(self) -> Sequence[ReadRecord]:
        """Its records, in the order of the file."""
        return [ReadRecord.of(each) for each in _list(self.document.get("records")) if isinstance(each, dict)]

    @property
    def sentence(self) -> str:
        """What it came to: the mean score, on which scale, over how many records."""
        average = as_number(as_table(self.document.get("overall_statistics")).get("average"))
        low, high = (as_number(self.document.get(end)) for end in ("score_min", "score_max"))
        scale = "" if low is None or high is None else f" on a scale from {low:g} to {high:g}"
        scored, total = sum(record.is_scored for record in self.records), len(self.records)
        many = f"{total:,} {'record' if total == 1 else 'records'}"
        if average is None or not scored:
            return f"{many}, none with a score."
        over = many if scored == total else f"the {scored:,} of {many} that have a score"
        counts = as_table(self.document.get("counts"))
        outside, scores = (int(as_number(counts.get(name)) or 0) for name in ("outside_scale", "scored"))
        clamped = describe_outside_scale(outside, scores)
        return (
            f"Mean score {numbers.number(average)}{scale}, over {over}{f' ({clamped})' if clamped else ''}."
        )

    def table(self, agreement: AgreementReport) -> ScoreTable | None:
        """Return the scores that ``agreement`` was measured of; None where they are not all there, or not on its scale."""
        import numpy as np

        from osmosis_ai.rubric.scores import ScoreTable

        models, records = [judge.model for judge in agreement.judges], self.records
        shape = (len(records), len(models), agreement.counts.runs)
        if len(records) != agreement.counts.records or len(set(models)) != len(models):
            return None
        if min(shape) < 1 or prod(shape) > _MOST_SCORES:
            return None
        scores = np.full(shape, np.nan)
        for row, record in enumerate(records):
            for call in record.calls:
                if call.run <= agreement.counts.runs and call.score is not None:
                    scores[row, models.index(call.model) if call.model in models else 0, call.run - 1] = (
                        call.score
                    )
        nothing = np.full(len(records), np.nan)
        try:
            return ScoreTable(
                models,
                [""] * len(records),
                scores,
                agreement.score_min,
                agreement.score_max,
                nothing,
                nothing,
            )
        except ValueError:
            return None


def read_result(path: Path) -> ReadResult:
    """Read a result file."""
    size = path.stat().st_size
    if size > _LARGEST_BYTES:
        raise ValueError(f"it has {size:,} bytes; {_LARGEST_BYTES:,} are read")
    document = loads(path.read_bytes().decode("utf-8-sig", "replace"))
    if not isinstance(document, dict):
        raise ValueError("it is no JSON object")
    return ReadResult(document)


def _calls(record: Mapping[str, Any]) -> Iterator[ReportJudgement]:
    for call in _list(record.get("judgements", record.get("runs"))):
        if isinstance(call, dict):
            run = call.get("run", call.get("run_index"))
            yield ReportJudgement(
                model=str(call.get("model") or ""),
                run=run if isinstance(run, int) and run > 0 else 1,
                score=as_number(call.get("score")),
                explanation=as_text(call.get("explanation")),
                error=as_text(call.get("error")) or as_text(call.get("reason")),
            )


def _list(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list) else ()
