"""Pack a run's code at submission, so that no worker needs its mirror or the Git host.

A submit waits briefly. Longer packing continues while the run waits, which its log and page show.
"""

from __future__ import annotations

import logging
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import update

from osmosis_ai.errors import OsmosisError
from osmosis_ai.platform.clock import Clock
from osmosis_ai.platform.db.engine import Database, DatabaseBusyError, StorageFullError
from osmosis_ai.platform.db.tables import DbRepository, DbRun
from osmosis_ai.platform.gitsync.git import GitError
from osmosis_ai.platform.log_lines import LogLine
from osmosis_ai.platform.logs import LogStore
from osmosis_ai.platform.runs.source_archives import SourceArchives
from osmosis_ai.platform.runs.submit.errors import SubmitRejectedError

logger = logging.getLogger(__name__)

PACK_WAIT_S = 5.0
"""How long a submit waits for the commit to be packed, beside the time that fetching it takes."""
PACKING = "the commit is being packed for workers; the run waits for that."
_PACKED_WITHIN = timedelta(minutes=2)
"""Then the run may be claimed in any case: who claims it has the commit packed, or waits for that."""


class SourcePacking:
    """Packs the code of runs that are submitted."""

    def __init__(self, db: Database, clock: Clock, logs: LogStore, sources: SourceArchives) -> None:
        self._db = db
        self._clock = clock
        self._logs = logs
        self._sources = sources

    def begin(self, repository: DbRepository, sha: str) -> Future[Any] | None:
        """Have a commit packed; blocks for :data:`PACK_WAIT_S`."""
        packing = self._sources.prepare(repository, sha)
        try:
            packing.result(timeout=PACK_WAIT_S)
        except FutureTimeout:
            return packing
        except GitError as error:
            raise SubmitRejectedError(400, "SOURCE_UNUSABLE", error.message) from None
        except (OSError, OsmosisError) as error:
            # No free slot: the next claim tries again.
            logger.warning("the code of a run could not be packed now: %s", error)
        return None

    def claimable_at(self, packing: Future[Any] | None) -> datetime | None:
        """Return when a run may be claimed whose code is being packed."""
        return None if packing is None else self._clock.now() + _PACKED_WITHIN

    def follow(self, run: DbRun, packing: Future[Any] | None) -> None:
        """Say on a run that was written what it waits for, and hand it out when that is done."""
        if packing is not None:
            run_id = run.id
            self._logs.append(run_id, [LogLine(PACKING, step="source")])
            packing.add_done_callback(lambda _: self._hand_out(run_id))

    def _hand_out(self, run_id: str) -> None:
        """Let workers have a run whose code is packed, or that is to fail by what is wrong with it."""
        try:
            with self._db.transaction() as session:
                waits = DbRun.id == run_id, DbRun.status == "pending"
                session.execute(update(DbRun).where(*waits).values(claimable_at=None))
        except (DatabaseBusyError, StorageFullError) as error:
            logger.warning("the run %s waits for %s longer: %s", run_id, _PACKED_WITHIN, error.message)
