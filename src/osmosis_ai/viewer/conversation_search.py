"""Full-text search of conversations, in bounded and resumable scans."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from osmosis_ai.evaluation.conversation import LARGEST_CONVERSATION_BYTES, Conversation, read_conversation
from osmosis_ai.viewer.cursors import position_of, sample_cursor
from osmosis_ai.viewer.read_sample import grading_of
from osmosis_ai.viewer.source import ItemPage, RunSource, SampleEntry, SampleQuery

MOST_SAMPLES = 500
MOST_BYTES = 64 * 1024 * 1024
MOST_SECONDS = 1.0
# A larger conversation is searched as raw JSON.
_MOST_PARSED_BYTES = 2 << 20


@dataclass(frozen=True, slots=True)
class SearchedConversations:
    """What a scan found."""

    page: ItemPage[SampleEntry]
    looked_at: int
    too_large: int
    without: int
    first: SampleEntry | None
    last: SampleEntry | None


def search_conversations(
    source: RunSource,
    run: str,
    query: SampleQuery,
    *,
    cursor: str | None,
    clock: Callable[[], float] = time.monotonic,
) -> SearchedConversations:
    """Look for ``query.text`` in the conversations of the samples that pass the rest of the query."""
    wanted, rest = query.text.casefold(), replace(query, text="")
    began, found, looked, read, too_large, without = clock(), list[SampleEntry](), 0, 0, 0, 0
    piece = source.samples(run, rest, limit=MOST_SAMPLES, cursor=cursor)
    first = last = piece.items[0] if piece.items else None
    conversations = source.read_conversations(run, piece.items, max_bytes=LARGEST_CONVERSATION_BYTES)
    for sample, stored in zip(piece.items, conversations, strict=True):
        last = sample
        if stored.content is None and stored.size > LARGEST_CONVERSATION_BYTES:
            too_large += 1
        elif stored.content is None:
            without += 1
        else:
            looked, read = looked + 1, read + stored.size
            if contains_text(stored.content, wanted):
                found.append(sample)
        if read >= MOST_BYTES or clock() - began >= MOST_SECONDS:
            break
    if last is not None and last is not piece.items[-1]:
        # Files may be large, so the next scan resumes within the requested range.
        piece = replace(piece, next=sample_cursor(rest, position_of(rest, last)))
    counts = {name: count for name, count in piece.counts.items() if name != "total"}
    here = replace(piece, items=found, previous=None, counts=counts)
    return SearchedConversations(here, looked, too_large, without, first, last)


def contains_text(content: bytes, wanted: str) -> bool:
    """Whether ``wanted`` (case-folded) is in the messages, or in the notes of the grader and judges."""
    raw = content.decode("utf-8", "replace").casefold()
    # Without escapes, a text that is not in the raw content is in no message.
    if wanted not in raw and "\\" not in raw:
        return False
    conversation = read_conversation(content) if len(content) <= _MOST_PARSED_BYTES else Conversation()
    if not conversation.steps:
        return wanted in raw
    return any(wanted in text.casefold() for text in _texts(conversation))


def _texts(conversation: Conversation) -> Iterator[str]:
    for step in conversation.steps:
        yield from (step.text, step.reasoning)
        for exchange in step.exchanges:
            yield from (exchange.name or "", exchange.result or "")
            yield from _values(exchange.arguments)
    yield from _values([grading_of(conversation).get(name) for name in ("notes", "judgements")])


def _values(value: Any) -> Iterator[str]:
    """Yield every text and number of a JSON value, without recursion because nesting may be deep."""
    pending = [value]
    while pending:
        each = pending.pop()
        if isinstance(each, dict):
            pending.extend(each.values())
        elif isinstance(each, list):
            pending.extend(each)
        elif each is not None and not isinstance(each, bool):
            yield str(each)
