"""Where on this machine the dataset of a run may lie, and the row of it that an attempt was on."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

from osmosis_ai.datasets import DatasetRow, file_digest, iter_rows, row_digest
from osmosis_ai.errors import OsmosisError
from osmosis_ai.workspace.layout import DATASET_EXTENSIONS, find_workspace

if TYPE_CHECKING:
    from osmosis_ai.evaluation.comparison.run_samples import ComparedInputs

LOOK_S = 1.0


def dataset_files(inputs: ComparedInputs, recorded: Path | None, start: Path) -> list[Path]:
    """Return the files that may be the dataset, the likeliest first.

    Args:
        inputs: the run's.
        recorded: the file as the run recorded it.
        start: a directory of the workspace beside whose `data/` it may be.
    """
    found = [recorded] if recorded is not None else []
    name = inputs.dataset_name
    try:
        data = find_workspace(start, require_scaffold=False).data_dir
    except OsmosisError:
        data = None
    if data is not None and name and Path(name).name == name:
        found += [data / f"{name}.{extension}" for extension in DATASET_EXTENSIONS]
    return [path for path in dict.fromkeys(found) if path.is_file()]


def same_row(
    path: Path, source_row: int, *, digest: str | None, file_sha256: str | None, look_s: float = LOOK_S
) -> DatasetRow | None:
    """Return a row of a file if it is the one that an attempt was on; None where it is not, or not found in time.

    Args:
        path: a file that may be the dataset.
        source_row: the row's place in it.
        digest: what the row was (``datasets.row_digest``).
        file_sha256: what the whole file was; asked where ``digest`` is None.
        look_s: how long to read, at most.
    """
    deadline = time.monotonic() + look_s
    try:
        if digest is None and (file_sha256 is None or file_digest(path) != file_sha256):
            return None
        for row in iter_rows(path):
            if row.source_row_index == source_row:
                return row if digest in (None, row_digest(row)) else None
            if time.monotonic() > deadline:
                return None
    except (OsmosisError, OSError, ValueError):
        return None
    return None
