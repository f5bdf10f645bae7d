"""`osmosis dataset info`: one dataset."""

from __future__ import annotations

from osmosis_ai.cli.connection import platform_context
from osmosis_ai.cli.datasets.rows import NameArgument, detail_rows, hints
from osmosis_ai.cli.output.context import current
from osmosis_ai.cli.output.results import DetailResult


def info(name: NameArgument) -> DetailResult:
    """Show a dataset: its status, format, rows and size.

    Examples:
        osmosis dataset info multiply
    """
    from osmosis_ai.services.datasets import dataset_item

    with platform_context() as context, current().status("Fetching dataset"):
        dataset = context.client.datasets.get(name)
        return DetailResult(
            data={**dataset_item(dataset), **context.resource()},
            title="Dataset",
            rows=detail_rows(dataset),
            hints=hints(dataset),
        )
