"""`osmosis train resume`: go on with a training run."""

from __future__ import annotations

from osmosis_ai.cli.connection import platform_context
from osmosis_ai.cli.options import RunArgument
from osmosis_ai.cli.output.context import current
from osmosis_ai.cli.output.results import OperationResult


def resume(run: RunArgument) -> OperationResult:
    """Go on with a failed or stopped training run, from its last checkpoint.

    It stays the same run: adapter, optimizer, data order and step are those of the checkpoint, and so are its
    config and commit.

    Examples:
        osmosis train resume keen-owl-2
    """
    with platform_context() as context:
        with current().status("Resuming training run"):
            resumed = context.client.training_runs.resume(run)
        name = resumed.name or resumed.id
        where = f" behind step {resumed.step}" if resumed.step is not None else ""
        return OperationResult(
            operation="train.resume",
            message=f'Training run "{name}" goes on{where}.',
            resource={
                "id": resumed.id,
                "name": resumed.name,
                "status": resumed.status,
                "step": resumed.step,
                **context.resource(),
            },
            next_steps=[f"Follow with: osmosis train watch {name}"],
            next_steps_structured=[{"action": "train.watch", "name": name}],
        )
