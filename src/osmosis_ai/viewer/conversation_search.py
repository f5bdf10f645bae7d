"""Full-text search of conversations, in bounded and resumable scans."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from osmosis_ai.evaluation.conversation import LARGEST_CONVERSATION_BYTES, holds
from osmosis_ai.viewer.cursors import position_of, sample_cursor
from osmosis_ai.viewer.source import ItemPage, RunSource, SampleEntry, SampleQuery

MOST_SAMPLES = 500
MOST_BYTES = 64 * 1024 * 1024
MOST_SECONDS = 1.0


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
            if holds(stored.content, wanted):
                found.append(sample)
        if read >= MOST_BYTES or clock() - began >= MOST_SECONDS:
            break
    if last is not None and last is not piece.items[-1]:
        # Files may be large, so the next scan resumes within the requested range.
        piece = replace(piece, next=sample_cursor(rest, position_of(rest, last)))
    counts = {name: count for name, count in piece.counts.items() if name != "total"}
    here = replace(piece, items=found, previous=None, counts=counts)
    return SearchedConversations(here, looked, too_large, without, first, last)
