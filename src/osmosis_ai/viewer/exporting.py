"""The samples of a filter as CSV and JSONL, written while they are read: no run is held whole."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, fields
from typing import Any

from osmosis_ai.viewer.conversation_search import search_conversations
from osmosis_ai.viewer.source import ItemPage, RunSource, SampleEntry, SampleQuery

_AT_ONCE = 500
_COLUMNS = tuple(each.name for each in fields(SampleEntry))
# What a spreadsheet takes for a formula: https://owasp.org/www-community/attacks/CSV_Injection
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "\uff1d", "\uff0b", "\uff0d", "\uff20")
MEDIA_TYPES = {"csv": "text/csv; charset=utf-8", "jsonl": "application/x-ndjson"}


def exported_samples(
    source: RunSource, run: str, query: SampleQuery, *, kind: str, in_conversations: bool = False
) -> Iterator[bytes]:
    """Return the samples of a filter, a piece at a time; refusals come before the first.

    Args:
        source: holds the run.
        run: an evaluation.
        query: which samples.
        kind: ``csv`` or ``jsonl``.
        in_conversations: whether the query's text is looked for in conversations.
    """

    def piece(cursor: str | None) -> ItemPage[SampleEntry]:
        if in_conversations:
            return search_conversations(source, run, query, cursor=cursor).page
        return source.samples(run, query, limit=_AT_ONCE, cursor=cursor)

    pieces = _pieces(piece, piece(None))
    return _csv(pieces) if kind == "csv" else _jsonl(pieces)


def _pieces(
    piece_at: Callable[[str | None], ItemPage[SampleEntry]], piece: ItemPage[SampleEntry]
) -> Iterator[ItemPage[SampleEntry]]:
    yield piece
    while piece.next is not None:
        piece = piece_at(piece.next)
        yield piece


def _csv(pieces: Iterator[ItemPage[SampleEntry]]) -> Iterator[bytes]:
    written = io.StringIO()
    lines = csv.writer(written)
    lines.writerow(_COLUMNS)
    for piece in pieces:
        lines.writerows([_cell(getattr(sample, name)) for name in _COLUMNS] for sample in piece.items)
        yield written.getvalue().encode("utf-8", "replace")
        written.seek(0)
        written.truncate()


def _cell(value: Any) -> Any:
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA) else value


def _jsonl(pieces: Iterator[ItemPage[SampleEntry]]) -> Iterator[bytes]:
    for piece in pieces:
        yield "".join(f"{json.dumps(asdict(sample))}\n" for sample in piece.items).encode()
