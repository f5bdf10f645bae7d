"""Result files of judging sessions: written atomically record by record, and read leniently.

One writer and one reader serve `osmosis eval rubric` and `osmosis eval-rubric`. Statistics precede the records. The
reader treats a value that is not a number as a missing score and skips unreadable data.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import orjson

from osmosis_ai.evaluation.lenient_json import as_number, as_objects, as_table, as_text, loads
from osmosis_ai.files import replacing
from osmosis_ai.ui import numbers

if TYPE_CHECKING:
    from osmosis_ai.controller.record import TerminalRecord
    from osmosis_ai.rubric.records import RubricRecord

CallStatus = Literal["scored", "unscored", "failed"]
PREVIEW_CHARACTERS = 140
_LARGEST_BYTES = 64 << 20


def json_bytes(value: Any, *, indent: bool = False) -> bytes:
    """Encode ``value`` as UTF-8 JSON, whatever texts and numbers it holds."""
    try:
        return orjson.dumps(value, option=orjson.OPT_INDENT_2 if indent else None)
    except TypeError:  # integers beyond 64 bits, lone surrogates
        text = json.dumps(value, ensure_ascii=False, default=str, indent=2 if indent else None)
        return text.encode("utf-8", "replace")


def text_digest(text: str | None) -> str | None:
    """Return the digest of a text, or None."""
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest() if text is not None else None


def statistics(scores: Sequence[float]) -> dict[str, float]:
    """Return mean, population variance, standard deviation and extremes of the scores; 0.0 without any."""
    if not scores:
        return dict.fromkeys(("average", "variance", "stdev", "min", "max"), 0.0)
    # Relative to the first score, so that the mean of equal scores is that score.
    average = scores[0] + math.fsum(score - scores[0] for score in scores) / len(scores)
    variance = math.fsum((score - average) ** 2 for score in scores) / len(scores)
    return {
        "average": average,
        "variance": variance,
        "stdev": math.sqrt(variance),
        "min": min(scores),
        "max": max(scores),
    }


def describe_outside_scale(outside: int, scored: int) -> str:
    """Describe how many scores were clamped; "" if there are none."""
    if not outside:
        return ""
    return f"{outside:,} of {scored:,} {'score' if scored == 1 else 'scores'} outside the scale, clamped"


@dataclass(frozen=True)
class JudgedRecord:
    """A record and its calls, by judge and run; None where a call is pending."""

    record: RubricRecord
    calls: list[TerminalRecord | None]

    @property
    def scores(self) -> list[float]:
        return [call.reward for call in self.calls if call is not None and call.reward is not None]

    def with_status(self, status: CallStatus) -> list[TerminalRecord]:
        return [call for call in self.calls if call is not None and call_status(call) == status]


def write_document(
    path: Path,
    head: Mapping[str, Any],
    records: Iterator[dict[str, Any]],
    tail: Mapping[str, Any] | None = None,
) -> None:
    """Write ``{…head, "records": […], …tail}`` with a two-space indent, atomically and in constant memory."""
    with replacing(path) as handle:
        opening = json_bytes(dict(head), indent=True)
        handle.write(opening.removesuffix(b"\n}") + b',\n  "records": [')
        separator = b"\n    "
        for record in records:
            handle.write(separator + json_bytes(record, indent=True).replace(b"\n", b"\n    "))
            separator = b",\n    "
        handle.write(b"]" if separator == b"\n    " else b"\n  ]")
        for key, value in (tail or {}).items():
            encoded = json_bytes(value, indent=True).replace(b"\n", b"\n  ")
            handle.write(b",\n  " + json_bytes(key) + b": " + encoded)
        handle.write(b"\n}\n")


def judged_record(judged: JudgedRecord, models: Sequence[str]) -> dict[str, Any]:
    """Return a record in the format of `osmosis eval rubric`."""
    record, scored = judged.record, judged.with_status("scored")
    runs = len(judged.calls) // len(models)
    calls = [(models[place // runs], place % runs + 1, call) for place, call in enumerate(judged.calls)]
    entry: dict[str, Any] = {
        "index": record.index,
        "label": record.label,
        "scores": judged.scores,
        "explanations": [facts_of(call).get("explanation") for call in scored],
        "errors": [call.error for call in judged.with_status("failed")],
        "statistics": statistics(judged.scores),
        "unscored": [
            {"reason": call.error_type, "detail": call.error} for call in judged.with_status("unscored")
        ],
        "judgements": [_judgement(*each) for each in calls],
    }
    if len(models) > 1:
        entry["consensus"] = mean_of_judges(
            (model, call.reward if call is not None else None) for model, _, call in calls
        )
    if record.human_score is not None:
        entry["human_score"] = record.human_score
    return entry | _identity(record)


def classic_record(judged: JudgedRecord, *, pending: str | None) -> dict[str, Any]:
    """Return a record in the format of `osmosis eval-rubric`; ``pending`` is why calls are."""
    record, scores = judged.record, judged.scores
    identifier = record.source.get("id")
    total = len(judged.calls)
    return {
        "id": str(identifier) if identifier not in (None, "") else record.label,
        "record_index": record.index,
        "conversation_id": record.label,
        "input_record": record.source,
        "statistics": {
            **statistics(scores),
            "total_runs": total,
            "success_count": len(scores),
            "failure_count": total - len(scores),
        },
        "runs": [_run(record, run, call, pending) for run, call in enumerate(judged.calls, start=1)],
        **_identity(record),
    }


def _identity(record: RubricRecord) -> dict[str, Any]:
    """Return the fields by which later sessions find the record, and its own scale if it has one."""
    names = ("digest", "question_digest", "score_min", "score_max")
    return {name: value for name in names if (value := getattr(record, name)) is not None}


def mean_of_judges(scores: Iterable[tuple[str, float | None]]) -> float | None:
    """Return the mean of the judges' means, which weighs judges equally; None without scores."""
    by_judge: dict[str, list[float]] = {}
    for model, score in scores:
        if score is not None:
            by_judge.setdefault(model, []).append(score)
    means = [sum(each) / len(each) for each in by_judge.values()]
    return sum(means) / len(means) if means else None


def facts_of(call: TerminalRecord) -> Mapping[str, Any]:
    """Return what only calls of judges have: explanation, stated score, retries, times and perhaps the raw reply."""
    return call.judgements[0] if call.judgements else {}


def _judgement(model: str, run: int, call: TerminalRecord | None) -> dict[str, Any]:
    if call is None:
        return {"model": model, "run": run, "status": "pending", "score": None}
    facts = facts_of(call)
    known = {
        "model": model,
        "run": run,
        "status": call_status(call),
        "score": call.reward,
        "stated_score": facts.get("stated_score"),
        "explanation": facts.get("explanation"),
        "reason": call.error_type,
        "error": call.error,
        "input_tokens": call.prompt_tokens,
        "output_tokens": call.completion_tokens,
        "cost_usd": call.cost_usd,
        "duration_s": call.duration_ms / 1000,
        "retries": facts.get("retries", 0),
    }
    return {key: value for key, value in known.items() if value is not None or key == "score"}


def call_status(call: TerminalRecord) -> CallStatus:
    """Return what became of a call."""
    if call.reward is not None:
        return "scored"
    return "unscored" if call.boundary == "grader" else "failed"


def _run(record: RubricRecord, run: int, call: TerminalRecord | None, pending: str | None) -> dict[str, Any]:
    text = " ".join(record.solution_str.split())
    facts = facts_of(call) if call is not None else {}
    outcome, error = "pending", f"not judged yet: {pending}" if pending else "not judged yet"
    return {
        "run_index": run,
        "status": "success" if call is not None and call.reward is not None else "error",
        "started_at": facts.get("started_at"),
        "completed_at": facts.get("completed_at"),
        "duration_seconds": call.duration_ms / 1000 if call is not None else None,
        "score": call.reward if call is not None else None,
        "explanation": facts.get("explanation"),
        "preview": text if len(text) <= PREVIEW_CHARACTERS else text[: PREVIEW_CHARACTERS - 3] + "...",
        "error": call.error if call is not None else error,
        "raw": facts.get("raw"),
        "outcome": call_status(call) if call is not None else outcome,
    }


class ReadCall(NamedTuple):
    """Result of one call about a record."""

    model: str
    run: int
    score: float | None
    explanation: str | None
    error: str | None

    @property
    def who(self) -> str:
        return f"{self.model}, run {self.run}" if self.model else f"Run {self.run}"


class ReadRecord(NamedTuple):
    """A record and its calls. ``mean`` is None if no call has a score; ``people`` is the human score."""

    number: int
    label: str
    mean: float | None
    people: float | None
    texts: Sequence[tuple[str, str]]
    calls: Sequence[ReadCall]

    @classmethod
    def of(cls, record: Mapping[str, Any], place: int) -> ReadRecord:
        """Read a record of either format."""
        calls = list(read_calls(record))
        number = record.get("index", record.get("record_index"))
        texts = as_table(record.get("texts")).items()
        return cls(
            number=number if type(number) is int and number > 0 else place,
            label=str(record.get("label", record.get("conversation_id")) or ""),
            mean=mean_of_judges((call.model, call.score) for call in calls),
            people=as_number(record.get("human_score")),
            texts=[(title, part) for title, part in texts if isinstance(part, str) and part],
            calls=calls,
        )


class ReadResult:
    """The document of a result file; empty if the file is unreadable."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        self.document = document

    @cached_property
    def records(self) -> Sequence[ReadRecord]:
        """The records in file order."""
        found = as_objects(self.document.get("records"))
        return [ReadRecord.of(each, place) for place, each in enumerate(found, start=1)]

    @property
    def sentence(self) -> str:
        """The mean score, its scale and the number of scored records."""
        average = as_number(as_table(self.document.get("overall_statistics")).get("average"))
        low, high = (as_number(self.document.get(end)) for end in ("score_min", "score_max"))
        scale = "" if low is None or high is None else f" on a scale from {low:g} to {high:g}"
        measured = as_table(as_table(self.document.get("trust")).get("counts"))
        scored, total = (as_number(measured.get(name)) for name in ("scored_records", "records"))
        if scored is None or total is None:
            scored, total = sum(record.mean is not None for record in self.records), len(self.records)
        many = f"{total:,.0f} {'record' if total == 1 else 'records'}"
        if average is None or not scored:
            return f"{many}, none with a score."
        over = many if scored == total else f"the {scored:,.0f} of {many} that have a score"
        counts = as_table(self.document.get("counts"))
        outside, scores = (int(as_number(counts.get(name)) or 0) for name in ("outside_scale", "scored"))
        clamped = describe_outside_scale(outside, scores)
        return (
            f"Mean score {numbers.number(average)}{scale}, over {over}{f' ({clamped})' if clamped else ''}."
        )


def read_result(path: Path) -> ReadResult:
    """Read a result file; ValueError if it is none."""
    size = path.stat().st_size
    if size > _LARGEST_BYTES:
        raise ValueError(f"it has {size:,} bytes; {_LARGEST_BYTES:,} are read")
    document = loads(path.read_bytes().decode("utf-8-sig", "replace"))
    if not isinstance(document, dict):
        raise ValueError("it is no JSON object")
    return ReadResult(document)


def read_calls(record: Mapping[str, Any]) -> Iterator[ReadCall]:
    """Yield the calls of a record of either format."""
    for call in as_objects(record.get("judgements", record.get("runs"))):
        run = call.get("run", call.get("run_index"))
        yield ReadCall(
            model=str(call.get("model") or ""),
            run=run if isinstance(run, int) and run > 0 else 1,
            score=as_number(call.get("score")),
            explanation=as_text(call.get("explanation")),
            error=as_text(call.get("error")) or as_text(call.get("reason")),
        )
