"""What the dataset commands do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from osmosis_ai.datasets import DatasetReport, validate_dataset
from osmosis_ai.errors import OsmosisError


def validate_file(path: Path, *, progress: Callable[[int], None] | None = None) -> DatasetReport:
    """Check that the platform would take a dataset file; needs no workspace and no login.

    Args:
        path: the file.
        progress: takes the number of bytes read so far.

    Returns:
        The report of a valid file; it may hold warnings.

    Raises:
        OsmosisError: there is no such file, or it is not valid: the message lists the first
            problems, the details are the whole report.
    """
    report = validate_dataset(path, progress=progress)
    if not report.valid:
        problems = "".join(f"\n  - {error}" for error in report.errors)
        raise OsmosisError(f"Validation failed:{problems}", details=asdict(report))
    return report
