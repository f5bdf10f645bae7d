"""`osmosis dataset delete`: a dataset, for good."""

from __future__ import annotations

from osmosis_ai.cli.connection import platform_context
from osmosis_ai.cli.datasets.rows import NameArgument
from osmosis_ai.cli.options import YesOption
from osmosis_ai.cli.output import formats
from osmosis_ai.cli.output.context import current
from osmosis_ai.cli.output.results import OperationResult


def delete(
    name: NameArgument,
    yes: YesOption = False,
) -> OperationResult:
    """Delete a dataset from the platform; runs that used it keep its name and their results.

    Examples:
        osmosis dataset delete multiply
    """
    from osmosis_ai.services.deletion import delete_dataset, find_deletable_dataset

    output = current()
    with platform_context() as context:
        with output.status("Looking it up"):
            dataset = find_deletable_dataset(context.client, name)
        shown = dataset.file_name or dataset.id
        output.confirm(
            f'Delete dataset "{shown}"? This cannot be undone.',
            yes=yes,
            summary={
                "Dataset": shown,
                "Rows": formats.count(dataset.row_count),
                "Size": formats.size(dataset.file_size),
            },
        )
        with output.status(f"Deleting {shown}"):
            delete_dataset(context.client, dataset)
        return OperationResult(
            operation="dataset.delete",
            message=f'Dataset "{shown}" deleted.',
            resource={"id": dataset.id, "name": shown, **context.resource()},
        )
