"""`osmosis eval logs` and `osmosis train logs`: the log of a run, as a page and as it grows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from osmosis_ai.cli.connection import platform_context
from osmosis_ai.cli.logs import page_result, stream_result
from osmosis_ai.cli.output.context import current
from osmosis_ai.cli.output.results import ListResult, StreamResult
from osmosis_ai.cli.runs import following
from osmosis_ai.errors import OsmosisError

if TYPE_CHECKING:
    from osmosis_ai.api.wire.base import LogEntry
    from osmosis_ai.services.runs.lifecycle import RunKind


def run_log_result(
    kind: RunKind, run: str, *, limit: int, cursor: str | None, follow: bool
) -> ListResult | StreamResult:
    """Return a page of a run's log, or its lines as they come.

    Args:
        kind: of the run.
        run: its name or id.
        limit: lines of the page, or those to begin with.
        cursor: where the page begins; None for the newest lines.
        follow: go on until the run has ended.

    Raises:
        OsmosisError: ``follow`` and ``cursor`` were both asked for.
    """
    from osmosis_ai.services.runs.lifecycle import run_log

    if follow:
        if cursor is not None:
            raise OsmosisError("--follow and --cursor are mutually exclusive.")
        return stream_result(_lines(kind, run, limit))
    with platform_context() as context, current().status("Fetching logs"):
        page = run_log(context.client, kind, run, limit=limit, cursor=cursor)
        return page_result(page, older=f"osmosis {kind} logs {run}", extra=context.resource())


def _lines(kind: RunKind, run: str, first: int) -> Iterator[LogEntry]:
    from osmosis_ai.services.runs.lifecycle import follow_run_log

    with platform_context() as context:
        yield from follow_run_log(context.client, kind, run, first=first, pause=following.pause)
