"""One run's numbers by the values of a column of its dataset, of a run on this machine and of one on the platform."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from osmosis_ai.api.client import PlatformClient
    from osmosis_ai.datasets import Selection
    from osmosis_ai.evaluation.comparison.run_samples import RunSlice


def require_sliceable(columns: Sequence[str], dataset: Path, selection: Selection) -> None:
    """Check that a run can be sliced so, before it is made: a run is dearer than a typo.

    Raises:
        OsmosisError: there is no such column, or it has too many values.
    """
    if not columns:
        return
    import numpy as np

    from osmosis_ai.evaluation.dataset_columns import read_slice_values

    places = np.asarray(selection.indices, dtype=np.int64)
    for column in columns:
        read_slice_values(dataset, column, places)


def local_slices(run_dir: Path, dataset: Path, columns: Sequence[str]) -> tuple[RunSlice, ...]:
    """Return the slices of a run of this machine.

    Args:
        run_dir: the run's directory.
        dataset: the file that it used.
        columns: of it.

    Raises:
        OsmosisError: the run or the dataset cannot be read.
    """
    if not columns:
        return ()
    from osmosis_ai.evaluation.comparison.run_samples import run_slices
    from osmosis_ai.evaluation.local_samples import read_local_samples

    return run_slices(replace(read_local_samples(run_dir), open_dataset=lambda: dataset), columns)


def platform_slices(client: PlatformClient, name: str, columns: Sequence[str]) -> tuple[RunSlice, ...]:
    """Return the slices of a run of the platform, its retries included.

    Raises:
        PlatformError: no such run, or as every call.
        OsmosisError: the platform does not list single attempts, the dataset is no longer the one the run used, or
            the run cannot be sliced by a column.
    """
    from osmosis_ai.evaluation.comparison.run_samples import run_slices
    from osmosis_ai.services.eval_runs.resolver import find_run_samples

    return run_slices(find_run_samples(f"platform:{name}", client=lambda: client), columns)
