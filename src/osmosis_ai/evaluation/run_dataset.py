"""The dataset of a run: its file on this machine, and the row of an attempt."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from osmosis_ai.datasets import DatasetRow, file_digest, find_row, row_digest
from osmosis_ai.errors import ConflictError, NotFoundError, OsmosisError
from osmosis_ai.evaluation import lenient_json
from osmosis_ai.evaluation.manifest import Manifest
from osmosis_ai.evaluation.run_directory import RunDirectory
from osmosis_ai.workspace.layout import DATASET_EXTENSIONS, WorkspaceDirectory, find_workspace

if TYPE_CHECKING:
    from osmosis_ai.evaluation.comparison.run_samples import RunSamples

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
