"""The shards of a run as the desk knows them: which blobs are some, where their bytes are now, and these one after another."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple, cast

from sqlalchemy.orm import Session

from osmosis_ai.platform.blobs.store import BlobInfo, BlobNotFound, BlobStore
from osmosis_ai.platform.db.tables import DbRunShard

SHARDS_FOLDER, MERGED_FOLDER = "shards", "merged"
"""Of a run's blobs: what workers send to be merged, and what it becomes."""

_BLOCK_BYTES = 4 << 20
"""How much is asked of a store at a time."""


class ShardPlace(NamedTuple):
    """Where the bytes of a shard are: in which blob, and from which byte on."""

    key: str
    offset: int


def is_shard(name: str) -> bool:
    """Tell whether an upload of this name is one of those that are merged."""
    return name.startswith(f"{SHARDS_FOLDER}/")


def note_shard(session: Session, run_id: str, key: str, blob: BlobInfo, now: datetime) -> ShardPlace:
    """Return a shard's place, within the transaction that locks its run. A new shard may be merged from now on."""
    shard = session.get(DbRunShard, key)
    if shard is None:
        described = {"size": blob.size, "sha256": blob.sha256, "state": "stored", "changed_at": now}
        session.add(DbRunShard(key=key, run_id=run_id, **described))
        return ShardPlace(key, 0)
    offset = 0
    while shard.merged_into is not None and shard.merged_offset is not None:
        offset += shard.merged_offset
        shard = session.get_one(DbRunShard, shard.merged_into)
    return ShardPlace(shard.key, offset)


class UnreadableShard(Exception):
    """A shard's bytes are not those that were accepted."""

    def __init__(self, key: str) -> None:
        super().__init__(key)
        self.key = key


class JoinedShards(io.RawIOBase):
    """Concatenated shards, read in blocks; reading fails at the end of a shard that differs from the accepted one."""

    def __init__(self, blobs: BlobStore, shards: Sequence[DbRunShard]) -> None:
        self._blobs = blobs
        self._shards = list(shards)
        self._digest = hashlib.sha256()
        self._read = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: object) -> int:
        room = memoryview(cast(bytearray, buffer))
        while self._shards:
            shard = self._shards[0]
            block = self._block(shard, min(len(room), _BLOCK_BYTES, shard.size - self._read))
            if block:
                room[: len(block)] = block
                return len(block)
            if (self._read, self._digest.hexdigest()) != (shard.size, shard.sha256):
                raise UnreadableShard(shard.key)
            self._shards.pop(0)
            self._digest, self._read = hashlib.sha256(), 0
        return 0

    def _block(self, shard: DbRunShard, length: int) -> bytes:
        if not length:
            return b""
        try:
            block = self._blobs.read(shard.key, self._read, length)
        except BlobNotFound:
            raise UnreadableShard(shard.key) from None
        self._digest.update(block)
        self._read += len(block)
        return block
