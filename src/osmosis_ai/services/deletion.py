"""Delete ended runs from a platform. Objects that refer to them keep their names."""

from __future__ import annotations

from osmosis_ai.api.capabilities import Capability
from osmosis_ai.api.client import PlatformClient
from osmosis_ai.api.models.runs import Run
from osmosis_ai.errors import ConflictError
from osmosis_ai.services.capabilities import require_offered
from osmosis_ai.services.datasets import explain_unsure_deletion
from osmosis_ai.services.runs.lifecycle import TERMINAL, RunKind, get_run


def find_deletable_run(client: PlatformClient, kind: RunKind, name: str) -> Run:
    """Return the run to delete; raises ConflictError if it has not ended."""
    run = get_run(client, kind, name)
    require_offered(client, Capability.DELETION)
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


def delete_run(client: PlatformClient, kind: RunKind, run: Run) -> None:
    """Delete a run permanently, with its files and adapters."""
    runs = client.eval_runs if kind == "eval" else client.training_runs
    with explain_unsure_deletion(f"osmosis {kind} list"):
        runs.delete(run.id)
