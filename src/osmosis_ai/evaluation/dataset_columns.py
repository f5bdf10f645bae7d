"""What a comparison looks up in the dataset of a run: the values that cut it into slices, and the prompts.

The bytes are those that the run used (whoever opens the file has checked its digest), so a row is where the run found
it. Files are read as they stream.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from osmosis_ai.config.issues import closest
from osmosis_ai.datasets import iter_rows
from osmosis_ai.datasets.digest import content_digest
from osmosis_ai.datasets.formats import open_reader, raise_for
from osmosis_ai.datasets.reader import METADATA_COLUMN
from osmosis_ai.datasets.rows import as_object, as_text
from osmosis_ai.errors import OsmosisError

if TYPE_CHECKING:
    from osmosis_ai.evaluation.statistics import Integers

MOST_SLICES = 50
_MOST_KEYS = 1000


def read_slice_values(path: Path, column: str, places: Integers) -> list[str | None]:
    """Return of each row the value of a column, or of a key of its metadata, as text; None where it has none."""
    wanted = {place: position for position, place in enumerate(places.tolist())}
    values: list[str | None] = [None] * len(wanted)
    seen: dict[str, None] = {}
    distinct: set[str] = set()
    for place, record in _records(path, column, seen):
        position = wanted.get(place)
        if position is None:
            continue
        value = as_text(record.get(column))
        values[position] = value
        if value is not None:
            distinct.add(value)
        if len(distinct) > MOST_SLICES:
            raise OsmosisError(
                f"'{column}' has more than {MOST_SLICES} values: too many to make slices of.",
                details={"column": column},
                hint="choose a column that sorts rows into a few groups",
            )
    if column not in seen and not distinct:
        meant = closest(column, seen)
        raise OsmosisError(
            f"the dataset {path.name} has no column '{column}'.",
            details={"column": column, "columns": list(seen), "suggestion": meant},
            hint=f"did you mean '{meant}'?" if meant else f"it has {', '.join(list(seen)[:20])}",
        )
    return values


def read_prompts(path: Path, places: Integers) -> dict[int, str]:
    """Return by position in the file the digest of what an agent is asked in a row; rows without a prompt are
    left out."""
    wanted = set(places.tolist())
    found: dict[int, str] = {}
    for row in iter_rows(path):
        if row.source_row_index in wanted and row.messages:
            found[row.source_row_index] = content_digest(row.messages)
            if len(found) == len(wanted):
                break
    return found


def _records(path: Path, column: str, seen: dict[str, None]) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield (place, record) with the metadata's keys among its own; ``seen`` takes the names that there are."""
    report = raise_for(path)
    reader = open_reader(path, report=report, only={column, METADATA_COLUMN})
    for place, (number, record) in enumerate(reader):
        if place == 0:
            seen.update(dict.fromkeys(name for name in reader.columns if name != METADATA_COLUMN))
        if column in reader.columns:
            yield place, record
            continue
        try:
            metadata = as_object(record.get(METADATA_COLUMN)) or {}
        except ValueError as error:
            report(f"{reader.unit} {number}: {error}")
            raise
        if len(seen) < _MOST_KEYS:
            seen.update(dict.fromkeys(metadata))
        yield place, metadata
