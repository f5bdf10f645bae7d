"""`osmosis dataset`: the files that agents are evaluated and trained on."""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from osmosis_ai.cli import options
from osmosis_ai.cli.completion import complete_dataset
from osmosis_ai.cli.connection import list_result, platform_context
from osmosis_ai.cli.options import AllOption, DataFileArgument, LimitOption, YesOption
from osmosis_ai.cli.output import formats
from osmosis_ai.cli.output.context import OutputContext, current
from osmosis_ai.cli.output.results import (
    Block,
    Column,
    DetailResult,
    ListResult,
    OperationResult,
    Row,
    Status,
    Table,
    Text,
    Timestamp,
)
from osmosis_ai.ui.numbers import amount

if TYPE_CHECKING:
    from osmosis_ai.api.models.datasets import Dataset
    from osmosis_ai.datasets import DatasetReport
    from osmosis_ai.services.datasets import DatasetPreview

# Below this a file is read before anyone could look at a progress bar.
PROGRESS_FROM_BYTES = 64 << 20
POLL_S = 1.0
_REPLACES = "The dataset of that name is replaced for everyone in the workspace."

T = TypeVar("T")
NameArgument = Annotated[
    str, typer.Argument(help="Name or id of a dataset.", autocompletion=complete_dataset)
]
OverwriteOption = Annotated[bool, typer.Option("--overwrite", help="Replace an existing file.")]

app = typer.Typer()


@app.command("validate")
def validate(file: DataFileArgument) -> DetailResult:
    """Check every row of a dataset file.

    Works offline, without an account or a workspace. The platform requires at least 4 rows.

    Examples:
        osmosis dataset validate data/multiply.jsonl
    """
    from osmosis_ai.services.dataset_files import validate_file

    report = _with_progress("Validating", file, partial(validate_file, file))
    return DetailResult(
        data=asdict(report),
        title="Dataset",
        rows=[
            ("File", report.file_name),
            ("Size", formats.size(report.file_size)),
            ("Rows", formats.count(report.row_count)),
            ("Mode", report.mode),
            ("Status", f"Valid {report.extension} file"),
            *(("Warning", warning) for warning in report.warnings),
        ],
    )


def _with_progress(label: str, file: Path, read: Callable[..., T]) -> T:
    """Call ``read`` with a progress bar if the file is large."""
    size = file.stat().st_size if file.is_file() else 0
    if size < PROGRESS_FROM_BYTES:
        return read()
    with current().progress(label, total=size, unit="bytes") as shown:
        return read(progress=shown.update)


@app.command("import")
def import_(
    file: DataFileArgument,
    mapping: Annotated[
        list[str] | None,
        typer.Option(
            "--map",
            metavar="FIELD=COLUMN",
            help="Column of a field (prompt, ground_truth, system or metadata): a+b joins columns, a.b reads a key. "
            "Repeat it or separate pairs with commas (default: guessed from the names).",
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Path of the .jsonl file to write (default: data/NAME.jsonl)."),
    ] = None,
    overwrite: OverwriteOption = False,
    skip_invalid: Annotated[
        bool, typer.Option("--skip-invalid", help="Leave out invalid rows instead of stopping.")
    ] = False,
    yes: YesOption = False,
) -> OperationResult:
    """Convert a file with other columns into a dataset.

    Accepts chat messages, question-and-answer tables and similar files. Works offline.

    What was guessed is shown, and asked, before anything is written.

    Examples:
        osmosis dataset import questions.csv --map prompt=question,ground_truth=answer
    """
    from osmosis_ai.services.dataset_files import check_target, import_rows, mapping_rows, plan_import

    shown = current()
    plan = plan_import(file, mapping=mapping or (), target=output, skip_invalid=skip_invalid)
    check_target(plan.target, overwrite=overwrite)
    mapped = mapping_rows(plan)
    rows = [
        (entry["column"], entry["becomes"] or "left out", "guessed" if entry["guessed"] else "")
        for entry in mapped
    ]
    shown.show(Table(("Column", "Becomes", ""), rows, title="Mapping"))
    if plan.preview:
        cells = [[_cell(value, 200, none="null") for value in row.values()] for row in plan.preview]
        shown.show(Table(list(plan.preview[0]), cells, title="First rows"))
    shown.confirm(
        f"Write {formats.shown_path(plan.target)}?",
        yes=yes or not plan.guessed,
        default=True,
        summary={"Mapping": plan.as_option(), "File": str(plan.target)},
    )
    report = _with_progress(
        "Importing", file, partial(import_rows, plan, overwrite=overwrite, skip_invalid=skip_invalid)
    )
    warnings = [f"{amount(report.skipped, 'row')} left out"] if report.skipped else []
    warnings += report.problems
    if report.dataset is not None:
        warnings += [f"the platform rejects the file: {error}" for error in report.dataset.errors]
        warnings += report.dataset.warnings
    for warning in warnings:
        shown.warn(warning)
    return OperationResult(
        operation="dataset.import",
        message=f"Imported {amount(report.row_count, 'row')} into {formats.shown_path(plan.target)}",
        resource={
            "file": str(plan.target),
            "source": str(plan.source),
            "row_count": report.row_count,
            "skipped": report.skipped,
            "mapping": mapped,
            "valid": report.dataset is not None and report.dataset.valid,
        },
        next_steps=[f"Check it: osmosis dataset validate {shlex.quote(formats.shown_path(plan.target))}"],
        extra={"warnings": warnings} if warnings else {},
    )


@app.command("upload")
def upload(
    file: DataFileArgument,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace the content of an existing dataset.")
    ] = False,
    wait: Annotated[
        bool, typer.Option("--wait", help="Wait until the platform has checked the dataset.")
    ] = False,
    yes: YesOption = False,
) -> OperationResult:
    """Check a dataset file and upload it.

    The dataset is named like the file, without the extension.

    Run the same command again to go on with an upload that was cut off.

    Examples:
        osmosis dataset upload data/multiply.jsonl
        osmosis dataset upload data/multiply.jsonl --overwrite --wait --yes
    """
    from osmosis_ai.services.datasets import (
        IN_PROGRESS,
        follow_check,
        upload_dataset,
        wait_until_checked,
        warn_of_size,
    )

    output = current()
    if not file.exists():
        _check(output, file)  # raises the error before a login is required
    with platform_context() as context:
        report = _check(output, file)
        _confirm(output, file, report, overwrite=overwrite, yes=yes)
        log = follow_check(context.client, file.stem) if wait else None
        with output.progress("Uploading", total=report.file_size, unit="bytes") as shown:
            dataset = upload_dataset(
                context.client, file, report, overwrite=overwrite, progress=shown.update, warn=output.warn
            )
        if log is not None:
            with output.status("Waiting for the check of the platform"):
                dataset = wait_until_checked(
                    context.client, dataset, log, pause=lambda: time.sleep(POLL_S), tell=output.note
                )
        if wait or not overwrite:  # A dataset that is being replaced has its former size until it is checked.
            warn_of_size(dataset, report, output.warn)
        resource = {**dataset.printed(), **context.resource()}
    name = dataset.file_name or file.stem
    steps = [("View", dataset.platform_url)] if dataset.platform_url else []
    if dataset.status in IN_PROGRESS:
        steps.insert(0, ("Check its status", f"osmosis dataset info {shlex.quote(name)}"))
    structured: Mapping[str, Any] = {"action": "dataset_info", "id": dataset.id}
    if dataset.platform_url:
        structured = {"label": "View dataset", "url": dataset.platform_url}
    return OperationResult(
        operation="dataset.upload",
        message=f"Dataset uploaded: {name}",
        resource=resource,
        next_steps=[*([f"Status: {dataset.status}"] if dataset.status else []), *formats.next_block(steps)],
        next_steps_structured=[structured],
        extra={"warnings": report.warnings} if report.warnings else {},
    )


def _check(output: OutputContext, file: Path) -> DatasetReport:
    from osmosis_ai.services.dataset_files import check_file

    report = _with_progress("Validating", file, partial(check_file, file))
    for warning in report.warnings:
        output.warn(warning)
    return report


def _confirm(output: OutputContext, file: Path, report: DatasetReport, *, overwrite: bool, yes: bool) -> None:
    rows: list[Row] = [
        ("File", report.file_name),
        ("Dataset", file.stem),
        ("Rows", formats.count(report.row_count)),
        ("Size", formats.size(report.file_size)),
    ]
    if not yes:
        output.show(Table(("", ""), rows, title="Dataset"))
    question = "Proceed with upload?"
    if overwrite:
        if output.interactive and not yes:
            output.warn(_REPLACES)
        question = f"Upload '{file.stem}' and replace an existing dataset of that name?"
    output.confirm(
        question,
        yes=yes,
        default=not overwrite,
        summary={label: str(value) for label, value in rows},
        warnings=[_REPLACES] if overwrite else (),
    )


@app.command("list")
def list_(limit: LimitOption = 50, everything: AllOption = False) -> ListResult:
    """List the datasets of the workspace, newest first.

    Examples:
        osmosis dataset list
        osmosis dataset list --all --json
    """
    from osmosis_ai.services.datasets import list_datasets

    with platform_context() as context, current().status("Fetching datasets"):
        listing = list_datasets(context.client, limit=limit, everything=everything)
        return list_result(
            listing,
            columns=(
                Column("Name", "file_name", keep=True),
                Column("Status", "status"),
                Column("Size", value=lambda item: formats.size(item["file_size"]), right=True),
                Column("Uploaded", "created_at"),
                Column("Uploaded by", "creator_name"),
            ),
            extra=context.resource(),
        )


@app.command("info")
def info(name: NameArgument) -> DetailResult:
    """Show the status, format, rows and size of a dataset.

    Examples:
        osmosis dataset info multiply
    """
    from osmosis_ai.services.datasets import get_dataset

    with platform_context() as context, current().status("Fetching dataset"):
        dataset = get_dataset(context.client, name)
    hints = [f"View: {dataset.platform_url}"] if dataset.platform_url else []
    if dataset.status == "error" or dataset.upload_error:
        hints.append(f"See logs with: osmosis dataset logs {dataset.file_name or dataset.id}")
    return DetailResult(
        data={**dataset.printed(), **context.resource()},
        title="Dataset",
        rows=[
            ("File", dataset.file_name),
            *([("ID", dataset.id)] if dataset.is_internal_user else []),
            ("Status", Status(dataset.status)),
            ("Format", _file_format(dataset)),
            ("Rows", formats.count(dataset.row_count)),
            ("Size", _size(dataset)),
            ("Uploaded", Timestamp(dataset.created_at, seconds=True)),
            ("Uploaded by", dataset.creator_name),
            *([("Last upload", f"rejected: {dataset.upload_error}")] if dataset.upload_error else []),
        ],
        hints=hints,
    )


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


@app.command("preview")
def preview(
    name: NameArgument, rows: Annotated[int, typer.Option(min=1, help="Maximum number of rows.")] = 5
) -> DetailResult:
    """Show the first rows of a dataset.

    Examples:
        osmosis dataset preview multiply --rows 10
    """
    from osmosis_ai.services.datasets import preview_dataset

    with platform_context() as context, current().status("Fetching preview"):
        found = preview_dataset(context.client, name, rows=rows)
        return DetailResult(
            data={
                "dataset": found.dataset.printed(),
                "rows": found.rows,
                "requested_rows": rows,
                "returned_rows": len(found.rows),
                "available": found.message is None,
                **({} if found.message is None else {"message": found.message}),
                **context.resource(),
            },
            rows=[("Dataset", found.dataset.file_name), ("Rows", len(found.rows))],
            title="Preview",
            blocks=_blocks(found),
        )


def _blocks(found: DatasetPreview) -> list[Block]:
    if found.message is not None:
        return [Text(found.message, tone="dim", in_plain=True)]
    records = [row for row in found.rows if isinstance(row, Mapping)]
    columns = list(dict.fromkeys(key for row in records for key in map(str, row)))
    if not columns:
        return [Text("\n".join(map(_cell, found.rows)), in_plain=True)] if found.rows else []
    cells = [[_cell(row.get(column)) for column in columns] for row in records]
    return [Table(columns, cells, in_plain=True)]


def _cell(value: object, longest: int = 300, *, none: str = "") -> str:
    if value is None:
        return none
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= longest else f"{text[:longest]}…"


@app.command("logs")
def logs(
    name: NameArgument, limit: options.LinesOption = 50, cursor: options.CursorOption = None
) -> ListResult:
    """Show the validation log of a dataset, newest line last.

    Examples:
        osmosis dataset logs multiply
    """
    from osmosis_ai.cli.runs import page_result
    from osmosis_ai.services.datasets import dataset_log

    with platform_context() as context, current().status("Fetching logs"):
        page = dataset_log(context.client, name)(limit, cursor)
        return page_result(page, older=f"osmosis dataset logs {name}", extra=context.resource())


@app.command("download")
def download(
    name: NameArgument,
    output: Annotated[
        str | None,
        typer.Option(
            "--output",
            "-o",
            metavar="PATH",
            help="File or directory to write (default: the current directory).",
        ),
    ] = None,
    overwrite: OverwriteOption = False,
) -> OperationResult:
    """Download a dataset.

    An interrupted download resumes where it stopped.

    Examples:
        osmosis dataset download multiply -o data/
    """
    from osmosis_ai.services.datasets import download_dataset

    with platform_context() as context:
        dataset, path = download_dataset(
            context.client,
            name,
            output=output,
            overwrite=overwrite,
            progress=partial(current().transfer, "Downloading"),
        )
        return OperationResult(
            operation="dataset.download",
            message=f"Dataset downloaded: {path}",
            resource={**dataset.printed(), "output_path": str(path), **context.resource()},
        )


@app.command("delete")
def delete(name: NameArgument, yes: YesOption = False) -> OperationResult:
    """Delete a dataset from the platform.

    Runs that used it keep its name and their results.

    Examples:
        osmosis dataset delete multiply
    """
    from osmosis_ai.services.datasets import delete_dataset, find_deletable_dataset

    output = current()
    with platform_context() as context:
        with output.status("Fetching dataset"):
            dataset = find_deletable_dataset(context.client, name)
        shown = dataset.file_name or dataset.id
        output.confirm(
            f"Delete dataset '{shown}'? This cannot be undone.",
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
