"""Pages of ``logs.txt``: whole lines around a byte of it, parsed as ``evaluation/run_log.py`` writes them.

Invariant: a cursor is a byte where a line begins. A last line without its newline waits.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, Literal

from osmosis_ai.api.wire.base import LogEntry, LogPage
from osmosis_ai.files import open_regular
from osmosis_ai.viewer.cursors import decode, encode, refused

_BLOCK_BYTES = 1 << 18
_LONGEST_MESSAGE = 64 * 1024
_MOST_TRIED = 20
"""Braces of a line at which its details may begin: each is read to the end of the line."""
_LINE = re.compile(r"(\S{10,40}) (DEBUG|INFO|WARNING|ERROR) \[([^\]\n]{0,80})\] (.*)", re.DOTALL)


def read_log(
    path: Path, *, limit: int, cursor: str | None = None, direction: Literal["older", "newer"] = "older"
) -> LogPage:
    """Return lines of a log, oldest first; without a cursor its end, and the cursor of ``newer`` goes on from there.

    Raises:
        OsmosisError: the cursor is none of a log.
    """
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
    return encode("log", [place])


def _place(cursor: str) -> int:
    (place,), _ = decode(cursor, "log", parts=1)
    if type(place) is not int or place < 0:
        raise refused(cursor)
    return place


def _older(file: Any, end: int, limit: int, *, newer: bool) -> LogPage:
    start, block = end, b""
    while start > 0 and block.count(b"\n") <= limit and len(block) < limit * _LONGEST_MESSAGE:
        step = min(_BLOCK_BYTES, start)
        start -= step
        file.seek(start)
        block = file.read(step) + block
    whole = block[: block.rfind(b"\n") + 1]
    lines = [line + b"\n" for line in whole.split(b"\n")[:-1]][0 if start == 0 else 1 :]
    behind = start + len(whole)
    lines = lines[-limit:]
    begin = behind - sum(map(len, lines))
    following = cursor_at(behind) if newer else cursor_at(begin) if begin > 0 and lines else None
    return LogPage(logs=[parse_line(line) for line in lines], next_cursor=following)


def _newer(file: Any, at: int, limit: int) -> LogPage:
    file.seek(at)
    entries: list[LogEntry] = []
    while len(entries) < limit:
        line = file.readline(_BLOCK_BYTES)
        if not line.endswith(b"\n") and len(line) < _BLOCK_BYTES:
            break
        at += len(line)
        entries.append(parse_line(line))
    return LogPage(logs=entries, next_cursor=cursor_at(at))


def parse_line(line: bytes) -> LogEntry:
    """Return a line of a log; one that is none is all message."""
    text = line.decode("utf-8", "replace").rstrip("\r\n")[:_LONGEST_MESSAGE]
    found = _LINE.fullmatch(text)
    if found is None:
        return LogEntry(message=text)
    when, level, step, rest = found.groups()
    message, details = _split(rest)
    row, attempt = ((details or {}).get(name) for name in ("row_index", "run_index"))
    if type(row) is int and type(attempt) is int:
        message = f"{message} (row {row}, attempt {attempt})"
    return LogEntry(timestamp=when, level=level, step=step, message=message, details=details)


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
