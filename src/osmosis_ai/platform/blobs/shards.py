"""Shards: many small files in one blob, compressed separately and concatenated.

A run with a million samples thus has a thousand blobs. Each file can be read alone, since the database has its
offset and length.
"""

from __future__ import annotations

import tempfile
import zlib
from pathlib import Path
from typing import BinaryIO, NamedTuple, cast

from osmosis_ai.platform.blobs.store import BlobError, BlobStore

LARGEST_FILE_BYTES = 4 * 1024 * 1024
"""A larger file is better a blob of its own: a piece is read at once."""
MOST_BYTES = 64 * 1024 * 1024
_LEVEL = 6


class ShardPiece(NamedTuple):
    """Where a file lies in a shard: ``length`` bytes from ``offset`` on, which become ``size`` bytes."""

    offset: int
    length: int
    size: int


class ShardWriter:
    """A shard that is not stored yet, in a file of its own that nobody else sees."""

    def __init__(self, directory: Path) -> None:
        self._file = cast(BinaryIO, tempfile.TemporaryFile(dir=directory))  # noqa: SIM115 - `close` closes it
        self.size = 0

    def add(self, content: bytes) -> ShardPiece:
        """Add a file."""
        packed = zlib.compress(content, _LEVEL)
        self._file.seek(self.size)
        self._file.write(packed)
        piece = ShardPiece(self.size, len(packed), len(content))
        self.size += len(packed)
        return piece

    def content(self) -> BinaryIO:
        """Return all of it, to be read from its beginning; it may be asked for again, and added to no more."""
        self._file.truncate(self.size)
        self._file.seek(0)
        return self._file

    def close(self) -> None:
        """Forget it."""
        self._file.close()


def read_piece(blobs: BlobStore, key: str, piece: ShardPiece) -> bytes:
    """Return a file of a shard."""
    packed = blobs.read(key, piece.offset, piece.length)
    unpacking = zlib.decompressobj()
    try:
        content = unpacking.decompress(packed, piece.size + 1)
    except zlib.error:
        content = None
    if content is None or len(content) != piece.size or not unpacking.eof:
        raise BlobError(f"the stored bytes of {key} are damaged.")
    return content
