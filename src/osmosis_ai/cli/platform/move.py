"""`osmosis platform move`: rows to another database, files to another store, and back."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from osmosis_ai.cli.output import formats
from osmosis_ai.cli.output.context import current
from osmosis_ai.cli.output.results import OperationResult
from osmosis_ai.errors import OsmosisError

if TYPE_CHECKING:
    from osmosis_ai.platform.config import PlatformConfig
    from osmosis_ai.platform.moving import MoveReport

DATABASE_ENV = "OSMOSIS_MOVE_DATABASE_URL"
_SQLITE, _LOCAL = "sqlite", "local"


def move(
    database: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Where the rows are to be: postgresql://USER@HOST/DATABASE, or `sqlite` for the data directory. "
            f"One with a password comes from --database-file or {DATABASE_ENV}.",
        ),
    ] = None,
    database_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A file that holds that URL, password and all.")
    ] = None,
    blobs: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Where the files are to be: s3://BUCKET/PREFIX?endpoint=…, or `local` for the data directory.",
        ),
    ] = None,
    replace: Annotated[
        bool,
        typer.Option("--replace", help="Replace what this platform moved away from, after a backup of it."),
    ] = False,
    backup: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="With --replace: the file of that backup. Default: one beside the data directory.",
        ),
    ] = None,
) -> OperationResult:
    """Move the rows of this machine's platform to another database, its files to another store, or both.

    The platform is stopped meanwhile. Everything is copied, read back and compared; where it was is left as it is, and
    a start there says where it went. Whatever interrupts a move, the same command goes on. The way back is the same.

    Examples:
        osmosis platform move --database postgresql://osmosis@db.example/osmosis
        osmosis platform move --database-file database-url --blobs s3://my-bucket/osmosis?region=eu-central-1
        osmosis platform move --database sqlite --blobs local --replace
    """
    from osmosis_ai.cli.platform.asked_once import asked_once
    from osmosis_ai.cli.platform.local_platform import platform_extra

    with platform_extra():
        from osmosis_ai.platform.config import from_environment
        from osmosis_ai.platform.moving import Destination, move_platform

    config = from_environment()
    destination = Destination(_database_url(config, database, database_file), _blobs_url(blobs))
    if destination == Destination():
        raise OsmosisError("nothing is named that is to move.", hint="name --database, --blobs or both")
    if backup is not None and not replace:
        raise OsmosisError(
            "--backup names the file that keeps what --replace replaces, and there is no --replace.",
            hint="give both, or neither; `osmosis platform backup FILE` keeps the platform that is moved",
        )
    with asked_once("--blobs" if destination.blobs_url else "OSMOSIS_BLOBS_URL"):
        report = move_platform(
            config, destination, current().progress, replaces=replace, backup=backup and backup.absolute()
        )
    return OperationResult(
        operation="platform.move",
        message=_message(report),
        resource=_resource(config, report),
        next_steps=_next_steps(destination.database_url, destination.blobs_url, config, report),
    )


def _database_url(config: PlatformConfig, given: str | None, file: Path | None) -> str | None:
    if given is not None and file is not None:
        raise OsmosisError("--database and --database-file name the same thing: give one of them.")
    if given is not None:
        _refuse_password(given)
    url = _read(file) if file is not None else given or os.environ.get(DATABASE_ENV, "").strip() or None
    return f"sqlite:///{config.home / 'platform.db'}" if url == _SQLITE else url


def _read(file: Path) -> str:
    try:
        lines = file.read_text().split()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no text"
        raise OsmosisError(f"{file} cannot be read: {reason}.") from None
    if len(lines) != 1:
        raise OsmosisError(
            f"{file} holds {len(lines)} lines or words instead of one URL.",
            hint="write it as postgresql://user:password@host/database",
        )
    return lines[0]


def _refuse_password(url: str) -> None:
    from sqlalchemy import make_url
    from sqlalchemy.exc import ArgumentError

    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):
        return  # said with all else that is wrong with it
    if parsed.password or any("password" in name.lower() for name in parsed.query):
        raise OsmosisError(
            "everybody on this machine can read the password of a command line.",
            hint=f"write the URL into a file of your own and name it with --database-file, or set {DATABASE_ENV}",
        )


def _blobs_url(given: str | None) -> str | None:
    from osmosis_ai.platform.s3_address import parse_s3_address

    if given is None or given == _LOCAL:
        return "" if given else None
    parse_s3_address(given)
    return given


def _message(report: MoveReport) -> str:
    if not report.tables and report.stored is None:
        places = " and ".join(filter(None, (report.database, report.files)))
        return f"The platform is in {places}: it was compared before."
    moved = []
    if report.tables:
        rows = sum(table.rows for table in report.tables.values())
        moved.append(f"{formats.count(rows)} rows of {len(report.tables)} tables to {report.database}")
    if report.stored is not None:
        size = formats.size(report.stored.size_bytes)
        moved.append(f"{formats.count(report.stored.files)} files ({size}) to {report.files}")
    return f"Moved {' and '.join(moved)}; both sides are equal."


def _resource(config: PlatformConfig, report: MoveReport) -> dict[str, Any]:
    return {
        "home": str(config.home),
        "database": report.database
        and {
            "to": report.database,
            "tables": [
                {"name": name, "rows": table.rows, "sha256": table.sha256}
                for name, table in report.tables.items()
            ],
        },
        "files": report.files
        and {
            "to": report.files,
            "count": report.stored and report.stored.files,
            "size_bytes": report.stored and report.stored.size_bytes,
            "sha256": report.stored and report.stored.sha256,
        },
        "backup": str(report.backups[-1]) if report.backups else None,
    }


def _next_steps(
    database_url: str | None, blobs_url: str | None, config: PlatformConfig, report: MoveReport
) -> list[str]:
    steps = [f"What was replaced: {file}" for file in report.backups]
    if database_url is not None:
        in_home = database_url == f"sqlite:///{config.home / 'platform.db'}"
        more = "    with its password, if it has one" if not database_url.startswith(_SQLITE) else ""
        shown = f"export OSMOSIS_DATABASE_URL='{report.database}'{more}"
        steps.append("unset OSMOSIS_DATABASE_URL" if in_home else shown)
    if blobs_url is not None:
        steps.append(f"export OSMOSIS_BLOBS_URL='{blobs_url}'" if blobs_url else "unset OSMOSIS_BLOBS_URL")
    return [*steps, "Start it: osmosis platform start"]
