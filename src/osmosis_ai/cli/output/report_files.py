"""`--report` of a command: the file it names, and what is said of it before and after it is written."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from osmosis_ai.cli.output.context import current
from osmosis_ai.cli.output.formats import shown_path
from osmosis_ai.files import expanded

if TYPE_CHECKING:
    from osmosis_ai.evaluation.run_places import RunKind
    from osmosis_ai.services.report_files import ReportFile

TRAINING_HOLDS = "curves, checkpoints, names, names of secrets", "the config, warnings and errors"
RUBRIC_HOLDS = (
    "scores, agreement, names of judges and files",
    "the rubric, the records and what the judges said of them",
)
"""What reports of these hold: what goes in whatever the options are, and what else."""


def report_file(
    path: Path | None, *, overwrite: bool, no_text: bool, holds: Mapping[RunKind | None, tuple[str, str]]
) -> ReportFile | None:
    """Return the file that a report goes into, sure that it can be written; what goes in is said before it
    is."""
    if path is None:
        require_report({"--no-text": no_text, "--force": overwrite})
        return None
    from osmosis_ai.services.report_files import ReportFile

    def announce(kind: RunKind | None) -> None:
        numbers, text = holds[kind]
        tell_what_goes_in(numbers, "" if no_text else text)

    file = ReportFile(expanded(path), overwrite, text=not no_text, announce=announce)
    file.check()
    return file


def require_report(given: Mapping[str, bool]) -> None:
    """Refuse options of a report where none was asked for: whether each was given, by its name."""
    if alone := [name for name, is_given in given.items() if is_given]:
        raise typer.BadParameter(f"{', '.join(alone)} needs --report FILE.html, and there is none.")


def tell_what_goes_in(numbers: str, text: str) -> None:
    """Say what a report holds, before it is written."""
    more = f"; {text} (without that with --no-text)" if text else ""
    current().note(f"What goes into the report: {numbers}{more}.")


def tell_written(report: ReportFile | None) -> dict[str, Any]:
    """Say that a report is there, and return what scripts see of it."""
    if report is None:
        return {}
    current().note(f"Report: {shown_path(report.path)}")
    return {"report_path": str(report.path)}
