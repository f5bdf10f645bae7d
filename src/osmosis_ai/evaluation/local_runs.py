"""Runs below a directory, and their names.

Invariant: a name is one segment of an address and always stands for the same directory of its kind. It is the
directory's name, with a few letters of its path's digest after it if another run has the name, or if it is not valid
text. Symbolic links are not followed.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterator, Mapping, Sequence
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
        self._folders: dict[Path, _Folder] = {}
        self._single: list[_Run] = []
        self._next_walk = float("-inf")
        self._found: list[_Run] = []
        self._places: list[RunPlace] = []
        self._by_name: dict[tuple[RunKind, str], RunPlace] = {}

    def all(self) -> list[RunPlace]:
        """Return the runs, by path; the same list until they change."""
        with self._lock:
            if time.monotonic() >= self._next_walk:
                self._walk()
            found = list(self._single)
            for path in sorted(self._folders):
                found += self._folders[path].runs()
            if found != self._found:
                self._found, self._places = found, _with_names(found, self._root)
                self._by_name = {(place.kind, place.name): place for place in self._places}
            return self._places

    def named(self, kind: RunKind, name: str) -> RunPlace | None:
        """Return the run of a kind and name; None if it does not exist."""
        self.all()
        return self._by_name.get((kind, name))

    def _walk(self) -> None:
        started = time.monotonic()
        known, self._folders, self._single = self._folders, {}, []
        kind = kind_of(self._root)
        if kind is not None:
            self._single.append((kind, self._root))
        elif is_result(self._root):
            self._single.append(("rubric", self._root))
        else:
            for root in (self._root, self._results):
                if root is not None:
                    self._walk_below(root, known)
        ended = time.monotonic()
        self._next_walk = ended + max(_WALK_INTERVAL_S, _WALK_SHARE * (ended - started))

    def _walk_below(self, root: Path, known: dict[Path, _Folder]) -> None:
        left = _MAX_RESULTS
        for number, (directory, has_runs, documents) in enumerate(_directories(root)):
            if has_runs:
                self._folders[directory] = known.get(directory) or _Folder(directory)
            self._single += [("rubric", path) for path in documents[:left] if is_result(path)]
            left -= len(documents[:left])
            if number >= _MAX_DIRECTORIES:
                break


class _Folder:
    """A directory of runs. It is listed again only after its modification time changed."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._changed = -1
        self._runs: tuple[_Run, ...] = ()
        self._others: list[Path] = []

    def runs(self) -> tuple[_Run, ...]:
        """Return the runs, by name."""
        try:
            changed = self._path.stat().st_mtime_ns
        except OSError:
            return ()
        if changed != self._changed:
            self._changed, self._runs = changed, ()
            self._others = [
                Path(entry.path)
                for entry in _entries(self._path)
                if not entry.name.startswith(".") and entry.is_dir(follow_symlinks=False)
            ]
        # A directory may become a run at any time, without a change of its parent's modification time.
        kinds = [(kind_of(path), path) for path in self._others]
        new = [(kind, path) for kind, path in kinds if kind is not None]
        if new:
            self._runs = tuple(sorted([*self._runs, *new], key=lambda run: run[1].name))
            self._others = [path for kind, path in kinds if kind is None]
        return self._runs


def kind_of(directory: Path) -> RunKind | None:
    """Return the kind of a run's directory; None for other directories."""
    if not os.path.isfile(f"{directory}/manifest.json"):  # noqa: PTH113 - there may be ten thousand
        return None
    entries = {entry.name: entry for entry in _entries(directory)}
    if _first_irregular(entries) is not None:
        return None
    if (metrics := entries.get("metrics.jsonl")) is not None and metrics.is_file():
        return "training"
    return "training" if (saved := entries.get("checkpoints")) is not None and saved.is_dir() else "eval"


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
    return _first_irregular({entry.name: entry for entry in _entries(directory)})


def _first_irregular(entries: Mapping[str, os.DirEntry[str]]) -> str | None:
    files = [entries[name] for name in _RUN_FILES if name in entries]
    return next((file.name for file in files if not file.is_file(follow_symlinks=False)), None)


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


def _directories(root: Path) -> Iterator[tuple[Path, bool, list[Path]]]:
    """Yield the directories below ``root``, whether they contain runs, and their JSON files."""
    pending = [(root, 0)]
    while pending:
        directory, depth = pending.pop()
        has_runs, below, documents = False, [], []
        for entry in _entries(directory):
            if entry.name.endswith(".json") and entry.is_file(follow_symlinks=False):
                documents.append(Path(entry.path))
            elif not entry.is_dir(follow_symlinks=False) or entry.name in _SKIPPED:
                continue
            elif kind_of(Path(entry.path)) is not None:
                has_runs = True
            elif not entry.name.startswith(".") or entry.name == _STATE_DIRECTORY:
                below.append((Path(entry.path), depth + 1))
        yield directory, has_runs, documents
        if depth < _MAX_DEPTH:
            pending += below[:_MAX_DIRECTORIES]


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
