"""A dataset as people see it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from osmosis_ai.cli.name_completion import complete_dataset
from osmosis_ai.cli.output import formats
from osmosis_ai.cli.output.results import Row, Status, Timestamp

if TYPE_CHECKING:
    from osmosis_ai.api.wire.datasets import Dataset

NameArgument = Annotated[
    str, typer.Argument(help="Name or id of a dataset.", show_default=False, autocompletion=complete_dataset)
]


def detail_rows(dataset: Dataset) -> list[Row]:
    """Return what is known of a dataset, label by label."""
    rows: list[Row] = [("File", dataset.file_name)]
    if dataset.is_internal_user:
        rows.append(("ID", dataset.id))
    rows += [
        ("Status", Status(dataset.status)),
        ("File Format", _file_format(dataset)),
        ("Total Rows", formats.count(dataset.row_count)),
        ("Size", _size(dataset)),
        ("Uploaded", Timestamp(dataset.created_at, seconds=True)),
        ("Uploaded By", dataset.creator_name),
    ]
    if dataset.upload_error:
        rows.append(("Last Upload", f"refused: {dataset.upload_error}"))
    return rows


def hints(dataset: Dataset) -> list[str]:
    """Return where to look next."""
    said = [f"View: {dataset.platform_url}"] if dataset.platform_url else []
    if dataset.status == "error" or dataset.upload_error:
        said.append(f"See logs with: osmosis dataset logs {dataset.file_name or dataset.id}")
    return said


def _file_format(dataset: Dataset) -> str | None:
    stored, uploaded = dataset.file_format, dataset.original_file_format
    if stored is None:
        return uploaded.upper() if uploaded else None
    changed = uploaded is not None and uploaded != stored
    return f"{stored.upper()} (uploaded as {uploaded.upper()})" if changed and uploaded else stored.upper()


def _size(dataset: Dataset) -> str:
    original = dataset.original_file_size
    shown = formats.size(dataset.file_size)
    if original is None or original == dataset.file_size:
        return shown
    return f"{shown} (uncompressed: {formats.size(original)})"
