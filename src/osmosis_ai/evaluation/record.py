"""The record of a finished attempt, as the journal stores it: complete and without secrets.

Tables and metrics are computed from records alone, so they are the same after a crash. The keys up to ``error_type`` are
the product's. The keys after it are ours and appear in no other file.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, TypeVar

import msgspec
from msgspec import Meta

from osmosis_ai.controller.outcomes import ErrorSource, Status
from osmosis_ai.rollout.grader_notes import MOST_NOTES_CHARS, read_grader_notes
from osmosis_ai.rollout.judge_calls import read_judge_calls

if TYPE_CHECKING:
    from osmosis_ai.controller.attempt import AttemptResult
    from osmosis_ai.redaction import Redactor

LARGEST_COUNT = 2**53 - 1
"""Largest integer that all JSON readers represent exactly (RFC 8259, section 6)."""
Count = Annotated[int, Meta(ge=0, le=LARGEST_COUNT)]
Digest = Annotated[str, Meta(pattern="^[0-9a-f]{16,64}$")]
PathSegment = Annotated[str, Meta(pattern=r"^(?!\.{1,2}$)[^/\\\x00]+$")]
"""A string that can name a directory."""
MOST_TOKENS = 2**31 - 1
"""Limit of an attempt's tokens in the index; more are unknown."""
PREVIEW_CHARS = 160
_CRC = b',"crc":'
_MAX_ERROR_CHARS = 2000
_MAX_REASON_CHARS = 200
_MAX_JUDGEMENTS = 4
_MAX_TABLE_BYTES = 64 << 10
_READ_CHARS = 4608
# A secret that is cut in half is not recognized. It may start this far before the cut.
_UNSURE_CHARS = 4096
_Value = TypeVar("_Value")


class TerminalRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """The outcome of one attempt (``run_index``) on one selected row (``row_index``)."""

    row_index: Count
    run_index: Count
    rollout_id: PathSegment
    status: Status
    duration_ms: Count
    source_row_index: Count | None = None
    reward: float | None = None
    tokens: Count | None = None
    error_type: str | None = None
    boundary: ErrorSource | None = None
    error: str | None = None
    model_calls: Count | None = None
    prompt_tokens: Count | None = None
    completion_tokens: Count | None = None
    cost_usd: float | None = None
    model_latency_ms: float | None = None
    category: str | None = None
    lost_attempts: Count | None = None
    row_digest: Digest | None = None
    scores: Mapping[str, float] | None = None
    unscored: Mapping[str, str] | None = None
    finish_reason: str | None = None
    judge_calls: Count | None = None
    judge_tokens: Count | None = None
    judge_cost_usd: float | None = None
    judge_outside_scale: Count | None = None
    judgements: Sequence[Mapping[str, Any]] | None = None
    input: str | None = None
    output: str | None = None
    notes: str | None = None
    parts: Mapping[str, float] | None = None
    finish_reasons: Mapping[str, int] | None = None

    @property
    def has_unknown_tokens(self) -> bool:
        """Whether a model was called, perhaps without an answer, and the tokens were not reported."""
        return self.tokens is None and (bool(self.model_calls) or self.boundary == "provider")

    @property
    def total_tokens(self) -> int | None:
        """Tokens of the model calls; None if unknown."""
        if self.tokens is None and self.prompt_tokens is not None and self.completion_tokens is not None:
            return self.prompt_tokens + self.completion_tokens
        return self.tokens

    def to_line(self) -> bytes:
        """Return the record as a line of JSON, newline included: without absent values, the CRC-32 of the rest last."""
        body = _ENCODER.encode(self)[:-1]
        return b'%s,"crc":%d}\n' % (body, zlib.crc32(body))

    @classmethod
    def from_line(cls, line: bytes, *, without_crc: bool = False) -> TerminalRecord:
        """Parse a line written by :meth:`to_line`; ValueError if it is not a record, or was changed.

        ``without_crc`` also accepts lines without a checksum, which the public SDK writes.
        """
        check_crc(line, without_crc=without_crc)
        return _DECODER.decode(line)


_ENCODER = msgspec.json.Encoder()
_DECODER = msgspec.json.Decoder(TerminalRecord)
FIELD_TYPES = {field.name: field.type for field in msgspec.structs.fields(TerminalRecord)}


def check_crc(line: bytes, *, without_crc: bool = False) -> None:
    """Raise ValueError if the checksum of a record's line is wrong or missing."""
    end = line.rfind(_CRC)
    if end < 0 and not without_crc:
        raise ValueError("it has no checksum")
    if end >= 0 and line[end + len(_CRC) :].rstrip(b"\n") != b"%d}" % zlib.crc32(line[:end]):
        raise ValueError("its checksum does not match: the line was changed")


class Previews(NamedTuple):
    """Beginnings of the first user message and of the last answer, each in one line; None if there is no text."""

    input: str | None = None
    output: str | None = None


def previews_of(
    messages: Sequence[Mapping[str, Any]], redact: Redactor, *, prompt: Sequence[Mapping[str, Any]] = ()
) -> Previews:
    """Return the previews of a conversation, without secrets; ``prompt`` is the input of an agent that left none."""
    return Previews(
        _preview(messages, "user", redact) or _preview(prompt, "user", redact),
        _preview(reversed(messages), "assistant", redact),
    )


def _preview(messages: Iterable[Mapping[str, Any]], role: str, redact: Redactor) -> str | None:
    for message in messages:
        content = message.get("content") if message.get("role") == role else None
        if isinstance(content, list):
            # Every framework names the types of parts differently, but not their text.
            texts = [part.get("text") for part in content if isinstance(part, Mapping)]
            content = "\n".join(text for text in texts if isinstance(text, str))
        if not isinstance(content, str):
            continue
        # Cut before redaction, so that a message of megabytes costs no more than a page.
        text = content.lstrip()
        clean = redact.text(text[:_READ_CHARS])
        if len(text) > _READ_CHARS:
            clean = clean[:-_UNSURE_CHARS]
        line = _storable(" ".join(clean.split()))
        if line:
            return line if len(line) <= PREVIEW_CHARS else f"{line[: PREVIEW_CHARS - 1]}…"
    return None


def record_of(result: AttemptResult, redact: Redactor, *, previews: bool = False) -> TerminalRecord:
    """Return the record of a result, without secrets; ``previews`` adds the beginnings of input and output."""
    from osmosis_ai.rollout.loop.outcome import read_outcome

    def clean(text: str, limit: int = _MAX_ERROR_CHARS) -> str:
        return _storable(redact.text(text))[:limit]

    attempt, verdict, usage = result.attempt, result.verdict, result.usage
    sample = result.grader.sample if result.grader is not None else None
    extra_fields, messages = (sample.extra_fields, sample.messages) if sample is not None else ({}, [])
    loop, judges = read_outcome(extra_fields), read_judge_calls(extra_fields)
    graded = read_grader_notes(extra_fields)
    all_scores = loop.scores if verdict.status == "success" else {}
    scores = _first_entries({clean(name): score for name, score in all_scores.items()})
    unscored = _first_entries({clean(name): clean(reason) for name, reason in loop.unscored.items()})
    notes = clean(graded.notes or "", MOST_NOTES_CHARS)
    left_out = len(all_scores) - len(scores) + len(loop.unscored) - len(unscored)
    if left_out:
        limit = f"{_MAX_TABLE_BYTES >> 10} KiB per attempt"
        added = f"{left_out:,} scores or reasons are left out (limit: {limit})."
        notes = f"{notes[: MOST_NOTES_CHARS - len(added) - 1]}\n{added}" if notes else added
    judgements = [
        {name: clean(value) if isinstance(value, str) else value for name, value in judgement.items()}
        for judgement in judges.judgements[:_MAX_JUDGEMENTS]
    ]
    shown = previews_of(messages, redact, prompt=attempt.row.messages) if previews else Previews()
    called = usage.calls > 0
    # A provider may report any number.
    counted = called and not usage.uncounted and usage.total_tokens <= MOST_TOKENS
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
        boundary=verdict.error_source,
        category=verdict.error_code,
        error=clean(verdict.error) if verdict.error else None,
        model_calls=usage.calls,
        prompt_tokens=usage.prompt_tokens if counted else None,
        completion_tokens=usage.completion_tokens if counted else None,
        cost_usd=usage.cost_usd if called else None,
        model_latency_ms=round(sum(usage.model_latency_s) * 1000, 3) if called else None,
        lost_attempts=attempt.losses or None,
        row_digest=attempt.row_digest or None,
        scores=scores or None,
        unscored=unscored or None,
        finish_reason=clean(loop.finish_reason, _MAX_REASON_CHARS) if loop.finish_reason else None,
        judge_calls=judges.calls or None,
        judge_tokens=judges.tokens if judges.calls else None,
        judge_cost_usd=judges.cost_usd,
        judge_outside_scale=judges.outside_scale or None,
        judgements=judgements or None,
        input=shown.input,
        output=shown.output,
        notes=notes or None,
        finish_reasons=usage.finish_reasons or None,
        parts={clean(name): value for name, value in graded.parts.items()} or None,
    )


def _first_entries(table: Mapping[str, _Value]) -> dict[str, _Value]:
    """Return the first 64 KiB of entries: a record is read and sent in one piece."""
    first: dict[str, _Value] = {}
    room = _MAX_TABLE_BYTES
    for name, value in table.items():
        room -= len(f'"{name}":"{value}",'.encode())
        if room < 0:
            break
        first[name] = value
    return first


def _storable(text: str) -> str:
    """Replace lone surrogates, which models do produce and UTF-8 cannot encode."""
    return text.encode("utf-8", "replace").decode()
