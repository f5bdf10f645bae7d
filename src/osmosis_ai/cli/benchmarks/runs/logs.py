"""`osmosis benchmark runs logs`: what a run said, and what it says."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from osmosis_ai.cli.connection import platform_context
from osmosis_ai.cli.logs import CursorOption, FollowOption, LinesOption, page_result, stream_result
from osmosis_ai.cli.options import RunArgument
from osmosis_ai.cli.output.context import current
from osmosis_ai.cli.output.results import ListResult, StreamResult
from osmosis_ai.errors import OsmosisError

if TYPE_CHECKING:
    from osmosis_ai.api.wire.base import LogEntry


def logs(
    run: RunArgument, limit: LinesOption = 50, cursor: CursorOption = None, follow: FollowOption = False
) -> ListResult | StreamResult:
    """Show the log of a benchmark run, the newest line last.

    With --follow --json each line is a JSON object of its own.

    Examples:
        osmosis benchmark runs logs amber-otter-42 --follow
    """
    if follow:
        if cursor is not None:
            raise OsmosisError("--follow and --cursor are mutually exclusive.")
        return stream_result(_lines(run, limit))
    with platform_context() as context, current().status("Fetching logs"):
        page = context.client.benchmark_runs.logs(run, limit=limit, cursor=cursor)
        return page_result(page, older=f"osmosis benchmark runs logs {run}", extra=context.resource())


def _lines(name: str, first: int) -> Iterator[LogEntry]:
    from osmosis_ai.cli.runs import following
    from osmosis_ai.services.benchmarks.runs import follow_run_log

    with platform_context() as context:
        yield from follow_run_log(context.client, name, first=first, pause=following.pause)
