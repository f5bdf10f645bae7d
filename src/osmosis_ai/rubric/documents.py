"""Result files of judging sessions: written atomically record by record, and read leniently.

One writer and one reader serve `osmosis eval rubric` and `osmosis eval-rubric`. Statistics precede the records. The
reader treats a value that is not a number as a missing score and skips unreadable data.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from osmosis_ai.evaluation.lenient_json import as_number, as_table, as_text, loads
from osmosis_ai.files import replacing
from osmosis_ai.rubric.records import RubricRecord
from osmosis_ai.rubric.session_journal import CallRecord, json_bytes
from osmosis_ai.rubric.session_result import JudgedRecord, SessionResult, describe_outside_scale, statistics
from osmosis_ai.ui import numbers

if TYPE_CHECKING:
    pass


PREVIEW_CHARACTERS = 140


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


def judged_record(result: SessionResult, judged: JudgedRecord) -> dict[str, Any]:
    """Return a record in the format of `osmosis eval rubric`."""
    record, models, runs = judged.record, result.spec.model_names, result.spec.runs
    scored, failed = judged.with_status("scored"), judged.with_status("failed")
    entry: dict[str, Any] = {
        "index": record.index,
        "label": record.label,
        "scores": [call.score for call in scored],
        "explanations": [call.explanation for call in scored],
        "errors": [call.error for call in failed],
        "statistics": statistics(judged.scores),
        "unscored": [
            {"reason": call.reason, "detail": call.error} for call in judged.with_status("unscored")
        ],
        "judgements": [
            _judgement(models[place // runs], place % runs + 1, call)
            for place, call in enumerate(judged.calls)
        ],
    }
    if len(models) > 1:
        entry["consensus"] = _consensus(judged, runs)
    if record.human_score is not None:
        entry["human_score"] = record.human_score
    return entry | _identity(record)


def _identity(record: RubricRecord) -> dict[str, Any]:
    """Return the fields by which later sessions find the record, and its own scale if it has one."""
    known = {
        "digest": record.digest,
        "question_digest": record.question_digest,
        "score_min": record.score_min,
        "score_max": record.score_max,
    }
    return {key: value for key, value in known.items() if value is not None}


def _consensus(judged: JudgedRecord, runs: int) -> float | None:
    """Return the mean of the judges' means, which weighs judges equally; None without scores."""
    means = []
    for start in range(0, len(judged.calls), runs):
        known = [call.score for call in judged.calls[start : start + runs] if call and call.score is not None]
        if known:
            means.append(sum(known) / len(known))
    return sum(means) / len(means) if means else None


def classic_record(judged: JudgedRecord, *, pending: str | None) -> dict[str, Any]:
    """Return a record in the format of `osmosis eval-rubric`."""
    record = judged.record
    identifier = record.source.get("id")
    return {
        "id": str(identifier) if identifier not in (None, "") else record.label,
        "record_index": record.index,
        "conversation_id": record.label,
        "input_record": record.source,
        "statistics": {
            **statistics(judged.scores),
            "total_runs": len(judged.calls),
            "success_count": len(judged.scores),
            "failure_count": len(judged.calls) - len(judged.scores),
        },
        "runs": [_run(record, number, call, pending) for number, call in enumerate(judged.calls, start=1)],
        **_identity(record),
    }


def preview(record: RubricRecord) -> str:
    """Return the start of the judged text, on one line."""
    text = " ".join(record.solution_str.split())
    return text if len(text) <= PREVIEW_CHARACTERS else text[: PREVIEW_CHARACTERS - 3] + "..."


def _judgement(model: str, run: int, call: CallRecord | None) -> dict[str, Any]:
    if call is None:
        return {"model": model, "run": run, "status": "pending", "score": None}
    known = {
        "model": model,
        "run": run,
        "status": call.status,
        "score": call.score,
        "stated_score": call.stated_score,
        "explanation": call.explanation,
        "reason": call.reason,
        "error": call.error,
        "input_tokens": call.input_tokens,
        "output_tokens": call.output_tokens,
        "cost_usd": call.cost_usd,
        "duration_s": call.duration_s,
        "retries": call.retries,
    }
    return {key: value for key, value in known.items() if value is not None or key == "score"}


def _run(record: RubricRecord, number: int, call: CallRecord | None, pending: str | None) -> dict[str, Any]:
    if call is None:
        call_fields: dict[str, Any] = dict.fromkeys(
            ("started_at", "completed_at", "duration_seconds", "score")
        )
        error = f"not judged yet: {pending}" if pending else "not judged yet"
        return {
            "run_index": number,
            "status": "error",
            **call_fields,
            "explanation": None,
            "preview": preview(record),
            "error": error,
            "raw": None,
            "outcome": "pending",
        }
    return {
        "run_index": number,
        "status": "success" if call.status == "scored" else "error",
        "started_at": call.started_at,
        "completed_at": call.completed_at,
        "duration_seconds": call.duration_s,
        "score": call.score,
        "explanation": call.explanation,
        "preview": preview(record),
        "error": call.error,
        "raw": call.raw,
        "outcome": call.status,
    }


_LARGEST_BYTES = 64 << 20


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


@dataclass(frozen=True)
class ReadRecord:
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
        # The statistics of a record without scores are 0.0, which is not a score.
        is_scored = any(call.score is not None for call in calls)
        mean = as_number(as_table(record.get("statistics")).get("average")) if is_scored else None
        consensus = as_number(record.get("consensus"))
        number = record.get("index", record.get("record_index"))
        return cls(
            number=number if type(number) is int and number > 0 else place,
            label=str(record.get("label", record.get("conversation_id")) or ""),
            mean=mean if consensus is None else consensus,
            people=as_number(record.get("human_score")),
            texts=[
                (title, part)
                for title, part in as_table(record.get("texts")).items()
                if isinstance(part, str) and part
            ],
            calls=calls,
        )

    @property
    def is_scored(self) -> bool:
        return any(call.score is not None for call in self.calls)


@dataclass(frozen=True)
class ReadResult:
    """The document of a result file; empty if the file is unreadable."""

    document: Mapping[str, Any]

    @cached_property
    def records(self) -> Sequence[ReadRecord]:
        """The records in file order."""
        found = (each for each in _list(self.document.get("records")) if isinstance(each, dict))
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
            scored, total = sum(record.is_scored for record in self.records), len(self.records)
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
    size = path.stat().st_size
    if size > _LARGEST_BYTES:
        raise ValueError(f"it has {size:,} bytes; {_LARGEST_BYTES:,} are read")
    document = loads(path.read_bytes().decode("utf-8-sig", "replace"))
    if not isinstance(document, dict):
        raise ValueError("it is no JSON object")
    return ReadResult(document)


def read_calls(record: Mapping[str, Any]) -> Iterator[ReadCall]:
    """Yield the calls of a record of either format."""
    for call in _list(record.get("judgements", record.get("runs"))):
        if isinstance(call, dict):
            run = call.get("run", call.get("run_index"))
            yield ReadCall(
                model=str(call.get("model") or ""),
                run=run if isinstance(run, int) and run > 0 else 1,
                score=as_number(call.get("score")),
                explanation=as_text(call.get("explanation")),
                error=as_text(call.get("error")) or as_text(call.get("reason")),
            )


def _list(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list) else ()
