"""`osmosis train delete`: a run that has ended, for good."""

from __future__ import annotations

from osmosis_ai.cli.options import RunArgument, YesOption
from osmosis_ai.cli.output.results import OperationResult


def delete(run: RunArgument, yes: YesOption = False) -> OperationResult:
    """Delete a training run that has ended: its curves, log, and the adapters it has saved.

    Examples:
        osmosis train delete copper-finch
    """
    from osmosis_ai.cli.training_runs.view import VIEW

    return VIEW.delete(run, yes=yes)
