"""`osmosis train list`: the workspace's training runs."""

from __future__ import annotations

from osmosis_ai.cli.connection import platform_context
from osmosis_ai.cli.listing import AllOption, LimitOption, list_result
from osmosis_ai.cli.output.context import current
from osmosis_ai.cli.output.results import ListResult


def list_(limit: LimitOption = 50, everything: AllOption = False) -> ListResult:
    """List the training runs of the workspace, the newest first."""
    from osmosis_ai.cli.training_runs.tables import columns
    from osmosis_ai.services.training_runs.info import list_runs, run_item

    with platform_context() as context, current().status("Fetching training runs"):
        listing = list_runs(context.client, limit=limit, everything=everything)
        return list_result(listing, run_item, columns=columns(), extra=context.resource())
