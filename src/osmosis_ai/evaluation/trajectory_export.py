"""``trajectories/`` and ``artifacts/``: copies of each item's selected attempt under a readable name.

Invariant: a copy belongs to the item's latest record, or it is absent. The copies are independent
files (no hard links), made only of regular files below the attempt's own directory: no symbolic
link is followed. A copy that could not be made while the run went on is made when the run goes on, or at its end,
so losing one costs nothing; it never holds up, and never changes, a result.

The rollout's server gives a trajectory its name after its result was acknowledged, so a copy waits for
it. One that a killed server never named is taken as it lies, once the run goes on without that server's session or is at
its end.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import operator
import os
import re
import shutil
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from osmosis_ai.evaluation.artifact_copies import ArtifactsLeftOut, LeftOutLines, copy_artifacts, remove
from osmosis_ai.evaluation.journal import JournalReader
from osmosis_ai.evaluation.results import AttemptTable
from osmosis_ai.evaluation.run_directory import TRAJECTORY_FILE, RunDirectory
from osmosis_ai.evaluation.run_files import ARTIFACTS
from osmosis_ai.evaluation.run_log import RunLog
from osmosis_ai.files import open_regular
from osmosis_ai.redaction import Redactor, clean_json
from osmosis_ai.rollout.artifacts import PENDING_TRAJECTORY_FILE

TRAJECTORY_WAIT_S = 30.0
NAMED_WITHIN_S = 5.0
"""How long a server that lives takes at most, once its result is durable, to give a conversation its name. It is named for one
that was killed meanwhile; of one that was only slow, what it names later, which knows what was told of the last calls, takes
the copy's place at the run's end."""
LARGEST_TRAJECTORY_BYTES = 256 << 20
"""Of the file that a rollout leaves: it is read whole, by a process that nothing holds back."""
_FIRST_LOOK_S, _SLOWEST_LOOK_S = 0.05, 2.0
_MAX_QUEUED = 8192
_MOST_LEFT = 1024
"""Attempts of an earlier session that are looked at before the run goes on."""
_THREADS = 2
_PROJECTED = re.compile(r"row_(\d+)_run_(\d+)(\.json)?")


def item_name(row_index: int, run_index: int) -> str:
    """Return how the copies of an item are called."""
    return f"row_{row_index}_run_{run_index}"


@dataclass(order=True, slots=True)
class _Copy:
    due: float
    sequence: int
    row_index: int = field(compare=False)
    run_index: int = field(compare=False)
    rollout_id: str = field(compare=False)
    named_by: float = field(compare=False)
    deadline: float = field(compare=False)
    pause_s: float = field(compare=False, default=_FIRST_LOOK_S)


class _Named(NamedTuple):
    """A conversation that its server had not named in time: whose it is, and which version of it was copied."""

    rollout_id: str
    version: tuple[int, int]


class Projector:
    """Makes the copies: in a few threads while the run goes on, the rest at its end."""

    def __init__(self, directory: RunDirectory, table: AttemptTable, log: RunLog, redactor: Redactor) -> None:
        self._directory = directory
        self._redactor = redactor
        self._table = table
        self._log = log
        self._has_trajectory = bytearray(table.rows * table.n)
        self._has_artifacts = bytearray(table.rows * table.n)
        self._named: dict[int, _Named] = {}
        self._left_out = LeftOutLines(log)
        self._heap: list[_Copy] = []
        self._sequence = itertools.count()
        self._busy = 0
        self._closed = False
        self._changed = threading.Condition()
        self._threads: list[threading.Thread] = []
        self._find_copies()

    def start(self) -> None:
        """Start the threads."""
        for number in range(_THREADS):
            thread = threading.Thread(target=self._work, name=f"projector-{number}", daemon=True)
            thread.start()
            self._threads.append(thread)

    def has_trajectory(self, row_index: int, run_index: int) -> bool:
        """Tell whether the item's trajectory has been copied."""
        return self._has_trajectory[row_index * self._table.n + run_index] == 1

    @property
    def copied(self) -> int:
        """Trajectories that are copied."""
        return self._has_trajectory.count(1)

    def submit(self, row_index: int, run_index: int, rollout_id: str, *, expects_trajectory: bool) -> None:
        """Copy an attempt's files soon. Never blocks: beyond a bound they are left to the end of the run."""
        now = time.monotonic()
        deadline = now + (TRAJECTORY_WAIT_S if expects_trajectory else 0.0)
        with self._changed:
            if len(self._heap) < _MAX_QUEUED and not self._closed:
                due = now + (_FIRST_LOOK_S if expects_trajectory else 0.0)
                place = row_index, run_index, rollout_id
                copy = _Copy(due, next(self._sequence), *place, now + NAMED_WITHIN_S, deadline)
                heapq.heappush(self._heap, copy)
                self._changed.notify()

    def forget(self, row_index: int, run_index: int) -> None:
        """Remove the copies of an item, before it gets a newer record."""
        name = item_name(row_index, run_index)
        (self._directory.trajectories / f"{name}.json").unlink(missing_ok=True)
        shutil.rmtree(self._directory.artifacts / name, ignore_errors=True)
        item = row_index * self._table.n + run_index
        self._has_trajectory[item] = self._has_artifacts[item] = 0
        self._named.pop(item, None)

    def stop(self, *, patience_s: float) -> None:
        """End the threads once nothing is queued, or after ``patience_s`` seconds; blocking."""
        with self._changed:
            self._changed.wait_for(lambda: not self._heap and not self._busy, timeout=patience_s)
            self._closed = True
            self._heap.clear()
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()
        self._threads.clear()

    def copy_left(self) -> None:
        """Make copies that a killed session did not get round to: those of its last attempts; blocking."""
        self._copy_missing(most=_MOST_LEFT)

    def copy_missing(self) -> None:
        """Make every copy that can be made and is not there, and those anew of which there is a fuller
        original; blocking."""
        self._copy_named()
        self._copy_missing()
        self._left_out.say_rest()

    def _copy_named(self) -> None:
        """Copy what servers that were only slow have named themselves, after it was named for them."""
        for item, named in self._named.items():
            target = self._directory.trajectories / f"{item_name(*divmod(item, self._table.n))}.json"
            # What can not be copied is no reason to lose the copy that there is.
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
            # The newest first: where attempts are taken away once they are stored elsewhere, few are left.
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
        """Learn which copies earlier sessions made, and clear away unfinished ones."""
        for directory, found in (
            (self._directory.trajectories, self._has_trajectory),
            (self._directory.artifacts, self._has_artifacts),
        ):
            for entry in _entries(directory):
                match = _PROJECTED.fullmatch(entry.name)
                if match is None:
                    if entry.name.startswith(".row_"):
                        remove(Path(entry.path))
                    continue
                row_index, run_index = int(match[1]), int(match[2])
                if self._table.holds(row_index, run_index):
                    found[row_index * self._table.n + run_index] = 1
        # A trajectory is copied last: there is nothing left to be copied of what has one.
        self._has_artifacts[:] = map(operator.or_, self._has_artifacts, self._has_trajectory)

    def _work(self) -> None:
        while (copy := self._take()) is not None:
            try:
                place, is_late = (copy.row_index, copy.run_index), time.monotonic() >= copy.named_by
                done = self._try_copy(*place, copy.rollout_id, is_late=is_late, last=False)
            finally:
                with self._changed:
                    self._busy -= 1
                    self._changed.notify_all()
            copy.due = time.monotonic() + copy.pause_s
            copy.pause_s = min(2 * copy.pause_s, _SLOWEST_LOOK_S)
            if not done and copy.due < copy.deadline:
                with self._changed:
                    if not self._closed:
                        heapq.heappush(self._heap, copy)

    def _take(self) -> _Copy | None:
        """Wait for the next copy that is due; None when the projector is closed."""
        with self._changed:
            while not self._closed:
                wait_s = self._heap[0].due - time.monotonic() if self._heap else None
                if wait_s is not None and wait_s <= 0:
                    self._busy += 1
                    return heapq.heappop(self._heap)
                self._changed.wait(wait_s)
            return None

    def _try_copy(
        self, row_index: int, run_index: int, rollout_id: str, *, is_late: bool, last: bool
    ) -> bool:
        """Copy what is there; return whether nothing is left to wait for."""
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
    """Yield a descriptor of a rollout's directory, which may write there: no link in its place is followed."""
    descriptor = os.open(trial, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def name_pending_trajectory(trial: int) -> bool:
    """Give the conversation of a rollout whose server was killed over it the name it was to have; False where
    none waits."""
    try:
        os.lstat(TRAJECTORY_FILE, dir_fd=trial)
    except FileNotFoundError:
        with contextlib.suppress(FileNotFoundError):
            os.rename(PENDING_TRAJECTORY_FILE, TRAJECTORY_FILE, src_dir_fd=trial, dst_dir_fd=trial)
            return True
    return False


def _version(trial: int) -> tuple[int, int]:
    """Return what tells a trajectory from one that was put in its place: a number may be used again, at another time."""
    found = os.lstat(TRAJECTORY_FILE, dir_fd=trial)
    return found.st_ino, found.st_mtime_ns


def copy_trajectory(trial: int, target: Path, rollout_id: str, redactor: Redactor) -> bool:
    """Copy a trajectory that belongs to ``rollout_id``, without secrets; False when there is none (yet)."""
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
    content = clean_json(content, redactor)
    temporary = target.with_name(f".{target.name}.tmp")
    temporary.write_bytes(content)
    temporary.chmod(0o600)
    temporary.replace(target)
    return True


def trajectory_identity(document: Any) -> str | None:
    """Return the id of the rollout that an ATIF trajectory belongs to, as far as it says."""
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
