"""`osmosis eval list`: the workspace's runs."""

from __future__ import annotations

from osmosis_ai.cli.options import AllOption, LimitOption
from osmosis_ai.cli.output.results import ListResult


def list_(limit: LimitOption = 50, everything: AllOption = False) -> ListResult:
    """List the evaluation runs of the platform's workspace and those of this machine, the newest first.

    Without a login, or an origin that tells the workspace, the runs of this machine alone. For scripts these are
    under `local_runs`; --plain shows them where no platform was asked. Where one was asked and can not be read, they
    are listed, too, and the command exits with 1.

    Examples:
        osmosis eval list
        osmosis eval list --limit 5 --json
    """
    from osmosis_ai.cli.eval_runs.local_view import with_local_runs
    from osmosis_ai.cli.eval_runs.view import VIEW
    from osmosis_ai.services.eval_runs.local_runs import list_local_runs

    local = list_local_runs(limit=limit, everything=everything)
    return with_local_runs(local, lambda: VIEW.list_runs(limit=limit, everything=everything))
