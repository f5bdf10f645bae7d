"""`osmosis train stop`: end a training run."""

from __future__ import annotations

from osmosis_ai.cli.options import RunArgument, YesOption
from osmosis_ai.cli.output.results import OperationResult


def stop(run: RunArgument, yes: YesOption = False) -> OperationResult:
    """Stop a pending or running training run; its checkpoints are kept.

    Examples:
        osmosis train stop keen-owl-2
    """
    from osmosis_ai.cli.training_runs.view import VIEW

    return VIEW.stop(run, yes=yes)
