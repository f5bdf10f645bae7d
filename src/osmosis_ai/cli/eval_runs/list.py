"""`osmosis eval list`: the workspace's runs."""

from __future__ import annotations

from osmosis_ai.cli.options import AllOption, LimitOption
from osmosis_ai.cli.output.results import ListResult


def list_(limit: LimitOption = 50, everything: AllOption = False) -> ListResult:
    """List the evaluation runs of the workspace, the newest first.

    Examples:
        osmosis eval list
        osmosis eval list --limit 5 --json
    """
    from osmosis_ai.cli.eval_runs.view import VIEW
    from osmosis_ai.services.eval_runs.local_runs import pointing_to_local_runs

    with pointing_to_local_runs():
        return VIEW.list_runs(limit=limit, everything=everything)
