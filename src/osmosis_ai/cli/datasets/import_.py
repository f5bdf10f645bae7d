"""`osmosis dataset import`: rows of another shape become a dataset."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from osmosis_ai.cli.datasets.validate import PROGRESS_FROM_BYTES
from osmosis_ai.cli.options import DataFileArgument, YesOption
from osmosis_ai.cli.output.context import OutputContext, current
from osmosis_ai.cli.output.formats import shown_path
from osmosis_ai.cli.output.results import OperationResult, Table

if TYPE_CHECKING:
    from osmosis_ai.services.dataset_files import ImportPlan, ImportReport

_LONGEST_CELL = 200


def import_(
    file: DataFileArgument,
    mapping: Annotated[
        list[str] | None,
        typer.Option(
            "--map",
            metavar="FIELD=COLUMN",
            help="What a field is made of: prompt, ground_truth, system or metadata; a+b joins columns, a.b goes "
            "into one. May be repeated, or separated by commas. Without it, columns are guessed and shown.",
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", help="The .jsonl file to write (default: data/NAME.jsonl).", show_default=False
        ),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a file that is there.")] = False,
    skip_invalid: Annotated[
        bool, typer.Option("--skip-invalid", help="Leave out rows that cannot be used, instead of stopping.")
    ] = False,
    yes: YesOption = False,
) -> OperationResult:
    """Turn a file of another shape (chat messages, question and answer …) into a dataset. Works offline.

    What was guessed is shown, and asked, before anything is written.

    Examples:
        osmosis dataset import questions.csv --map prompt=question,ground_truth=answer
    """
    from osmosis_ai.services.dataset_files import check_target, import_rows, plan_import

    shown = current()
    plan = plan_import(file, mapping=mapping or (), target=output, skip_invalid=skip_invalid)
    check_target(plan.target, overwrite=overwrite)  # before anybody is asked about it
    _show(shown, plan)
    shown.confirm(
        f"Write {shown_path(plan.target)}?",
        yes=yes or not plan.guessed,
        default=True,
        summary={"Mapping": plan.as_option(), "File": str(plan.target)},
    )
    size = file.stat().st_size
    if size < PROGRESS_FROM_BYTES:
        report = import_rows(plan, overwrite=overwrite, skip_invalid=skip_invalid)
    else:
        with shown.progress("Importing", total=size, unit="bytes") as bar:
            report = import_rows(plan, overwrite=overwrite, skip_invalid=skip_invalid, progress=bar.update)
    return _operation(shown, plan, report)


def _show(shown: OutputContext, plan: ImportPlan) -> None:
    from osmosis_ai.services.dataset_files import mapping_rows

    rows = [
        (entry["column"], entry["becomes"] or "left out", "guessed" if entry["guessed"] else "")
        for entry in mapping_rows(plan)
    ]
    shown.show(Table(("Column", "Becomes", ""), rows, title="Mapping"))
    columns = list(plan.preview[0]) if plan.preview else []
    cells = [[_cell(row[column]) for column in columns] for row in plan.preview]
    if cells:
        shown.show(Table(columns, cells, title="First rows"))


def _cell(value: object) -> str:
    import json

    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= _LONGEST_CELL else f"{text[:_LONGEST_CELL]}…"


def _operation(shown: OutputContext, plan: ImportPlan, report: ImportReport) -> OperationResult:
    from osmosis_ai.services.dataset_files import mapping_rows

    warnings = [f"{_rows(report.skipped)} left out"] if report.skipped else []
    warnings += report.problems
    if report.dataset is not None:
        warnings += [f"a platform would refuse the file: {error}" for error in report.dataset.errors]
        warnings += report.dataset.warnings
    for warning in warnings:
        shown.warn(warning)
    return OperationResult(
        operation="dataset.import",
        message=f"Imported {_rows(report.row_count)} into {shown_path(plan.target)}",
        resource={
            "file": str(plan.target),
            "source": str(plan.source),
            "row_count": report.row_count,
            "skipped": report.skipped,
            "mapping": mapping_rows(plan),
            "valid": report.dataset is not None and report.dataset.valid,
        },
        next_steps=[f"Check it: osmosis dataset validate {shlex.quote(shown_path(plan.target))}"],
        extra={"warnings": warnings} if warnings else {},
    )


def _rows(count: int) -> str:
    return f"{count:,} row{'' if count == 1 else 's'}"
