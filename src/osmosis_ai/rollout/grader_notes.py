"""A grader's notes and reward parts, stored under a reserved key of the sample's ``extra_fields``.

Any version of the rollout protocol passes the key through. Other values that user code stored under it are ignored.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import Any

NOTES_KEY = "grader_notes"
MOST_NOTES_CHARS = 2_000
MOST_PARTS = 32
MOST_NAME_CHARS = 64


@dataclass(frozen=True, slots=True)
class GraderNotes:
    """Text notes and named components of a reward. Either may be missing."""

    notes: str | None = None
    parts: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def checked(cls, notes: object = None, parts: object = None) -> GraderNotes:
        """Validate a grader's values. Notes are truncated to 2,000 characters.

        Raises:
            ValueError: The notes are not text, or the parts are not a table of at most 32 finite numbers.
        """
        if notes is not None and not isinstance(notes, str):
            raise ValueError(f"`notes` must be text, not {type(notes).__name__}")
        if parts is None:
            return cls(_cut(notes))
        if not isinstance(parts, Mapping):
            raise ValueError(f"`parts` must be a table of numbers by name, not {type(parts).__name__}")
        if len(parts) > MOST_PARTS:
            raise ValueError(f"`parts` can have {MOST_PARTS} numbers at most, not {len(parts)}")
        return cls(_cut(notes), {_name(name): _part(name, value) for name, value in parts.items()})

    def write(self, extra_fields: MutableMapping[str, Any]) -> None:
        """Write the notes to a sample's ``extra_fields``, replacing earlier ones."""
        said = {"notes": self.notes, "parts": dict(self.parts)}
        known = {name: value for name, value in said.items() if value}
        extra_fields.pop(NOTES_KEY, None)
        if known:
            extra_fields[NOTES_KEY] = known


def read_grader_notes(extra_fields: Mapping[str, Any]) -> GraderNotes:
    """Return the notes stored in ``extra_fields``; empty if they are missing or malformed."""
    said = extra_fields.get(NOTES_KEY)
    if not isinstance(said, Mapping):
        return GraderNotes()
    try:
        return GraderNotes.checked(said.get("notes") or None, said.get("parts"))
    except ValueError:
        return GraderNotes()


def _cut(notes: str | None) -> str | None:
    return notes if notes is None or len(notes) <= MOST_NOTES_CHARS else f"{notes[: MOST_NOTES_CHARS - 1]}…"


def _name(name: object) -> str:
    if not isinstance(name, str) or not name.strip() or len(name) > MOST_NAME_CHARS:
        raise ValueError(f"a part's name must be text of 1 to {MOST_NAME_CHARS} characters, not {name!r:.80}")
    return str(name)


def _part(name: str, value: object) -> float:
    # NumPy scalars are registered as real numbers. True and False say whether a part was met.
    try:
        number = float(value) if isinstance(value, numbers.Real) else math.nan
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise ValueError(f"the part `{name}` must be a finite number, not {value!r:.80}")
    return number
