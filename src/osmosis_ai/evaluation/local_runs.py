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
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Literal

from osmosis_ai.evaluation.spec import is_archive, name_before_archiving

RunKind = Literal["eval", "training", "rubric"]
_MAX_DEPTH = 6
_MAX_DIRECTORIES = 20_000
_MAX_RESULTS = 2_000
_WALK_INTERVAL_S = 1.0
# Walks take at most one part in so many of the time.
_WALK_SHARE = 20
_SKIPPED = frozenset({".git", ".venv", "venv", "node_modules", "__pycache__", "site-packages", ".tox"})
_RUN_FILES = ("manifest.json", "events.jsonl", "metrics.json", "metrics.jsonl", "logs.txt")
_STATE_DIRECTORY = ".osmosis"
# Every result of a judging session begins with a brace and this key.
_RESULT_KEY = b'"generated_at"'

_Run = tuple[RunKind, Path]


@dataclass(frozen=True, slots=True)
class RunPlace:
    """A run and its path: a directory, or the file of a judging session."""

    kind: RunKind
    name: str
    path: Path
    archived: bool = False


class RunPlaces:
    """The runs below a directory; repeated searches are cheap."""

    def __init__(self, root: Path, *, results: Path | None = None) -> None:
        self._root = root
        self._results = results
        self._lock = Lock()
        self._folders: dict[
            Path, int
        ] = {}  # the directories that contain runs, with their modification times
        self._next_walk = float("-inf")
        self._found: list[_Run] = []
        self._places: list[RunPlace] = []
        self._by_name: dict[tuple[RunKind, str], RunPlace] = {}

    def all(self) -> list[RunPlace]:
        """Return the runs, by path; the same list until they change."""
        with self._lock:
            is_due = time.monotonic() >= self._next_walk
            if is_due or any(_changed(folder) != changed for folder, changed in self._folders.items()):
                self._walk()
            return self._places

    def named(self, kind: RunKind, name: str) -> RunPlace | None:
        """Return the run of a kind and name; None if it does not exist."""
        self.all()
        return self._by_name.get((kind, name))

    def _walk(self) -> None:
        started = time.monotonic()
        self._folders = {}
        if (kind := kind_of(self._root)) is not None:
            found: list[_Run] = [(kind, self._root)]
        elif is_result(self._root):
            found = [("rubric", self._root)]
        else:
            roots = [root for root in (self._root, self._results) if root is not None]
            found = [run for root in roots for run in self._below(root)]
            found.sort(key=lambda run: (run[0] != "rubric", run[1].parent, run[1].name))
        if found != self._found:
            self._found, self._places = found, _with_names(found, self._root)
            self._by_name = {(place.kind, place.name): place for place in self._places}
        ended = time.monotonic()
        self._next_walk = ended + max(_WALK_INTERVAL_S, _WALK_SHARE * (ended - started))

    def _below(self, root: Path) -> Iterator[_Run]:
        pending, walked, documents = [(root, 0)], 0, 0
        while pending and walked <= _MAX_DIRECTORIES:
            folder, depth = pending.pop()
            walked += 1
            changed = _changed(folder)
            for entry in _entries(folder):
                if entry.name.endswith(".json") and entry.is_file(follow_symlinks=False):
                    documents += 1
                    if documents <= _MAX_RESULTS and is_result(Path(entry.path)):
                        yield "rubric", Path(entry.path)
                    continue
                if not entry.is_dir(follow_symlinks=False) or entry.name in _SKIPPED:
                    continue
                path, is_hidden = Path(entry.path), entry.name.startswith(".")
                kind = kind_of(path)
                if kind is not None:
                    self._folders[folder] = changed
                    if not is_hidden:
                        yield kind, path
                elif depth < _MAX_DEPTH and (not is_hidden or entry.name == _STATE_DIRECTORY):
                    pending.append((path, depth + 1))


def kind_of(directory: Path) -> RunKind | None:
    """Return the kind of a run's directory; None for other directories."""
    if not os.path.isfile(f"{directory}/manifest.json"):  # noqa: PTH113 - there may be ten thousand
        return None
    if irregular_file(directory) is not None:
        return None
    is_training = os.path.isfile(f"{directory}/metrics.jsonl") or os.path.isdir(f"{directory}/checkpoints")  # noqa: PTH112, PTH113
    return "training" if is_training else "eval"


def is_result(path: Path) -> bool:
    """Return whether a file begins like the result of a judging session."""
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
    """Return the names of the runs that ``--fresh`` archived for one, and of the one it was archived for, newest first."""
    name, folder = name_before_archiving(place.path.name), place.path.parent
    found = [
        each
        for each in places
        # Comparing the beginning of the name first is fast.
        if each.path.name.startswith(name) and each.path.parent == folder and each.kind == place.kind
        if name_before_archiving(each.path.name) == name and each != place
    ]
    found.sort(key=lambda each: (not is_archive(each.path.name), each.path.name), reverse=True)
    return [each.name for each in found]


def _changed(folder: Path) -> int:
    """Return the modification time of a directory in nanoseconds; -1 if it does not exist."""
    try:
        return folder.stat().st_mtime_ns
    except OSError:
        return -1


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    """Return the entries of a directory, by name; none if it is being removed or cannot be read."""
    try:
        with os.scandir(folder) as entries:
            return sorted(entries, key=lambda entry: entry.name)
    except OSError:
        return []


def _with_names(found: list[_Run], root: Path) -> list[RunPlace]:
    places, taken = [], set[tuple[RunKind, str]]()
    for kind, path in found:
        name = path.name.removesuffix(".json") if kind == "rubric" else path.name
        text = os.fsencode(name).decode("utf-8", "replace")
        if (kind, name) in taken or text != name:
            name = f"{text}~{hashlib.sha256(os.fsencode(path)).hexdigest()[:6]}"
        taken.add((kind, name))
        # A run that was selected by its directory is not hidden as archived.
        places.append(RunPlace(kind, name, path, archived=is_archive(path.name) and path != root))
    return places
