"""The stored files of a backup: in its data directory, and on their way to and from a bucket."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import BinaryIO

from osmosis_ai.errors import ConflictError
from osmosis_ai.platform.backup.archive import OBJECTS
from osmosis_ai.platform.blobs.store import BlobStore, BlobStoreError

_THREADS = 8
_BLOCK_BYTES = 1 << 20
# The check at a platform's start writes these. A process that is killed meanwhile leaves one behind.
_CHECKS = "checks"


def stored_keys(store: BlobStore) -> Iterator[str]:
    """Yield the keys of everything in a store."""
    for key in store.keys(""):
        if key.partition("/")[0] != _CHECKS:
            yield key


def keys_in(home: Path) -> set[str]:
    """Return the keys of the files that an unpacked backup holds."""
    objects = home / OBJECTS
    return {
        (Path(directory) / name).relative_to(objects).as_posix()
        for directory, _, names in os.walk(objects)
        for name in names
    }


def require_usable(store: BlobStore, shown: str, *, besides: set[str]) -> None:
    """Refuse a store that does not work, or holds other files than those an interrupted restore left there."""
    store.check()
    other = next((key for key in stored_keys(store) if key not in besides), None)
    if other is not None:
        raise ConflictError(
            f"{shown} is not empty: it contains {other}.",
            hint="name an empty bucket or prefix in OSMOSIS_BLOBS_URL",
        )


def fill_store(store: BlobStore, shown: str, home: Path, keys: set[str]) -> None:
    """Put the files of an unpacked backup into a store, and read each of them back."""

    def put(key: str) -> None:
        with (home / OBJECTS / key).open("rb") as file:
            written = store.put(key, file).sha256
        with store.open(key) as stored:
            if _sha256(stored) != written:
                raise BlobStoreError(f"{shown} returned different bytes than were stored: {key}.")

    with ThreadPoolExecutor(_THREADS, thread_name_prefix="osmosis-restore") as pool:
        for _ in pool.map(put, sorted(keys)):
            pass


def _sha256(stream: BinaryIO) -> str:
    digest = hashlib.sha256()
    while block := stream.read(_BLOCK_BYTES):
        digest.update(block)
    return digest.hexdigest()
