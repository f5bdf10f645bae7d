"""`osmosis platform restore`: a platform made from a backup."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from osmosis_ai.cli.output.context import current
from osmosis_ai.cli.output.results import OperationResult
from osmosis_ai.errors import OsmosisError

if TYPE_CHECKING:
    from osmosis_ai.platform.config import PlatformConfig


def restore(
    file: Annotated[
        Path, typer.Argument(help="Backup written by `osmosis platform backup`.", show_default=False)
    ],
    database_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="File with the URL of the database to restore into. Default: OSMOSIS_DATABASE_URL, else SQLite.",
        ),
    ] = None,
) -> OperationResult:
    """Restore a backup into an empty platform.

    The data directory (OSMOSIS_HOME) and the database must be empty, and also the bucket (OSMOSIS_BLOBS_URL) if the
    backup holds files. The kind of database and file store may change: to move a platform, back it up and restore it.
    If a restore is interrupted, run the same command again.

    Examples:
        osmosis platform restore osmosis.tar.gz
        osmosis platform restore osmosis.tar.gz --database-file database-url
    """
    from osmosis_ai.cli.output import formats
    from osmosis_ai.cli.platform.asked_once import asked_once
    from osmosis_ai.cli.platform.local_platform import platform_extra

    with platform_extra():
        from osmosis_ai.platform.backup import restore_backup
        from osmosis_ai.platform.config import from_environment

    config = from_environment()
    if database_file is not None:
        config = _with_database(config, database_file)
    with current().status(f"Restoring {file}"), asked_once():
        report = restore_backup(config, file)
    if report.missing_blobs:
        current().warn(
            f"Files of the database are missing from the backup: {report.missing_blobs}. They are in the platform's old "
            "bucket (set OSMOSIS_BLOBS_URL to it), or were lost before the backup.",
            code="MISSING_FILES",
        )
    settings = f'OSMOSIS_DATABASE_URL="$(cat {database_file})" ' if database_file else ""
    return OperationResult(
        operation="platform.restore",
        message=f"Restored {config.home} from the backup of {formats.iso(report.created_at)}: "
        f"{formats.count(report.files)} files, all as they were written.",
        resource={
            "home": str(config.home),
            **report.facts(),
        },
        next_steps=[f"Start it: {settings}osmosis platform start"],
    )


def _with_database(config: PlatformConfig, file: Path) -> PlatformConfig:
    """Return the settings with the database whose URL, perhaps with a password, is in ``file``."""
    from osmosis_ai.platform.db.engine import Database

    try:
        words = file.read_text(encoding="utf-8").split()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not a text file"
        raise OsmosisError(f"{file} cannot be read: {reason}.") from None
    if len(words) != 1:
        raise OsmosisError(
            f"{file} must contain exactly one URL (found {len(words)} words).",
            hint="write it as postgresql://user:password@host/database",
        )
    Database(words[0], named=str(file)).dispose()
    return replace(config, database_url=words[0])
