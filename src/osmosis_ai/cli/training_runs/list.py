"""`osmosis train list`: the workspace's training runs."""

from __future__ import annotations

from osmosis_ai.cli.options import AllOption, LimitOption
from osmosis_ai.cli.output.results import ListResult


def list_(limit: LimitOption = 50, everything: AllOption = False) -> ListResult:
    """List the training runs of the workspace, the newest first.

    Examples:
        osmosis train list
    """
    from osmosis_ai.cli.training_runs.view import VIEW

    return VIEW.list_runs(limit=limit, everything=everything)
