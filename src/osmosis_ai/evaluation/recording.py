"""How an attempt's result becomes its record: complete by itself, and without secrets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from osmosis_ai.controller.attempt import AttemptResult
from osmosis_ai.evaluation.previews import Previews, previews_of
from osmosis_ai.evaluation.record import TerminalRecord
from osmosis_ai.rollout.grader_notes import MOST_NOTES_CHARS, read_grader_notes
from osmosis_ai.rollout.judge_calls import JudgeCalls, read_judge_calls
from osmosis_ai.rollout.loop.outcome import LoopOutcome, read_outcome

if TYPE_CHECKING:
    from osmosis_ai.redaction import Redactor

_MAX_ERROR_CHARS = 2000
_MAX_REASON_CHARS = 200
_SHOWN_JUDGEMENTS = 4
_MAX_TABLE_BYTES = 64 << 10
Entry = TypeVar("Entry")


def loop_outcome(result: AttemptResult) -> LoopOutcome:
    """Return what an agent loop came to beside its reward; empty for a workflow."""
    return read_outcome(_extra_fields(result))


def judge_calls(result: AttemptResult) -> JudgeCalls:
    """Return what judges said and cost while the sample was graded."""
    return read_judge_calls(_extra_fields(result))


def record_of(result: AttemptResult, redact: Redactor, *, previews: bool = False) -> TerminalRecord:
    """Return the record of a result, without secrets; ``previews`` adds how input and output begin."""
    attempt, verdict, usage = result.attempt, result.verdict, result.usage
    called = usage.calls > 0
    counted = called and not usage.uncounted
    loop, judges = loop_outcome(result), judge_calls(result)
    graded = read_grader_notes(_extra_fields(result))
    shown = _previews(result, redact) if previews else Previews()
    said = loop.scores if verdict.status == "success" else {}
    scores = _first_of(said)
    reasons = {name: _storable(redact.text(why))[:_MAX_ERROR_CHARS] for name, why in loop.unscored.items()}
    unscored = _first_of(reasons)
    left_out = len(said) - len(scores) + len(reasons) - len(unscored)
    return TerminalRecord(
        row_index=attempt.row_index,
        run_index=attempt.run_index,
        rollout_id=result.rollout_id,
        status=verdict.status,
        duration_ms=round(result.duration_ms),
        source_row_index=attempt.row.source_row_index,
        reward=verdict.reward,
        tokens=usage.total_tokens if counted else None,
        error_type=verdict.error_type,
        boundary=verdict.boundary,
        category=verdict.category,
        error=_storable(redact.text(verdict.error))[:_MAX_ERROR_CHARS] if verdict.error else None,
        model_calls=usage.calls,
        prompt_tokens=usage.prompt_tokens if counted else None,
        completion_tokens=usage.completion_tokens if counted else None,
        cost_usd=usage.cost_usd if called else None,
        model_latency_ms=round(sum(usage.model_latency_s) * 1000, 3) if called else None,
        lost_attempts=(attempt.losses) or None,
        row_digest=attempt.row_digest or None,
        scores=scores or None,
        unscored=unscored or None,
        finish_reason=_storable(redact.text(loop.finish_reason))[:_MAX_REASON_CHARS]
        if loop.finish_reason
        else None,
        judge_calls=judges.calls or None,
        judge_tokens=judges.tokens if judges.calls else None,
        judge_cost_usd=judges.cost_usd,
        judge_outside_scale=judges.outside_scale or None,
        judgements=[_judgement(each, redact) for each in judges.judgements[:_SHOWN_JUDGEMENTS]] or None,
        input=shown.input,
        output=shown.output,
        notes=_notes(_storable(redact.text(graded.notes)) if graded.notes else "", left_out),
        finish_reasons=usage.finish_reasons or None,
        parts={_storable(redact.text(name)): value for name, value in graded.parts.items()} or None,
    )


def _extra_fields(result: AttemptResult) -> Mapping[str, Any]:
    sample = result.grader.sample if result.grader is not None else None
    return sample.extra_fields if sample is not None else {}


def _previews(result: AttemptResult, redact: Redactor) -> Previews:
    sample = result.grader.sample if result.grader is not None else None
    said = sample.messages if sample is not None else []
    return previews_of(said, redact, prompt=result.attempt.row.messages)


def _first_of(table: Mapping[str, Entry]) -> dict[str, Entry]:
    """Return the first entries that are 64 KiB together: a record has to fit where it is read and sent whole."""
    kept: dict[str, Entry] = {}
    room = _MAX_TABLE_BYTES
    for name, value in table.items():
        room -= len(_storable(f'"{name}":"{value}",').encode())
        if room < 0:
            break
        kept[name] = value
    return kept


def _notes(said: str, left_out: int) -> str | None:
    """Return what a grader noted, and that scores or reasons are not kept, where some are not."""
    added = ""
    if left_out:
        room = f"those of a sample have {_MAX_TABLE_BYTES >> 10} KiB"
        added = f"Of its scores, and of why there are none, {left_out:,} are not kept: {room}."
    most = MOST_NOTES_CHARS - len(added) - 1 if added else MOST_NOTES_CHARS
    return "\n".join(filter(None, (said[:most], added))) or None


def _storable(text: str) -> str:
    """Return ``text`` as a journal can keep it: lone surrogates, which models do produce, are no UTF-8."""
    return text.encode("utf-8", "replace").decode()


def _judgement(said: Mapping[str, Any], redact: Redactor) -> dict[str, Any]:
    return {
        name: _storable(redact.text(value))[:_MAX_ERROR_CHARS] if isinstance(value, str) else value
        for name, value in said.items()
    }
