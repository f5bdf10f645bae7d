"""What happens in a run, event by event, and ``logs.txt``, where people and programs read it without secrets.

``<ISO time Z> <LEVEL> [<step>] <message> <canonical JSON of the details>``

An event is handed on as it is. Whoever shows or keeps one takes the secrets out of its texts first
(:meth:`LogEvent.redacted`) and writes it down after that, never the other way round.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Literal

import orjson

from osmosis_ai.redaction import Redactor

Level = Literal["INFO", "WARNING", "ERROR"]


@dataclass(frozen=True, slots=True)
class LogEvent:
    """Something that happened."""

    time: datetime
    level: Level
    step: str
    message: str
    details: Mapping[str, Any]

    def redacted(self, redact: Redactor) -> LogEvent:
        """Return the event as it may be shown: one line, and no secret in its texts."""
        message = " ".join(redact.text(self.message).split())
        return replace(self, message=message, details=redact.tree(self.details))

    def to_line(self, redact: Redactor) -> str:
        """Return the event as a line of ``logs.txt``, without its newline."""
        shown = self.redacted(redact)
        moment = shown.time.isoformat(timespec="milliseconds").replace("+00:00", "Z")
        facts = orjson.dumps(shown.details, default=str, option=orjson.OPT_SORT_KEYS).decode()
        return f"{moment} {shown.level} [{shown.step}] {shown.message} {facts}"


EventSink = Callable[[LogEvent, Redactor], None]


class RunLog:
    """Appends to a run's log; every line is flushed to the system, none to the disk."""

    def __init__(self, path: Path, redact: Redactor, *, echo: EventSink | None = None) -> None:
        self._redact = redact
        self._echo = echo
        # A descriptor that is closed may be another file's at once: nobody writes to it, or closes it, meanwhile.
        self._using = threading.Lock()
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def write(self, step: str, message: str, *, level: Level = "INFO", **details: Any) -> None:
        """Append one line. A full disk costs the line, not the run: the log is no result."""
        known = {key: value for key, value in details.items() if value is not None}
        event = LogEvent(datetime.now(timezone.utc), level, step, message, known)
        if self._echo is not None:
            self._echo(event, self._redact)
        line = event.to_line(self._redact).encode("utf-8", "replace") + b"\n"
        with self._using, suppress(OSError):
            os.write(self._descriptor, line)

    def close(self) -> None:
        """Release the file; what is written later is lost."""
        with self._using:
            if self._descriptor >= 0:
                os.close(self._descriptor)
                self._descriptor = -1


def redact_server_logs(first: Path, redact: Redactor) -> None:
    """Replace the secrets in the logs of a run's rollout servers, as :func:`redact_file`."""
    for path in sorted(first.parent.glob(f"{first.stem}*{first.suffix}")):
        redact_file(path, redact)


def redact_file(path: Path, redact: Redactor) -> None:
    """Replace the secrets in a log that another process wrote, line by line; does nothing without need."""
    if not path.exists():
        return
    temporary = path.with_name(f".{path.name}.tmp")
    with (
        path.open("rb") as raw,
        os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as clean,
    ):
        changed = False
        for line in raw:
            text = line.decode("utf-8", "surrogateescape")
            redacted = redact.text(text)
            changed = changed or redacted != text
            clean.write(redacted.encode("utf-8", "surrogateescape"))
    if changed:
        temporary.replace(path)
    else:
        temporary.unlink()
