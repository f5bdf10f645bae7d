"""`osmosis benchmark list`: the catalogue."""

from __future__ import annotations

from osmosis_ai.cli.connection import list_result, platform_context
from osmosis_ai.cli.options import AllOption, LimitOption
from osmosis_ai.cli.output.context import current
from osmosis_ai.cli.output.results import ListResult


def list_(limit: LimitOption = 50, everything: AllOption = False) -> ListResult:
    """List the benchmarks that agents can be run on.

    Examples:
        osmosis benchmark list
    """
    from osmosis_ai.api.capabilities import Capability
    from osmosis_ai.cli.benchmarks.tables import catalog_columns
    from osmosis_ai.services.benchmarks.catalog import benchmark_item, list_benchmarks
    from osmosis_ai.services.capabilities import why_empty

    with platform_context() as context, current().status("Fetching benchmarks"):
        listing = list_benchmarks(context.client, limit=limit, everything=everything)
        return list_result(
            listing,
            benchmark_item,
            columns=catalog_columns(),
            extra=context.resource(),
            hints=why_empty(context.client, Capability.BENCHMARKS),
        )
