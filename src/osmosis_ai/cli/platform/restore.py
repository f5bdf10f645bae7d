"""`osmosis platform restore`: a platform made from a backup."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from osmosis_ai.cli.output.context import current
from osmosis_ai.cli.output.results import OperationResult


def restore(
    file: Annotated[Path, typer.Argument(help="What `osmosis platform backup` wrote.", show_default=False)],
) -> OperationResult:
    """Make the platform of OSMOSIS_HOME, which must be empty, from a backup. Nothing is kept of a damaged one.

    Examples:
        osmosis platform restore osmosis.tar.gz
    """
    from osmosis_ai.cli.output import formats
    from osmosis_ai.cli.platform.asked_once import asked_once
    from osmosis_ai.cli.platform.local_platform import platform_extra

    with platform_extra():
        from osmosis_ai.platform.backup import restore_backup
        from osmosis_ai.platform.config import from_environment

    config = from_environment()
    with current().status(f"Restoring {file}"), asked_once("OSMOSIS_BLOBS_URL"):
        report = restore_backup(config, file)
    if report.missing_blobs:
        current().warn(
            f"{report.missing_blobs} files that the database knows are not in the backup: they lie in the bucket that it was made "
            "with (start with the same OSMOSIS_BLOBS_URL), or were lost before.",
            code="MISSING_FILES",
        )
    return OperationResult(
        operation="platform.restore",
        message=f"Restored {config.home} from the backup of {formats.iso(report.created_at)}: "
        f"{formats.count(report.files)} files, all as they were written.",
        resource={
            "home": str(config.home),
            **report.facts(),
        },
        next_steps=["Start it: osmosis platform start"],
    )
