"""`osmosis benchmark runs list`: the workspace's runs."""

from __future__ import annotations

from osmosis_ai.cli.connection import list_result, platform_context
from osmosis_ai.cli.options import AllOption, LimitOption
from osmosis_ai.cli.output.context import current
from osmosis_ai.cli.output.results import ListResult


def list_(limit: LimitOption = 50, everything: AllOption = False) -> ListResult:
    """List the benchmark runs of the workspace, the newest first.

    Examples:
        osmosis benchmark runs list --all
    """
    from osmosis_ai.api.capabilities import Capability
    from osmosis_ai.cli.benchmarks.tables import run_columns
    from osmosis_ai.services.benchmarks.runs import list_runs, run_item
    from osmosis_ai.services.capabilities import why_empty

    with platform_context() as context, current().status("Fetching benchmark runs"):
        listing = list_runs(context.client, limit=limit, everything=everything)
        return list_result(
            listing,
            run_item,
            columns=run_columns(),
            extra=context.resource(),
            hints=why_empty(context.client, Capability.BENCHMARKS),
        )
