"""`osmosis platform backup`: everything a platform owns, in one file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from osmosis_ai.cli.output.context import current
from osmosis_ai.cli.output.results import OperationResult


def backup(
    file: Annotated[
        Path,
        typer.Argument(help="File to write; compressed if its name ends in .gz.", show_default=False),
    ],
    force: Annotated[bool, typer.Option("--force", help="Replace an existing file.")] = False,
    with_bucket: Annotated[
        bool, typer.Option("--with-bucket", help="Also back up the files in the bucket.")
    ] = False,
) -> OperationResult:
    """Back up the platform of this machine, running or not.

    The file holds the rows of the database, datasets, results, Git mirrors and the encryption keys of the secrets. Keep
    it as safe as the platform itself. It leaves out files in a bucket (OSMOSIS_BLOBS_URL) unless you add --with-bucket.

    Examples:
        osmosis platform backup osmosis.tar.gz
        osmosis platform backup osmosis.tar.gz --with-bucket
    """
    from osmosis_ai.cli.output import formats
    from osmosis_ai.cli.platform.asked_once import asked_once
    from osmosis_ai.cli.platform.local_platform import platform_extra

    with platform_extra():
        from osmosis_ai.platform.backup import create_backup
        from osmosis_ai.platform.config import from_environment

    config = from_environment()
    with current().status(f"Backing up {config.home}"), asked_once():
        report = create_backup(config, file, overwrite=force, with_bucket=with_bucket)
    if report.missing_blobs:
        current().warn(
            f"Files of the database are missing from {config.blobs_shown}: {report.missing_blobs}. They were lost before "
            "this backup.",
            code="MISSING_FILES",
        )
    return OperationResult(
        operation="platform.backup",
        message=f"Wrote {report.path}: {formats.count(report.files)} files, "
        f"{formats.size(report.path.stat().st_size)}.",
        resource={
            "path": str(report.path),
            "home": str(config.home),
            **report.facts(),
        },
        next_steps=[f"Restore it: OSMOSIS_HOME=NEW_DIRECTORY osmosis platform restore {report.path}"],
    )
