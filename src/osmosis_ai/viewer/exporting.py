"""The samples of a filter as CSV and JSONL, written while they are read: no run is held whole."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterator
from dataclasses import asdict, astuple, fields
from itertools import chain
from typing import Any

from osmosis_ai.ui.text import visible
from osmosis_ai.viewer.conversation_search import search_conversations
from osmosis_ai.viewer.source import ItemPage, RunSource, SampleEntry, SampleQuery, pieces

_AT_ONCE = 500
_COLUMNS = tuple(each.name for each in fields(SampleEntry))
# Before what a spreadsheet takes for a formula, and is no number: https://owasp.org/www-community/attacks/CSV_Injection
_FORMULA = re.compile(r"\A(?![+-]?[0-9]+(?:\.[0-9]+)?\Z)(?=[=+\-@\t\n\uff1d\uff0b\uff0d\uff20])")
MEDIA_TYPES = {"csv": "text/csv; charset=utf-8", "jsonl": "application/x-ndjson"}


def exported_samples(
    source: RunSource, run: str, query: SampleQuery, *, kind: str, in_conversations: bool = False
) -> Iterator[bytes]:
    """Return the samples of a filter, a piece at a time; refusals come before the first."""

    def piece(cursor: str | None) -> ItemPage[SampleEntry]:
        if in_conversations:
            return search_conversations(source, run, query, cursor=cursor).page
        return source.samples(run, query, limit=_AT_ONCE, cursor=cursor)

    rest = pieces(piece)
    found = chain([next(rest)], rest)
    return _csv(found) if kind == "csv" else _jsonl(found)


def _csv(found: Iterator[ItemPage[SampleEntry]]) -> Iterator[bytes]:
    yield f"{','.join(_COLUMNS)}\r\n".encode()
    for piece in found:
        lines = io.StringIO()
        csv.writer(lines).writerows(map(_cell, astuple(sample)) for sample in piece.items)
        yield lines.getvalue().encode("utf-8", "replace")


def _cell(value: Any) -> Any:
    value = json.dumps(value) if isinstance(value, dict) else value
    return _FORMULA.sub("'", visible(value)) if isinstance(value, str) else value


def _jsonl(found: Iterator[ItemPage[SampleEntry]]) -> Iterator[bytes]:
    for piece in found:
        yield "".join(f"{json.dumps(asdict(sample))}\n" for sample in piece.items).encode()
