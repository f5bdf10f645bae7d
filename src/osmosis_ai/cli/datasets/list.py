"""`osmosis dataset list`: what the workspace has."""

from __future__ import annotations

from osmosis_ai.cli.connection import list_result, platform_context
from osmosis_ai.cli.options import AllOption, LimitOption
from osmosis_ai.cli.output import formats
from osmosis_ai.cli.output.context import current
from osmosis_ai.cli.output.results import Column, ListResult, Status, Timestamp


def list_(limit: LimitOption = 50, everything: AllOption = False) -> ListResult:
    """List the datasets of the workspace, the newest first.

    Examples:
        osmosis dataset list
        osmosis dataset list --all --json
    """
    from osmosis_ai.services.datasets import dataset_item, list_datasets

    with platform_context() as context, current().status("Fetching datasets"):
        listing = list_datasets(context.client, limit=limit, everything=everything)
        return list_result(listing, dataset_item, columns=_columns(), extra=context.resource())


def _columns() -> tuple[Column, ...]:
    return (
        Column("Name", "file_name", keep=True),
        Column("Status", value=lambda item: Status(item["status"])),
        Column("Size", value=lambda item: formats.size(item["file_size"]), right=True),
        Column("Uploaded", value=lambda item: Timestamp(item["created_at"])),
        Column("Uploaded By", "creator_name"),
    )
