"""Pages of ``logs.txt``: whole lines around a byte of it, parsed as ``evaluation/run_log.py`` writes them.

Invariant: a cursor is a byte where a line begins. A last line without its newline waits.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any, BinaryIO, Literal

from osmosis_ai.api.wire.base import LogEntry, LogPage
from osmosis_ai.errors import OsmosisError
from osmosis_ai.files import open_regular

LogDirection = Literal["older", "newer"]

_BLOCK_BYTES = 1 << 18
_LONGEST_MESSAGE = 64 * 1024
_MOST_SCANNED = 1 << 30
"""Bytes in which one page looks for the beginnings of its lines."""
_MOST_TRIED = 20
"""Braces of a line at which its details may begin: each is read to the end of the line."""
_CURSOR, _MOST_DIGITS = "byte-", 18
_LINE = re.compile(r"(\S{10,40}) (DEBUG|INFO|WARNING|ERROR) \[([^\]\n]{0,80})\] (.*)", re.DOTALL)


def read_log(
    path: Path, *, limit: int, cursor: str | None = None, direction: LogDirection = "older"
) -> LogPage:
    """Return lines of a log, oldest first; without a cursor its end, and the cursor of ``newer`` goes on from
    there."""
    try:
        size = path.stat().st_size
        with open_regular(path) as file:
            at = _place(cursor) if cursor else size
            if at > size:
                at = size  # the log was begun anew
            if direction == "newer" and cursor:
                return _newer(file, at, limit)
            return _older(file, at, limit, newer=direction == "newer")
    except OSError:
        return LogPage(logs=[], next_cursor=None)


def cursor_at(place: int) -> str:
    """Return the cursor of a byte where a line begins."""
    return f"{_CURSOR}{place}"


def _place(cursor: str) -> int:
    place = cursor.removeprefix(_CURSOR)
    if place == cursor or not place.isascii() or not place.isdigit() or len(place) > _MOST_DIGITS:
        raise OsmosisError("the cursor is none of a log.", details={"cursor": cursor[:80]})
    return int(place)


def _older(file: BinaryIO, end: int, limit: int, *, newer: bool) -> LogPage:
    places = _line_places(file, end, limit + 1)
    behind, begin = places[0], places[-1]
    following = cursor_at(behind) if newer else cursor_at(begin) if 0 < begin < behind else None
    lines = [_line_between(file, start, stop) for stop, start in pairwise(places)]
    return LogPage(logs=lines[::-1], next_cursor=following)


def _line_places(file: BinaryIO, end: int, most: int) -> list[int]:
    """Return where lines begin before ``end``, the last first: at most so many, the end of the last whole
    line among them."""
    places: list[int] = []
    at = end
    while at > 0 and len(places) < most and end - at < _MOST_SCANNED:
        step = min(_BLOCK_BYTES, at)
        at -= step
        file.seek(at)
        block = file.read(step)
        found = len(block)
        while len(places) < most and (found := block.rfind(b"\n", 0, found)) >= 0:
            places.append(at + found + 1)
    if len(places) < most and (at == 0 or places):
        places.append(at)
    return places or [end]


def _line_between(file: BinaryIO, start: int, stop: int) -> LogEntry:
    """Return the line between two bytes, of a long one the beginning."""
    file.seek(start)
    line = file.read(min(stop - start, _LONGEST_MESSAGE))
    entry = parse_line(line)
    left = stop - start - len(line)
    if left > 0:
        entry.message = f"{entry.message}… ({left:,} more bytes, which the file has)"
    return entry


def _newer(file: BinaryIO, at: int, limit: int) -> LogPage:
    file.seek(at)
    entries: list[LogEntry] = []
    while len(entries) < limit and (stop := _end_of_line(file)) is not None:
        entries.append(_line_between(file, at, stop))
        at = stop
        file.seek(at)
    return LogPage(logs=entries, next_cursor=cursor_at(at))


def _end_of_line(file: BinaryIO) -> int | None:
    """Return where the line ends that begins at the file's place; None while it has no end."""
    while line := file.readline(_BLOCK_BYTES):
        if line.endswith(b"\n"):
            return file.tell()
    return None


def parse_line(line: bytes) -> LogEntry:
    """Return a line of a log; one that is none is all message."""
    text = line.decode("utf-8", "replace").rstrip("\r\n")[:_LONGEST_MESSAGE]
    found = _LINE.fullmatch(text)
    if found is None:
        return LogEntry(message=text)
    when, level, step, rest = found.groups()
    message, details = _split(rest)
    message = naming_the_sample(message, details)
    return LogEntry(timestamp=when, level=level, step=step, message=message, details=details)


def naming_the_sample(message: str, details: Mapping[str, Any] | None) -> str:
    """Return a line's message with the sample behind it that its details tell of, where it does not name it already."""
    row, attempt = ((details or {}).get(name) for name in ("row_index", "run_index"))
    named = f"(row {row}, attempt {attempt})"
    is_one = type(row) is int and type(attempt) is int and not message.endswith(named)
    return f"{message} {named}" if is_one else message


def _split(rest: str) -> tuple[str, dict[str, Any] | None]:
    """Return message and details, which are a JSON object at the end of the line."""
    place = rest.find("{") if rest.endswith("}") else -1
    for _ in range(_MOST_TRIED):
        if place < 0:
            break
        try:
            details = json.loads(rest[place:])
        except (ValueError, RecursionError):
            place = rest.find("{", place + 1)
            continue
        return rest[:place].rstrip(), details if isinstance(details, dict) else None
    return rest, None
