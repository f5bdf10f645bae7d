"""`osmosis platform backup`: everything a platform owns, in one file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from osmosis_ai.cli.output.context import current
from osmosis_ai.cli.output.results import OperationResult
from osmosis_ai.errors import ConflictError

if TYPE_CHECKING:
    from osmosis_ai.platform.config import PlatformConfig


def backup(
    file: Annotated[
        Path,
        typer.Argument(help="The file to write; compressed when its name ends in .gz.", show_default=False),
    ],
    force: Annotated[bool, typer.Option("--force", help="Replace the file if it is there.")] = False,
    with_bucket: Annotated[
        bool, typer.Option("--with-bucket", help="Also fetch the files that lie in a bucket.")
    ] = False,
) -> OperationResult:
    """Write a backup of the platform of this machine, whether or not it runs.

    The file holds the rows of the database, datasets, results, Git mirrors and the encryption keys of the secrets: keep
    it as safe as the platform itself. Files in a bucket (OSMOSIS_BLOBS_URL) are left out unless they are asked for.

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
    with current().status(f"Backing up {config.home}"), asked_once("OSMOSIS_BLOBS_URL"):
        report = create_backup(config, file, overwrite=force, with_bucket=with_bucket)
    _warn_of_a_move(config)
    if report.missing_blobs:
        current().warn(
            f"{report.missing_blobs} files that the database knows are not in {config.blobs_shown}: they were lost "
            "before this backup.",
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


def _warn_of_a_move(config: PlatformConfig) -> None:
    """Say so where the platform went elsewhere: nobody would look into such a backup before it is needed."""
    from osmosis_ai.platform.db.engine import opened_database

    with opened_database(config.database_url) as database:
        try:
            database.move_marks().require_here("database", database.shown, "OSMOSIS_DATABASE_URL")
        except ConflictError as error:
            current().warn(f"{error.message} For a backup of what it is now, {error.hint}.", code="MOVED")
