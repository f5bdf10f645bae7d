"""`osmosis train watch`: follow a training run from any terminal."""

from __future__ import annotations

from osmosis_ai.cli.output.results import OperationResult
from osmosis_ai.cli.runs.details import RunArgument


def watch(run: RunArgument) -> OperationResult:
    """Follow a training run until it ends. Ctrl-C stops watching, not the run."""
    from osmosis_ai.cli.runs import following
    from osmosis_ai.cli.training_runs.following import follow

    return following.watch(follow, run)
