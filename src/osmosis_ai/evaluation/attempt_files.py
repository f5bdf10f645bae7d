"""The files that an attempt left: its trajectory and its artifacts, read as what anybody may have put there.

Invariant: nothing outside the run's directory is read. Every part of a path is opened without following a link, and
only regular files are.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from heapq import nsmallest
from pathlib import Path
from typing import BinaryIO

import orjson

from osmosis_ai.errors import NotFoundError, OsmosisError, reason_of
from osmosis_ai.evaluation.attempt_copies import item_name
from osmosis_ai.evaluation.run_directory import (
    ENVIRONMENT_FILE,
    MOST_OF_A_CONFIG,
    TRAJECTORY_FILE,
    RunDirectory,
)
from osmosis_ai.evaluation.run_files import ARTIFACTS, RESERVED_ARTIFACT, name_problem
from osmosis_ai.files import open_regular
from osmosis_ai.rollout.artifacts import DIAGNOSTICS_FILE, PENDING_TRAJECTORY_FILE

_NEAREST = 3
_MOST_FILES = 2_000
_MOST_OF_A_LINE = 4096
_NOT_KEPT = "the conversation was not kept: it is neither with the attempt's files nor in `trajectories/`"
MOST_OF_DIAGNOSTICS = 64 << 10
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class StoredConversation:
    """The trajectory of a sample as it lies there (ATIF), or why it does not."""

    content: bytes | None
    size: int = 0
    missing: str | None = None
    open: Callable[[], BinaryIO] | None = None
    whole: str = "a download"
    away: OsmosisError | None = None


@dataclass(frozen=True, slots=True)
class StoredArtifact:
    """A file that an attempt left; ``path`` is relative, with ``/``."""

    path: str
    size: int


def nearest_samples(
    places: Iterable[tuple[int, int]], row: int, attempt: int | None = None
) -> list[tuple[int, int]]:
    """Return the three of ``places``, (row, attempt) each, that are nearest to a sample: by row, then by attempt."""

    def distance(place: tuple[int, int]) -> tuple[int, int, tuple[int, int]]:
        return abs(place[0] - row), abs(place[1] - (attempt or 0)), place

    return nsmallest(_NEAREST, set(places), key=distance)


def no_sample(
    run: str,
    row: int,
    attempt: int | None,
    near: Iterable[tuple[int, int]],
    *,
    rows: int = 0,
    n: int = 0,
    subject: str | None = None,
) -> NotFoundError:
    """Return what to say of a sample that is not there; those that are nearest to it are its ``samples``."""
    asked = f"row {row}" if attempt is None else f"row {row}, attempt {attempt}"
    numbers = f"rows are numbered 0 to {rows - 1}" + (f", attempts 0 to {n - 1}" if n else "")
    without = "; this one has no result" if row < rows and (attempt or 0) < n else ""
    return NotFoundError(
        f"{subject or f'the run `{run[:100]}`'} has no sample of {asked}.",
        hint=numbers + without if rows else "which rows it has is not known",
        details={
            "run": run,
            "samples": ["{}.{}".format(*place) for place in nearest_samples(near, row, attempt)],
        },
    )


def read_config(directory: RunDirectory) -> str | None:
    """Return the config that a run began with, as it was written; None where that was not recorded."""
    try:
        with _opened(directory.path, directory.config.name) as file:
            return file.read(MOST_OF_A_CONFIG).decode("utf-8", "replace")
    except OSError:
        return None


def read_environment(directory: Path) -> str | None:
    """Return what the agent of an evaluation or of a training run ran in; None where that was not recorded."""
    try:
        with _opened(directory, ENVIRONMENT_FILE) as file:
            return file.read(_MOST_OF_A_LINE).decode("utf-8", "replace").strip() or None
    except OSError:
        return None


@dataclass(frozen=True, slots=True)
class AttemptFiles:
    """The files of an attempt: those that the rollout's server keeps under ``rollout_id``, and the run's copies."""

    run: RunDirectory
    rollout_id: str
    row: int
    attempt: int

    def conversation(self, *, max_bytes: int) -> StoredConversation:
        """Return the attempt's trajectory, from the copy of it or its own files."""
        directory, missing = self.run, _NOT_KEPT
        for path in (
            # The copy has no secrets; the rollout's server does not know which there are.
            f"{directory.trajectories.name}/{item_name(self.row, self.attempt)}.json",
            f"{directory.trials.name}/{self.rollout_id}/{TRAJECTORY_FILE}",
            f"{directory.trials.name}/{self.rollout_id}/{PENDING_TRAJECTORY_FILE}",
        ):
            try:
                with _opened(directory.path, path) as file:
                    size = os.fstat(file.fileno()).st_size
                    content = file.read(max_bytes + 1) if size <= max_bytes else b""
            except FileNotFoundError:
                continue
            except OSError as error:
                missing = f"the conversation cannot be read: `{path}` ({reason_of(error)})"
                continue
            if size > max_bytes or len(content) > max_bytes:
                opened = partial(_opened, directory.path, path)
                whole = f"the run's file `{path}`"
                return StoredConversation(None, max(size, len(content)), open=opened, whole=whole)
            return StoredConversation(content, len(content))
        return StoredConversation(None, missing=missing)

    def artifacts(self) -> list[StoredArtifact]:
        """Return the regular files that the attempt left, by path."""
        for folder in self._folders():
            found = _files_below(folder, own=folder.name == ARTIFACTS)
            if found:
                return sorted(found, key=lambda artifact: artifact.path)
        return []

    def open_artifact(self, path: str) -> BinaryIO:
        """Open one of :meth:`artifacts`; the caller closes it."""
        if name_problem(path) is None and path != RESERVED_ARTIFACT:
            for folder in self._folders():
                try:
                    return _opened(self.run.path, f"{folder.relative_to(self.run.path).as_posix()}/{path}")
                except OSError:
                    continue
        raise NotFoundError(
            f"attempt {self.attempt} on row {self.row} has no such artifact.", details={"path": path[:200]}
        )

    def _folders(self) -> tuple[Path, Path]:
        copies = self.run.artifacts / item_name(self.row, self.attempt)
        return self.run.trial(self.rollout_id) / ARTIFACTS, copies


def read_diagnostics(directory: RunDirectory, rollout_id: str) -> bytes:
    """Return what the rollout's server keeps of an attempt beside its trajectory; nothing where there is none."""
    try:
        with _opened(directory.path, f"{directory.trials.name}/{rollout_id}/{DIAGNOSTICS_FILE}") as file:
            return file.read(MOST_OF_DIAGNOSTICS)
    except OSError:
        return b""


def traceback_in(content: bytes) -> str | None:
    """Return where an error came from, out of what a rollout's server keeps of one; None where it does not say."""
    try:
        told = orjson.loads(content)
    except ValueError:
        return None
    found = told.get("traceback") if isinstance(told, dict) else None
    return found if isinstance(found, str) and found else None


def _files_below(folder: Path, *, own: bool) -> list[StoredArtifact]:
    found: list[StoredArtifact] = []
    if not folder.is_dir() or folder.is_symlink() or folder.parent.is_symlink():
        return found
    for place, folders, names, descriptor in os.fwalk(folder, follow_symlinks=False):
        below = Path(place).relative_to(folder)
        folders[:] = [name for name in folders if name_problem((below / name).as_posix()) is None]
        for name in names:
            try:
                details = os.stat(name, dir_fd=descriptor, follow_symlinks=False)
            except OSError:
                continue
            path = (below / name).as_posix()
            reserved = own and path == RESERVED_ARTIFACT
            if stat.S_ISREG(details.st_mode) and not reserved and name_problem(path) is None:
                found.append(StoredArtifact(path, details.st_size))
        if len(found) >= _MOST_FILES:
            break
    return found


def _opened(root: Path, path: str) -> BinaryIO:
    """Open a regular file below ``root``, no part of whose path is a link."""
    *folders, name = path.split("/")
    at = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for folder in folders:
            below = os.open(folder, _FOLDER, dir_fd=at)
            os.close(at)
            at = below
        return open_regular(name, dir_fd=at)
    finally:
        os.close(at)
