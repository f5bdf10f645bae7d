"""Copies of the artifacts that an attempt left, and what is said of those that are not copied.

Regular files with names that may travel are copied, found without following a link. Everything else stays where it is,
and the run's log says so: in a line a sample, of the first samples, and of all others by their number.
"""

from __future__ import annotations

import os
import shutil
import stat
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from osmosis_ai.errors import reason_of
from osmosis_ai.evaluation.run_files import ARTIFACTS, RESERVED_ARTIFACT, name_problem
from osmosis_ai.evaluation.run_log import RunLog
from osmosis_ai.files import open_regular

_PIECE_BYTES = 1 << 20
_MOST_SAMPLES = 20
_MOST_NAMES = 5
_LONGEST_NAME = 80
_KINDS = (
    (stat.S_ISLNK, "a symbolic link"),
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


@dataclass
class ArtifactsLeftOut:
    """What of one attempt is not copied: how many, and of the first few the name and why."""

    count: int = 0
    said: list[str] = field(default_factory=list)

    def add(self, path: str, why: str) -> None:
        """Take note of one."""
        self.count += 1
        if len(self.said) < _MOST_NAMES:
            self.said.append(f"{_shown(path)} ({why})")

    def __str__(self) -> str:
        more = self.count - len(self.said)
        return ", ".join(self.said) + (f" and {more} more" if more else "")


class LeftOutLines:
    """Says in a run's log what was left out; from any thread."""

    def __init__(self, log: RunLog) -> None:
        self._log = log
        self._lock = threading.Lock()
        self._samples = 0

    def say(self, row: int, attempt: int, left_out: ArtifactsLeftOut) -> None:
        """Say what was left out of a sample, if anything was, and few have had a line."""
        if not left_out.count:
            return
        with self._lock:
            self._samples += 1
            if self._samples > _MOST_SAMPLES:
                return
        self._log.write(
            ARTIFACTS, f"row {row}, attempt {attempt}: left out of its artifacts: {left_out}", level="WARNING"
        )

    def say_rest(self) -> None:
        """Say of how many more samples something was left out, at the run's end."""
        with self._lock:
            more, self._samples = self._samples - _MOST_SAMPLES, 0
        if more > 0:
            samples = "1 more sample" if more == 1 else f"{more:,} more samples"
            self._log.write(ARTIFACTS, f"artifacts of {samples} were left out, too", level="WARNING")


def copy_artifacts(
    source: Path | str,
    root: Path,
    name: str,
    *,
    dir_fd: int | None = None,
    left_out: ArtifactsLeftOut | None = None,
) -> bool:
    """Copy the regular files below ``source`` to ``root/name`` in one step; False when there are none."""
    temporary = root / f".{name}.tmp"
    remove(temporary)
    left_out = ArtifactsLeftOut() if left_out is None else left_out
    copied = False
    for directory, folders, files, descriptor in _walk(source, dir_fd, left_out):
        relative, refused = Path(directory).relative_to(source), set[str]()
        for entry, is_file in (*((each, False) for each in folders), *((each, True) for each in files)):
            path = (relative / entry).as_posix()
            if path == RESERVED_ARTIFACT and is_file:
                continue
            if why := _why_not(entry, descriptor, f"{ARTIFACTS}/{name}/{path}"):
                left_out.add(path, why)
                refused.add(entry)
            elif is_file:
                copied = _copy_regular_file(entry, descriptor, temporary / path, path, left_out) or copied
        # Nothing below them may travel, and how deep they go is not for whoever made them to say.
        folders[:] = [entry for entry in folders if entry not in refused]
    if copied:
        remove(root / name)
        temporary.replace(root / name)
    return copied


def remove(path: Path) -> None:
    """Remove a file or a directory, if it is there; no link is followed."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _walk(
    source: Path | str, dir_fd: int | None, left_out: ArtifactsLeftOut
) -> Iterator[tuple[str, list[str], list[str], int]]:
    try:
        found = os.lstat(source, dir_fd=dir_fd)
    except FileNotFoundError:
        return
    if not stat.S_ISDIR(found.st_mode):
        # A link in the place of a directory is no directory.
        left_out.add(Path(source).name, _kind(found.st_mode) or "no directory")
        return
    yield from os.fwalk(source, follow_symlinks=False, dir_fd=dir_fd)


def _why_not(name: str, directory: int, path: str) -> str | None:
    """Return why an entry of an open directory is not copied; None where it is, or is gone."""
    try:
        mode = os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode
    except OSError:
        return None
    return _kind(mode) or name_problem(path)


def _kind(mode: int) -> str | None:
    return next((words for is_one, words in _KINDS if is_one(mode)), None)


def _copy_regular_file(
    name: str, directory: int, target: Path, path: str, left_out: ArtifactsLeftOut
) -> bool:
    """Copy ``name`` of an open directory unless it is a link or a special file by now."""
    try:
        source = open_regular(name, dir_fd=directory)
    except FileNotFoundError:
        return False
    except OSError as error:
        left_out.add(path, reason_of(error))
        return False
    with source:
        target.parent.mkdir(parents=True, exist_ok=True)
        # What its writer adds meanwhile is not waited for: it may never end.
        left = os.fstat(source.fileno()).st_size
        with target.open("xb") as copy:
            while left > 0 and (piece := source.read(min(left, _PIECE_BYTES))):
                copy.write(piece)
                left -= len(piece)
    return True


def _shown(path: str) -> str:
    """Return a name that a rollout gave, in printable characters, its end cut off where it is long."""
    cut = path if len(path) <= _LONGEST_NAME else f"{path[: _LONGEST_NAME - 1]}…"
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in cut)
