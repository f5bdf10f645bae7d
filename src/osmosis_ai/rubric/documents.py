"""Result files: what scripts read of a session, written record by record and whole or not at all.

Two forms share one writer: that of `osmosis eval rubric` and that of `osmosis eval-rubric`. The keys that
are documented come first; counts, usage and trust stand beside them. Statistics come before the records.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from osmosis_ai.files import replacing
from osmosis_ai.rubric.calls import CallRecord, json_bytes
from osmosis_ai.rubric.records import RubricRecord
from osmosis_ai.rubric.session_result import JudgedRecord, SessionResult, statistics

PREVIEW_CHARACTERS = 140


def write_document(
    path: Path,
    head: Mapping[str, Any],
    records: Iterator[dict[str, Any]],
    tail: Mapping[str, Any] | None = None,
) -> None:
    """Write ``{…head, "records": […], …tail}``, indented by two, in one step and in constant memory."""
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
    """Return a record as `osmosis eval rubric` writes it."""
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
    """Return what later sessions find the record by, and its scale where it has one of its own."""
    known = {
        "digest": record.digest,
        "question_digest": record.question_digest,
        "score_min": record.score_min,
        "score_max": record.score_max,
    }
    return {key: value for key, value in known.items() if value is not None}


def _consensus(judged: JudgedRecord, runs: int) -> float | None:
    """Return the mean of the judges' means, so that each has one vote; None where none gave a score."""
    means = []
    for start in range(0, len(judged.calls), runs):
        known = [call.score for call in judged.calls[start : start + runs] if call and call.score is not None]
        if known:
            means.append(sum(known) / len(known))
    return sum(means) / len(means) if means else None


def classic_record(judged: JudgedRecord, *, pending: str | None) -> dict[str, Any]:
    """Return a record as `osmosis eval-rubric` writes it."""
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


def preview(record: RubricRecord, *, longest: int = PREVIEW_CHARACTERS) -> str:
    """Return the start of the judged text, on one line."""
    text = " ".join(record.solution_str.split())
    return text if len(text) <= longest else text[: longest - 3] + "..."


def streamed(
    result: SessionResult, entry: Callable[[JudgedRecord], dict[str, Any]]
) -> Iterator[dict[str, Any]]:
    """Yield the entry of every record."""
    return (entry(judged) for judged in result.records())


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
