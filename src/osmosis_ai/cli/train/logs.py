"""`osmosis train logs`: what a training run said, and what it says."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from osmosis_ai.cli.connection import platform_context
from osmosis_ai.cli.logs import CursorOption, FollowOption, LinesOption, page_result, stream_result
from osmosis_ai.cli.output.context import current
from osmosis_ai.cli.output.results import ListResult, StreamResult
from osmosis_ai.cli.run_details import RunArgument
from osmosis_ai.errors import OsmosisError

if TYPE_CHECKING:
    from osmosis_ai.api.wire.base import LogEntry

POLL_S = 1.0


def logs(
    run: RunArgument, limit: LinesOption = 50, cursor: CursorOption = None, follow: FollowOption = False
) -> ListResult | StreamResult:
    """Show the log of a training run, the newest line last.

    With --follow --json each line is a JSON object of its own.
    """
    from osmosis_ai.services.train_runs import run_logs

    if follow:
        if cursor is not None:
            raise OsmosisError("--follow and --cursor are mutually exclusive.")
        return stream_result(_lines(run, limit))
    with platform_context() as context, current().status("Fetching logs"):
        page = run_logs(context.client, run, limit=limit, cursor=cursor)
        return page_result(page, older=f"osmosis train logs {run}", extra=context.resource())


def _lines(run: str, first: int) -> Iterator[LogEntry]:
    from osmosis_ai.services.train_runs import follow_run_log

    with platform_context() as context:
        yield from follow_run_log(context.client, run, first=first, pause=lambda: time.sleep(POLL_S))
