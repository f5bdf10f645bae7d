"""Marks of moves in a store of files: small blobs beside those of the platform, which no row names."""

from __future__ import annotations

import io
from collections.abc import Iterator

from osmosis_ai.platform.blobs.store import BlobNotFound, BlobStore
from osmosis_ai.platform.move_marks import Direction, Mark, Marks

_PREFIX = "moves"
# What `check` writes, and a process that was killed then has left.
_CHECKS = "checks"


def read_file_marks(store: BlobStore) -> Marks:
    """Return the marks of a store."""
    return Marks(_read(store, "arrival"), _read(store, "departure"))


def write_file_mark(store: BlobStore, direction: Direction, mark: Mark | None) -> None:
    """Replace a mark; None removes it."""
    if mark is None:
        store.delete(f"{_PREFIX}/{direction}")
    else:
        store.put(f"{_PREFIX}/{direction}", io.BytesIO(mark.to_json().encode()))


def stored_keys(store: BlobStore) -> Iterator[str]:
    """Yield the keys of everything in a store but marks."""
    for key in store.keys(""):
        if key.partition("/")[0] not in (_PREFIX, _CHECKS):
            yield key


def _read(store: BlobStore, direction: Direction) -> Mark | None:
    try:
        with store.open(f"{_PREFIX}/{direction}") as mark:
            return Mark.from_json(mark.read())
    except BlobNotFound:
        return None
