"""Delete datasets and ended runs from a platform. Objects that refer to them keep their names."""

from __future__ import annotations

from typing import TYPE_CHECKING

from osmosis_ai.errors import ConflictError

if TYPE_CHECKING:
    from collections.abc import Callable

    from osmosis_ai.api.client import PlatformClient
    from osmosis_ai.api.models.datasets import Dataset
    from osmosis_ai.api.models.runs import Run
    from osmosis_ai.services.runs.lifecycle import RunKind


def find_deletable_dataset(client: PlatformClient, name: str) -> Dataset:
    """Return the dataset to delete.

    Raises:
        PlatformError: it does not exist, the platform does not support deletion, or the request failed.
    """
    dataset = client.datasets.get(name)
    _require_deletion(client)
    return dataset


def find_deletable_run(client: PlatformClient, kind: RunKind, name: str) -> Run:
    """Return the run to delete.

    Raises:
        PlatformError: it does not exist, the platform does not support deletion, or the request failed.
        ConflictError: the run has not ended.
    """
    from osmosis_ai.services.runs.lifecycle import TERMINAL, get_run

    run = get_run(client, kind, name)
    _require_deletion(client)
    if run.status not in TERMINAL[kind]:
        shown = run.name or run.id
        raise ConflictError(
            f"the run '{shown}' is {run.status}: only a run that has ended can be deleted.",
            details={"id": run.id, "status": run.status},
            hint=f"stop it first with `osmosis {kind} stop {shown}`",
        )
    return run


def count_adapters(client: PlatformClient, kind: RunKind, run: Run) -> int:
    """Return how many adapters are deleted with a run."""
    return len(client.training_runs.checkpoints(run.id).checkpoints) if kind == "train" else 0


def delete_dataset(client: PlatformClient, dataset: Dataset) -> None:
    """Delete a dataset permanently.

    Raises:
        PlatformError: the platform refused; or it did not answer, and the dataset may be deleted nevertheless.
    """
    _delete(lambda: client.datasets.delete(dataset.id), "osmosis dataset list")


def delete_run(client: PlatformClient, kind: RunKind, run: Run) -> None:
    """Delete a run permanently; raises the same errors as :func:`delete_dataset`."""
    runs = client.eval_runs if kind == "eval" else client.training_runs
    _delete(lambda: runs.delete(run.id), f"osmosis {kind} list")


def _delete(call: Callable[[], None], look: str) -> None:
    from osmosis_ai.api.http_errors import PlatformError

    try:
        call()
    except PlatformError as error:
        if error.status is None:
            unsure = f"it may be deleted all the same: look with `{look}`"
            error.hint = f"{error.hint}; {unsure}" if error.hint else unsure
        raise


def _require_deletion(client: PlatformClient) -> None:
    from osmosis_ai.api.capabilities import Capability
    from osmosis_ai.services.capabilities import require_offered

    require_offered(client, Capability.DELETION)
