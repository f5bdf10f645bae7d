"""Text in conversations: a scan that reads so much, says how far it got, and goes on from there.

Conversations are files in no index. So that an answer comes within a second whatever a run's size, one request looks
through a bounded part of them.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from osmosis_ai.viewer.source import ItemPage, RunSource, SampleEntry, SampleQuery

MOST_SAMPLES = 500
MOST_BYTES = 64 * 1024 * 1024
MOST_SECONDS = 1.0
LARGEST_BYTES = 2 * 1024 * 1024
"""A conversation beyond it is searched as it stands there, unread."""
LARGEST_READ_BYTES = 32 * 1024 * 1024
_AT_ONCE = 25
_NOT_SAID = frozenset({"source", "role", "type", "timestamp", "schema_version", "model_name"})
"""Keys of a trajectory whose values are the same in every one."""


@dataclass(frozen=True, slots=True)
class SearchedConversations:
    """What a scan found.

    Attributes:
        page: the samples that hold the text; its ``next`` is where the scan goes on.
        looked_at: how many conversations were read.
        too_large: how many were not, for their size.
    """

    page: ItemPage[SampleEntry]
    looked_at: int
    too_large: int


def search_conversations(
    source: RunSource,
    run: str,
    query: SampleQuery,
    *,
    cursor: str | None,
    clock: Callable[[], float] = time.monotonic,
) -> SearchedConversations:
    """Look for ``query.text`` in the conversations of the samples that pass the rest of the query.

    Args:
        source: holds the run.
        run: an evaluation.
        query: which samples; its text is looked for in conversations, without regard to case.
        cursor: where to begin.
        clock: seconds.
    """
    wanted, rest = query.text.casefold(), replace(query, text="")
    began, found, looked, read, too_large = clock(), list[SampleEntry](), 0, 0, 0
    enough = False
    while True:
        piece = source.samples(run, rest, limit=_AT_ONCE, cursor=cursor)
        for number, sample in enumerate(piece.items, 1):
            stored = source.conversation(run, sample.row, sample.attempt, max_bytes=LARGEST_READ_BYTES)
            if stored.content is None:
                too_large += stored.size > LARGEST_READ_BYTES
            else:
                looked, read = looked + 1, read + stored.size
                if holds(stored.content, wanted):
                    found.append(sample)
            enough = looked >= MOST_SAMPLES or read >= MOST_BYTES or clock() - began >= MOST_SECONDS
            if enough and number < len(piece.items):
                # Files may be large: it goes on from the midst of what was asked for.
                piece = source.samples(run, rest, limit=number, cursor=cursor)
                break
        cursor = piece.next
        if cursor is None or enough:
            counts = {name: count for name, count in piece.counts.items() if name != "total"}
            return SearchedConversations(ItemPage(found, cursor, None, counts), looked, too_large)


def holds(content: bytes, wanted: str) -> bool:
    """Tell whether a text of a trajectory holds ``wanted``, which is case-folded; what is no JSON is searched as it is."""
    raw = content.decode("utf-8", "replace").casefold()
    # Where nothing is escaped, what is not there can not be in a text.
    if wanted not in raw and "\\" not in raw:
        return False
    if len(content) > LARGEST_BYTES:
        return wanted in raw
    try:
        return any(wanted in text.casefold() for text in _texts(json.loads(content)))
    except (ValueError, RecursionError):
        return wanted in raw


def _texts(value: Any) -> Iterator[str]:
    """Yield every text of a JSON value, without recursion: nesting may be deep."""
    waiting = [value]
    while waiting:
        each = waiting.pop()
        if isinstance(each, str):
            yield each
        elif isinstance(each, dict):
            waiting.extend(under for key, under in each.items() if key not in _NOT_SAID)
        elif isinstance(each, list):
            waiting.extend(each)
