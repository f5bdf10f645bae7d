"""`osmosis train stop`: end a training run."""

from __future__ import annotations

from osmosis_ai.cli.connection import platform_context
from osmosis_ai.cli.output.context import current
from osmosis_ai.cli.output.results import OperationResult
from osmosis_ai.cli.run_details import RunArgument
from osmosis_ai.cli.run_submit import YesOption


def stop(run: RunArgument, yes: YesOption = False) -> OperationResult:
    """Stop a pending or running training run; its checkpoints are kept."""
    from osmosis_ai.services.train_runs import stop_run

    output = current()
    with platform_context() as context:
        output.confirm(f'Stop training run "{run}"?', yes=yes, default=False, summary={"Run": run})
        with output.status("Stopping training run"):
            ended = stop_run(context.client, run)
        return OperationResult(
            operation="train.stop",
            status="noop" if ended else "success",
            message=f'Training run "{run}" had ended before: {ended}.'
            if ended
            else f'Training run "{run}" stopped.',
            resource={"name": run, **context.resource()},
        )
