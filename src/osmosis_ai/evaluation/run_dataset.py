"""The dataset of a run: its file on this machine, and the values that a comparison or a page reads from it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from osmosis_ai.config.issues import closest
from osmosis_ai.datasets import DatasetRow, file_digest, find_row, iter_rows, row_digest
from osmosis_ai.datasets.digest import content_digest
from osmosis_ai.datasets.formats import open_reader, raise_for
from osmosis_ai.datasets.reader import METADATA_COLUMN
from osmosis_ai.datasets.rows import as_object, as_text
from osmosis_ai.errors import ConflictError, NotFoundError, OsmosisError
from osmosis_ai.evaluation import lenient_json
from osmosis_ai.evaluation.manifest import Manifest
from osmosis_ai.evaluation.run_directory import RunDirectory
from osmosis_ai.workspace.layout import DATASET_EXTENSIONS, WorkspaceDirectory, find_workspace

if TYPE_CHECKING:
    from osmosis_ai.evaluation.comparison.run_samples import RunSamples
    from osmosis_ai.evaluation.statistics import Integers

_MAX_SLICES = 50
_MAX_KEYS = 1000
_SEARCH_TIME_S = 1.0


class _RecordedDataset(NamedTuple):
    name: str | None
    sha256: str | None
    path: Path | None


def find_dataset_file(run: RunSamples, directory: Path, start: Path | None = None) -> Path | None:
    """Return the dataset file of a local run; None if it is not found.

    Args:
        run: the run.
        directory: its directory.
        start: a directory in the workspace to search; by default the run's directory.

    Raises:
        ConflictError: the file was changed, or the run did not record its digest.
    """
    if run.inputs.dataset_sha256 is None:
        raise ConflictError(f"the run {run.name} did not record the digest of its dataset.")
    path = _recorded_dataset(directory).path
    digests = {}
    for candidate in _candidates(run.inputs.dataset_name, path, start or directory):
        digests[candidate] = file_digest(candidate)
        if digests[candidate] == run.inputs.dataset_sha256:
            return candidate
    for candidate, digest in digests.items():
        require_unchanged(run, digest, where=f"`{candidate}`")
    return None


def require_dataset_file(run: RunSamples, directory: Path) -> Path:
    """Return the dataset file of a local run, and refuse if it is not on this machine."""
    found = find_dataset_file(run, directory)
    if found is None:
        name = run.inputs.dataset_name or "name not recorded"
        raise NotFoundError(f"the dataset of the run {run.name} ({name}) is not on this machine.")
    return found


def require_unchanged(run: RunSamples, sha256: str, *, where: str) -> None:
    """Refuse a dataset other than the one that a run used."""
    if sha256 != run.inputs.dataset_sha256:
        raise ConflictError(
            f"{where} has changed since the run {run.name} used it.",
            details={"found": sha256, "used": run.inputs.dataset_sha256},
            hint="restore the old file, or leave out slices, which need it",
        )


def expected_answer(directory: Path, source_row: int | None, digest: str | None) -> str | None:
    """Return the expected answer of a run's row; None if the row is no longer in the dataset."""
    if source_row is None:
        return None
    recorded = _recorded_dataset(directory)
    for path in _candidates(recorded.name, recorded.path, directory):
        row = _same_row(path, source_row, digest=digest, file_sha256=recorded.sha256)
        if row is not None:
            return row.label
    return None


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


def _recorded_dataset(directory: Path) -> _RecordedDataset:
    """Return the dataset that a run recorded, whether or not the file still exists."""
    found = RunDirectory(directory)
    manifest = Manifest.load(found.manifest)
    name = manifest.provenance.get("dataset_name")
    if not name:
        name = lenient_json.as_table((found.read_metrics() or {}).get("eval_run")).get("dataset_name")
    sha256 = lenient_json.as_table(manifest.inputs.get("dataset")).get("sha256")
    path = lenient_json.as_text(manifest.provenance.get("dataset_path"))
    return _RecordedDataset(
        lenient_json.as_text(name), lenient_json.as_text(sha256), Path(path) if path else None
    )


def _candidates(name: str | None, recorded: Path | None, start: Path) -> Iterator[Path]:
    """Yield the files that may be the dataset, the likeliest first."""
    if recorded is not None and _is_file(recorded):
        yield recorded
    if not name or Path(name).name != name:
        return
    data = _data_directory(start)
    if data is None:
        return
    for extension in DATASET_EXTENSIONS:
        path = data / f"{name}.{extension}"
        if path != recorded and _is_file(path):
            yield path


def _is_file(path: Path) -> bool:
    with suppress(OSError, ValueError):
        return path.is_file()
    return False


def _data_directory(start: Path) -> Path | None:
    """Return `data/` of the workspace around a directory."""
    if len(start.parts) > 3 and start.parent == (workspace := WorkspaceDirectory(start.parents[2])).evals_dir:
        return workspace.data_dir
    try:
        return find_workspace(start, require_scaffold=False).data_dir
    except OsmosisError:
        return None


def _same_row(
    path: Path, source_row: int, *, digest: str | None, file_sha256: str | None
) -> DatasetRow | None:
    """Return a row of a file if it is the one that the run used; None if not, or if it is not found in time."""
    try:
        if digest is None and (file_sha256 is None or file_digest(path) != file_sha256):
            return None
        row = find_row(path, source_row, look_s=_SEARCH_TIME_S)
        return row if row is not None and digest in (None, row_digest(row)) else None
    except (OsmosisError, OSError, ValueError, RecursionError):
        return None
