"""Stores and reads the conversation and the artifacts of each attempt.

A conversation (ATIF) is appended to ``conversations.jsonl`` and flushed before the attempt's line in the journal, so no
recorded result lacks it. A line whose attempt has no line in the journal does not count. Later, and again whenever they
are missing, the same conversations are written to ``trajectories/``, and copies of the artifacts to ``artifacts/``,
under the names of rows and attempts. None of these files contains a secret.

The rollout's server and the agent write below ``rollout_trials/<rollout_id>/``, so its content is untrusted: only
regular files are read, and no link is followed. A server that knows more than the controller, such as one of the
public SDK, leaves a ``trajectory.json`` there, which replaces the controller's version.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shutil
import stat
import time
from array import array
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

import orjson

from osmosis_ai.errors import NotFoundError, OsmosisError, reason_of
from osmosis_ai.evaluation.journal import Journal, JournalReader, committed_lines
from osmosis_ai.evaluation.lenient_json import as_table
from osmosis_ai.evaluation.results import AttemptTable
from osmosis_ai.evaluation.run_directory import (
    ARTIFACTS,
    ENVIRONMENT_FILE,
    MOST_OF_A_CONFIG,
    RESERVED_ARTIFACT,
    TRAJECTORY_FILE,
    RunDirectory,
    name_problem,
)
from osmosis_ai.evaluation.run_log import RunLog
from osmosis_ai.files import open_regular
from osmosis_ai.llm.replies import dumps, loads
from osmosis_ai.redaction import Redactor
from osmosis_ai.rollout.artifacts import DIAGNOSTICS_FILE, PENDING_TRAJECTORY_FILE

if TYPE_CHECKING:
    from osmosis_ai.controller.record import TerminalRecord
    from osmosis_ai.rollout.trajectory import Trajectory

LARGEST_TRAJECTORY_BYTES = 256 << 20
"""Limit of a file that a server leaves: it is read whole, outside the sandbox."""
MOST_OF_DIAGNOSTICS = 64 << 10
SERVER_FILE_WAIT_S = 1.0
"""After this time a server has written its own version, unless it is slow."""
_UNWRITTEN_BYTES = 16 << 20
_MOST_LOGGED_ATTEMPTS = 20
_MOST_LOGGED_NAMES = 5
_LONGEST_NAME = 80
_MOST_FILES = 2_000
_MOST_OF_A_LINE = 4096
_PIECE_BYTES = 1 << 20
_NOT_STORED = "no conversation of this attempt was stored"
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
_LINE_START = re.compile(rb'\{"rollout_id":"([^"]*)","trajectory":')
_NAME = re.compile(r"row_(\d+)_run_(\d+)(\.json)?")
_NUMBER = r"(0|[1-9][0-9]{0,8})"
_PATH = re.compile(rf"(trajectories|diagnostics|artifacts)/row_{_NUMBER}_run_{_NUMBER}(\.json|/.+)")
_KINDS = (
    (stat.S_ISLNK, "a symbolic link"),
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


def item_name(row_index: int, run_index: int) -> str:
    """Return the name of an attempt's files in ``trajectories/`` and ``artifacts/``."""
    return f"row_{row_index}_run_{run_index}"


def attempt_in_path(path: str) -> tuple[str, int, int] | None:
    """Return kind, row and number of the attempt of a file in the download layout; None if it is no attempt's."""
    found = _PATH.fullmatch(path)
    if found is None or name_problem(path) or (found[1] == "artifacts") == (found[4] == ".json"):
        return None
    return found[1], int(found[2]), int(found[3])


def diagnostics_path(row_index: int, run_index: int) -> str:
    """Return the path under which a platform keeps the diagnostics of an attempt."""
    return f"diagnostics/{item_name(row_index, run_index)}.json"


class _Recorded(NamedTuple):
    """A recorded attempt, and the controller's version of its conversation."""

    record: TerminalRecord
    trajectory: Mapping[str, Any] | None = None
    recorded_at: float = 0.0

    @property
    def name(self) -> str:
        return item_name(self.record.row_index, self.record.run_index)


class AttemptFilesWriter:
    """Stores conversations and artifacts of a run.

    Its coroutines run on the event loop and write files in a thread. Without ``writes_files`` it only stores
    conversations.
    """

    def __init__(
        self,
        directory: RunDirectory,
        table: AttemptTable,
        log: RunLog,
        redactor: Redactor,
        *,
        writes_files: bool = True,
    ) -> None:
        self._writes_files = writes_files
        self._directory = directory
        self._table = table
        self._log = log
        self._redactor = redactor
        self._conversations = Journal(directory.conversations)
        self._recorded: deque[_Recorded] = deque()
        # Attempts whose server may still write its own version; checked once more during the run, then at its end.
        self._awaited: deque[_Recorded] = deque()
        self._late = array("q")  # positions in the table
        self._server_versions: deque[bytes] = deque()
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="attempt-files")
        self._has_trajectory = bytearray(table.rows * table.n)
        self._with_left_out = 0
        self._find_written()

    async def append(
        self, record: TerminalRecord, found: Trajectory | None, *, run_ms: int | None = None
    ) -> Mapping[str, Any] | None:
        """Make the conversation of an attempt durable and return it without secrets; None if there is none.

        ``run_ms`` is how long the sessions of the run have taken.
        """
        if found is None:
            return None
        try:
            trajectory: Mapping[str, Any] = self._redactor.tree(
                _with_facts(found.model_dump(exclude_none=True), record, run_ms=run_ms)
            )
            line = conversation_line(record.rollout_id, trajectory)
        except (RecursionError, ValueError, TypeError) as error:
            self._warn(f"could not store the conversation: {error}", record.rollout_id)
            return None
        await self._conversations.append_line(line)
        return trajectory

    def add(self, record: TerminalRecord, trajectory: Mapping[str, Any] | None) -> None:
        """Queue the files of a recorded attempt for the next :meth:`write`."""
        self._has_trajectory[self._position(record)] = 0
        self._recorded.append(_Recorded(record, trajectory, time.monotonic()))

    async def in_thread(self, function: Callable[..., Any], *args: Any) -> Any:
        """Run a function that writes files; in one thread, since each thread keeps megabytes of freed memory."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, function, *args)

    async def close(self) -> None:
        """Close the file of the conversations."""
        await self._conversations.close()
        self._thread.shutdown()

    def has_trajectory(self, row_index: int, run_index: int) -> bool:
        """Whether the attempt's trajectory has been written."""
        return self._has_trajectory[row_index * self._table.n + run_index] == 1

    @property
    def written(self) -> int:
        """Number of trajectories."""
        return self._has_trajectory.count(1)

    def remove(self, row_index: int, run_index: int) -> None:
        """Remove the files of an attempt, before it gets a newer record."""
        name = item_name(row_index, run_index)
        (self._directory.trajectories / f"{name}.json").unlink(missing_ok=True)
        shutil.rmtree(self._directory.artifacts / name, ignore_errors=True)
        self._has_trajectory[row_index * self._table.n + run_index] = 0

    async def write(self, *, at_end: bool = False) -> None:
        """Write the files of the attempts that were recorded since the last call; at the end, all that is left."""
        await self.in_thread(self._finish if at_end else self._write_new)
        while self._server_versions:
            await self._conversations.append_line(self._server_versions.popleft())

    def _write_new(self) -> None:
        while self._recorded:
            attempt = self._recorded.popleft()
            if self._write(attempt):
                self._awaited.append(attempt._replace(trajectory=None))
        while self._awaited and self._awaited[0].recorded_at + SERVER_FILE_WAIT_S <= time.monotonic():
            attempt = self._awaited.popleft()
            if not self._take_server_version(attempt):
                self._late.append(self._position(attempt.record))

    def _finish(self) -> None:
        self._write_new()
        for attempt in self._awaited:
            self._take_server_version(attempt, pending=True)
        if trials := {trial.name for trial in self._directory.trials.iterdir()}:
            with JournalReader(self._directory.events) as journal:
                for row, run in (divmod(position, self._table.n) for position in self._late):
                    record = journal.record(self._table.offset(row, run))
                    if record is not None and record.rollout_id in trials:
                        self._take_server_version(_Recorded(record), pending=True)
        if (more := self._with_left_out - _MOST_LOGGED_ATTEMPTS) > 0:
            attempts = "1 more attempt" if more == 1 else f"{more:,} more attempts"
            self._log.write(ARTIFACTS, f"artifacts of {attempts} were also left out", level="WARNING")

    def restore(self) -> None:
        """Write missing files of the attempts of earlier sessions; blocking."""
        lacking = sorted(
            (offset for row, run, offset in self._table.recorded() if not self.has_trajectory(row, run)),
            reverse=True,
        )
        if not lacking:
            return
        with JournalReader(self._directory.events) as journal:
            records = {record.rollout_id: record for offset in lacking if (record := journal.record(offset))}
        found = stored_conversations(self._directory.conversations)
        stored = {rollout_id: content for rollout_id, content, _ in found if rollout_id in records}
        for rollout_id, record in records.items():
            try:
                trajectory = loads(stored[rollout_id]) if rollout_id in stored else None
                if not isinstance(trajectory, dict | None):
                    raise ValueError("it is not an object")
            except ValueError as error:
                trajectory = None
                self._warn(f"the stored conversation is damaged: {error}", rollout_id)
            attempt = _Recorded(record, trajectory)
            if self._write(attempt):
                self._take_server_version(attempt, pending=True)

    def _find_written(self) -> None:
        """Find the files of earlier sessions, and remove unfinished ones."""
        for directory in (self._directory.artifacts, self._directory.trajectories):
            with contextlib.suppress(FileNotFoundError), os.scandir(directory) as entries:
                for entry in entries:
                    match = _NAME.fullmatch(entry.name)
                    row, run = (int(match[1]), int(match[2])) if match else (-1, -1)
                    is_held = self._table.holds(row, run)
                    # Without a record, it belongs to one that was dropped.
                    if entry.name.startswith(".row_") or (is_held and self._table.offset(row, run) < 0):
                        _remove(Path(entry.path))
                    elif is_held and match is not None and match[3]:
                        self._has_trajectory[row * self._table.n + run] = 1

    def _write(self, attempt: _Recorded) -> bool:
        """Write an attempt's files; return whether its server may still write its own version of the conversation."""
        if not self._writes_files:
            return not self._take_server_version(attempt)
        try:
            with _open_trial(self._directory.trial(attempt.record.rollout_id)) as trial:
                left_out = copy_artifacts(self._directory.artifacts, attempt.name, dir_fd=trial)
                self._log_left_out(attempt, left_out)
        except FileNotFoundError:
            awaits = True  # the server may not have created it yet
        except OSError as error:
            awaits = False
            self._warn(f"could not copy the artifacts: {error}", attempt.record.rollout_id)
        else:
            awaits = not self._take_server_version(attempt)
        # The trajectory comes last: an attempt that has one is complete.
        if attempt.trajectory is not None and not self._has_trajectory[self._position(attempt.record)]:
            self._write_trajectory(attempt, attempt.trajectory)
        return awaits

    def _take_server_version(self, attempt: _Recorded, *, pending: bool = False) -> bool:
        """Write the server's version of the conversation, if any; ``pending`` accepts that of a killed server."""
        try:
            with _open_trial(self._directory.trial(attempt.record.rollout_id)) as trial:
                trajectory = _read_trajectory(trial, TRAJECTORY_FILE, attempt.record.rollout_id)
                if trajectory is None and pending:
                    trajectory = _read_trajectory(trial, PENDING_TRAJECTORY_FILE, attempt.record.rollout_id)
                if trajectory is not None:
                    trajectory = self._redactor.tree(_with_facts(trajectory, attempt.record))
                    self._server_versions.append(conversation_line(attempt.record.rollout_id, trajectory))
                    if self._writes_files:
                        self._write_trajectory(attempt, trajectory)
                return trajectory is not None
        except FileNotFoundError:
            return False
        except (OSError, ValueError, RecursionError) as error:
            self._warn(f"could not copy the server's trajectory: {error}", attempt.record.rollout_id)
            return True

    def _write_trajectory(self, attempt: _Recorded, trajectory: Mapping[str, Any]) -> None:
        from osmosis_ai.rollout.trajectory import encode_trajectory

        target = self._directory.trajectories / f"{attempt.name}.json"
        temporary = target.with_name(f".{target.name}.tmp")
        try:
            with os.fdopen(os.open(temporary, _NEW_FILE, 0o600), "wb") as file:
                file.write(encode_trajectory(trajectory).encode("ascii"))
            temporary.replace(target)
        except (OSError, ValueError, TypeError, RecursionError) as error:
            self._warn(f"could not write the trajectory: {error}", attempt.record.rollout_id)
        else:
            self._has_trajectory[self._position(attempt.record)] = 1

    def _log_left_out(self, attempt: _Recorded, left_out: list[str]) -> None:
        if not left_out:
            return
        self._with_left_out += 1
        if self._with_left_out <= _MOST_LOGGED_ATTEMPTS:
            names, more = ", ".join(left_out[:_MOST_LOGGED_NAMES]), len(left_out) - _MOST_LOGGED_NAMES
            self._log.write(
                ARTIFACTS,
                f"row {attempt.record.row_index}, attempt {attempt.record.run_index}: artifacts left out: {names}"
                + (f" and {more} more" if more > 0 else ""),
                level="WARNING",
            )

    def _position(self, record: TerminalRecord) -> int:
        return record.row_index * self._table.n + record.run_index

    def _warn(self, message: str, rollout_id: str) -> None:
        self._log.write("trajectory", message, level="WARNING", rollout_id=rollout_id)


def _with_facts(
    trajectory: Mapping[str, Any], record: TerminalRecord, *, run_ms: int | None = None
) -> dict[str, Any]:
    """Return a trajectory with what the index has no field for: uploads do not include the journal."""
    facts: dict[str, Any] = {"row_digest": record.row_digest, "run_duration_ms": run_ms}
    if record.status == "failed":
        facts["failure"] = {"source": record.boundary, "code": record.category, "error": record.error}
    extra = as_table(trajectory.get("extra"))
    known = {name: value for name, value in facts.items() if value is not None}
    return {**trajectory, "extra": {**extra, "osmosis": {**as_table(extra.get("osmosis")), **known}}}


def conversation_line(rollout_id: str, trajectory: Mapping[str, Any]) -> bytes:
    """Return the line of ``conversations.jsonl`` for a conversation."""
    return b'{"rollout_id":"%b","trajectory":%b}\n' % (rollout_id.encode(), dumps(trajectory))


def stored_conversations(path: Path, start: int = 0) -> Iterator[tuple[str, bytes, int]]:
    """Yield the rollout id, the conversation as JSON and the end of each line of ``conversations.jsonl``.

    The last of several lines of a rollout counts.
    """
    with contextlib.suppress(FileNotFoundError):
        for offset, line in committed_lines(path, start):
            if match := _LINE_START.match(line):
                rollout_id = match[1].decode(errors="replace")
                yield rollout_id, line[match.end() : -2], offset + len(line)


@contextlib.contextmanager
def _open_trial(trial: Path) -> Iterator[int]:
    """Yield a descriptor of a rollout's directory; a link in its place is not followed."""
    descriptor = os.open(trial, _FOLDER)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _read_trajectory(trial: int, name: str, rollout_id: str) -> Any:
    """Return the trajectory that a server wrote for this rollout; None without one."""
    try:
        with open_regular(name, dir_fd=trial) as source:
            content = source.read(LARGEST_TRAJECTORY_BYTES + 1)
    except FileNotFoundError:
        return None
    if len(content) > LARGEST_TRAJECTORY_BYTES:
        raise ValueError(f"it has more than {LARGEST_TRAJECTORY_BYTES >> 20} MiB")
    from osmosis_ai.rollout.trajectory import trajectory_identity

    document = orjson.loads(content)
    if (identity := trajectory_identity(document)) != rollout_id:
        raise ValueError(f"it is the trajectory of {identity!r}")
    return document


def copy_artifacts(root: Path, name: str, *, dir_fd: int) -> list[str]:
    """Copy the regular files below ``artifacts`` in an open directory to ``root/name`` in one step.

    Returns:
        Names that were left out, each with the reason.
    """
    temporary = root / f".{name}.tmp"
    _remove(temporary)
    copied, left_out = False, list[str]()
    for directory, folders, files, descriptor in _walk(dir_fd, left_out):
        relative, refused = Path(directory).relative_to(ARTIFACTS), set[str]()
        for entry, is_file in (*((each, False) for each in folders), *((each, True) for each in files)):
            path = (relative / entry).as_posix()
            if path == RESERVED_ARTIFACT and is_file:
                continue
            if problem := _entry_problem(entry, descriptor, f"{ARTIFACTS}/{name}/{path}"):
                left_out.append(f"{_printable(path)} ({problem})")
                refused.add(entry)
            elif is_file:
                try:
                    copied = _copy_regular_file(entry, descriptor, temporary / path) or copied
                except OSError as error:
                    left_out.append(f"{_printable(path)} ({reason_of(error)})")
        # Nothing below a refused directory is copied, so the rollout cannot choose how deep the walk goes.
        folders[:] = [entry for entry in folders if entry not in refused]
    _remove(root / name)
    if copied:
        temporary.replace(root / name)
    return left_out


def _walk(dir_fd: int, left_out: list[str]) -> Iterator[tuple[str, list[str], list[str], int]]:
    try:
        found = os.lstat(ARTIFACTS, dir_fd=dir_fd)
    except FileNotFoundError:
        return
    if not stat.S_ISDIR(found.st_mode):
        left_out.append(f"{ARTIFACTS} ({_special_kind(found.st_mode) or 'not a directory'})")
        return
    yield from os.fwalk(ARTIFACTS, follow_symlinks=False, dir_fd=dir_fd)


def _entry_problem(name: str, directory: int, path: str) -> str | None:
    """Return why an entry of an open directory cannot be copied; None if it can, or is gone."""
    try:
        mode = os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode
    except OSError:
        return None
    return _special_kind(mode) or name_problem(path)


def _special_kind(mode: int) -> str | None:
    return next((kind for is_one, kind in _KINDS if is_one(mode)), None)


def _copy_regular_file(name: str, directory: int, target: Path) -> bool:
    """Copy a file of an open directory; False if it is gone."""
    try:
        source = open_regular(name, dir_fd=directory)
    except FileNotFoundError:
        return False
    with source:
        target.parent.mkdir(parents=True, exist_ok=True)
        # Bytes appended during the copy are left out, because they may never end.
        left = os.fstat(source.fileno()).st_size
        with target.open("xb") as copy:
            while left > 0 and (piece := source.read(min(left, _PIECE_BYTES))):
                copy.write(piece)
                left -= len(piece)
    return True


def _printable(path: str) -> str:
    """Return a name from a rollout in printable characters, shortened."""
    cut = path if len(path) <= _LONGEST_NAME else f"{path[: _LONGEST_NAME - 1]}…"
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in cut)


def _remove(path: Path) -> None:
    """Remove a file or a directory, if it exists; no link is followed."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


@dataclass(frozen=True, slots=True)
class StoredConversation:
    """The stored trajectory of an attempt (ATIF), or the reason why there is none."""

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


@dataclass(frozen=True, slots=True)
class AttemptFiles:
    """The files of one attempt, for readers."""

    run: RunDirectory
    rollout_id: str
    row: int
    attempt: int

    def conversation(self, *, max_bytes: int) -> StoredConversation:
        """Return the attempt's trajectory; if it is larger than ``max_bytes``, only its size and how to open it."""
        directory, missing = self.run, _NOT_STORED
        written = f"{directory.trajectories.name}/{item_name(self.row, self.attempt)}.json"
        trial = f"{directory.trials.name}/{self.rollout_id}"
        # The files of the server come last: it does not know which values are secret.
        for path in (written, None, f"{trial}/{TRAJECTORY_FILE}", f"{trial}/{PENDING_TRAJECTORY_FILE}"):
            if path is None:
                content = self._unwritten()
                if content is not None and len(content) <= max_bytes:
                    return StoredConversation(content, len(content))
                continue
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

    def _unwritten(self) -> bytes | None:
        """Return the conversation if it is at the end of ``conversations.jsonl``: its file may not be written yet."""
        path = self.run.conversations
        start = max(0, path.stat().st_size - _UNWRITTEN_BYTES) if path.exists() else 0
        found = (content for name, content, _ in stored_conversations(path, start) if name == self.rollout_id)
        return next(iter(deque(found, maxlen=1)), None)

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


def read_config(directory: RunDirectory) -> str | None:
    """Return the initial config of a run; None if it was not recorded."""
    return _read_text(directory.path, directory.config.name, MOST_OF_A_CONFIG)


def read_environment(directory: Path) -> str | None:
    """Return the description of the agent's environment in a run; None if it was not recorded."""
    return (_read_text(directory, ENVIRONMENT_FILE, _MOST_OF_A_LINE) or "").strip() or None


def _read_text(directory: Path, name: str, most: int) -> str | None:
    try:
        with _opened(directory, name) as file:
            return file.read(most).decode("utf-8", "replace")
    except OSError:
        return None


def read_diagnostics(directory: RunDirectory, rollout_id: str) -> bytes:
    """Return the diagnostics that the rollout's server stored for an attempt; empty without any."""
    try:
        with _opened(directory.path, f"{directory.trials.name}/{rollout_id}/{DIAGNOSTICS_FILE}") as file:
            return file.read(MOST_OF_DIAGNOSTICS)
    except OSError:
        return b""


def read_regular_file(path: Path) -> bytes | None:
    """Return a file's content, or None if it does not exist; no link is followed."""
    try:
        with open_regular(path) as handle:
            return handle.read()
    except FileNotFoundError:
        return None


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
    """Open a regular file below ``root``; no part of its path may be a link."""
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
