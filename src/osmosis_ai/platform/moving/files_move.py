"""The files of a platform, from one store into another.

A file counts as moved when it was read back from the target and is what was read from the source. Which have been
stands in a file of the data directory, a line each, so that a move that was killed reads none of them twice.
"""

from __future__ import annotations

import hashlib
import json
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO

from osmosis_ai.errors import ConflictError
from osmosis_ai.platform.blobs.move_marks import read_file_marks, stored_keys, write_file_mark
from osmosis_ai.platform.blobs.store import BlobInfo, BlobNotFound, BlobStore, BlobStoreError
from osmosis_ai.platform.move_marks import Mark
from osmosis_ai.platform.moving.sides import Showing, Stage, departure_of, stage_of

_THREADS = 8
_BLOCK_BYTES = 1 << 20
_ROUNDS = 4


@dataclass(frozen=True, slots=True)
class FilesDigest:
    """What a store holds.

    Args:
        files: how many.
        size_bytes: of all of them.
        sha256: over their keys, sizes and digests, in the order of the keys.
    """

    files: int
    size_bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class StorePlace:
    """A store, and what people are told of where it is."""

    store: BlobStore
    shown: str


class FilesMove:
    """One move of files.

    Args:
        source: where they are.
        target: where they are to be.
        home: the data directory, which notes what has been moved.
    """

    what = "files"

    def __init__(self, source: StorePlace, target: StorePlace, home: Path) -> None:
        self._source, self._target = source.store, target.store
        self._from = source.shown
        self.shown = target.shown
        self._home = home
        self.stage = Stage.NEW
        self._mark = Mark.of_new_move(target.shown)

    def prepare(self) -> None:
        """Find out how far the move is.

        Raises:
            ConflictError: the target is not to be taken.
            BlobStoreError: a store cannot be used.
        """
        self._source.check()
        self._target.check()
        marks = read_file_marks(self._source)
        replace(marks, departure=None).require_here("files", self._from, "OSMOSIS_BLOBS_URL")
        self._mark = departure_of(marks, self.shown)
        if not self._mark.finished:
            write_file_mark(self._source, "departure", self._mark)
        self.stage = stage_of(
            self.what,
            replace(marks, departure=self._mark),
            read_file_marks(self._target),
            self.shown,
            lambda: next(stored_keys(self._target), None),
        )

    @property
    def backup(self) -> Path | None:
        """The file that keeps what the move replaces, as soon as that is to be written."""
        return None if self._mark.backup is None else Path(self._mark.backup)

    def note_backup(self, file: Path) -> None:
        """Write down, before it is written, where what is replaced is kept: whoever goes on says so."""
        self._mark = replace(self._mark, backup=str(file))
        write_file_mark(self._source, "departure", self._mark)

    def begin(self) -> None:
        """Mark the target as one that is being filled."""
        if self.stage in (Stage.DEPARTED, Stage.DONE):
            return
        write_file_mark(self._target, "arrival", Mark(self._mark.id, self._from))
        write_file_mark(self._target, "departure", None)

    def copy(self, showing: Showing) -> None:
        """Bring what the target has not yet."""
        moved = self._moved()
        missing = [key for key in stored_keys(self._source) if key not in moved]
        total = len(moved) + len(missing)
        with (
            showing("Moving files", total=total, unit="files") as bar,
            self._notes.open("a") as notes,
            ThreadPoolExecutor(_THREADS, thread_name_prefix="osmosis-move") as pool,
        ):
            for done, (key, info) in enumerate(pool.map(self._copied, missing), len(moved) + 1):
                if info is not None:
                    notes.write(f"{json.dumps([key, info.size, info.sha256])}\n")
                    notes.flush()
                bar.update(done)

    def depart(self, showing: Showing) -> FilesDigest:
        """See to it that the target has everything and nothing else, and let the source's platform start no more.

        Raises:
            ConflictError: the source does not stand still.
        """
        for _ in range(_ROUNDS):
            moved, here = self._moved(), set(stored_keys(self._source))
            if here <= moved.keys():
                for key in set(stored_keys(self._target)) - here:
                    self._target.delete(key)
                write_file_mark(self._source, "departure", replace(self._mark, finished=True))
                return _digest({key: moved[key] for key in here})
            self.copy(showing)
        raise ConflictError(
            f"files in {self._from} change while they are moved.",
            hint="end what works on them, then run the same command again",
        )

    def arrive(self) -> None:
        """Let a platform use the target."""
        write_file_mark(self._target, "arrival", Mark(self._mark.id, self._from, finished=True))
        self._notes.unlink(missing_ok=True)

    @property
    def _notes(self) -> Path:
        return self._home / f"moved-files-{self._mark.id}.jsonl"

    def _moved(self) -> dict[str, BlobInfo]:
        """Return what has been moved, by key; a line that was cut off is taken back."""
        if not self._notes.exists():
            return {}
        written = self._notes.read_bytes()
        whole = written[: written.rfind(b"\n") + 1]
        if whole != written:
            os.truncate(self._notes, len(whole))
        lines = map(json.loads, whole.splitlines())
        return {key: BlobInfo(size, sha256) for key, size, sha256 in lines}

    def _copied(self, key: str) -> tuple[str, BlobInfo | None]:
        """Copy a file and read it back; None when it has gone meanwhile."""
        try:
            with self._source.open(key) as stream:
                here = _info(stream)
                if self._there(key) != here:
                    stream.seek(0)
                    self._target.put(key, stream)
        except BlobNotFound:
            return key, None
        if self._there(key) != here:
            raise BlobStoreError(
                f"{self.shown} does not give back what was put there: {key}.",
                hint="nothing else may write there; run the same command again",
            )
        return key, here

    def _there(self, key: str) -> BlobInfo | None:
        try:
            with self._target.open(key) as stream:
                return _info(stream)
        except BlobNotFound:
            return None


def _info(stream: BinaryIO) -> BlobInfo:
    size, hashed = 0, hashlib.sha256()
    while block := stream.read(_BLOCK_BYTES):
        size += len(block)
        hashed.update(block)
    return BlobInfo(size, hashed.hexdigest())


def _digest(moved: dict[str, BlobInfo]) -> FilesDigest:
    hashed = hashlib.sha256()
    for key, info in sorted(moved.items()):
        hashed.update(f"{json.dumps([key, info.size, info.sha256])}\n".encode())
    return FilesDigest(len(moved), sum(info.size for info in moved.values()), hashed.hexdigest())
