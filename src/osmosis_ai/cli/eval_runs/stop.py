"""`osmosis eval stop`: end a run."""

from __future__ import annotations

from osmosis_ai.cli.options import RunArgument, YesOption
from osmosis_ai.cli.output.results import OperationResult


def stop(run: RunArgument, yes: YesOption = False) -> OperationResult:
    """Stop a pending or running evaluation run of the platform; what it has finished is kept.

    Examples:
        osmosis eval stop amber-otter-42
    """
    from osmosis_ai.cli.eval_runs.view import VIEW

    return VIEW.stop(run, yes=yes)
