"""The files of samples, from a worker's disk to blobs: each is stored once, whole, and without secrets.

A file's key follows from its path alone, so that storing it again after a crash replaces it by itself. What the
download layout has no place for (a name that is no text, a path too long) is left out.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Collection, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import IO, Any, BinaryIO, cast

import orjson

from osmosis_ai.evaluation.record import TerminalRecord
from osmosis_ai.evaluation.run_directory import RunDirectory
from osmosis_ai.evaluation.trajectory_export import item_name
from osmosis_ai.platform.blobs.store import BlobStore
from osmosis_ai.redaction import Redactor

MAX_PATH_CHARS = 1024
_LOOKS_PER_ROUND = 128
_FILES_PER_TRANSACTION = 500
_THREADS = 4
_IN_MEMORY_BYTES = 8 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class _SampleFile:
    """A file to be stored: where it lies, what it is called in downloads, and whose it is."""

    file: Path
    path: str
    kind: str
    source_row_index: int | None


class SampleFiles:
    """Stores trajectories and artifacts of one run.

    Args:
        run_id: which run.
        directory: the engine's run directory.
        blobs: where they go.
        redactor: blanks the run's secrets.
        stored: the paths that earlier workers have stored.
    """

    def __init__(
        self,
        run_id: str,
        directory: RunDirectory,
        blobs: BlobStore,
        redactor: Redactor,
        stored: Collection[str],
    ) -> None:
        self._run_id = run_id
        self._directory = directory
        self._blobs = blobs
        self._redactor = redactor
        self._stored = set(stored)
        # Items whose files are not stored yet, with their row in the dataset; looked at in turn.
        self._expected: dict[tuple[int, int], int | None] = {}

    def expect(self, records: Iterable[TerminalRecord]) -> None:
        """Watch out for the files of these attempts."""
        for record in records:
            self._expected[record.row_index, record.run_index] = record.source_row_index

    def store_ready(self) -> list[dict[str, Any]]:
        """Store the files of some attempts that have all of theirs; return their rows of ``run_files``."""
        ready: list[_SampleFile] = []
        for item in list(islice(self._expected, _LOOKS_PER_ROUND)):
            source_row = self._expected.pop(item)
            name = item_name(*item)
            # The engine copies the trajectory last.
            if (self._directory.trajectories / f"{name}.json").exists():
                ready += self._files_of(name, source_row)
            else:
                self._expected[item] = source_row
        return self._store(ready)

    def store_rest(self) -> Iterator[list[dict[str, Any]]]:
        """Store what the other attempts have; yield rows in portions. Call it when the engine has ended."""
        while self._expected:
            some = list(islice(self._expected, _FILES_PER_TRANSACTION))
            found = [
                file for item in some for file in self._files_of(item_name(*item), self._expected.pop(item))
            ]
            for start in range(0, len(found), _FILES_PER_TRANSACTION):
                yield self._store(found[start : start + _FILES_PER_TRANSACTION])

    def _files_of(self, name: str, source_row: int | None) -> Iterator[_SampleFile]:
        trajectory = self._directory.trajectories / f"{name}.json"
        if trajectory.exists():
            yield _SampleFile(trajectory, f"trajectories/{name}.json", "trajectories", source_row)
        root = self._directory.artifacts / name
        for folder, _, files in os.walk(root):
            for file in files:
                found = Path(folder) / file
                path = f"artifacts/{name}/{found.relative_to(root).as_posix()}"
                if _is_downloadable(path):
                    yield _SampleFile(found, path, "artifacts", source_row)

    def _store(self, files: list[_SampleFile]) -> list[dict[str, Any]]:
        new = [file for file in files if file.path not in self._stored]
        if not new:
            return []
        with ThreadPoolExecutor(_THREADS, thread_name_prefix="sample-files") as threads:
            rows = list(threads.map(self._store_one, new))
        self._stored.update(file.path for file in new)
        return rows

    def _store_one(self, found: _SampleFile) -> dict[str, Any]:
        key = f"runs/{self._run_id}/files/{hashlib.sha256(found.path.encode()).hexdigest()}"
        with found.file.open("rb") as raw, _clean(raw, found.kind, self._redactor) as clean:
            info = self._blobs.put(key, clean)
        return {
            "run_id": self._run_id,
            "path": found.path,
            "kind": found.kind,
            "source_row_index": found.source_row_index,
            "size": info.size,
            "blob_key": key,
        }


def _is_downloadable(path: str) -> bool:
    try:
        path.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return len(path) <= MAX_PATH_CHARS and "\\" not in path and all(c.isprintable() for c in path)


def _clean(raw: BinaryIO, kind: str, redactor: Redactor) -> BinaryIO:
    """Return ``raw`` without secrets; a document of JSON stays one."""
    clean: IO[bytes] = tempfile.SpooledTemporaryFile(  # noqa: SIM115 - the caller closes it
        max_size=_IN_MEMORY_BYTES
    )
    if kind == "trajectories":
        clean.write(clean_json(raw.read(), redactor))
    elif not _copy_clean_json(raw, clean, redactor):
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


def clean_json(content: bytes, redactor: Redactor) -> bytes:
    """Return a document of JSON without secrets; byte for byte as it was where it has none.

    Raises:
        ValueError: it is no JSON.
    """
    document = orjson.loads(content)
    clean = redactor.tree(document)
    return content if clean == document else orjson.dumps(clean)
