"""The record of a finished attempt, as the journal stores it: complete and without secrets.

Tables and metrics are computed from records alone, so they are the same after a crash. The keys up to ``error_type`` are
the product's. The keys after it are ours and appear in no other file.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import msgspec
from msgspec import Meta

from osmosis_ai.controller.outcomes import ErrorSource, Status

if TYPE_CHECKING:
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
_READ_CHARS = 4608
# A secret that is cut in half is not recognized. It may start this far before the cut.
_UNSURE_CHARS = 4096


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
        try:
            return _DECODER.decode(line)
        except RecursionError:
            raise ValueError("it is nested too deeply") from None


_ENCODER = msgspec.json.Encoder()
_DECODER = msgspec.json.Decoder(TerminalRecord)
FIELD_TYPES = {field.name: field.type for field in msgspec.structs.fields(TerminalRecord)}


def check_crc(line: bytes, *, without_crc: bool = False) -> None:
    """Raise ValueError if the checksum of a record's line is wrong or missing."""
    body, found, crc = line.rpartition(_CRC)
    if not found and not without_crc:
        raise ValueError("it has no checksum")
    if found and crc.rstrip(b"\n") != b"%d}" % zlib.crc32(body):
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
        line = storable(" ".join(clean.split()))
        if line:
            return line if len(line) <= PREVIEW_CHARS else f"{line[: PREVIEW_CHARS - 1]}…"
    return None


def storable(text: str) -> str:
    """Replace lone surrogates, which models do produce and UTF-8 cannot encode."""
    return text.encode("utf-8", "replace").decode()
