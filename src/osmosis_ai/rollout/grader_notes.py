"""What a grader says of a sample beside its reward, as it travels in the sample's ``extra_fields``.

It has a key of its own there, so that any line of the rollout protocol carries it and an older end of the wire passes
it on or over. What a user's code wrote under that key by itself is read as nothing. Importing this costs nothing.
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
    """Notes in words, and the numbers that a reward is made of, by name; either may be missing."""

    notes: str | None = None
    parts: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def checked(cls, notes: object = None, parts: object = None) -> GraderNotes:
        """Return what a grader gave; long notes are cut to 2,000 characters.

        Raises:
            ValueError: notes are no text, or parts are no table of at most 32 finite numbers.
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
        """Say it in a sample's ``extra_fields``, instead of what was said before."""
        said = {"notes": self.notes, "parts": dict(self.parts)}
        known = {name: value for name, value in said.items() if value}
        extra_fields.pop(NOTES_KEY, None)
        if known:
            extra_fields[NOTES_KEY] = known


def read_grader_notes(extra_fields: Mapping[str, Any]) -> GraderNotes:
    """Return what a sample's ``extra_fields`` say; nothing where they say something else."""
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
    # NumPy's numbers are registered as real ones; True and False say whether a part was met.
    try:
        number = float(value) if isinstance(value, numbers.Real) else math.nan
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise ValueError(f"the part `{name}` must be a finite number, not {value!r:.80}")
    return number
