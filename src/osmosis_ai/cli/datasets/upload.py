"""`osmosis dataset upload`: a file becomes a dataset of the platform."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from osmosis_ai.cli.connection import platform_context
from osmosis_ai.cli.datasets.validate import PROGRESS_FROM_BYTES
from osmosis_ai.cli.options import DataFileArgument, YesOption
from osmosis_ai.cli.output import formats
from osmosis_ai.cli.output.context import OutputContext, current
from osmosis_ai.cli.output.results import OperationResult, Row, Table

if TYPE_CHECKING:
    from osmosis_ai.api.client import PlatformClient
    from osmosis_ai.api.wire.datasets import Dataset
    from osmosis_ai.datasets import DatasetReport
    from osmosis_ai.services.log_following import LogFollower

POLL_S = 1.0
_REPLACES = "a dataset of that name is replaced, for everyone in the workspace."


def upload(
    file: DataFileArgument,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace the content of a dataset that has the name.")
    ] = False,
    wait: Annotated[
        bool,
        typer.Option("--wait", help="Also wait until the platform has checked it, and say what it finds."),
    ] = False,
    yes: YesOption = False,
) -> OperationResult:
    """Check a file and upload it; its name without the extension becomes the dataset's.

    Run the same command again to go on with an upload that was cut off.

    Examples:
        osmosis dataset upload data/multiply.jsonl
        osmosis dataset upload data/multiply.jsonl --overwrite --wait --yes
    """
    from osmosis_ai.services.datasets import follow_check, upload_dataset, warn_of_size

    output = current()
    if not file.exists():
        _check(output, file)  # it says so before a login is asked for
    with platform_context() as context:
        report = _check(output, file)
        _confirm(output, file, report, overwrite=overwrite, yes=yes)
        log = follow_check(context.client, file.stem) if wait else None
        with output.progress("Uploading", total=report.file_size, unit="bytes") as shown:
            dataset = upload_dataset(
                context.client, file, report, overwrite=overwrite, progress=shown.update, warn=output.warn
            )
        if log is not None:
            dataset = _wait(output, context.client, dataset, log)
        if wait or not overwrite:  # A dataset that is being replaced has its former size until it is checked.
            warn_of_size(dataset, report, output.warn)
        return _operation(dataset, file, report, context.resource())


def _check(output: OutputContext, file: Path) -> DatasetReport:
    from osmosis_ai.services.dataset_files import check_file

    size = file.stat().st_size if file.is_file() else 0
    if size < PROGRESS_FROM_BYTES:
        report = check_file(file)
    else:
        with output.progress("Validating", total=size, unit="bytes") as shown:
            report = check_file(file, progress=shown.update)
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
        output.show(Table(("", ""), rows, title="Dataset Upload"))
    question = "Proceed with upload?"
    if overwrite:
        if output.interactive and not yes:
            output.warn(_REPLACES)
        question = f"Upload `{file.stem}` and replace the dataset of that name if there is one?"
    output.confirm(
        question,
        yes=yes,
        default=not overwrite,
        summary={label: str(value) for label, value in rows},
        warnings=[_REPLACES] if overwrite else (),
    )


def _wait(output: OutputContext, client: PlatformClient, dataset: Dataset, log: LogFollower) -> Dataset:
    from osmosis_ai.services.datasets import wait_until_checked

    with output.status("Waiting until the platform has checked it"):
        return wait_until_checked(client, dataset, log, pause=lambda: time.sleep(POLL_S), tell=output.note)


def _operation(
    dataset: Dataset, file: Path, report: DatasetReport, extra: Mapping[str, Any]
) -> OperationResult:
    from osmosis_ai.services.datasets import IN_PROGRESS, dataset_item

    name = dataset.file_name or file.stem
    steps = [f"Status: {dataset.status}"] if dataset.status else []
    if dataset.status in IN_PROGRESS:
        steps.append(f"The platform checks it now; see how far it is: osmosis dataset info {name}")
    if dataset.platform_url:
        steps.append(f"View: {dataset.platform_url}")
        structured: Mapping[str, Any] = {"label": "View dataset", "url": dataset.platform_url}
    else:
        structured = {"action": "dataset_info", "id": dataset.id}
    return OperationResult(
        operation="dataset.upload",
        message=f"Dataset uploaded: {name}",
        resource={**dataset_item(dataset), **extra},
        next_steps=steps,
        next_steps_structured=[structured],
        extra={"warnings": report.warnings} if report.warnings else {},
    )
