"""`osmosis eval stop` and `osmosis train stop`: end a run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from osmosis_ai.cli.connection import platform_context
from osmosis_ai.cli.options import NOUNS
from osmosis_ai.cli.output.context import current
from osmosis_ai.cli.output.results import OperationResult

if TYPE_CHECKING:
    from osmosis_ai.services.runs.lifecycle import RunKind


def stop_run(kind: RunKind, run: str, *, yes: bool) -> OperationResult:
    """Ask, and end a run; one that has ended by itself is left as it is.

    Args:
        kind: of the run.
        run: its name or id.
        yes: do not ask.
    """
    from osmosis_ai.services.runs import lifecycle

    output, noun = current(), NOUNS[kind]
    with platform_context() as context:
        output.confirm(f'Stop {noun} run "{run}"?', yes=yes, default=False, summary={"Run": run})
        with output.status(f"Stopping {noun} run"):
            ended = lifecycle.stop_run(context.client, kind, run)
        came = f"had ended before: {ended}" if ended else "stopped"
        return OperationResult(
            operation=f"{kind}.stop",
            status="noop" if ended else "success",
            message=f'{noun.title()} run "{run}" {came}.',
            resource={"name": run, **context.resource()},
        )
