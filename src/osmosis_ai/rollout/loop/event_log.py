"""Debug event files in JSON Lines format, one per rollout, always inside their directory."""

from __future__ import annotations

import hashlib
import json
import logging
import re
from pathlib import Path
from typing import Any

logger = logging.getLogger(__name__)

_SAFE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,199}")
_UNSAFE_CHARACTER = re.compile(r"[^A-Za-z0-9._-]")
_READABLE_CHARACTERS = 100


def event_file(debug_dir: Path | str, rollout_id: str) -> Path:
    """Return the event file of a rollout, directly below ``debug_dir``.

    An id that is a plain file name is kept. Any other id becomes a readable part plus a digest, so that two ids never
    share a file.
    """
    name = rollout_id
    if not _SAFE.fullmatch(rollout_id):
        digest = hashlib.sha256(rollout_id.encode("utf-8", "surrogatepass")).hexdigest()[:16]
        readable = _UNSAFE_CHARACTER.sub("_", rollout_id[:_READABLE_CHARACTERS]).strip(".")
        name = f"{readable or 'rollout'}-{digest}"
    return Path(debug_dir) / f"{name}.jsonl"


def append_event(debug_dir: Path | str, rollout_id: str, event: str, data: dict[str, Any]) -> None:
    """Append one event. Values that JSON cannot hold are written as text; write errors are logged."""
    path = event_file(debug_dir, rollout_id)
    try:
        line = json.dumps({"event": event, "rollout_id": rollout_id, **data}, default=str, ensure_ascii=False)
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8", errors="backslashreplace") as file:
            file.write(line + "\n")
    except (OSError, TypeError, ValueError) as error:
        logger.warning("the event %s of rollout %s was not written to %s: %s", event, rollout_id, path, error)
