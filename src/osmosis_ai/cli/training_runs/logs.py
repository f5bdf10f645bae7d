"""`osmosis train logs`: what a training run said, and what it says."""

from __future__ import annotations

from osmosis_ai.cli.logs import CursorOption, FollowOption, LevelOption, LinesOption
from osmosis_ai.cli.options import RunArgument
from osmosis_ai.cli.output.results import ListResult, StreamResult


def logs(
    run: RunArgument,
    limit: LinesOption = 50,
    cursor: CursorOption = None,
    follow: FollowOption = False,
    level: LevelOption = None,
) -> ListResult | StreamResult:
    """Show the log of a training run, the newest line last.

    With --follow --json each line is a JSON object of its own.

    Examples:
        osmosis train logs keen-owl-2 --level warning --follow
    """
    from osmosis_ai.cli.training_runs.view import VIEW

    return VIEW.logs(run, limit=limit, cursor=cursor, follow=follow, level=level)
