"""`osmosis dataset logs`: what was said while a dataset was checked."""

from __future__ import annotations

from osmosis_ai.cli.connection import platform_context
from osmosis_ai.cli.datasets.rows import NameArgument
from osmosis_ai.cli.logs import CursorOption, LinesOption, page_result
from osmosis_ai.cli.output.context import current
from osmosis_ai.cli.output.results import ListResult


def logs(name: NameArgument, limit: LinesOption = 50, cursor: CursorOption = None) -> ListResult:
    """Show what was said while a dataset was checked, the newest line last.

    Examples:
        osmosis dataset logs multiply
    """
    from osmosis_ai.services.datasets import dataset_logs

    with platform_context() as context, current().status("Fetching logs"):
        page = dataset_logs(context.client, name, limit=limit, cursor=cursor)
        return page_result(page, older=f"osmosis dataset logs {name}", extra=context.resource())
