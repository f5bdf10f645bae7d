"""The files of samples, from a worker's disk to blobs: each is stored once, whole, and without secrets.

Conversations go into shards, which are stored when they are large or old enough for somebody to look. An artifact's
key follows from its path alone, so that storing it again after a crash replaces it by itself. What is stored and
known to the database is deleted here, so that a run of any length takes little room. What the download layout has no
place for (a name that is no text, a path too long) is left out.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import shutil
import tempfile
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from io import BytesIO
from itertools import islice
from pathlib import Path
from typing import IO, Any, BinaryIO, NamedTuple, cast

from osmosis_ai.evaluation.record import TerminalRecord
from osmosis_ai.evaluation.run_directory import RunDirectory
from osmosis_ai.evaluation.trajectory_export import TRAJECTORY_WAIT_S, item_name
from osmosis_ai.platform.blobs.shards import LARGEST_FILE_BYTES, MOST_BYTES, ShardPiece, ShardWriter
from osmosis_ai.platform.blobs.store import BlobStore
from osmosis_ai.redaction import Redactor, clean_json
from osmosis_ai.rollout.artifacts import PENDING_TRAJECTORY_FILE
from osmosis_ai.viewer.local.conversation_files import read_diagnostics

MAX_PATH_CHARS = 1024
DIAGNOSTICS = "diagnostics"
"""The kind of a file that says why an attempt failed."""
_LOOKS_PER_ROUND = 128
_MOST_SAMPLES = 1_000
"""In a shard; a million samples are a thousand shards."""
_SHARE_OF_TIME = 0.01
"""Of the time a worker has worked, after which a shard is stored whatever its size: their number stays small."""
_PATIENCE_S = 2 * TRAJECTORY_WAIT_S
_THREADS = 4
_IN_MEMORY_BYTES = 8 * 1024 * 1024


class _Item(NamedTuple):
    """An attempt whose files are to be stored; ``since`` is when it was first expected, in seconds."""

    row_index: int
    run_index: int
    rollout_id: str
    source_row: int | None
    since: float

    @property
    def name(self) -> str:
        return item_name(self.row_index, self.run_index)


@dataclass(frozen=True, slots=True)
class _SampleFile:
    """A file to be stored: where it lies, what it is called in downloads, and whose it is."""

    file: Path
    path: str
    kind: str
    source_row_index: int | None


class _OpenShard:
    """A shard that is being filled: the rows of its files and of what was stored beside them, and whose they are."""

    def __init__(self, run_id: str, directory: Path) -> None:
        self.key = f"runs/{run_id}/shards/{secrets.token_hex(16)}"
        self.writer = ShardWriter(directory)
        self.rows: list[dict[str, Any]] = []
        self.items: list[_Item] = []
        self.is_stored = False


class SampleFiles:
    """Stores trajectories and artifacts of one run.

    Args:
        run_id: which run.
        directory: the engine's run directory.
        blobs: where they go.
        redactor: blanks the run's secrets.
        known: tells which of some paths earlier workers have stored.
        clock: in seconds, never back.
    """

    def __init__(
        self,
        run_id: str,
        directory: RunDirectory,
        blobs: BlobStore,
        redactor: Redactor,
        known: Callable[[Collection[str]], Collection[str]] = lambda _: (),
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._run_id = run_id
        self._directory = directory
        self._blobs = blobs
        self._redactor = redactor
        self._known = known
        self._clock = clock
        self._began = clock()
        self._stored_at = self._began
        # Attempts whose files are not stored yet; looked at in turn.
        self._expected: dict[tuple[int, int], _Item] = {}
        self._shard: _OpenShard | None = None

    def expect(self, records: Iterable[TerminalRecord], *, resumed: bool = False) -> None:
        """Watch out for the files of these attempts; of ``resumed`` ones, an earlier worker may have stored some."""
        now = self._clock()
        items = [
            _Item(each.row_index, each.run_index, each.rollout_id, each.source_row_index, now)
            for each in records
        ]
        known = set(self._known([_trajectory_path(each.name) for each in items])) if resumed else ()
        for item in items:
            # The trajectory is known last.
            if _trajectory_path(item.name) not in known:
                self._expected[item.row_index, item.run_index] = item

    def ready(self) -> list[dict[str, Any]]:
        """Return rows of ``run_files`` for files that are stored now; the same until :meth:`written` is called."""
        if self._shard is None or not self._shard.is_stored:
            self._collect(list(islice(self._expected, _LOOKS_PER_ROUND)), at_end=False)
        return self._rows(at_end=False)

    def rest(self) -> list[dict[str, Any]]:
        """As :meth:`ready` when the engine has ended, with what the other attempts have; empty when all is stored."""
        rows = self._rows(at_end=True) if self._is_full() else []
        while self._expected and not rows:
            self._collect(list(islice(self._expected, _LOOKS_PER_ROUND)), at_end=True)
            rows = self._rows(at_end=True) if self._is_full() else []
        return rows or self._rows(at_end=True)

    def written(self) -> None:
        """Take note that the rows are in the database: the files on this disk have done their duty."""
        shard = self._shard
        if shard is None or not shard.is_stored:
            return
        self._shard = None
        shard.writer.close()
        for item in shard.items:
            (self._directory.trajectories / f"{item.name}.json").unlink(missing_ok=True)
            shutil.rmtree(self._directory.artifacts / item.name, ignore_errors=True)
            shutil.rmtree(self._directory.trial(item.rollout_id), ignore_errors=True)

    def _rows(self, *, at_end: bool) -> list[dict[str, Any]]:
        shard = self._shard
        if shard is None or not shard.items:
            return []
        if not shard.is_stored:
            if not (at_end or self._is_full() or self._is_old()):
                return []
            if shard.writer.size:
                shard.writer.store(self._blobs, shard.key)
            shard.is_stored, self._stored_at = True, self._clock()
        if not shard.rows:
            self.written()  # none of its attempts left a file
        return shard.rows

    def _is_full(self) -> bool:
        shard = self._shard
        return shard is not None and (
            shard.is_stored or len(shard.items) >= _MOST_SAMPLES or shard.writer.size >= MOST_BYTES
        )

    def _is_old(self) -> bool:
        now = self._clock()
        return now - self._stored_at >= _SHARE_OF_TIME * (now - self._began)

    def _collect(self, places: Iterable[tuple[int, int]], *, at_end: bool) -> None:
        """Store the files of the attempts that have all of theirs, or at the end what they have."""
        for place in places:
            item = self._expected.pop(place)
            if not (at_end or self._is_complete(item)):
                self._expected[place] = item
                continue
            try:
                self._store(item)
            except BaseException:
                self._expected[place] = item
                raise

    def _is_complete(self, item: _Item) -> bool:
        # The engine copies the trajectory last, and gives up on one that does not come.
        if (self._directory.trajectories / f"{item.name}.json").exists():
            return True
        pending = self._directory.trial(item.rollout_id) / PENDING_TRAJECTORY_FILE
        return self._clock() - item.since > _PATIENCE_S and not pending.exists()

    def _store(self, item: _Item) -> None:
        """Store an attempt's files: artifacts as blobs of their own, its trajectory in the open shard."""
        shard = self._shard = self._shard or _OpenShard(self._run_id, self._directory.path)
        files = list(self._artifacts_of(item))
        rows: list[dict[str, Any]] = []
        if files:
            with ThreadPoolExecutor(_THREADS, thread_name_prefix="sample-files") as threads:
                rows += threads.map(self._store_artifact, files)
        trajectory = self._directory.trajectories / f"{item.name}.json"
        if trajectory.exists():
            rows += self._store_trajectory(trajectory, item, shard)
        if diagnostics := read_diagnostics(self._directory, item.rollout_id):
            rows += self._store_diagnostics(diagnostics, item, shard)
        shard.rows += rows
        shard.items.append(item)

    def _store_diagnostics(self, content: bytes, item: _Item, shard: _OpenShard) -> Iterator[dict[str, Any]]:
        path = diagnostics_path(item.row_index, item.run_index)
        found = _SampleFile(Path(), path, DIAGNOSTICS, item.source_row)
        with suppress(ValueError):  # cut off, or no JSON
            piece = shard.writer.add(clean_json(content, self._redactor))
            yield self._row(found, shard.key, piece.size, piece)

    def _store_trajectory(self, file: Path, item: _Item, shard: _OpenShard) -> Sequence[dict[str, Any]]:
        try:
            content = clean_json(file.read_bytes(), self._redactor)
        except ValueError:
            return []  # no JSON, or nested so deeply that nobody can tell what is in it
        found = _SampleFile(file, _trajectory_path(item.name), "trajectories", item.source_row)
        if len(content) <= LARGEST_FILE_BYTES:
            piece = shard.writer.add(content)
            return [self._row(found, shard.key, piece.size, piece)]
        key = self._key(found)
        return [self._row(found, key, self._blobs.put(key, BytesIO(content)).size)]

    def _store_artifact(self, found: _SampleFile) -> dict[str, Any]:
        key = self._key(found)
        with found.file.open("rb") as raw, _clean(raw, self._redactor) as clean:
            info = self._blobs.put(key, clean)
        return self._row(found, key, info.size)

    def _key(self, found: _SampleFile) -> str:
        return f"runs/{self._run_id}/files/{hashlib.sha256(found.path.encode()).hexdigest()}"

    def _row(
        self, found: _SampleFile, key: str, size: int, piece: ShardPiece | None = None
    ) -> dict[str, Any]:
        return {
            "run_id": self._run_id,
            "path": found.path,
            "kind": found.kind,
            "source_row_index": found.source_row_index,
            "size": size,
            "blob_key": key,
            "shard_offset": None if piece is None else piece.offset,
            "shard_length": None if piece is None else piece.length,
        }

    def _artifacts_of(self, item: _Item) -> Iterator[_SampleFile]:
        root = self._directory.artifacts / item.name
        for folder, _, files in os.walk(root):
            for file in files:
                found = Path(folder) / file
                path = f"artifacts/{item.name}/{found.relative_to(root).as_posix()}"
                if _is_downloadable(path):
                    yield _SampleFile(found, path, "artifacts", item.source_row)


def diagnostics_path(row: int, attempt: int) -> str:
    """Return what is kept under of an attempt beside its trajectory: for pages, in no download."""
    return f"{DIAGNOSTICS}/{item_name(row, attempt)}.json"


def _trajectory_path(name: str) -> str:
    return f"trajectories/{name}.json"


def _is_downloadable(path: str) -> bool:
    try:
        path.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return len(path) <= MAX_PATH_CHARS and "\\" not in path and all(c.isprintable() for c in path)


def _clean(raw: BinaryIO, redactor: Redactor) -> BinaryIO:
    """Return an artifact without secrets; a document of JSON stays one."""
    clean: IO[bytes] = tempfile.SpooledTemporaryFile(  # noqa: SIM115 - the caller closes it
        max_size=_IN_MEMORY_BYTES
    )
    if not _copy_clean_json(raw, clean, redactor):
        for line in raw:
            clean.write(_clean_line(line, redactor))
    clean.seek(0)
    return cast(BinaryIO, clean)


def _copy_clean_json(raw: BinaryIO, clean: IO[bytes], redactor: Redactor) -> bool:
    """Copy an artifact that is one JSON value; return False, having copied nothing, when it is none."""
    if os.fstat(raw.fileno()).st_size > _IN_MEMORY_BYTES:
        return False
    document = _clean_document(raw.read(), redactor)
    if document is None:
        raw.seek(0)
        return False
    clean.write(document)
    return True


def _clean_line(line: bytes, redactor: Redactor) -> bytes:
    """Return a line of an artifact: of JSON, which it stays (``.jsonl``), or of text."""
    if line[:1] in b"{[" and (document := _clean_document(line, redactor)) is not None:
        return document if document.endswith(b"\n") or not line.endswith(b"\n") else document + b"\n"
    return redactor.text(line.decode("utf-8", "surrogateescape")).encode("utf-8", "surrogateescape")


def _clean_document(content: bytes, redactor: Redactor) -> bytes | None:
    """Return a JSON value without secrets, byte for byte as it was where it has none; None when it is no JSON."""
    try:
        document = json.loads(content)
        clean = redactor.tree(document)
    except (ValueError, RecursionError):
        return None
    # Compared as written: NaN equals nothing, and 1 equals true.
    return content if repr(clean) == repr(document) else json.dumps(clean).encode()
