"""`osmosis eval delete`: delete a run that has ended."""

from __future__ import annotations

from osmosis_ai.cli.options import RunArgument, YesOption
from osmosis_ai.cli.output.results import OperationResult


def delete(run: RunArgument, yes: YesOption = False) -> OperationResult:
    """Delete an evaluation run of the platform that has ended: its samples, trajectories, artifacts and log.

    Examples:
        osmosis eval delete copper-finch
    """
    from osmosis_ai.cli.eval_runs.view import VIEW

    return VIEW.delete(run, yes=yes)
