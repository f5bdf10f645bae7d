"""Where on this machine the dataset of a run may lie, and the row of it that an attempt was on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from osmosis_ai.datasets import DatasetRow, file_digest, find_row, row_digest
from osmosis_ai.errors import ConflictError, NotFoundError, OsmosisError
from osmosis_ai.evaluation.local_samples import read_inputs, recorded_dataset
from osmosis_ai.evaluation.run_directory import RunDirectory
from osmosis_ai.workspace.layout import DATASET_EXTENSIONS, WorkspaceDirectory, find_workspace

if TYPE_CHECKING:
    from osmosis_ai.evaluation.comparison.run_samples import ComparedInputs, RunSamples

LOOK_S = 1.0


def _dataset_files(inputs: ComparedInputs, recorded: Path | None, start: Path) -> Iterator[Path]:
    """Yield the files that may be the dataset, the likeliest first."""
    if recorded is not None and _is_file(recorded):
        yield recorded
    name = inputs.dataset_name
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
    """Tell whether there is such a file; of a name that none can have there is not."""
    with suppress(OSError, ValueError):
        return path.is_file()
    return False


def _data_directory(start: Path) -> Path | None:
    """Return `data/` of the workspace that a directory is in."""
    if len(start.parts) > 3 and start.parent == (workspace := WorkspaceDirectory(start.parents[2])).evals_dir:
        return workspace.data_dir
    try:
        return find_workspace(start, require_scaffold=False).data_dir
    except OsmosisError:
        return None


def find_dataset_file(run: RunSamples, directory: Path, start: Path | None = None) -> Path | None:
    """Return the file of the dataset of a run of this machine; None where there is no file that may be it."""
    if run.inputs.dataset_sha256 is None:
        raise ConflictError(f"the run {run.name} does not tell the bytes of its dataset.")
    digests = {}
    for path in _dataset_files(run.inputs, recorded_dataset(directory), start or directory):
        digests[path] = file_digest(path)
        if digests[path] == run.inputs.dataset_sha256:
            return path
    for path, digest in digests.items():
        require_unchanged(run, digest, where=f"`{path}`")
    return None


def require_dataset_file(run: RunSamples, directory: Path) -> Path:
    """Return the file of the dataset of a run of this machine, and of this machine alone."""
    found = find_dataset_file(run, directory)
    if found is None:
        name = run.inputs.dataset_name or "which it does not name"
        raise NotFoundError(f"the dataset of the run {run.name} ({name}) is not on this machine.")
    return found


def require_unchanged(run: RunSamples, sha256: str, *, where: str) -> None:
    """Refuse a dataset that is not the one a run has used."""
    if sha256 != run.inputs.dataset_sha256:
        raise ConflictError(
            f"{where} has changed since the run {run.name} used it: its rows can no longer be told.",
            details={"found": sha256, "used": run.inputs.dataset_sha256},
            hint="bring the file of then back, or leave out what needs it (slices)",
        )


def expected_answer(directory: Path, source_row: int | None, row_digest: str | None) -> str | None:
    """Return the answer that a row of a run expects, where its dataset still has that row; None where it has
    not."""
    if source_row is None:
        return None
    inputs, recorded = _known_inputs(directory, _state(RunDirectory(directory)))
    for path in _dataset_files(inputs, recorded, directory):
        row = _same_row(path, source_row, digest=row_digest, file_sha256=inputs.dataset_sha256)
        if row is not None:
            return row.label
    return None


def _state(found: RunDirectory) -> tuple[tuple[int, ...], ...]:
    """Return what is another once the files have changed that a run's inputs are read from."""
    states = []
    for file in (found.manifest, found.metrics):
        with suppress(OSError):
            is_now = file.stat()
            states.append((is_now.st_mtime_ns, is_now.st_size, is_now.st_ino))
    return tuple(states)


@lru_cache(maxsize=16)
def _known_inputs(directory: Path, _state: tuple[tuple[int, ...], ...]) -> tuple[ComparedInputs, Path | None]:
    """Return what a run was computed from and its dataset's file as it recorded it, read once while they stay."""
    return read_inputs(directory), recorded_dataset(directory)


def _same_row(
    path: Path, source_row: int, *, digest: str | None, file_sha256: str | None, look_s: float = LOOK_S
) -> DatasetRow | None:
    """Return a row of a file if it is the one that an attempt was on; None where it is not, or not found in
    time."""
    try:
        if digest is None and (file_sha256 is None or file_digest(path) != file_sha256):
            return None
        row = find_row(path, source_row, look_s=look_s)
        return row if row is not None and digest in (None, row_digest(row)) else None
    except (OsmosisError, OSError, ValueError, RecursionError):
        return None
