"""Where runs are below a directory, and by which name each is known.

Invariant: a name is one segment of an address and stands for one directory of its kind, the same each time: that of
the directory, with a few letters of its path behind it where another has it already, or where it is no text. No
symbolic link is followed.
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

from osmosis_ai.evaluation.run_name import is_archive, name_before_archiving

RunKind = Literal["eval", "training", "rubric"]
_DEEPEST = 6
_MOST_DIRECTORIES = 20_000
_MOST_RESULTS = 2_000
_LOOK_AGAIN_S = 1.0
# Of the time between two walks, one spends at most a part in so many.
_SHARE = 20
_NO_PLACE = frozenset({".git", ".venv", "venv", "node_modules", "__pycache__", "site-packages", ".tox"})
_READ = ("manifest.json", "events.jsonl", "metrics.json", "metrics.jsonl", "logs.txt")
_OWN = ".osmosis"
_RESULT = b'"generated_at"'
"""How every result of a judging session begins, behind its brace."""

_Found = tuple[RunKind, Path]


@dataclass(frozen=True, slots=True)
class RunPlace:
    """A run and where it is: a directory, or the file of a judging session."""

    kind: RunKind
    name: str
    path: Path
    archived: bool = False


class RunPlaces:
    """The runs below a directory, looked for again and again."""

    def __init__(self, root: Path, *, results: Path | None = None) -> None:
        self._root = root
        self._results = results
        self._lock = Lock()
        self._folders: dict[Path, _Folder] = {}
        self._single: list[_Found] = []
        self._walk_again = float("-inf")
        self._found: list[tuple[_Found, ...]] = []
        self._named: list[RunPlace] = []
        self._by_name: dict[tuple[RunKind, str], RunPlace] = {}

    def all(self) -> list[RunPlace]:
        """Return the runs, by path; the same list while there are no others."""
        with self._lock:
            if time.monotonic() >= self._walk_again:
                self._walk()
            found = [tuple(self._single), *(self._folders[path].runs() for path in sorted(self._folders))]
            if found != self._found:
                self._found, self._named = found, _named([run for runs in found for run in runs], self._root)
                self._by_name = {(place.kind, place.name): place for place in self._named}
            return self._named

    def named(self, kind: RunKind, name: str) -> RunPlace | None:
        """Return the run of a kind and name; None where there is none."""
        self.all()
        return self._by_name.get((kind, name))

    def _walk(self) -> None:
        began = time.monotonic()
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
        self._walk_again = ended + max(_LOOK_AGAIN_S, _SHARE * (ended - began))

    def _walk_below(self, root: Path, known: dict[Path, _Folder]) -> None:
        left = _MOST_RESULTS
        for number, (directory, runs, documents) in enumerate(_walked(root)):
            if runs:
                self._folders[directory] = known.get(directory) or _Folder(directory)
            self._single += [("rubric", path) for path in documents[:left] if is_result(path)]
            left -= len(documents[:left])
            if number >= _MOST_DIRECTORIES:
                break


class _Folder:
    """A directory that holds runs. Its time changes with the names in it, so known runs are not looked at again."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._changed = -1
        self._known: tuple[_Found, ...] = ()
        self._others: list[Path] = []

    def runs(self) -> tuple[_Found, ...]:
        """Return the runs, by name."""
        try:
            changed = self._path.stat().st_mtime_ns
        except OSError:
            return ()
        if changed != self._changed:
            self._changed, self._known = changed, ()
            self._others = [
                Path(entry.path)
                for entry in _entries(self._path)
                if not entry.name.startswith(".") and entry.is_dir(follow_symlinks=False)
            ]
        kinds = [(kind_of(path), path) for path in self._others]
        begun = [(kind, path) for kind, path in kinds if kind is not None]
        if begun:
            self._known = tuple(sorted([*self._known, *begun], key=lambda found: found[1].name))
            self._others = [path for kind, path in kinds if kind is None]
        return self._known


def kind_of(directory: Path) -> RunKind | None:
    """Return what kind of run a directory is of; None where it is none's."""
    if not os.path.isfile(f"{directory}/manifest.json"):  # noqa: PTH113 - there may be ten thousand
        return None
    there = {entry.name: entry for entry in _entries(directory)}
    if _foreign(there) is not None:
        return None
    if (metrics := there.get("metrics.jsonl")) is not None and metrics.is_file():
        return "training"
    return "training" if (saved := there.get("checkpoints")) is not None and saved.is_dir() else "eval"


def is_result(path: Path) -> bool:
    """Tell whether a file begins as a judging session's result does."""
    try:
        with path.open("rb") as file:
            head = file.read(64)
    except OSError:
        return False
    return head[:1] == b"{" and head[1:].lstrip().startswith(_RESULT)


def foreign_file(directory: Path) -> str | None:
    """Return which of a run's files is none: a link, a folder, a pipe, a device; None where all are, or are not there."""
    return _foreign({entry.name: entry for entry in _entries(directory)})


def _foreign(there: Mapping[str, os.DirEntry[str]]) -> str | None:
    files = [there[name] for name in _READ if name in there]
    return next((file.name for file in files if not file.is_file(follow_symlinks=False)), None)


def namesakes(place: RunPlace, places: Sequence[RunPlace]) -> list[str]:
    """Return the runs that `--fresh` has put aside for one, and the one it was put aside for; the newest first."""
    name, folder = name_before_archiving(place.path.name), place.path.parent
    found = [
        each
        for each in places
        if each.path.name.startswith(name) and each.path.parent == folder and each.kind == place.kind
        if name_before_archiving(each.path.name) == name and each != place
    ]
    found.sort(key=lambda each: (not is_archive(each.path.name), each.path.name), reverse=True)
    return [each.name for each in found]


def _walked(root: Path) -> Iterator[tuple[Path, bool, list[Path]]]:
    """Yield the directories below ``root`` that may hold runs, whether they do, and the JSON files in them."""
    waiting = [(root, 0)]
    while waiting:
        directory, depth = waiting.pop()
        runs, below, documents = False, [], []
        for entry in _entries(directory):
            if entry.name.endswith(".json") and entry.is_file(follow_symlinks=False):
                documents.append(Path(entry.path))
            elif not entry.is_dir(follow_symlinks=False) or entry.name in _NO_PLACE:
                continue
            elif kind_of(Path(entry.path)) is not None:
                runs = True
            elif not entry.name.startswith(".") or entry.name == _OWN:
                below.append((Path(entry.path), depth + 1))
        yield directory, runs, documents
        if depth < _DEEPEST:
            waiting += below[:_MOST_DIRECTORIES]


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return sorted(entries, key=lambda entry: entry.name)
    except OSError:
        return []  # it is being removed, or nobody may read it


def _named(found: list[_Found], root: Path) -> list[RunPlace]:
    places, taken = [], set[tuple[RunKind, str]]()
    for kind, path in found:
        name = path.name.removesuffix(".json") if kind == "rubric" else path.name
        written = os.fsencode(name).decode("utf-8", "replace")
        if (kind, name) in taken or written != name:
            name = f"{written}~{hashlib.sha256(os.fsencode(path)).hexdigest()[:6]}"
        taken.add((kind, name))
        # A run that was asked for by its directory is what one wants to see, archived or not.
        places.append(RunPlace(kind, name, path, archived=is_archive(path.name) and path != root))
    return places
