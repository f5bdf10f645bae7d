"""`osmosis dataset download`: the bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated

import typer

from osmosis_ai.cli.connection import platform_context
from osmosis_ai.cli.datasets.rows import NameArgument
from osmosis_ai.cli.output.context import current
from osmosis_ai.cli.output.results import OperationResult


def download(
    name: NameArgument,
    output: Annotated[
        str | None,
        typer.Option(
            "--output",
            "-o",
            metavar="PATH",
            help="A file, or a directory (an existing one, or ending in /); the current directory by default.",
            show_default=False,
        ),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a file that is there.")] = False,
) -> OperationResult:
    """Download a dataset. What was fetched before an interruption is not fetched again.

    Examples:
        osmosis dataset download multiply -o data/
    """
    from osmosis_ai.services.datasets import dataset_item, download_dataset

    with platform_context() as context:
        dataset, path = download_dataset(
            context.client, name, output=output, overwrite=overwrite, progress=_progress
        )
        return OperationResult(
            operation="dataset.download",
            message=f"Dataset downloaded: {path}",
            resource={**dataset_item(dataset), "output_path": str(path), **context.resource()},
        )


@contextmanager
def _progress(size: int | None) -> Iterator[Callable[[int], None]]:
    with current().progress("Downloading", total=size, unit="bytes") as shown:
        yield shown.update
