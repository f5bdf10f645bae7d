"""Log lines with a length and characters that any database accepts.

Creating one needs no database, since workers send their lines to the platform.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Literal

from osmosis_ai.redaction import Redactor

MAX_MESSAGE_CHARS = 16 * 1024
_MAX_DETAILS_CHARS = 64 * 1024
_MOST_LEVELS = 64
"""For nested facts; what writes a page of a log takes no more than 255."""

Level = Literal["debug", "info", "warning", "error"]

PLAN: Final = "plan"
"""``step`` of the log line in which a training worker reports its starting point."""
WARNED: Final = "warning"
"""The ``step`` of warnings about the numbers of a training step."""


@dataclass(frozen=True, slots=True)
class LogLine:
    message: str
    level: Level = "info"
    step: str = ""
    details: dict[str, Any] | None = None
    timestamp: datetime | None = None


def storable(text: str) -> str:
    """Return ``text`` as either database can keep it."""
    # The output of a process may contain bytes that are not text; neither engine keeps NUL or lone surrogates.
    return text.replace("\0", "\N{REPLACEMENT CHARACTER}").encode("utf-8", "replace").decode("utf-8")


def bounded(text: str) -> str:
    """Truncate ``text`` to the maximum length of a log line."""
    if len(text) <= MAX_MESSAGE_CHARS:
        return text
    return f"{text[:MAX_MESSAGE_CHARS]}… ({len(text) - MAX_MESSAGE_CHARS} more characters)"


def bounded_details(details: dict[str, Any], redactor: Redactor) -> dict[str, Any]:
    """Return the facts of a line as a log keeps them: JSON without secrets, of a bounded size and depth."""
    if _is_deeper(details, _MOST_LEVELS):
        return {"truncated": f"facts within facts, more than {_MOST_LEVELS} levels"}
    text = storable(json.dumps(redactor.tree(details), default=str, ensure_ascii=False))
    if len(text) > _MAX_DETAILS_CHARS:
        return {"truncated": text[:_MAX_DETAILS_CHARS]}
    # JSON escapes NUL, and has neither NaN nor infinities.
    readable: dict[str, Any] = json.loads(text.replace("\\u0000", "\\ufffd"), parse_constant=str)
    return readable


def _is_deeper(value: Any, levels: int) -> bool:
    if isinstance(value, Mapping):
        value = value.values()
    elif not isinstance(value, (list, tuple)):
        return False
    return levels == 0 or any(_is_deeper(each, levels - 1) for each in value)
