"""``logs.txt``: one line per event of a run, readable by people and by programs, without secrets.

``<ISO time Z> <LEVEL> [<step>] <message> <canonical JSON of the details>``
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import orjson

from osmosis_ai.evaluation.manifest import utc_now
from osmosis_ai.redaction import Redactor

Level = Literal["INFO", "WARNING", "ERROR"]


class RunLog:
    """Appends to a run's log; every line is flushed to the system, none to the disk.

    Args:
        path: the log file, created with mode 0600.
        redact: applied to every line.
        echo: also receives every line (``--verbose``).
    """

    def __init__(self, path: Path, redact: Redactor, *, echo: Callable[[str], None] | None = None) -> None:
        self._redact = redact
        self._echo = echo
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def write(self, step: str, message: str, *, level: Level = "INFO", **details: Any) -> None:
        """Append one line. A full disk costs the line, not the run: the log is no result."""
        known = {key: value for key, value in details.items() if value is not None}
        facts = orjson.dumps(known, default=str, option=orjson.OPT_SORT_KEYS).decode()
        one_line = " ".join(message.split())
        line = self._redact.text(f"{utc_now()} {level} [{step}] {one_line} {facts}")
        if self._echo is not None:
            self._echo(line)
        try:
            os.write(self._descriptor, line.encode("utf-8", "replace") + b"\n")
        except OSError:
            return

    def close(self) -> None:
        """Release the file."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def redact_file(path: Path, redact: Redactor) -> None:
    """Replace the secrets in a log that another process wrote, line by line; does nothing without need.

    Raises:
        OSError: when the file can be neither read nor replaced.
    """
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
