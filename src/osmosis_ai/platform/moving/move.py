"""One move, from the refusals that change nothing to the marks that hand over."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path

from osmosis_ai._version import __version__
from osmosis_ai.errors import ConflictError, NotFoundError, OsmosisError
from osmosis_ai.files import remove_left_parts
from osmosis_ai.platform.backup import create_backup
from osmosis_ai.platform.blobs.opening import open_blob_store
from osmosis_ai.platform.clock import SystemClock
from osmosis_ai.platform.config import PlatformConfig
from osmosis_ai.platform.db.engine import Database, opened_database
from osmosis_ai.platform.db.row_copies import TableDigest
from osmosis_ai.platform.moving.database_move import DatabaseMove
from osmosis_ai.platform.moving.files_move import FilesDigest, FilesMove, StorePlace
from osmosis_ai.platform.moving.sides import Showing, Stage
from osmosis_ai.platform.process_state import PlatformProcess, only_platform_of
from osmosis_ai.platform.s3_address import S3Address, parse_s3_address


@dataclass(frozen=True)
class Destination:
    """Where a platform is to be.

    Args:
        database_url: a SQLAlchemy URL; None leaves the rows where they are.
        blobs_url: a bucket, or ``""`` for the data directory; None leaves the files where they are.
    """

    database_url: str | None = None
    blobs_url: str | None = None


@dataclass(frozen=True)
class MoveReport:
    """What a move has done.

    Attributes:
        database: where the rows are now; None where they stay.
        files: where the files are now; None where they stay.
        tables: what both databases held when they were compared; empty where that was done before.
        stored: what both stores held; None where they stay, or that was done before.
        backups: the files that keep what was replaced, this call's or an earlier one's; the newest is the last.
    """

    database: str | None
    files: str | None
    tables: Mapping[str, TableDigest]
    stored: FilesDigest | None
    backups: Sequence[Path]


def move_platform(
    config: PlatformConfig,
    destination: Destination,
    showing: Showing,
    *,
    replaces: bool = False,
    backup: Path | None = None,
) -> MoveReport:
    """Move the rows of a platform, its files, or both; a move that was begun goes on.

    Args:
        config: which platform, as it starts now.
        destination: where it is to be.
        showing: shows how far it is.
        replaces: whether what this platform moved away from may be replaced.
        backup: the file that keeps what is replaced; by default one beside the data directory.

    Raises:
        ConflictError: the platform runs, or the target is not to be taken.
        NotFoundError: there is no platform.
        OsmosisError: a database or a store cannot be used; the same call goes on later.
    """
    if not config.home.is_dir():
        raise NotFoundError(
            f"there is no platform in {config.home}.", hint="set OSMOSIS_HOME to its directory"
        )
    with only_platform_of(config.home) as note, ExitStack() as stack:
        note(PlatformProcess(os.getpid(), _now().isoformat(timespec="seconds"), __version__))
        rows = _database_move(config, destination, stack)
        files = _files_move(config, destination)
        moves = [move for move in (rows, files) if move is not None]
        for move in moves:
            move.prepare()
        _keep(config, destination, moves, replaces, backup)
        for move in moves:
            move.begin()
        for move in moves:
            if move.stage not in (Stage.DEPARTED, Stage.DONE):
                move.copy(showing)
        tables = rows.depart() if rows is not None and _has_to_depart(rows) else {}
        stored = files.depart(showing) if files is not None and _has_to_depart(files) else None
        for move in reversed(moves):
            move.arrive()
    kept = list(
        dict.fromkeys(move.backup for move in moves if move.backup is not None and move.backup.is_file())
    )
    return MoveReport(
        database=None if rows is None else rows.shown,
        files=None if files is None else files.shown,
        tables=tables,
        stored=stored,
        backups=kept,
    )


def _has_to_depart(move: DatabaseMove | FilesMove) -> bool:
    return move.stage not in (Stage.DEPARTED, Stage.DONE)


def _database_move(config: PlatformConfig, destination: Destination, stack: ExitStack) -> DatabaseMove | None:
    if destination.database_url is None:
        return None
    source = Database(config.database_url)
    target = Database(destination.database_url, named="--database")
    for database in (source, target):
        stack.callback(database.dispose)
    if source.sqlite_path is not None and not source.sqlite_path.is_file():
        raise NotFoundError(
            f"there is no platform in {source.shown}.", hint="set OSMOSIS_HOME or OSMOSIS_DATABASE_URL to it"
        )
    here, there = source.sqlite_path, target.sqlite_path
    if here is not None and there is not None and here.resolve() == there.resolve():
        raise ConflictError(f"the platform's database is {source.shown} already.", hint="name another place")
    return DatabaseMove(source, target)


def _files_move(config: PlatformConfig, destination: Destination) -> FilesMove | None:
    if destination.blobs_url is None:
        return None
    there = replace(config, blobs_url=destination.blobs_url)
    if not config.blobs_url and not there.blobs_url:
        raise ConflictError(f"{config.blobs_shown} is already where this platform's files are.")
    if config.blobs_url and there.blobs_url:
        _require_apart(parse_s3_address(config.blobs_url), parse_s3_address(there.blobs_url))
    clock = SystemClock()
    source = StorePlace(open_blob_store(config, clock), config.blobs_shown)
    target = StorePlace(open_blob_store(there, clock, given_by="--blobs"), there.blobs_shown)
    return FilesMove(source, target, config.home)


def _require_apart(here: S3Address, there: S3Address) -> None:
    """Refuse the same place, and one inside the other: what is copied would be found there again."""
    if (here.bucket, here.endpoint) != (there.bucket, there.endpoint):
        return
    if here.prefix == there.prefix:
        prefix = f", prefix '{here.prefix}'," if here.prefix else ""
        raise ConflictError(f"{here.shown}{prefix} is already where this platform's files are.")
    first, second = (f"{address.prefix}/".lstrip("/") for address in (here, there))
    if first.startswith(second) or second.startswith(first):
        raise ConflictError(
            f"one of both places in {here.shown} is inside the other.", hint="choose another prefix"
        )


def _keep(
    config: PlatformConfig,
    destination: Destination,
    moves: list[DatabaseMove | FilesMove],
    replaces: bool,
    file: Path | None,
) -> None:
    """Keep what is going to be replaced; what an earlier call has kept is not kept again."""
    replaced = [move for move in moves if move.stage is Stage.REPLACES]
    if not replaced:
        return
    if not replaces:
        raise ConflictError(
            f"what this platform had before it moved is in {' and '.join(move.shown for move in replaced)}.",
            hint="--replace makes a backup of that, and then replaces it",
        )
    for noted in {move.backup for move in replaced if move.backup is not None}:
        remove_left_parts(noted)
    # Noted while it was not there, and there in one step: what is there is whole.
    lacking = [move for move in replaced if move.backup is None or not move.backup.is_file()]
    if not lacking and all(file in (None, move.backup) for move in replaced):
        return
    former = _former(config, destination, {move.what for move in replaced})
    named = f"{config.home.name}-before-move-{_now():%Y%m%dT%H%M%SZ}.tar.gz"
    target = file or config.home.parent / named
    if not target.exists():
        for move in replaced:
            move.note_backup(target)
    with _writable_beside(config.home, file):
        create_backup(former, target, with_bucket=True)


def _former(config: PlatformConfig, destination: Destination, whats: Collection[str]) -> PlatformConfig:
    """Return the platform that is going to be replaced, brought up to date."""
    former = replace(
        config,
        database_url=destination.database_url or "" if "database" in whats else config.database_url,
        blobs_url=destination.blobs_url or "" if "files" in whats else config.blobs_url,
    )
    if "database" in whats:
        # Of an earlier release, maybe, and no platform may start on it to bring it up to date.
        with opened_database(former.database_url) as database:
            database.bring_up_to_date()
    return former


@contextmanager
def _writable_beside(home: Path, file: Path | None) -> Iterator[None]:
    try:
        yield
    except PermissionError as error:
        raise OsmosisError(
            f"the backup of what is to be replaced cannot be written in {(file or home).parent}.",
            hint="name another file with --backup",
        ) from error


def _now() -> datetime:
    return datetime.now(timezone.utc)
