"""Readiness checks: the database, its schema and the file store.

Answers come within seconds even if a store or database hangs, and results are cached. The reasons are public and
contain no locations; the log has the details.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from typing import Any

from sqlalchemy import select, text
from sqlalchemy.exc import SQLAlchemyError

from osmosis_ai.errors import OsmosisError
from osmosis_ai.platform.blobs.store import BlobError, BlobNotFound, BlobStore
from osmosis_ai.platform.clock import Clock
from osmosis_ai.platform.db.engine import Database
from osmosis_ai.platform.db.migrations import current_revision, newest_revision
from osmosis_ai.platform.db.tables import DbDataset, DbLoraModel, DbRun, DbRunFile

logger = logging.getLogger(__name__)

FRESH_S = 10.0
"""How long a result is cached."""
ANSWER_WITHIN_S = 3.0
"""How long a request waits for an unresponsive check."""
_SAMPLED = 5
"""How many of the oldest and newest datasets, runs and adapters have their files looked up at startup."""


class Readiness:
    """Checks whether a platform can do its work."""

    def __init__(self, db: Database, blobs: BlobStore, clock: Clock) -> None:
        self._db = db
        self._blobs = blobs
        self._clock = clock
        self._checks = {
            "database": self._check_database,
            "migrations": self._check_schema,
            "blobs": self._check_blobs,
        }
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None
        self._found: dict[str, str] = {}
        self._ended_at_s = 0.0
        self._logged: dict[str, str] = {}

    def problems(self) -> dict[str, str]:
        """Return the problem that each check found, an empty string if it found none."""
        with self._starting:
            thread = self._thread
            if thread is None or (
                not thread.is_alive() and self._clock.monotonic() - self._ended_at_s >= FRESH_S
            ):
                self._found = {}
                thread = self._thread = threading.Thread(
                    target=self._run, args=(self._found,), name="osmosis-readiness", daemon=True
                )
                thread.start()
            found = self._found
        thread.join(ANSWER_WITHIN_S)
        return {name: found.get(name, "it does not answer") for name in self._checks}

    def _run(self, found: dict[str, str]) -> None:
        try:
            for name, check in self._checks.items():
                try:
                    problem, details = check(), ""
                except (OsmosisError, SQLAlchemyError, OSError) as error:
                    problem = "they cannot be kept" if name == "blobs" else "it cannot be read"
                    details = f" ({type(error).__name__}: {error})"
                if problem != self._logged.get(name, ""):
                    if problem:
                        logger.warning("not ready, %s: %s%s", name, problem, details)
                    else:
                        logger.warning("ready again: %s", name)
                    self._logged[name] = problem
                found[name] = problem
        finally:
            self._ended_at_s = self._clock.monotonic()

    def _check_database(self) -> str:
        with self._db.session() as session:
            is_standby = not self._db.is_sqlite and session.scalar(text("SELECT pg_is_in_recovery()"))
            session.execute(text("SELECT 1"))
        return "it takes no writes" if is_standby else ""

    def _check_schema(self) -> str:
        with self._db.session() as session:
            found = current_revision(session.connection())
        wanted = newest_revision()
        return "" if found == wanted else f"its schema is {found}, and this release works with {wanted}"

    def _check_blobs(self) -> str:
        self._blobs.check()
        return ""


def missing_files(db: Database, blobs: BlobStore, shown: str) -> str | None:
    """Return a sentence about missing files; None if there are none or the store does not answer.

    A database restored without its files, or started with another bucket, would otherwise fail file by file. There may
    be millions of files, so this looks for a sample of about 40.
    """
    keys, missing = set(_some_keys(db)), 0
    for key in keys:
        try:
            blobs.size(key)
        except BlobNotFound:
            missing += 1
        except BlobError:
            return None  # which requests for files report
    if not missing:
        return None
    return (
        f"{missing} of {len(keys)} sampled files of datasets, runs and adapters are missing from {shown}. The database may "
        "have been restored or moved without its files. Restore the files, or start with the original OSMOSIS_BLOBS_URL "
        "or OSMOSIS_HOME; until then, runs of these datasets fail."
    )


def _some_keys(db: Database) -> Iterator[str]:
    """Yield the keys of the oldest and newest datasets, journals, conversations (one of a run) and adapters."""
    conversation = (
        select(DbRunFile.blob_key)
        .where(
            DbRunFile.run_id == DbRun.id,
            DbRunFile.kind == "trajectories",
            DbRunFile.blob_key.is_not(None),
        )
        .limit(1)
        .correlate(DbRun)
        .scalar_subquery()
    )
    with db.session() as session:
        table: Any
        for table, column in (
            (DbDataset, DbDataset.blob_key),
            (DbRun, DbRun.journal_blob),
            (DbRun, conversation),
            (DbLoraModel, DbLoraModel.files),
        ):
            for order in (table.created_at.asc(), table.created_at.desc()):
                sample = select(column).select_from(table).where(column.is_not(None))
                for found in session.scalars(sample.order_by(order).limit(_SAMPLED)):
                    if isinstance(found, str):
                        yield found
                    elif found:
                        # The largest file of an adapter has its weights.
                        yield max(found.values(), key=lambda file: file["size"])["blob_key"]
