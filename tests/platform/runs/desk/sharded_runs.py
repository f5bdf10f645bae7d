"""A run whose samples come as small shards, on any database and store, and what of it can be read."""

from __future__ import annotations

import hashlib
import secrets
from datetime import timedelta
from pathlib import Path

from sqlalchemy import func, select

from osmosis_ai.api.wire.workers import RunFilePart
from osmosis_ai.platform.blobs.shards import ShardWriter
from osmosis_ai.platform.blobs.store import BlobStore
from osmosis_ai.platform.db.base import upsert
from osmosis_ai.platform.db.engine import Database
from osmosis_ai.platform.db.tables import DbRun, DbRunFile, DbRunShard, DbRunUpload, DbWorkspace
from osmosis_ai.platform.runs.desk.news import file_rows
from osmosis_ai.platform.runs.desk.shard_merging import KEPT_FOR, ShardMerging
from osmosis_ai.platform.runs.run_files import PLACE, open_run_file
from tests.platform.conftest import ManualClock


class ShardedRun:
    """A run that goes on, until the test ends it; one that is not there is made.

    Attributes:
        contents: of its files, by path.
        merging: of its platform.
    """

    def __init__(
        self,
        db: Database,
        blobs: BlobStore,
        scratch: Path,
        id: str = "run_1",
        clock: ManualClock | None = None,
    ) -> None:
        self.db, self.blobs, self.id = db, blobs, id
        self.clock = clock or ManualClock()
        self.merging = ShardMerging(db, blobs, self.clock)
        self.contents: dict[str, bytes] = {}
        self._scratch = scratch
        self._told: dict[str, list[RunFilePart]] = {}
        with db.session() as session:
            is_there = session.get(DbRun, id) is not None
        if not is_there:
            self._make()

    def shards(self, count: int, *, files: int = 2, size: int = 100) -> list[str]:
        """Have so many shards sent and told, each of some files; return their names."""
        return [self.shard(files=files, size=size) for _ in range(count)]

    def shard(self, *, files: int = 2, size: int = 100) -> str:
        name = f"shards/{secrets.token_hex(16)}"
        writer = ShardWriter(self._scratch)
        parts = []
        for _ in range(files):
            path = f"trajectories/row_{len(self.contents)}_run_0.json"
            # Of random digits little is saved by packing.
            content = f"{path} {secrets.token_hex(size)}".encode()
            piece = writer.add(content)
            self.contents[path] = content
            place = {"shard_offset": piece.offset, "shard_length": piece.length}
            parts.append(RunFilePart(path=path, kind="trajectories", size=piece.size, blob=name, **place))
        info = self.blobs.put(f"runs/{self.id}/{name}", writer.content())
        writer.close()
        with self.db.transaction() as session:
            described = {"upload_id": name, "size": info.size, "sha256": info.sha256}
            session.add(DbRunUpload(run_id=self.id, name=name, is_stored=True, **described))
        self._told[name] = parts
        self.tell(name)
        return name

    def _make(self) -> None:
        with self.db.transaction() as session:
            session.add(DbWorkspace(id="wsp_1", name="fern", created_at=self.clock.now()))
            session.flush()
            names = {"rollout_name": "multiply", "dataset_name": "multiply", "model_path": "osmosis/tiny"}
            now = self.clock.now()
            described = {"workspace_id": "wsp_1", "kind": "eval", "status": "running", "request": {}}
            session.add(DbRun(id=self.id, name=self.id, created_at=now, **described, **names))

    def tell(self, name: str) -> None:
        """Have the worker say what is in a shard, be it again."""
        with self.db.transaction() as session:
            session.get(DbRun, self.id, with_for_update=True)
            rows = file_rows(session, self.id, self._told[name], self.clock.now())
            upsert(session, DbRunFile, rows)

    def end(self) -> None:
        with self.db.transaction() as session:
            session.get_one(DbRun, self.id).status = "finished"

    def later(self) -> None:
        """Let so much time pass that nobody reads where files were."""
        self.clock.advance((KEPT_FOR + timedelta(seconds=1)).total_seconds())

    def settle(self) -> None:
        """Do all that there is to be done by itself once the run has ended."""
        for _ in range(3):
            self.merging.merge_due()
            self.later()
        self.merging.merge_due()

    def kept(self) -> set[str]:
        """Return the keys of what is stored of its conversations."""
        return set(self.blobs.keys(f"runs/{self.id}"))

    def named(self) -> set[str]:
        """Return the keys in which its files are found."""
        with self.db.session() as session:
            return set(session.scalars(select(DbRunFile.blob_key).where(DbRunFile.run_id == self.id)))

    def states(self) -> dict[str, int]:
        counted = select(DbRunShard.state, func.count()).where(DbRunShard.run_id == self.id)
        with self.db.session() as session:
            found = session.execute(counted.group_by(DbRunShard.state)).all()
        return {row[0]: row[1] for row in found}

    def places(self) -> dict[str, object]:
        """Return where each file is, as somebody finds it who reads it a moment later."""
        asked = select(DbRunFile.path, *PLACE).where(DbRunFile.run_id == self.id)
        with self.db.session() as session:
            return {row.path: row for row in session.execute(asked)}

    def read(self, places: dict[str, object] | None = None) -> dict[str, bytes]:
        """Return what is read of each file."""
        found = {}
        for path, place in (self.places() if places is None else places).items():
            with open_run_file(self.blobs, place) as file:  # type: ignore[arg-type]
                found[path] = file.read()
        return found

    def check(self) -> None:
        """Every file is read as it was sent, and each blob holds what was accepted of it."""
        assert self.read() == self.contents
        with self.db.session() as session:
            known = session.scalars(select(DbRunShard).where(DbRunShard.state == "stored")).all()
        for shard in known:
            with self.blobs.open(shard.key) as blob:
                content = blob.read()
            assert (shard.size, shard.sha256) == (len(content), hashlib.sha256(content).hexdigest())
