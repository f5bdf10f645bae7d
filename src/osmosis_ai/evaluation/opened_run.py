"""The run directory that an invocation writes, new or continued, and the lock on it.

A name selects the run. Without one, the newest unfinished run with equal inputs is continued, and a new one is started
if there is none. The lock is a file next to the runs, not inside one, so that a locked run can be archived. The kernel
releases it when its holder ends. A check whether it is held takes a shared lock, so that two checks do not see each other.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from filelock import FileLock, Timeout

from osmosis_ai.errors import ConflictError, OsmosisError
from osmosis_ai.evaluation.manifest import Manifest, inputs_digest
from osmosis_ai.evaluation.run_directory import RunDirectory
from osmosis_ai.evaluation.spec import EvalRunOptions, is_archive, new_run_names

_LOCKS_DIRECTORY = ".locks"
# How long to wait before checking who holds the lock.
_LOCK_TIMEOUT_S = 0.5


class RunLockedError(ConflictError):
    """Another process is running that run."""


class RunLock:
    """The exclusive right to write ``<output_root>/<name>/``; a context manager."""

    def __init__(self, output_root: Path, name: str) -> None:
        self._name = name
        path = _lock_path(output_root, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        # Another thread than the one that acquired it may release it.
        self._lock = FileLock(
            path, mode=0o600, thread_local=False, preserve_lock_file=True, fallback_to_soft=False
        )

    def __enter__(self) -> RunLock:
        """Acquire the lock."""
        if not acquire(self._lock):
            raise RunLockedError(
                f"another process already holds the run '{self._name}'.",
                details={"run_name": self._name},
                hint=f"wait until it ends ('osmosis eval watch {self._name}' shows it in a workspace directory), "
                "or choose another '--name'",
            )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lock.release()


@dataclass(frozen=True)
class OpenedRun:
    """A run directory whose lock is held."""

    name: str
    directory: RunDirectory
    manifest: Manifest | None
    archived: Path | None = None
    found: bool = False


def open_run(
    stack: ExitStack,
    output_root: Path,
    options: EvalRunOptions,
    inputs: Mapping[str, Any],
    config_stem: str,
) -> OpenedRun:
    """Find or name the run; its lock is held until ``stack`` is closed."""
    if options.name is not None:
        return _open_named(stack, output_root, options.name, inputs, options)
    if not options.fresh:
        for directory, manifest in _continuable(output_root, inputs, retry_failed=options.retry_failed):
            try:
                stack.enter_context(RunLock(output_root, directory.path.name))
            except RunLockedError:
                continue
            return OpenedRun(directory.path.name, directory, manifest, found=True)
    for name in new_run_names(config_stem, inputs_digest(inputs)):
        directory = RunDirectory(output_root / name)
        with ExitStack() as lock:
            try:
                lock.enter_context(RunLock(output_root, name))
            except RunLockedError:
                continue  # another process took the name in the same second
            if not directory.path.exists():
                stack.enter_context(lock.pop_all())
                return OpenedRun(name, directory, None)
    raise AssertionError("names are endless")


def is_running(output_root: Path, name: str) -> bool:
    """Return whether a process holds the run's lock."""
    return is_locked(_lock_path(output_root, name))


def acquire(lock: FileLock) -> bool:
    """Acquire a lock and return whether that succeeded; concurrent checks by :func:`is_locked` are waited for."""
    while True:
        try:
            lock.acquire(timeout=_LOCK_TIMEOUT_S)
        except Timeout:
            if is_locked(Path(lock.lock_file)):
                return False
        else:
            return True


def is_locked(path: Path) -> bool:
    """Return whether a process holds the lock of a file; False if the file does not exist."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        # The name of a directory may leave no room for `.lock`.
        if error.errno not in (errno.ENOENT, errno.ENAMETOOLONG):
            raise
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def _lock_path(output_root: Path, name: str) -> Path:
    return output_root / _LOCKS_DIRECTORY / f"{name}.lock"


def _open_named(
    stack: ExitStack, output_root: Path, name: str, inputs: Mapping[str, Any], options: EvalRunOptions
) -> OpenedRun:
    stack.enter_context(RunLock(output_root, name))
    directory = RunDirectory(output_root / name)
    archived = directory.put_aside() if options.fresh else None
    if not directory.manifest.exists():
        if directory.is_foreign() and not options.adopts_journal:
            raise OsmosisError(
                f"'{directory.path}' already exists and is not a run.", hint="choose another '--name'"
            )
        return OpenedRun(name, directory, None, archived)
    manifest = Manifest.load(directory.manifest)
    manifest.require_equal_inputs(inputs, name=name)
    return OpenedRun(name, directory, manifest)


def _continuable(
    output_root: Path, inputs: Mapping[str, Any], *, retry_failed: bool
) -> Iterator[tuple[RunDirectory, Manifest]]:
    """Yield the runs with equal inputs that have work left, newest first."""
    found = []
    for path in output_root.iterdir() if output_root.is_dir() else ():
        directory = RunDirectory(path)
        if path.name == _LOCKS_DIRECTORY or is_archive(path.name) or not directory.manifest.is_file():
            continue
        try:
            manifest = Manifest.load(directory.manifest)
        except OsmosisError:
            continue
        if manifest.inputs == inputs and manifest.run_name == path.name:
            found.append((directory, manifest))
    for directory, manifest in sorted(found, key=lambda run: run[1].created_at, reverse=True):
        eval_run = (directory.read_metrics() or {}).get("eval_run")
        is_finished = isinstance(eval_run, dict) and eval_run.get("status") == "finished"
        if retry_failed or not is_finished:
            yield directory, manifest
