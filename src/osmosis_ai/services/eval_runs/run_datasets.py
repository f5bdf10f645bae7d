"""Find the unchanged dataset of a run in the workspace or on the platform."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from osmosis_ai.errors import ConflictError, NotFoundError, OsmosisError

if TYPE_CHECKING:
    from osmosis_ai.api.client import PlatformClient
    from osmosis_ai.decisions.samples import RunSamples


def local_dataset(
    run: RunSamples, directory: Path, client: Callable[[], PlatformClient], start: Path | None = None
) -> Path:
    """Return the dataset file of a local run.

    Args:
        run: the run.
        directory: its directory.
        client: connects to the platform if the workspace does not have the file.
        start: a directory in the workspace; by default the workspace around ``directory``.

    Raises:
        ConflictError: the file has changed.
        NotFoundError: the file does not exist.
    """
    from osmosis_ai.decisions.local_runs import find_dataset_file

    return find_dataset_file(run, directory, start) or _of_platform(run, client)


def _of_platform(run: RunSamples, client: Callable[[], PlatformClient]) -> Path:
    name = run.inputs.dataset_name
    if name is None:
        raise NotFoundError(f"the run {run.name} does not record which dataset it used.")
    try:
        return platform_dataset(client(), run)
    except ConflictError:
        raise
    except OsmosisError as error:
        raise NotFoundError(
            f"the dataset {name} of the run {run.name} is no longer in `data/` and not available from a platform: "
            f"{error.message}",
            hint="bring the file back; a comparison without slices does not need it",
        ) from None


def platform_dataset(client: PlatformClient, run: RunSamples) -> Path:
    """Return the dataset file of a platform's run.

    Raises:
        PlatformError: the dataset no longer exists or the request failed.
        ConflictError: the dataset has changed.
    """
    from osmosis_ai.decisions.local_runs import require_unchanged
    from osmosis_ai.services.datasets import fetch_dataset

    fetched = fetch_dataset(client, run.inputs.dataset_name or "")
    require_unchanged(
        run, fetched.sha256, where=f"the dataset {run.inputs.dataset_name} of {client.platform_url}"
    )
    return fetched.path
