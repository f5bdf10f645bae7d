"""`osmosis dataset preview`: the first rows."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from osmosis_ai.cli.connection import platform_context
from osmosis_ai.cli.datasets.rows import NameArgument
from osmosis_ai.cli.output.context import current
from osmosis_ai.cli.output.results import Block, DetailResult, Table, Text

if TYPE_CHECKING:
    from osmosis_ai.services.datasets import DatasetPreview

_LONGEST_CELL = 300


def preview(
    name: NameArgument,
    rows: Annotated[int, typer.Option(min=1, help="How many rows at most.")] = 5,
) -> DetailResult:
    """Show the first rows of a dataset, as far as the platform keeps them.

    Examples:
        osmosis dataset preview multiply --rows 10
    """
    from osmosis_ai.services.datasets import preview_dataset

    with platform_context() as context, current().status("Fetching preview"):
        found = preview_dataset(context.client, name, rows=rows)
        return DetailResult(
            data={**found.data(), **context.resource()},
            rows=[("Dataset", found.dataset.file_name), ("Rows Shown", len(found.rows))],
            title="Preview",
            blocks=_blocks(found),
        )


def _blocks(found: DatasetPreview) -> list[Block]:
    if not found.available:
        return [Text(found.message or "", tone="dim", in_plain=True)]
    columns: Sequence[str] = list(
        dict.fromkeys(key for row in found.rows if isinstance(row, Mapping) for key in map(str, row))
    )
    if not columns:
        return [Text("\n".join(map(_cell, found.rows)), in_plain=True)] if found.rows else []
    records = [row for row in found.rows if isinstance(row, Mapping)]
    return [
        Table(columns, [[_cell(row.get(column)) for column in columns] for row in records], in_plain=True)
    ]


def _cell(value: Any) -> str:
    text = value if isinstance(value, str) else "" if value is None else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _LONGEST_CELL else f"{text[:_LONGEST_CELL]}…"
