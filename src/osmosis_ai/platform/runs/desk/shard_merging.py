"""Merge small shards of a run into large ones in the background.

A merged shard is written first, then its run's files are pointed at it. The old shards are deleted
once no URL or reader uses them. Each step is a transaction after which both places are valid, and
``run_shards`` records the progress, so a crash loses and leaks nothing.
"""

from __future__ import annotations

import io
import logging
import secrets
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from itertools import groupby
from typing import BinaryIO, cast

from sqlalchemy import ColumnElement, delete, func, select, update
from sqlalchemy.orm import Session

from osmosis_ai.errors import OsmosisError
from osmosis_ai.platform.blobs.store import BlobError, BlobStore, BlobStoreSilent
from osmosis_ai.platform.clock import Clock
from osmosis_ai.platform.db.base import rows_changed
from osmosis_ai.platform.db.engine import Database
from osmosis_ai.platform.db.tables import DbRun, DbRunFile, DbRunShard
from osmosis_ai.platform.runs.desk.run_shards import (
    MERGED_FOLDER,
    SHARDS_FOLDER,
    JoinedShards,
    UnreadableShard,
)
from osmosis_ai.platform.runs.desk.shard_policy import FAN, due
from osmosis_ai.platform.runs.lifecycle import OPEN

logger = logging.getLogger("osmosis_ai.platform.runs")

MERGE_EVERY_S = 5.0
"""Between two looks, in seconds."""
KEPT_FOR = timedelta(minutes=16)
"""How long a shard outlives its last file: longer than a signed URL."""
_ABANDONED_AFTER = timedelta(hours=1)
"""A shard that is being written for so long was begun by a process that is gone."""
_BUDGET_S = 5.0
_ROWS = 2000
"""Files that are found elsewhere after one transaction: nobody waits long for it."""
_DELETIONS = 256


class ShardMerging:
    """Merges the shards of a platform's runs. Methods block, and only one thread may call :meth:`merge_due`."""

    def __init__(self, db: Database, blobs: BlobStore, clock: Clock) -> None:
        self._db = db
        self._blobs = blobs
        self._clock = clock

    def merge_due(self) -> None:
        """Merge what is to be merged now, for some seconds at most; the rest is for the next time."""
        until = time.monotonic() + _BUDGET_S
        with self._db.session() as session:
            left = session.scalars(
                select(DbRunShard).where(DbRunShard.state == "merged").order_by(DbRunShard.run_id)
            ).all()
        for _, of_run in groupby(left, lambda shard: shard.run_id):
            self._move_files(list(of_run))
        failure: Exception | None = None
        for run_id, has_ended in self._runs():
            try:
                while time.monotonic() < until and self._merge_next(run_id, has_ended=has_ended):
                    pass
            except BlobStoreSilent:
                raise
            except (OSError, BlobError) as error:
                failure = error  # what is wrong with one run's files is no matter of the others
        self._delete_replaced()
        if failure is not None:
            raise failure

    def tidy(self) -> None:
        """Forget what killed processes, deleted runs and runs that have ended have left."""
        old = self._clock.now() - _ABANDONED_AFTER
        gone = DbRunShard.run_id.not_in(select(DbRun.id))
        with self._db.session() as session:
            abandoned = (DbRunShard.state == "writing", DbRunShard.changed_at < old)
            keys = list(session.scalars(select(DbRunShard.key).where(*abandoned)))
            keys += session.scalars(select(DbRunShard.key).where(gone, DbRunShard.state != "gone"))
        gone_now, failure = self._delete(keys)
        self._forget(gone_now)
        with self._db.session() as session:
            is_left = session.scalar(select(DbRunShard.key).where(gone).limit(1)) is not None
        if is_left:
            with self._db.transaction() as session:
                session.execute(delete(DbRunShard).where(gone, DbRunShard.state == "gone"))
        if failure is not None:
            raise failure

    def _runs(self) -> Sequence[tuple[str, bool]]:
        """Return the runs that may have something to be merged, and whether they have ended."""
        count = func.count()
        asked = (
            select(DbRun.id, DbRun.status, count)
            .join(DbRunShard, DbRunShard.run_id == DbRun.id)
            .where(DbRunShard.state.in_(("stored", "unreadable")))
            .group_by(DbRun.id, DbRun.status)
        )
        with self._db.session() as session:
            found = session.execute(asked).all()
        return [
            (id, status not in OPEN) for id, status, shards in found if status not in OPEN or shards >= FAN
        ]

    def _merge_next(self, run_id: str, *, has_ended: bool) -> bool:
        """Merge some of a run's shards; False where there is nothing more to be merged now."""
        with self._db.session() as session:
            of_run = (DbRunShard.run_id == run_id, DbRunShard.state == "stored")
            stored = session.scalars(
                select(DbRunShard).where(*of_run).order_by(DbRunShard.changed_at, DbRunShard.key)
            ).all()
        shards = due(stored, has_ended=has_ended)
        if shards:
            return self._merge(run_id, shards)
        if has_ended:
            self._settle(run_id)
        return False

    def _merge(self, run_id: str, shards: Sequence[DbRunShard]) -> bool:
        key = f"runs/{run_id}/{MERGED_FOLDER}/{secrets.token_hex(16)}"
        now = self._clock.now()
        with self._db.transaction() as session:
            session.add(DbRunShard(key=key, run_id=run_id, state="writing", size=0, changed_at=now))
        try:
            info = self._blobs.put(key, cast(BinaryIO, io.BufferedReader(JoinedShards(self._blobs, shards))))
            is_taken = self._take(key, run_id, info.size, info.sha256, shards)
        except UnreadableShard as unreadable:
            logger.warning("the shard %s cannot be read any more, and is left as it is", unreadable.key)
            self._take_back(key)
            with self._db.transaction() as session:
                self._set(session, [unreadable.key], "unreadable")
            return True
        except BaseException:
            with suppress(OSError, OsmosisError):
                self._take_back(key)
            raise
        if not is_taken:
            self._take_back(key)
            return False
        self._move_files(shards)
        return True

    def _take(self, key: str, run_id: str, size: int, sha256: str, shards: Sequence[DbRunShard]) -> bool:
        """Let a merged shard count; False where its run is gone."""
        with self._db.transaction() as session:
            if session.get(DbRun, run_id, with_for_update=True) is None:
                return False
            merged = session.get_one(DbRunShard, key)
            merged.state, merged.size, merged.sha256 = "stored", size, sha256
            offset = 0
            for shard in shards:
                shard.merged_into, shard.merged_offset = key, offset
                offset += shard.size
            session.execute(
                update(DbRunShard),
                [
                    {
                        "key": shard.key,
                        "state": "merged",
                        "merged_into": key,
                        "merged_offset": shard.merged_offset,
                    }
                    for shard in shards
                ],
            )
        return True

    def _move_files(self, shards: Sequence[DbRunShard]) -> None:
        """Have every file of a run's shards be found where these were merged into, some in each transaction."""
        left = deque(shards)
        while left:
            with self._db.transaction() as session:
                # Locking the run's row prevents workers from adding files of these shards meanwhile.
                session.get(DbRun, left[0].run_id, with_for_update=True)
                moved, done = 0, []
                while left and moved < _ROWS:
                    some = self._move_some(session, left[0])
                    moved += some
                    if some < _ROWS:
                        done.append(left.popleft().key)
                self._set(session, done, "replaced")

    def _move_some(self, session: Session, shard: DbRunShard) -> int:
        """Move files of a shard, as many as one transaction moves; return how many there were."""
        paths = select(DbRunFile.path).where(*_files_in(shard.run_id, shard.key)).limit(_ROWS)
        offset = DbRunFile.shard_offset + shard.merged_offset
        move = (
            update(DbRunFile)
            .where(DbRunFile.run_id == shard.run_id, DbRunFile.path.in_(paths))
            .values(blob_key=shard.merged_into, shard_offset=offset)
            .execution_options(synchronize_session=False)
        )
        return rows_changed(session, move)

    def _delete_replaced(self) -> None:
        old = self._clock.now() - KEPT_FOR
        asked = select(DbRunShard.key).where(DbRunShard.state == "replaced", DbRunShard.changed_at < old)
        with self._db.session() as session:
            keys = session.scalars(asked.order_by(DbRunShard.changed_at).limit(_DELETIONS)).all()
        gone, failure = self._delete(keys)
        if keys:
            with self._db.transaction() as session:
                self._set(session, gone, "gone")
                # Behind the others, should they be as many as are deleted at a time.
                self._set(session, [key for key in keys if key not in gone], "replaced")
        if failure is not None:
            raise failure

    def _delete(self, keys: Sequence[str]) -> tuple[list[str], Exception | None]:
        """Delete blobs, each by itself; return those that are gone, and why another one is not."""
        gone: list[str] = []
        failure: Exception | None = None
        for key in keys:
            try:
                self._blobs.delete(key)
            except BlobStoreSilent as error:
                return gone, error
            except (OSError, BlobError) as error:
                failure = error
            else:
                gone.append(key)
        return gone, failure

    def _settle(self, run_id: str) -> None:
        """Forget how the shards of a run that has ended came to be, when nothing of it is left to be done."""
        of_run = DbRunShard.run_id == run_id
        with self._db.session() as session:
            on_its_way = (of_run, DbRunShard.state.in_(("writing", "merged", "replaced")))
            if session.scalar(select(DbRunShard.key).where(*on_its_way).limit(1)) is not None:
                return
            known = set(session.scalars(select(DbRunShard.key).where(of_run)))
        # Sent by a worker that was killed before it could say what is in them.
        left = [key for key in self._blobs.keys(f"runs/{run_id}/{SHARDS_FOLDER}") if key not in known]
        if self._is_open(run_id):
            return  # resumed meanwhile: what is there may be another worker's
        for key in left:
            if not self._is_named(run_id, key):
                self._blobs.delete(key)
        with self._db.transaction() as session:
            if not self._is_open(run_id, session):
                session.execute(delete(DbRunShard).where(of_run))

    def _is_open(self, run_id: str, writing: Session | None = None) -> bool:
        """Tell whether a run may get more shards; as part of the transaction ``writing``, until that ends."""
        asked = select(DbRun.status).where(DbRun.id == run_id)
        if writing is not None:
            return writing.scalar(asked.with_for_update()) in OPEN
        with self._db.session() as session:
            return session.scalar(asked) in OPEN

    def _is_named(self, run_id: str, key: str) -> bool:
        with self._db.session() as session:
            return session.scalar(select(DbRunFile.path).where(*_files_in(run_id, key)).limit(1)) is not None

    def _take_back(self, key: str) -> None:
        self._blobs.delete(key)
        self._forget([key])

    def _forget(self, keys: Sequence[str]) -> None:
        if keys:
            with self._db.transaction() as session:
                session.execute(delete(DbRunShard).where(DbRunShard.key.in_(keys)))

    def _set(self, session: Session, keys: Sequence[str], state: str) -> None:
        changed = {"state": state, "changed_at": self._clock.now()}
        session.execute(update(DbRunShard).where(DbRunShard.key.in_(keys)).values(**changed))


def _files_in(run_id: str, key: str) -> tuple[ColumnElement[bool], ...]:
    return DbRunFile.run_id == run_id, DbRunFile.blob_key == key, DbRunFile.shard_offset.is_not(None)
