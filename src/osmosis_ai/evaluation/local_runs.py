"""Runs below a directory, and their names.

Invariant: a name is one segment of an address and always refers to the same directory of its kind. It is the
directory's name, with a few letters of its path's digest after it if another run has the name, or if it is not valid
text. Symbolic links are not followed.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Literal, NamedTuple

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


class _Listing(NamedTuple):
    """The runs in a directory, and its directories that are not runs, at a modification time."""

    changed: int = -1
    runs: tuple[_Run, ...] = ()
    others: tuple[Path, ...] = ()


class RunPlaces:
    """The runs below a directory; repeated searches are cheap."""

    def __init__(self, root: Path, *, results: Path | None = None) -> None:
        self._root = root
        self._results = results
        self._lock = Lock()
        self._listings: dict[Path, _Listing] = {}  # of the directories that contain runs
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
            for folder in sorted(self._listings):
                self._listings[folder] = _list_again(folder, self._listings[folder])
                found += self._listings[folder].runs
            if found != self._found:
                self._found, self._places = found, _with_names(found, self._root)
                self._by_name = {(place.kind, place.name): place for place in self._places}
            return self._places

    def named(self, kind: RunKind, name: str) -> RunPlace | None:
        """Return the run of a kind and name; None if it does not exist."""
        self.all()
        return self._by_name.get((kind, name))

    def _walk(self) -> None:
        """Find the directories that contain runs, and the results of judging sessions."""
        started = time.monotonic()
        known, self._listings, self._single = self._listings, {}, []
        if (kind := kind_of(self._root)) is not None:
            self._single.append((kind, self._root))
        elif is_result(self._root):
            self._single.append(("rubric", self._root))
        else:
            for root in filter(None, (self._root, self._results)):
                self._walk_below(root, known)
        ended = time.monotonic()
        self._next_walk = ended + max(_WALK_INTERVAL_S, _WALK_SHARE * (ended - started))

    def _walk_below(self, root: Path, known: dict[Path, _Listing]) -> None:
        pending, walked, documents = [(root, 0)], 0, 0
        while pending and walked <= _MAX_DIRECTORIES:
            folder, depth = pending.pop()
            walked += 1
            for entry in _entries(folder):
                path = Path(entry.path)
                if entry.name.endswith(".json") and entry.is_file(follow_symlinks=False):
                    documents += 1
                    if documents <= _MAX_RESULTS and is_result(path):
                        self._single.append(("rubric", path))
                elif not entry.is_dir(follow_symlinks=False) or entry.name in _SKIPPED:
                    continue
                elif kind_of(path) is not None:
                    self._listings[folder] = known.get(folder, _Listing())
                elif depth < _MAX_DEPTH and (entry.name[0] != "." or entry.name == _STATE_DIRECTORY):
                    pending.append((path, depth + 1))


def _list_again(folder: Path, known: _Listing) -> _Listing:
    """Return the runs in a directory. It is read again only after its modification time changed."""
    try:
        changed = folder.stat().st_mtime_ns
    except OSError:
        return _Listing()
    if changed != known.changed:
        entries = [entry for entry in _entries(folder) if not entry.name.startswith(".")]
        others = tuple(Path(entry.path) for entry in entries if entry.is_dir(follow_symlinks=False))
        known = _Listing(changed, (), others)
    # A directory may become a run at any time, without a change of its parent's modification time.
    kinds = [(kind_of(path), path) for path in known.others]
    new = [(kind, path) for kind, path in kinds if kind is not None]
    if not new:
        return known
    runs = tuple(sorted([*known.runs, *new], key=lambda run: run[1].name))
    return _Listing(changed, runs, tuple(path for kind, path in kinds if kind is None))


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
