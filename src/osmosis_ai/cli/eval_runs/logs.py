"""`osmosis eval logs`: what a run said, and what it says."""

from __future__ import annotations

from typing import TYPE_CHECKING

from osmosis_ai.cli.logs import CursorOption, FollowOption, LevelOption, LinesOption
from osmosis_ai.cli.options import RunAnywhereArgument
from osmosis_ai.cli.output.results import ListResult, StreamResult

if TYPE_CHECKING:
    from pathlib import Path


def logs(
    run: RunAnywhereArgument,
    limit: LinesOption = 50,
    cursor: CursorOption = None,
    follow: FollowOption = False,
    level: LevelOption = None,
) -> ListResult | StreamResult:
    """Show the log of a run of this machine or of the platform, the newest line last.

    With --follow --json each line is a JSON object of its own.

    Examples:
        osmosis eval logs amber-otter-42 --limit 200
        osmosis eval logs @last --level warning --follow
        osmosis eval logs platform:amber-otter-42 --follow
    """
    from osmosis_ai.cli.eval_runs.local_view import of_this_machine_first
    from osmosis_ai.cli.eval_runs.view import VIEW

    return of_this_machine_first(
        run,
        here=lambda directory: _local_logs(directory, limit, cursor, follow, level),
        there=lambda name: VIEW.logs(name, limit=limit, cursor=cursor, follow=follow, level=level),
    )


def _local_logs(
    directory: Path, limit: int, cursor: str | None, follow: bool, level: str | None
) -> ListResult | StreamResult:
    from osmosis_ai.cli.logs import page_result, require_no_cursor, stream_result
    from osmosis_ai.cli.output.context import current
    from osmosis_ai.cli.runs import following
    from osmosis_ai.services.downloaded_runs import require_types
    from osmosis_ai.services.eval_runs.local_runs import follow_local_log, local_log

    require_types(directory, "logs")
    if follow:
        require_no_cursor(cursor)
        pause, tell = following.pause, current().note
        return stream_result(follow_local_log(directory, first=limit, level=level, pause=pause, tell=tell))
    page, looked_through = local_log(directory, limit=limit, cursor=cursor, level=level)
    older = f"osmosis eval logs {directory.name}" + (f" --level {level}" if level else "")
    extra = {"output_path": str(directory)}
    return page_result(page, older=older, extra=extra, level=level, looked_through=looked_through)
