"""`osmosis eval logs`: what a run said, and what it says."""

from __future__ import annotations

from osmosis_ai.cli.logs import CursorOption, FollowOption, LinesOption
from osmosis_ai.cli.options import RunArgument
from osmosis_ai.cli.output.results import ListResult, StreamResult


def logs(
    run: RunArgument, limit: LinesOption = 50, cursor: CursorOption = None, follow: FollowOption = False
) -> ListResult | StreamResult:
    """Show the log of a run of the platform, the newest line last.

    With --follow --json each line is a JSON object of its own.

    Examples:
        osmosis eval logs amber-otter-42 --limit 200
        osmosis eval logs amber-otter-42 --follow
    """
    from osmosis_ai.cli.eval_runs.view import VIEW

    return VIEW.logs(run, limit=limit, cursor=cursor, follow=follow)
