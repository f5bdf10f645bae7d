"""The record of one finished attempt, as the journal stores it.

A record is complete by itself: everything a table or a metric says about an attempt is here, so that the numbers
after a crash are those of an undisturbed run. The keys up to ``error_type`` are the product's; those after it are
ours and appear in no other file.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from osmosis_ai.controller.outcomes import Boundary, Status

LARGEST_COUNT = 2**53 - 1
"""What JSON's readers agree on (RFC 8259, section 6)."""
Count = Annotated[int, Meta(ge=0, le=LARGEST_COUNT)]
Digest = Annotated[str, Meta(pattern="^[0-9a-f]{16,64}$")]
PathSegment = Annotated[str, Meta(pattern=r"^(?!\.{1,2}$)[^/\\\x00]+$")]
"""A string that can name a directory."""
_CRC = b',"crc":'


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
    boundary: Boundary | None = None
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

    def to_line(self) -> bytes:
        """Return the record as one line of JSON, newline included: absent values left out, the CRC-32 of the rest last."""
        body = _ENCODER.encode(self)[:-1]
        return b'%s,"crc":%d}\n' % (body, zlib.crc32(body))

    @classmethod
    def from_line(cls, line: bytes, *, without_crc: bool = False) -> TerminalRecord:
        """Parse a line written by :meth:`to_line`; ``without_crc`` also takes lines of the public SDK.

        Raises:
            ValueError: the line is no record, or was changed.
        """
        check_crc(line, without_crc=without_crc)
        try:
            return _DECODER.decode(line)
        except msgspec.DecodeError as error:
            raise ValueError(str(error)) from None


_ENCODER = msgspec.json.Encoder()
_DECODER = msgspec.json.Decoder(TerminalRecord)
FIELDS = msgspec.structs.fields(TerminalRecord)
_TYPES = {field.name: field.type for field in FIELDS}


def check_crc(line: bytes, *, without_crc: bool = False) -> None:
    """Check the checksum of a record's line.

    Raises:
        ValueError: it does not match, or there is none.
    """
    end = line.rfind(_CRC)
    if end < 0 and not without_crc:
        raise ValueError("it has no checksum")
    if end >= 0 and line[end + len(_CRC) :].rstrip(b"\n") != b"%d}" % zlib.crc32(line[:end]):
        raise ValueError("its checksum does not match: the line was changed")


def check_field(name: str, content: Any) -> None:
    """Check that ``content`` can be the value of a record's field.

    Raises:
        ValueError: it cannot.
    """
    try:
        msgspec.convert(content, _TYPES[name])
    except msgspec.ValidationError as error:
        raise ValueError(f"`{name}` cannot be {repr(content)[:100]} ({error})") from None
