"""Values of a dataset for decisions: a column to slice by, and the prompts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from osmosis_ai.config.issues import closest
from osmosis_ai.datasets import iter_rows
from osmosis_ai.datasets.readers import METADATA_COLUMN, open_reader, raise_for
from osmosis_ai.datasets.rows import as_object, as_text, content_digest
from osmosis_ai.errors import OsmosisError

if TYPE_CHECKING:
    from osmosis_ai.statistics.estimates import Integers

_MAX_SLICES = 50
_MAX_KEYS = 1000


def read_slice_values(path: Path, column: str, source_rows: Integers) -> list[str | None]:
    """Return for each row the text of a column, or of a key of its metadata; None if the row has no value."""
    positions = {row: position for position, row in enumerate(source_rows.tolist())}
    values: list[str | None] = [None] * len(positions)
    names: dict[str, None] = {}
    distinct: set[str] = set()
    for row, record in _records(path, column, names):
        position = positions.get(row)
        if position is None:
            continue
        value = as_text(record.get(column))
        values[position] = value
        if value is not None:
            distinct.add(value)
        if len(distinct) > _MAX_SLICES:
            raise OsmosisError(
                f"'{column}' has more than {_MAX_SLICES} values, which is too many for slices.",
                details={"column": column},
                hint="choose a column that divides the rows into a few groups",
            )
    if column not in names and not distinct:
        suggestion = closest(column, names)
        raise OsmosisError(
            f"the dataset {path.name} has no column '{column}'.",
            details={"column": column, "columns": list(names), "suggestion": suggestion},
            hint=f"did you mean '{suggestion}'?" if suggestion else f"it has {', '.join(list(names)[:20])}",
        )
    return values


def read_prompts(path: Path, source_rows: Integers) -> dict[int, str]:
    """Return the digest of each row's messages by its position in the file, without rows that have none."""
    wanted = set(source_rows.tolist())
    found: dict[int, str] = {}
    for row in iter_rows(path):
        if row.source_row_index in wanted and row.messages:
            found[row.source_row_index] = content_digest(row.messages)
            if len(found) == len(wanted):
                break
    return found


def _records(path: Path, column: str, names: dict[str, None]) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield (position, record or its metadata); ``names`` collects the columns and keys."""
    report = raise_for(path)
    reader = open_reader(path, report=report, only={column, METADATA_COLUMN})
    for position, (number, record) in enumerate(reader):
        if position == 0:
            names.update(dict.fromkeys(name for name in reader.columns if name != METADATA_COLUMN))
        if column in reader.columns:
            yield position, record
            continue
        try:
            metadata = as_object(record.get(METADATA_COLUMN)) or {}
        except ValueError as error:
            report(f"{reader.unit} {number}: {error}")
            raise
        if len(names) < _MAX_KEYS:
            names.update(dict.fromkeys(metadata))
        yield position, metadata
