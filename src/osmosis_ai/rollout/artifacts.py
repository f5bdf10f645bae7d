"""Artifact files of a rollout, stored in ``<root>/<rollout_id>/artifacts``.

An agent may plant symbolic links, so trees are read and written through directory descriptors
opened with ``O_NOFOLLOW``.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import stat
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

logger = logging.getLogger(__name__)

ARTIFACT_ROOT_ENV = "_OSMOSIS_ROLLOUT_ARTIFACT_ROOT"
HEALTH_MARKER = ".osmosis-health-check"
DIAGNOSTICS_FILE = "diagnostics.json"
PENDING_TRAJECTORY_FILE = ".trajectory.json.pending"
"""Conversation of an unfinished rollout. A killed server leaves it for rollouts it has acknowledged."""
CREATE_ATTEMPTS = 3
CREATE_BACKOFF_SECONDS = 0.05

FileState = tuple[int, int, int]
"""Size in bytes, mtime and ctime in nanoseconds."""

_OPEN_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


def artifact_root() -> Path:
    """Return the parent directory of all rollouts' files."""
    return Path(os.environ.get(ARTIFACT_ROOT_ENV) or Path.home() / ".osmosis")


class ArtifactsOnDemand:
    """Mixin of a context that creates the artifacts directory when user code first asks for it: most code never does."""

    artifacts_home: Path | None = None
    """The rollout's directory, once it is known."""
    _directory: Path | None = None

    @property
    def artifacts_dir(self) -> Path | None:
        if self._directory is None and self.artifacts_home is not None:
            self._directory, self.artifacts_home = create_artifacts_dir(self.artifacts_home), None
        return self._directory

    @artifacts_dir.setter
    def artifacts_dir(self, directory: Path | None) -> None:
        self._directory = directory


def create_artifacts_dir(home: Path) -> Path | None:
    """Create the artifacts directory of the rollout at ``home`` and verify with a marker file that it is writable.

    Returns None if it cannot be created; the rollout then runs without it. The pauses between tries are short, because
    the event loop waits.
    """
    artifacts = home / "artifacts"
    for attempt in range(CREATE_ATTEMPTS):
        if attempt:
            time.sleep(CREATE_BACKOFF_SECONDS * 2 ** (attempt - 1))
        try:
            if not artifacts.is_dir():
                home.mkdir(parents=True, exist_ok=True)
                artifacts.mkdir(exist_ok=True)
                with contextlib.suppress(FileExistsError):
                    (home / HEALTH_MARKER).touch(exist_ok=False)
            return artifacts
        except OSError as error:
            logger.warning("cannot create the artifacts directory in %s: %s", home, error)
    return None


def artifact_tree_state(directory: Path) -> dict[str, FileState]:
    """Return the state of every regular file below ``directory``, by relative path."""
    states: dict[str, FileState] = {}
    for base, _, names, descriptor in os.fwalk(directory, follow_symlinks=False):
        for name in names:
            status = os.stat(name, dir_fd=descriptor, follow_symlinks=False)
            if stat.S_ISREG(status.st_mode):
                states[os.path.relpath(f"{base}/{name}", directory)] = _state(status)
    return states


def copy_artifact_tree(
    source: Path,
    destination: Path,
    *,
    destination_root: Path,
    baseline: Mapping[str, FileState] | None = None,
    replace_destination: bool = False,
) -> int:
    """Merge the untrusted ``source`` into ``destination`` and return the number of copied files.

    Symbolic links and devices are skipped, and files that still have the state in ``baseline``. The destination must be
    strictly below the trusted ``destination_root``; no symbolic link may be on the way.
    """
    parts = Path(os.path.relpath(destination, destination_root)).parts
    if not parts or parts[0] in (os.pardir, os.curdir):
        raise ValueError(f"{destination} is not below {destination_root}")
    with contextlib.ExitStack() as stack:
        source_fd = stack.enter_context(_opened(source))
        destination_fd = os.open(destination_root, _OPEN_DIRECTORY)
        stack.callback(os.close, destination_fd)
        for index, part in enumerate(parts):
            status = _lstat(part, destination_fd)
            if status is not None and stat.S_ISLNK(status.st_mode):
                path = destination_root.joinpath(*parts[: index + 1])
                raise OSError(f"symlink in artifact destination path: {path}")
            if replace_destination and index == len(parts) - 1:
                _remove(part, destination_fd)
            destination_fd = stack.enter_context(_opened_or_created(part, destination_fd))
        return _copy_entries(source_fd, destination_fd, "", baseline or {})


def _copy_entries(source_fd: int, destination_fd: int, prefix: str, baseline: Mapping[str, FileState]) -> int:
    copied = 0
    for name in sorted(os.listdir(source_fd)):
        relative = f"{prefix}/{name}" if prefix else name
        status = os.stat(name, dir_fd=source_fd, follow_symlinks=False)
        if stat.S_ISDIR(status.st_mode):
            with _opened(name, source_fd) as inner, _opened_or_created(name, destination_fd) as target:
                copied += _copy_entries(inner, target, relative, baseline)
        elif stat.S_ISREG(status.st_mode) and baseline.get(relative) != _state(status):
            _copy_file(source_fd, destination_fd, name)
            copied += 1
    return copied


def _copy_file(source_fd: int, destination_fd: int, name: str) -> None:
    # Without O_NONBLOCK, opening hangs if the file became a FIFO after its lstat.
    reading = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=source_fd)
    with os.fdopen(reading, "rb") as source:
        if not stat.S_ISREG(os.fstat(reading).st_mode):
            return
        _remove(name, destination_fd)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with os.fdopen(os.open(name, flags, 0o644, dir_fd=destination_fd), "wb") as target:
            shutil.copyfileobj(source, target)


@contextlib.contextmanager
def _opened(directory: str | Path, parent_fd: int | None = None) -> Iterator[int]:
    descriptor = os.open(directory, _OPEN_DIRECTORY | os.O_NOFOLLOW, dir_fd=parent_fd)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _opened_or_created(name: str, parent_fd: int) -> contextlib.AbstractContextManager[int]:
    """Open the directory ``name``, replacing any other file of that name."""
    status = _lstat(name, parent_fd)
    if status is not None and not stat.S_ISDIR(status.st_mode):
        os.unlink(name, dir_fd=parent_fd)
        status = None
    if status is None:
        os.mkdir(name, 0o755, dir_fd=parent_fd)
    return _opened(name, parent_fd)


def _remove(name: str, parent_fd: int) -> None:
    status = _lstat(name, parent_fd)
    if status is None:
        return
    if not stat.S_ISDIR(status.st_mode):
        os.unlink(name, dir_fd=parent_fd)
        return
    with _opened(name, parent_fd) as inner:
        for entry in os.listdir(inner):  # noqa: PTH208 - pathlib takes no descriptor
            _remove(entry, inner)
    os.rmdir(name, dir_fd=parent_fd)


def _lstat(name: str, parent_fd: int) -> os.stat_result | None:
    try:
        return os.stat(name, dir_fd=parent_fd, follow_symlinks=False)
    except FileNotFoundError:
        return None


def _state(status: os.stat_result) -> FileState:
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns
