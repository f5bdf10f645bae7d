"""`osmosis eval stop`: end a run."""

from __future__ import annotations

from typing import Annotated

import typer

from osmosis_ai.cli.connection import platform_context
from osmosis_ai.cli.output.context import current
from osmosis_ai.cli.output.results import OperationResult
from osmosis_ai.cli.run_details import RunArgument


def stop(
    run: RunArgument,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> OperationResult:
    """Stop a pending or running evaluation run of the platform; what it has finished is kept."""
    from osmosis_ai.services.eval_runs import stop_run

    output = current()
    with platform_context() as context:
        output.confirm(f'Stop evaluation run "{run}"?', yes=yes, default=False, summary={"Run": run})
        with output.status("Stopping evaluation run"):
            ended = stop_run(context.client, run)
        return OperationResult(
            operation="eval.stop",
            status="noop" if ended else "success",
            message=f'Evaluation run "{run}" had ended before: {ended}.'
            if ended
            else f'Evaluation run "{run}" stopped.',
            resource={"name": run, **context.resource()},
        )
