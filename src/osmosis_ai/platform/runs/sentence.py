"""One sentence from an error, fit to stand in a table: what happened and what to do, however much was printed."""

from __future__ import annotations

from osmosis_ai.errors import OsmosisError

LONGEST = 600


def one_sentence(error: OsmosisError) -> str:
    """Return ``error`` in one line of at most :data:`LONGEST` characters; the log has all of it."""
    said = " ".join(error.message.split()).rstrip(".")
    hint = " ".join(error.hint.split()).rstrip(".") if error.hint else ""
    room = LONGEST - len(hint) - 3
    if len(said) > room:
        # What a tool prints last says why it failed.
        said = f"{said[: room // 3].rstrip()} … {said[-(room - room // 3 - 3) :].lstrip()}"
    return f"{said}; {hint}." if hint else f"{said}."
