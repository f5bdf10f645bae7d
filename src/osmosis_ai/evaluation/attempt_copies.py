"""``trajectories/`` and ``artifacts/``: copies of each attempt's files under a readable name.

A copy belongs to the attempt's latest record, or it is absent. Copies are independent files, made only of regular files
below the attempt's own directory (no link is followed) and without secrets. They are made while the run is going, the
rest at its end, so losing one costs nothing; a copy never delays or changes a result.

The rollout's server names a trajectory after its result was acknowledged, so a copy waits for it. The pending file of a
server that was killed meanwhile is copied once it is overdue."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import stat
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from osmosis_ai.errors import reason_of
from osmosis_ai.evaluation.journal import JournalReader
from osmosis_ai.evaluation.results import AttemptId, AttemptTable
from osmosis_ai.evaluation.run_directory import TRAJECTORY_FILE, RunDirectory
from osmosis_ai.evaluation.run_files import ARTIFACTS, RESERVED_ARTIFACT, name_problem
from osmosis_ai.evaluation.run_log import RunLog
from osmosis_ai.files import open_regular
from osmosis_ai.redaction import Redactor, clean_json
from osmosis_ai.rollout.artifacts import PENDING_TRAJECTORY_FILE

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
        # Nothing below a refused directory is copied, so the rollout cannot choose how deep the walk goes.
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


TRAJECTORY_WAIT_S = 30.0
NAMED_WITHIN_S = 5.0
"""How long a living server takes at most to name a conversation whose result is durable."""
LARGEST_TRAJECTORY_BYTES = 256 << 20
"""Of the file that a rollout leaves: it is read whole, outside the sandbox."""
_ROUND_S = 0.05
_SLOWEST_LOOK_S = 2.0
_MAX_WAITING = 8192
# Attempts of an earlier session whose copies are made before the run continues.
_MOST_LEFT = 1024
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
_COPY_NAME = re.compile(r"row_(\d+)_run_(\d+)(\.json)?")


def item_name(row_index: int, run_index: int) -> str:
    """Return the name of an attempt's copies."""
    return f"row_{row_index}_run_{run_index}"


@dataclass(slots=True)
class _Waiting:
    """An attempt whose files are not copied yet."""

    rollout_id: str
    since: float
    expects_trajectory: bool
    due: float = 0.0
    pause_s: float = _ROUND_S


class _Named(NamedTuple):
    """A pending conversation that was copied because its server was late, and the version that was copied."""

    rollout_id: str
    version: tuple[int, int]


class AttemptCopies:
    """Makes the copies: in a thread while the run is going, the rest at its end."""

    def __init__(self, directory: RunDirectory, table: AttemptTable, log: RunLog, redactor: Redactor) -> None:
        self._directory = directory
        self._table = table
        self._log = log
        self._redactor = redactor
        self._has_trajectory = bytearray(table.rows * table.n)
        self._has_artifacts = bytearray(table.rows * table.n)
        self._named: dict[int, _Named] = {}
        self._left_out = LeftOutLines(log)
        self._waiting: dict[AttemptId, _Waiting] = {}
        self._closing = threading.Event()
        self._give_up_at = 0.0
        self._thread: threading.Thread | None = None
        self._find_copies()

    def start(self) -> None:
        """Start the thread."""
        self._thread = threading.Thread(target=self._work, name="attempt-copies", daemon=True)
        self._thread.start()

    def has_trajectory(self, row_index: int, run_index: int) -> bool:
        """Whether the attempt's trajectory has been copied."""
        return self._has_trajectory[row_index * self._table.n + run_index] == 1

    @property
    def copied(self) -> int:
        """Trajectories that are copied."""
        return self._has_trajectory.count(1)

    def submit(self, row_index: int, run_index: int, rollout_id: str, *, expects_trajectory: bool) -> None:
        """Copy an attempt's files soon. Never blocks; beyond a bound the copies are made at the run's end."""
        if len(self._waiting) < _MAX_WAITING and not self._closing.is_set():
            self._waiting[row_index, run_index] = _Waiting(rollout_id, time.monotonic(), expects_trajectory)

    def forget(self, row_index: int, run_index: int) -> None:
        """Remove the copies of an attempt, before it gets a newer record."""
        name = item_name(row_index, run_index)
        (self._directory.trajectories / f"{name}.json").unlink(missing_ok=True)
        shutil.rmtree(self._directory.artifacts / name, ignore_errors=True)
        item = row_index * self._table.n + run_index
        self._has_trajectory[item] = self._has_artifacts[item] = 0
        self._named.pop(item, None)

    def stop(self, *, patience_s: float) -> None:
        """End the thread once nothing is waiting, or after ``patience_s`` seconds; blocking."""
        self._give_up_at = time.monotonic() + patience_s
        self._closing.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        self._waiting.clear()

    def copy_left(self) -> None:
        """Make copies that a killed session left out, of its last attempts; blocking."""
        self._copy_missing(most=_MOST_LEFT)

    def copy_missing(self) -> None:
        """Make every copy that is missing and can be made, and replace those with a fuller original; blocking."""
        self._copy_named()
        self._copy_missing()
        self._left_out.say_rest()

    def _copy_named(self) -> None:
        """Copy what servers that were only late have named themselves since."""
        for item, named in self._named.items():
            target = self._directory.trajectories / f"{item_name(*divmod(item, self._table.n))}.json"
            # A failure must not lose the copy that exists.
            with (
                contextlib.suppress(OSError, ValueError),
                _open_trial(self._directory.trial(named.rollout_id)) as trial,
            ):
                if _version(trial) != named.version:
                    copy_trajectory(trial, target, named.rollout_id, self._redactor)
        self._named.clear()

    def _copy_missing(self, most: int | None = None) -> None:
        lacking = [
            (offset, row_index, run_index)
            for row_index, run_index, offset in self._table.recorded()
            if not self._is_copied(row_index * self._table.n + run_index)
        ]
        if not lacking:
            return
        trials = {entry.name for entry in _entries(self._directory.trials)}
        with JournalReader(self._directory.events) as journal:
            # Newest first: where attempts are removed once they are stored elsewhere, few are left.
            for offset, row_index, run_index in sorted(lacking, reverse=True)[:most]:
                if not trials:
                    break
                record = journal.record(offset)
                if record is not None and record.rollout_id in trials:
                    trials.discard(record.rollout_id)
                    self._try_copy(row_index, run_index, record.rollout_id, is_late=True, last=True)

    def _is_copied(self, item: int) -> bool:
        return bool(self._has_trajectory[item] and self._has_artifacts[item])

    def _find_copies(self) -> None:
        """Find the copies of earlier sessions, and remove unfinished ones."""
        for directory, found in (
            (self._directory.trajectories, self._has_trajectory),
            (self._directory.artifacts, self._has_artifacts),
        ):
            for entry in _entries(directory):
                match = _COPY_NAME.fullmatch(entry.name)
                if match is None:
                    if entry.name.startswith(".row_"):
                        remove(Path(entry.path))
                    continue
                row_index, run_index = int(match[1]), int(match[2])
                if self._table.holds(row_index, run_index):
                    found[row_index * self._table.n + run_index] = 1
        # The trajectory is copied last: nothing is missing of an attempt that has one.
        for item, has_trajectory in enumerate(self._has_trajectory):
            self._has_artifacts[item] |= has_trajectory

    def _work(self) -> None:
        while True:
            closing = self._closing.wait(_ROUND_S)
            self._copy_due()
            if closing:
                if not self._waiting or time.monotonic() >= self._give_up_at:
                    return
                time.sleep(_ROUND_S)

    def _copy_due(self) -> None:
        for place, waiting in list(self._waiting.items()):
            now = time.monotonic()
            if now < waiting.due:
                continue
            is_late = now - waiting.since >= NAMED_WITHIN_S
            done = self._try_copy(*place, waiting.rollout_id, is_late=is_late, last=False)
            longest_s = TRAJECTORY_WAIT_S if waiting.expects_trajectory else 0.0
            waiting.due = time.monotonic() + waiting.pause_s
            waiting.pause_s = min(2 * waiting.pause_s, _SLOWEST_LOOK_S)
            if (done or waiting.due - waiting.since > longest_s) and self._waiting.get(place) is waiting:
                del self._waiting[place]

    def _try_copy(
        self, row_index: int, run_index: int, rollout_id: str, *, is_late: bool, last: bool
    ) -> bool:
        """Copy what exists; return whether nothing is left to wait for."""
        item = row_index * self._table.n + run_index
        name = item_name(row_index, run_index)
        try:
            with _open_trial(self._directory.trial(rollout_id)) as trial:
                if not self._has_artifacts[item]:
                    left_out = ArtifactsLeftOut()
                    copy_artifacts(
                        ARTIFACTS, self._directory.artifacts, name, dir_fd=trial, left_out=left_out
                    )
                    self._has_artifacts[item] = 1
                    self._left_out.say(row_index, run_index, left_out)
                if not self._has_trajectory[item]:
                    if is_late and name_pending_trajectory(trial):
                        self._named[item] = _Named(rollout_id, _version(trial))
                    target = self._directory.trajectories / f"{name}.json"
                    self._has_trajectory[item] = copy_trajectory(trial, target, rollout_id, self._redactor)
        except FileNotFoundError:
            return False
        except (OSError, ValueError) as error:
            if last:
                self._log.write(
                    "trajectory", f"could not copy: {error}", level="WARNING", rollout_id=rollout_id
                )
            return False
        return self._has_trajectory[item] == 1


@contextlib.contextmanager
def _open_trial(trial: Path) -> Iterator[int]:
    """Yield a descriptor of a rollout's directory; a link in its place is not followed."""
    descriptor = os.open(trial, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def name_pending_trajectory(trial: int) -> bool:
    """Name the pending conversation of a rollout whose server was killed; False without one."""
    try:
        os.lstat(TRAJECTORY_FILE, dir_fd=trial)
    except FileNotFoundError:
        with contextlib.suppress(FileNotFoundError):
            os.rename(PENDING_TRAJECTORY_FILE, TRAJECTORY_FILE, src_dir_fd=trial, dst_dir_fd=trial)
            return True
    return False


def _version(trial: int) -> tuple[int, int]:
    """Return what identifies this version of a trajectory: an inode may be used again, at another time."""
    found = os.lstat(TRAJECTORY_FILE, dir_fd=trial)
    return found.st_ino, found.st_mtime_ns


def copy_trajectory(trial: int, target: Path, rollout_id: str, redactor: Redactor) -> bool:
    """Copy the trajectory of ``rollout_id`` without secrets; False when there is none (yet)."""
    try:
        with open_regular(TRAJECTORY_FILE, dir_fd=trial) as source:
            content = source.read(LARGEST_TRAJECTORY_BYTES + 1)
    except FileNotFoundError:
        return False
    if len(content) > LARGEST_TRAJECTORY_BYTES:
        raise ValueError(f"the trajectory has more than {LARGEST_TRAJECTORY_BYTES >> 20} MiB")
    document = orjson.loads(content)
    identity = trajectory_identity(document)
    if identity != rollout_id:
        raise ValueError(f"what should be the trajectory of {rollout_id!r} is that of {identity!r}")
    temporary = target.with_name(f".{target.name}.tmp")
    with os.fdopen(os.open(temporary, _NEW_FILE, 0o600), "wb") as copy:
        copy.write(clean_json(content, redactor, document=document))
    temporary.replace(target)
    return True


def trajectory_identity(document: Any) -> str | None:
    """Return the rollout id that an ATIF trajectory states; None if it states none."""
    if not isinstance(document, dict):
        return None
    extra = document.get("extra")
    osmosis = extra.get("osmosis") if isinstance(extra, dict) else None
    stated = osmosis.get("rollout_id") if isinstance(osmosis, dict) else None
    if isinstance(stated, str):
        return stated
    session = document.get("session_id")
    if isinstance(session, str):
        return session
    trajectory = document.get("trajectory_id")
    if isinstance(trajectory, str) and "/" in trajectory:
        return trajectory.partition("/")[0]
    return None


def trajectory_problem(content: bytes, rollout_id: str, row_index: int, run_index: int) -> str | None:
    """Return why ``content`` is not the trajectory of this rollout, attempt ``run_index`` on row ``row_index``."""
    from pydantic import ValidationError

    from osmosis_ai.rollout.trajectory.atif import Trajectory

    try:
        document = orjson.loads(content)
        Trajectory.model_validate(document)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        return f"no valid trajectory: {'.'.join(map(str, first['loc']))}: {first['msg'].lower()}"
    except (ValueError, RecursionError):
        return "no valid JSON"
    if trajectory_identity(document) != rollout_id:
        return "the trajectory of another rollout"
    osmosis = (document.get("extra") or {}).get("osmosis")
    told = osmosis.get("request_extra_fields") if isinstance(osmosis, dict) else None
    expected = {"row_index": row_index, "run_index": run_index}
    if isinstance(told, dict) and any(told.get(name, number) != number for name, number in expected.items()):
        return "the trajectory of another row or attempt"
    return None


def read_regular_file(path: Path) -> bytes | None:
    """Return a file's content, or None where there is none; no link is followed."""
    try:
        with open_regular(path) as handle:
            return handle.read()
    except FileNotFoundError:
        return None


def _entries(directory: Path) -> Iterator[os.DirEntry[str]]:
    with contextlib.suppress(FileNotFoundError), os.scandir(directory) as found:
        yield from found
