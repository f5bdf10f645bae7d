"""`osmosis train watch`: follow a training run from any terminal."""

from __future__ import annotations

from shlex import quote

from osmosis_ai.cli.options import RunArgument
from osmosis_ai.cli.output.results import OperationResult


def watch(run: RunArgument) -> OperationResult:
    """Follow a training run until it ends. Ctrl-C stops watching, not the run.

    Examples:
        osmosis train watch keen-owl-2
    """
    from osmosis_ai.cli.training_runs.view import VIEW
    from osmosis_ai.services.training_runs.local_runs import require_run_of_platform

    shown = quote(run)
    require_run_of_platform(
        run, "osmosis train watch", lambda _: f"osmosis train logs {shown} --follow, osmosis view {shown}"
    )
    return VIEW.watch(run)
