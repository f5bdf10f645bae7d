"""The samples of a filter as CSV and JSONL, written while they are read: no run is held whole."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from dataclasses import asdict, fields
from typing import Any

from osmosis_ai.viewer.source import ItemPage, RunSource, SampleEntry, SampleQuery

_AT_ONCE = 500
_COLUMNS = tuple(each.name for each in fields(SampleEntry))
# What a spreadsheet takes for a formula: https://owasp.org/www-community/attacks/CSV_Injection
_FORMULA = ("=", "+", "-", "@", "\t", "\r")
MEDIA_TYPES = {"csv": "text/csv; charset=utf-8", "jsonl": "application/x-ndjson"}


def exported_samples(source: RunSource, run: str, query: SampleQuery, *, kind: str) -> Iterator[bytes]:
    """Return the samples of a filter, a piece at a time; refusals come before the first.

    Args:
        source: holds the run.
        run: an evaluation.
        query: which samples.
        kind: ``csv`` or ``jsonl``.
    """
    first = source.samples(run, query, limit=_AT_ONCE)
    pieces = _pieces(source, run, query, first)
    return _csv(pieces) if kind == "csv" else _jsonl(pieces)


def _pieces(
    source: RunSource, run: str, query: SampleQuery, piece: ItemPage[SampleEntry]
) -> Iterator[ItemPage[SampleEntry]]:
    yield piece
    while piece.next is not None:
        piece = source.samples(run, query, limit=_AT_ONCE, cursor=piece.next)
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
