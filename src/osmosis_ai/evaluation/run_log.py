"""The log of a run, ``logs.txt``: writing it, and reading it in pages.

A page contains whole lines. A cursor is the offset of a byte where a line begins. A last line without a newline is not
returned yet.
"""

from __future__ import annotations

import json
import os
import re
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timezone
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import orjson

from osmosis_ai.api.models.base import LogEntry, LogPage, wire_time
from osmosis_ai.errors import OsmosisError
from osmosis_ai.files import open_regular, replacing
from osmosis_ai.redaction import Redactor

LogDirection = Literal["older", "newer"]
_MAX_MESSAGE_BYTES = 64 * 1024
# How much is read for a page: more, if its lines are long. No line and no page is longer than the last.
_READ_BYTES = (1 << 18, 1 << 22, 1 << 26)
# The details may begin at any of the first braces of a line; each try reads to the end of the line.
_MAX_BRACES = 20
_CURSOR = re.compile(r"byte-([0-9]{1,18})")
_LINE = re.compile(r"(\S{10,40}) (DEBUG|INFO|WARNING|ERROR) \[([^\]\n]{0,80})\] (.*)", re.DOTALL)

Level = Literal["INFO", "WARNING", "ERROR"]


@dataclass(frozen=True, slots=True)
class LogEvent:
    """An event of a run, without secrets."""

    time: datetime
    level: Level
    step: str
    message: str
    details: Mapping[str, Any]

    def to_line(self) -> str:
        """Return the event as a line of ``logs.txt``, without its newline."""
        facts = orjson.dumps(self.details, default=str, option=orjson.OPT_SORT_KEYS).decode()
        return f"{wire_time(self.time)} {self.level} [{self.step}] {self.message} {facts}"


class RunLog:
    """Appends to a run's log. Lines are flushed to the system, not to the disk."""

    def __init__(
        self, path: Path, redact: Redactor, *, echo: Callable[[LogEvent], None] | None = None
    ) -> None:
        self._redact = redact
        self._echo = echo
        # A closed descriptor may be reused for another file, so writing and closing exclude each other.
        self._using = threading.Lock()
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def write(self, step: str, message: str, *, level: Level = "INFO", **details: Any) -> None:
        """Append one line; it is dropped if the disk is full, since the log is not a result."""
        known = {key: value for key, value in details.items() if value is not None}
        message = " ".join(self._redact.text(message).split())
        event = LogEvent(datetime.now(timezone.utc), level, step, message, self._redact.tree(known))
        if self._echo is not None:
            self._echo(event)
        line = event.to_line().encode("utf-8", "replace") + b"\n"
        with self._using, suppress(OSError):
            os.write(self._descriptor, line)

    def close(self) -> None:
        """Close the file; later lines are dropped."""
        with self._using:
            if self._descriptor >= 0:
                os.close(self._descriptor)
                self._descriptor = -1


def redact_server_logs(first: Path, redact: Redactor) -> None:
    """Replace the secrets in the logs of a run's rollout servers, the first of which has this path."""
    for path in first.parent.glob(f"{first.stem}*{first.suffix}"):
        with path.open("rb") as raw, replacing(path, durable=False) as clean:
            for line in raw:
                text = redact.text(line.decode("utf-8", "surrogateescape"))
                clean.write(text.encode("utf-8", "surrogateescape"))


def read_log(
    path: Path, *, limit: int, cursor: str | None = None, direction: LogDirection = "older"
) -> LogPage:
    """Return lines of a log, oldest first; without a cursor its end, from which ``newer`` continues."""
    forward = direction == "newer" and cursor is not None
    given = _CURSOR.fullmatch(cursor or cursor_at(0))
    if given is None:
        raise OsmosisError("The cursor of the log is invalid.", details={"cursor": cursor})
    try:
        with open_regular(path) as file:
            size = file.seek(0, os.SEEK_END)
            # The log may have been started again, so that it is shorter than the cursor.
            position = min(int(given[1]), size) if cursor else size
            for length in _READ_BYTES:
                start = position if forward else max(0, position - length)
                file.seek(start)
                block = file.read(length if forward else position - start)
                if block.count(b"\n") > limit or len(block) < length:
                    break
    except OSError:
        return LogPage(logs=[], next_cursor=None)
    # The block may begin and end within a line.
    first, last = 0 if forward or start == 0 else block.find(b"\n") + 1, block.rfind(b"\n") + 1
    lines = [line + b"\n" for line in block[first:last].split(b"\n")[:-1]]
    lines = lines[:limit] if forward else lines[-limit:]
    length = sum(map(len, lines))
    begin, end = (position, position + length) if forward else (start + last - length, start + last)
    following = cursor_at(end) if direction == "newer" else cursor_at(begin) if 0 < begin < end else None
    return LogPage(logs=[parse_line(line) for line in lines], next_cursor=following)


def cursor_at(position: int) -> str:
    """Return the cursor of a byte where a line begins."""
    return f"byte-{position}"


def parse_line(line: bytes) -> LogEntry:
    """Parse a line of a log; a line of another format becomes the message. A long line is truncated."""
    text = line[:_MAX_MESSAGE_BYTES].decode("utf-8", "replace").rstrip("\r\n")
    left = len(line) - _MAX_MESSAGE_BYTES
    if left > 0:
        text = f"{text}… ({left:,} more bytes in the file)"
    found = _LINE.fullmatch(text)
    if found is None:
        return LogEntry(message=text)
    time, level, step, message = found.groups()
    details = None
    # The details are a JSON object at the end of the line.
    for brace in islice(re.finditer("{", message), _MAX_BRACES) if message.endswith("}") else ():
        with suppress(ValueError, RecursionError):
            details = json.loads(message[brace.start() :])
            message = message[: brace.start()].rstrip()
            break
    return LogEntry(
        timestamp=time, level=level, step=step, message=with_attempt(message, details), details=details
    )


def with_attempt(message: str, details: Mapping[str, Any] | None) -> str:
    """Return a message with the attempt that its details name after it, unless the message ends with it."""
    row, attempt = ((details or {}).get(name) for name in ("row_index", "run_index"))
    named = f"(row {row}, attempt {attempt})"
    is_attempt = type(row) is int and type(attempt) is int and not message.endswith(named)
    return f"{message} {named}" if is_attempt else message
