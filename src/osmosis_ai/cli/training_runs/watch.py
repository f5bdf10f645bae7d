"""`osmosis train watch`: follow a training run from any terminal."""

from __future__ import annotations

from osmosis_ai.cli.options import RunArgument
from osmosis_ai.cli.output.results import OperationResult


def watch(run: RunArgument) -> OperationResult:
    """Follow a training run until it ends. Ctrl-C stops watching, not the run.

    Examples:
        osmosis train watch keen-owl-2
    """
    from osmosis_ai.cli.training_runs.view import VIEW

    return VIEW.watch(run)
