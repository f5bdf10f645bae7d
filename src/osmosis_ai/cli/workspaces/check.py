"""`osmosis check`: what is wrong with a workspace, found without a platform."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from osmosis_ai.cli.output.context import current
from osmosis_ai.cli.output.formats import one_line, spelled_out
from osmosis_ai.cli.output.results import OperationResult, Text
from osmosis_ai.errors import OsmosisError

if TYPE_CHECKING:
    from osmosis_ai.services.workspace_check import CheckReport


class Annotations(str, Enum):
    """Whose annotations are written."""

    github = "github"


def check(
    paths: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[PATHS]...",
            help="Configs, dataset files, or directories with configs; all of the workspace's when left out.",
            show_default=False,
        ),
    ] = None,
    no_import: Annotated[
        bool,
        typer.Option("--no-import", help="Import no entrypoint: it runs code. For code you do not trust."),
    ] = False,
    import_timeout: Annotated[
        float, typer.Option(min=1.0, max=600.0, metavar="SECONDS", help="How long one import may take.")
    ] = 60.0,
    strict: Annotated[
        bool, typer.Option("--strict", help="Fail when a dataset has rows that cannot be evaluated.")
    ] = False,
    annotations: Annotated[
        Annotations | None,
        typer.Option(help="Also write every problem to stderr as GitHub Actions shows it in a change."),
    ] = None,
) -> OperationResult:
    """Check every config, the import of the code it runs, and the dataset it names.

    Needs no platform, no login and no origin. Exits 1 with everything that is wrong.

    Examples:
        osmosis check --strict --annotations github
    """
    from osmosis_ai.services.workspace_check import CheckOptions, check_workspace

    output = current()
    options = CheckOptions(imports=not no_import, strict=strict, import_timeout_s=import_timeout)
    report = check_workspace(paths or [], options, tell=lambda text: output.note(one_line(text)))
    if annotations is not None:
        _annotate(report)
    if report.errors:
        raise OsmosisError(
            f"{_counted(len(report.errors), 'error')} in {_looked_at(report)}:\n" + "\n".join(_lines(report)),
            details=report.resource(),
        )
    for warning in report.warnings:
        output.warn(one_line(warning.text()))
    return OperationResult(
        operation="check",
        message=f"Nothing is wrong with {_looked_at(report)}.",
        resource=report.resource(),
        blocks=[Text(f"Not checked: {one_line(sentence)}", in_plain=True) for sentence in report.unchecked],
    )


def _annotate(report: CheckReport) -> None:
    import sys

    from osmosis_ai.services.workspace_check import github_annotations

    for line in github_annotations(report.problems):
        sys.stderr.write(f"{spelled_out(' '.join(line.splitlines()))}\n")
    sys.stderr.flush()


def _lines(report: CheckReport) -> list[str]:
    """Return a line for each finding: names in a repository may have line breaks, and CI reads lines as commands."""
    errors = [problem.text() for problem in report.errors]
    warnings = [f"warning: {problem.text()}" for problem in report.warnings]
    unchecked = [f"not checked: {sentence}" for sentence in report.unchecked]
    return [f"  - {one_line(line)}" for line in (*errors, *warnings, *unchecked)]


def _looked_at(report: CheckReport) -> str:
    parts = [
        _counted(len(found), noun)
        for found, noun in (
            (report.configs, "config"),
            (report.entrypoints, "entrypoint"),
            (report.datasets, "dataset"),
        )
        if found
    ]
    return ", ".join(parts)


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"
