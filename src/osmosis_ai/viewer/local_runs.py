"""Runs below a directory, and their names.

Invariant: a name is one segment of an address and always refers to the same directory of its kind. It is the
directory's name, with a few letters of its path's digest after it if another run has the name, or if it is not valid
text. Symbolic links are not followed.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from threading import Lock
from typing import Literal, NamedTuple

from osmosis_ai.evaluation.spec import is_archive, name_before_archiving

RunKind = Literal["eval", "training", "rubric"]
_MAX_DEPTH = 6
_MAX_DIRECTORIES = 20_000
_MAX_RESULTS = 2_000
_WALK_INTERVAL_S = 1.0
# Directory walks take at most 1/n of the time.
_WALK_SHARE = 20
_SKIPPED = frozenset({".git", ".venv", "venv", "node_modules", "__pycache__", "site-packages", ".tox"})
_RUN_FILES = ("manifest.json", "events.jsonl", "metrics.json", "metrics.jsonl", "logs.txt")
_STATE_DIRECTORY = ".osmosis"
# Every result of a judging session begins with a brace and this key.
_RESULT_KEY = b'"generated_at"'


class RunPlace(NamedTuple):
    kind: RunKind
    name: str
    path: Path
    archived: bool = False


class RunPlaces:
    def __init__(self, root: Path, *, results: Path | None = None) -> None:
        self._root = root
        self._results = results
        self._lock = Lock()
        self._next_walk = float("-inf")
        # The directories that contain runs, with their modification times.
        self._folders: dict[Path, int] = {}
        self._places: list[RunPlace] = []
        self._by_name: dict[tuple[RunKind, str], RunPlace] = {}

    def all(self) -> list[RunPlace]:
        """Return the runs by path; the same list until they change."""
        with self._lock:
            started = time.monotonic()
            if started >= self._next_walk or any(_changed(path) != at for path, at in self._folders.items()):
                by_name = self._find()
                if list(by_name.values()) != self._places:
                    self._by_name, self._places = by_name, list(by_name.values())
                ended = time.monotonic()
                self._next_walk = ended + max(_WALK_INTERVAL_S, _WALK_SHARE * (ended - started))
            return self._places

    def named(self, kind: RunKind, name: str) -> RunPlace | None:
        self.all()
        return self._by_name.get((kind, name))

    def _find(self) -> dict[tuple[RunKind, str], RunPlace]:
        self._folders = {}
        own = "rubric" if is_result(self._root) else kind_of(self._root)
        roots = [root for root in (self._root, self._results) if root is not None]
        found = [run for root in roots for run in self._walk(root)] if own is None else [(own, self._root)]
        places: dict[tuple[RunKind, str], RunPlace] = {}
        for kind, path in sorted(found, key=lambda run: (run[0] != "rubric", run[1].parent, run[1].name)):
            name = path.name.removesuffix(".json") if kind == "rubric" else path.name
            text = os.fsencode(name).decode("utf-8", "replace")
            if (kind, name) in places or text != name:
                name = f"{text}~{hashlib.sha256(os.fsencode(path)).hexdigest()[:6]}"
            # A run that was selected by its directory is not hidden as archived.
            is_hidden = is_archive(path.name) and path != self._root
            places[kind, name] = RunPlace(kind, name, path, archived=is_hidden)
        return places

    def _walk(self, root: Path) -> Iterator[tuple[RunKind, Path]]:
        pending, walked, documents = [(root, 0)], 0, 0
        while pending and walked <= _MAX_DIRECTORIES:
            folder, depth = pending.pop()
            walked += 1
            changed = _changed(folder)
            for entry in _entries(folder):
                path, is_hidden = Path(entry.path), entry.name.startswith(".")
                if entry.name.endswith(".json") and entry.is_file(follow_symlinks=False):
                    documents += 1
                    if documents <= _MAX_RESULTS and is_result(path):
                        yield "rubric", path
                elif entry.is_dir(follow_symlinks=False) and entry.name not in _SKIPPED:
                    kind = kind_of(path)
                    if kind is not None:
                        self._folders[folder] = changed
                        if not is_hidden:
                            yield kind, path
                    elif depth < _MAX_DEPTH and (not is_hidden or entry.name == _STATE_DIRECTORY):
                        pending.append((path, depth + 1))


def kind_of(directory: Path) -> RunKind | None:
    # Strings are faster than paths for ten thousand directories.
    if not os.path.isfile(f"{directory}/manifest.json") or irregular_file(directory) is not None:  # noqa: PTH113
        return None
    is_training = os.path.isfile(f"{directory}/metrics.jsonl") or os.path.isdir(f"{directory}/checkpoints")  # noqa: PTH112, PTH113
    return "training" if is_training else "eval"


def is_result(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            head = file.read(64)
    except OSError:
        return False
    return head[:1] == b"{" and head[1:].lstrip().startswith(_RESULT_KEY)


def irregular_file(directory: Path) -> str | None:
    """Return which of a run's files is not a regular file but a link, folder, pipe or device; None if all are."""
    entries = (entry for entry in _entries(directory) if entry.name in _RUN_FILES)
    return next((entry.name for entry in entries if not entry.is_file(follow_symlinks=False)), None)


def namesakes(place: RunPlace, places: Sequence[RunPlace]) -> list[str]:
    """Return the names of the archived versions of a run, newest first."""
    name = name_before_archiving(place.path.name)
    # Compare names first: computing the parents of ten thousand paths takes longer.
    alike = [each for each in places if name_before_archiving(each.path.name) == name and each != place]
    beside = (place.kind, place.path.parent)
    found = [each for each in alike if (each.kind, each.path.parent) == beside]
    found.sort(key=lambda each: (not is_archive(each.path.name), each.path.name), reverse=True)
    return [each.name for each in found]


def _changed(folder: Path) -> int:
    try:
        return folder.stat().st_mtime_ns
    except OSError:
        return -1


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return sorted(entries, key=lambda entry: entry.name)
    except OSError:
        return []
