"""The dataset of a run: its file on this machine, a column to slice by, prompts and expected answers."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from osmosis_ai.config.issues import closest
from osmosis_ai.datasets import file_digest, find_row, iter_rows, row_digest
from osmosis_ai.datasets.readers import METADATA_COLUMN, open_reader, raise_for
from osmosis_ai.datasets.rows import as_object, as_text, content_digest
from osmosis_ai.errors import OsmosisError
from osmosis_ai.evaluation.lenient_json import as_table
from osmosis_ai.evaluation.lenient_json import as_text as text_of
from osmosis_ai.evaluation.manifest import Manifest
from osmosis_ai.evaluation.run_directory import RunDirectory
from osmosis_ai.workspace.layout import DATASET_EXTENSIONS, WorkspaceDirectory, find_workspace

if TYPE_CHECKING:
    from osmosis_ai.statistics.estimates import Integers

_SEARCH_TIME_S = 1.0
_MAX_SLICES = 50
_MAX_KEYS = 1000


def read_slice_values(path: Path, column: str, source_rows: Integers, name: str) -> list[str | None]:
    """Return for each row the text of a column, or of a key of its metadata; None if the row has no value.

    ``name`` is the dataset's name in errors: the file of a platform's dataset is named by its digest.
    """
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
            f"Dataset '{name}' has no column '{column}'.",
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
    reader = open_reader(path, report=raise_for(path), only={column, METADATA_COLUMN}, as_written=False)
    for position, (number, record) in enumerate(reader):
        if position == 0:
            names.update(dict.fromkeys(name for name in reader.columns if name != METADATA_COLUMN))
        if column in reader.columns:
            yield position, record
            continue
        try:
            metadata = as_object(record.get(METADATA_COLUMN)) or {}
        except ValueError as error:
            reader.report_at(number, str(error))
            raise
        if len(names) < _MAX_KEYS:
            names.update(dict.fromkeys(metadata))
        yield position, metadata


def expected_answer(path: Path, source_row: int | None, digest: str | None) -> str | None:
    """Return the expected answer of a run's row; None if the row has changed or is not found in time."""
    if source_row is None:
        return None
    manifest = Manifest.load(RunDirectory(path).manifest)
    sha256 = as_table(manifest.inputs.get("dataset")).get("sha256")
    for file in dataset_files(path, path):
        with suppress(OsmosisError, OSError, ValueError, RecursionError):
            if digest is None and file_digest(file) != sha256:
                continue
            row = find_row(file, source_row, look_s=_SEARCH_TIME_S)
            if row is not None and digest in (None, row_digest(row)):
                return row.label
    return None


def dataset_name(manifest: Manifest, directory: RunDirectory) -> str | None:
    """Return the name of the dataset of a local run."""
    name = text_of(manifest.provenance.get("dataset_name"))
    return name or text_of(as_table((directory.read_metrics() or {}).get("eval_run")).get("dataset_name"))


def dataset_files(path: Path, start: Path) -> Iterator[Path]:
    """Yield the files that may be the dataset of a run, the likeliest first."""
    directory = RunDirectory(path)
    manifest = Manifest.load(directory.manifest)
    recorded = text_of(manifest.provenance.get("dataset_path"))
    # `os.path` also accepts names that no file can have.
    if recorded is not None and os.path.isfile(recorded):  # noqa: PTH113
        yield Path(recorded)
    name = dataset_name(manifest, directory)
    if name is None or Path(name).name != name:
        return
    # Reports ask for each of many samples, so find_workspace(), which runs Git, is the second choice.
    workspace = WorkspaceDirectory(start.parents[2]) if len(start.parts) > 3 else None
    if workspace is None or start.parent != workspace.evals_dir:
        try:
            workspace = find_workspace(start, require_scaffold=False)
        except OsmosisError:
            return
    for extension in DATASET_EXTENSIONS:
        file = workspace.data_dir / f"{name}.{extension}"
        if str(file) != recorded and os.path.isfile(file):  # noqa: PTH113
            yield file
