"""`osmosis dataset validate`: would the platform take this file?"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from osmosis_ai.cli.options import DataFileArgument
from osmosis_ai.cli.output.results import DetailResult, Row

if TYPE_CHECKING:
    from osmosis_ai.datasets import DatasetReport

# Below this a file is read before anyone could look at a progress bar.
PROGRESS_FROM_BYTES = 64 << 20


def validate(
    file: DataFileArgument,
) -> DetailResult:
    """Check a dataset file, all of its rows. Works offline, without an account or a workspace.

    Examples:
        osmosis dataset validate data/multiply.jsonl
    """
    from osmosis_ai.services.dataset_files import validate_file

    size = file.stat().st_size if file.is_file() else 0
    if size < PROGRESS_FROM_BYTES:
        report = validate_file(file)
    else:
        from osmosis_ai.cli.output.context import current

        with current().progress("Validating", total=size, unit="bytes") as shown:
            report = validate_file(file, progress=shown.update)
    return DetailResult(data=asdict(report), title="Dataset", rows=_rows(report))


def _rows(report: DatasetReport) -> list[Row]:
    from osmosis_ai.cli.output import formats

    return [
        ("File", report.file_name),
        ("Size", formats.size(report.file_size)),
        ("Rows", formats.count(report.row_count)),
        ("Mode", report.mode),
        ("Status", f"Valid {report.extension} file"),
        *(("Warning", warning) for warning in report.warnings),
    ]
