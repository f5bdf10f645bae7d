"""A run's files as they are stored: each a blob of its own, or a piece of a shard."""

from __future__ import annotations

from datetime import timedelta
from io import BytesIO
from typing import BinaryIO, Protocol

from osmosis_ai.platform.blobs.shards import ShardPiece, read_piece
from osmosis_ai.platform.blobs.signing import DownloadGrant, UrlSigner
from osmosis_ai.platform.blobs.store import BlobStore
from osmosis_ai.platform.db.tables import DbRunFile

PLACE = (DbRunFile.blob_key, DbRunFile.size, DbRunFile.shard_offset, DbRunFile.shard_length)
"""The columns of a :class:`StoredPlace`."""


class StoredPlace(Protocol):
    """Where a file lies: a row of ``run_files``, or its columns of :data:`PLACE`."""

    @property
    def blob_key(self) -> str:
        """The blob."""

    @property
    def size(self) -> int:
        """The file's size in bytes."""

    @property
    def shard_offset(self) -> int | None:
        """Where its piece of a shard begins; None for a blob of its own."""

    @property
    def shard_length(self) -> int | None:
        """How long its piece of a shard is; None for a blob of its own."""


def open_run_file(blobs: BlobStore, place: StoredPlace) -> BinaryIO:
    """Open a file for reading; the caller closes it."""
    piece = _piece(place)
    return blobs.open(place.blob_key) if piece is None else BytesIO(read_piece(blobs, place.blob_key, piece))


def run_file_url(
    blobs: BlobStore, signer: UrlSigner, place: StoredPlace, *, filename: str, ttl: timedelta
) -> str:
    """Return a URL that serves a file as a download named ``filename``; of a shard the platform cuts it out itself."""
    piece = _piece(place)
    if piece is None:
        return blobs.signed_get_url(place.blob_key, filename=filename, ttl=ttl)
    return signer.sign(DownloadGrant(place.blob_key, filename, piece), ttl=ttl)


def _piece(place: StoredPlace) -> ShardPiece | None:
    if place.shard_offset is None or place.shard_length is None:
        return None
    return ShardPiece(place.shard_offset, place.shard_length, place.size)
