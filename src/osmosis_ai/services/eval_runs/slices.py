"""Metrics of a local or platform run by the values of a dataset column."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from osmosis_ai.api.client import PlatformClient
    from osmosis_ai.datasets import Selection
    from osmosis_ai.decisions.samples import RunSlice


def require_sliceable(columns: Sequence[str], dataset: Path, selection: Selection) -> None:
    """Check before a run starts that its results can be sliced by the columns.

    Raises:
        OsmosisError: a column does not exist or has too many values.
    """
    if not columns:
        return
    import numpy as np

    from osmosis_ai.decisions.run_dataset import read_slice_values

    places = np.asarray(selection.indices, dtype=np.int64)
    for column in columns:
        read_slice_values(dataset, column, places)


def local_slices(run_dir: Path, dataset: Path, columns: Sequence[str]) -> tuple[RunSlice, ...]:
    """Return the slices of a local run.

    Args:
        run_dir: the run's directory.
        dataset: dataset file that the run used.
        columns: dataset columns to slice by.

    Raises:
        OsmosisError: the run or the dataset cannot be read.
    """
    if not columns:
        return ()
    from osmosis_ai.decisions.local_runs import read_local_samples
    from osmosis_ai.decisions.samples import run_slices

    return run_slices(replace(read_local_samples(run_dir), open_dataset=lambda: dataset), columns)


def platform_slices(client: PlatformClient, name: str, columns: Sequence[str]) -> tuple[RunSlice, ...]:
    """Return the slices of a platform's run.

    Raises:
        PlatformError: the run does not exist or the request failed.
        OsmosisError: the platform does not list attempts, the dataset has changed since the run, or a column
            cannot be used for slices.
    """
    from osmosis_ai.decisions.samples import run_slices
    from osmosis_ai.services.eval_runs.resolver import find_run_samples

    return run_slices(find_run_samples(f"platform:{name}", client=lambda: client), columns)
