"""`osmosis train logs`: what a training run said, and what it says."""

from __future__ import annotations

from typing import TYPE_CHECKING

from osmosis_ai.cli.logs import CursorOption, FollowOption, LevelOption, LinesOption
from osmosis_ai.cli.options import RunArgument
from osmosis_ai.cli.output.results import ListResult, StreamResult

if TYPE_CHECKING:
    from pathlib import Path


def logs(
    run: RunArgument,
    limit: LinesOption = 50,
    cursor: CursorOption = None,
    follow: FollowOption = False,
    level: LevelOption = None,
) -> ListResult | StreamResult:
    """Show the log of a training run, the newest line last.

    RUN may also be a training directory of this machine, which needs no platform. With --follow --json each line is a JSON
    object of its own.

    Examples:
        osmosis train logs keen-owl-2 --level warning --follow
        osmosis train logs trained/keen-owl-2
    """
    from osmosis_ai.cli.training_runs.view import VIEW
    from osmosis_ai.services.training_runs.local_runs import training_directory

    directory = training_directory(run)
    if directory is not None:
        return _local_logs(directory, limit, cursor, follow, level)
    return VIEW.logs(run, limit=limit, cursor=cursor, follow=follow, level=level)


def _local_logs(
    directory: Path, limit: int, cursor: str | None, follow: bool, level: str | None
) -> ListResult | StreamResult:
    from shlex import quote

    from osmosis_ai.cli.logs import page_result, require_no_cursor, stream_result
    from osmosis_ai.cli.output.context import current
    from osmosis_ai.cli.output.formats import shown_path
    from osmosis_ai.cli.runs import following
    from osmosis_ai.services.eval_runs.local_runs import follow_local_log, local_log
    from osmosis_ai.training.runs.run_directory import TrainingDirectory

    if follow:
        require_no_cursor(cursor)
        lines = follow_local_log(
            directory,
            first=limit,
            level=level,
            pause=following.pause,
            tell=current().note,
            is_running=TrainingDirectory(directory).is_running,
        )
        return stream_result(lines)
    page, looked_through = local_log(directory, limit=limit, cursor=cursor, level=level)
    older = f"osmosis train logs {quote(shown_path(directory))}" + (f" --level {level}" if level else "")
    extra = {"output_path": str(directory)}
    return page_result(page, older=older, extra=extra, level=level, looked_through=looked_through)
