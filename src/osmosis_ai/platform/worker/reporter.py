"""Reports what a worker does to its platform, and keeps the lease of its shard.

One thread calls ``sync``: at the interval that the platform sets, and at once when the first record or the end is to be
reported. Another thread prepares what is sent. It reads the engine's journal and adds each attempt's files: a small
conversation travels with the line, larger files and artifacts are uploaded first. So every accepted line has its files,
and the lease is renewed even while the store is unavailable. Lines are repeated until the platform has acknowledged
them.
"""

from __future__ import annotations

import codecs
import hashlib
import json
import math
import os
import tempfile
import threading
import traceback
import zlib
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from io import BytesIO
from itertools import islice
from pathlib import Path
from typing import IO, Any, Literal, NamedTuple, TypeVar

import orjson
from pydantic import SecretStr

from osmosis_ai.api.connections import Transient, Waits
from osmosis_ai.api.http_errors import PlatformError
from osmosis_ai.api.models import workers as wire
from osmosis_ai.controller.record import TerminalRecord
from osmosis_ai.errors import OsmosisError
from osmosis_ai.evaluation.attempt_files import (
    copy_artifacts,
    diagnostics_path,
    item_name,
    read_diagnostics,
    stored_conversations,
)
from osmosis_ai.evaluation.journal import JournalCorruptionError, replay
from osmosis_ai.evaluation.run_directory import RunDirectory
from osmosis_ai.files import open_regular, remove_tree
from osmosis_ai.platform.clock import Clock
from osmosis_ai.platform.log_lines import LogLine, bounded, bounded_details, storable
from osmosis_ai.platform.runs.lifecycle import (
    JournalOffsetError,
    LeaseLostError,
    UploadGoneError,
    UploadLimitError,
)
from osmosis_ai.platform.worker.client import (
    CredentialRefusedError,
    OutgoingBlob,
    PlatformUnreachableError,
    WorkerClient,
)
from osmosis_ai.redaction import Redactor, clean_json

Event = Literal["round", "stop", "lost", "refused", "cut_off"]
"""An exchange begins; the shard must end; another worker has the shard, or the run has ended; the platform refuses the
worker's lease or release; or it has not answered for the term of the lease."""
Answer = TypeVar("Answer")
_ROUND_S = 0.1
_MOST_LINES_AT_ONCE = 200
_MOST_WAITING_BYTES = 16 << 20
"""Limit of parcels that wait to be sent: everything else waits on the disk."""
_MOST_EXCHANGE_BYTES = 3 << 20
_MOST_EXCHANGE_FILES = wire.MOST_FILES // 2
_FILE_BYTES = 512
"""Bytes of a file in an exchange, in addition to its path and content."""
_MOST_LOG_LINES, _MOST_LOG_BYTES = 500, 160 << 10
_MOST_ARTIFACTS_AT_ONCE = 32
_PATIENCE_S = 60.0
"""How long the end of a shard waits at least for an unreachable platform."""
_EXPLAINED_AFTER_S = 10.0
"""After this the run's log says why its samples are not counted yet."""
_TRIAL_KEPT_S = 3.0
"""How long an attempt's directory is kept after it was reported: its server may still write a version of its own."""
_WAITS = Waits((0.25, 0.5, 1.0, 2.0))
_INTERRUPTED = (LeaseLostError, CredentialRefusedError)


class _Attempt(NamedTuple):
    rollout_id: str
    row_index: int
    run_index: int
    source_row_index: int | None

    @property
    def name(self) -> str:
        return item_name(self.row_index, self.run_index)


@dataclass
class _Parcel:
    """The content of one exchange: files of an attempt, and its line of the journal unless it has been reported before.

    ``size`` is roughly its bytes in the body of an exchange.
    """

    offset: int
    line: bytes = b""
    attempt: _Attempt | None = None
    files: list[wire.RunFilePart] = field(default_factory=list)
    sent: list[wire.SentUpload] = field(default_factory=list)
    size: int = 0


class Reporter:
    """Reports about one shard; ``notify`` is called with events."""

    def __init__(
        self, client: WorkerClient, assignment: wire.Assignment, clock: Clock, notify: Callable[[Event], None]
    ) -> None:
        self._client = client
        self.assignment = assignment
        self.redactor = Redactor([value.get_secret_value() for value in assignment.secrets.values()])
        self._clock = clock
        self._notify = notify
        self._lock = threading.Lock()
        self._exchanging = threading.Lock()
        """Held from choosing what is reported until it is acknowledged: the end of a shard reports next to the thread."""
        self._answered_at = clock.monotonic()
        self.term_s = assignment.lease.term_s
        """How long the lease lasts from each answer, in seconds."""
        self._next_poll_s = assignment.next_poll_s
        self.stop_requested = False
        self._is_cut_off = self._has_asked_to_stop = False
        # To be reported, and removed when it has been accepted.
        self._log: deque[LogLine] = deque()
        self._log_sent = 0
        self._facts: dict[str, Any] = {}
        self._parcels: deque[_Parcel] = deque()
        self._waiting_bytes = 0
        self._tasks: deque[Callable[[], None]] = deque()
        # The engine's files, and how far the collecting thread has read them.
        self._directory: RunDirectory | None = None
        self._keeps_files = True
        self._read_to = assignment.shard.journal_bytes
        self._rewind_to: int | None = None
        self._conversations_read = 0
        self._conversations: dict[str, tuple[int, int]] = {}
        self._reported: dict[str, _Attempt] = {}
        # Reported attempts with a newer conversation or with diagnostics, which their server may write last.
        self._late: dict[str, None] = {}
        self._undiagnosed: set[str] = set()
        self._trials: deque[tuple[float, str]] = deque()
        self.damage: JournalCorruptionError | None = None
        self.failure: Exception | None = None
        self._is_closing = self._has_ended = False
        self._sync_now, self._collect_now = threading.Event(), threading.Event()
        self._syncing = threading.Thread(target=self._keep_syncing, name="sync", daemon=True)
        self._collecting = threading.Thread(target=self._keep_collecting, name="collect", daemon=True)

    # -- what the worker reports -----------------------------------------------------------------------

    def start(self) -> None:
        """Begin: the first exchange reports whether the shard must end."""
        self._sync_now.set()
        self._syncing.start()
        self._collecting.start()

    def follow(self, directory: RunDirectory) -> None:
        """Report the engine's journal and the files of its attempts from now on."""
        if self._directory is None:
            self._directory = directory
            self._collect_now.set()

    def recorded(self) -> None:
        self._collect_now.set()

    def log(self, line: LogLine) -> None:
        """Report a log line, dated now unless it has a date; may be called from any thread."""
        self._log.append(line if line.timestamp is not None else replace(line, timestamp=self._clock.now()))

    def know(self, **facts: Any) -> None:
        """Report facts of the run: fields of a :class:`SyncRequest`."""
        with self._lock:
            for name, value in facts.items():
                self._facts[name] = storable(self.redactor.text(value)) if isinstance(value, str) else value

    def later(self, task: Callable[[], None]) -> None:
        """Call ``task`` in the collecting thread, after those before it."""
        self._tasks.append(task)
        self._collect_now.set()

    def flush(self) -> None:
        """Report everything there is, and stop collecting; blocking. Raises what keeps it from being reported."""
        self._is_closing = True
        self._collect_now.set()
        if self._collecting.is_alive() and self._collecting is not threading.current_thread():
            self._collecting.join()
        if isinstance(self.failure, _INTERRUPTED):
            raise self.failure
        while self.insist(self._flush_some, lasting_s=max(_PATIENCE_S, 4 * self.term_s)):
            pass

    def close(self) -> None:
        self._has_ended = True
        self._sync_now.set()

    def end(self, request: wire.FinishRequest | wire.ReleaseRequest) -> wire.ShardClosed:
        """Finish the shard, or release it for another worker."""
        self.close()
        return self._client.end(*self._shard, request, lasting_s=self.term_s)

    # -- the lease -------------------------------------------------------------------------------------

    def silence_s(self) -> float:
        """Return for how long the platform has not answered, in seconds."""
        return self._clock.monotonic() - self._answered_at

    def has_expired(self) -> bool:
        """Whether the lease has expired, as far as this machine knows."""
        return self.silence_s() >= self.term_s

    @property
    def _shard(self) -> tuple[str, SecretStr]:
        return self.assignment.shard.id, self.assignment.lease.token

    def sync(self, **fields: Any) -> wire.SyncReply:
        """Exchange these fields of a :class:`SyncRequest`; tried once."""
        asked_at = self._clock.monotonic()
        # The lease is long enough for another try.
        left_s = self.term_s - self.silence_s()
        timeout_s = min(self.term_s / 3, max(1.0, left_s)) if left_s > 0 else max(1.0, self.term_s / 6)
        reply = self._client.sync(*self._shard, wire.SyncRequest(**fields), timeout_s=timeout_s)
        with self._lock:
            # A lease counts from when it was asked for: the reply may have taken long.
            self._answered_at = max(self._answered_at, asked_at)
            self.term_s, self._next_poll_s = reply.term_s, min(reply.next_poll_s, reply.term_s / 3)
            self._is_cut_off = False
            self.stop_requested = self.stop_requested or reply.stop
        if reply.stop:
            self._ask_to_stop()
        return reply

    def _ask_to_stop(self) -> None:
        with self._lock:
            is_new, self._has_asked_to_stop = not self._has_asked_to_stop, True
        if is_new:
            self._notify("stop")

    def insist(self, call: Callable[[], Answer], *, lasting_s: float | None = None) -> Answer:
        """Return what ``call`` does, repeated while the platform is unreachable, by default for less than a lease."""

        def attempt() -> Answer:
            try:
                return call()
            except OsmosisError as error:
                if error.is_infrastructure or isinstance(error, (JournalOffsetError, UploadGoneError)):
                    raise Transient(error) from None
                raise

        return _WAITS.lasting(self.term_s if lasting_s is None else lasting_s).run(attempt)

    def find_agent(self) -> wire.AgentPlace | None:
        """Return where the run's remote agent is served now."""
        return self.insist(lambda: self.sync(find_agent=True)).agent

    def fetch(self, download: wire.InputDownload, target: Path) -> None:
        self._client.fetch(download, target, lasting_s=self.term_s)

    def fetch_journal(self, target: Path) -> None:
        self._client.journal(*self._shard, target, most_bytes=self.assignment.shard.journal_bytes)

    def upload(self, blobs: Sequence[OutgoingBlob]) -> list[wire.SentUpload]:
        """Upload blobs, at most :data:`MOST_WANTED`; the exchange that names them has the result in ``sent``."""
        wanted = [wire.WantedUpload.of(each) for each in blobs]
        granted = {grant.name: grant for grant in self.sync(wanted=wanted).uploads}
        if missing := [each.name for each in blobs if each.name not in granted]:
            raise PlatformUnreachableError(f"the platform did not return an upload URL for `{missing[0]}`.")
        return self._client.send_all([(each, granted[each.name]) for each in blobs], lasting_s=self.term_s)

    # -- exchanges -------------------------------------------------------------------------------------

    def _keep_syncing(self) -> None:
        next_at = 0.0
        while not self._has_ended:
            self._sync_now.wait(max(0.0, next_at - self._clock.monotonic()))
            self._sync_now.clear()
            if self._has_ended:
                return
            self._notify("round")
            try:
                is_full = self.exchange()
                next_at = self._clock.monotonic() + (0.0 if is_full else self._next_poll_s)
            except LeaseLostError:
                if not self._has_ended:
                    self._has_ended = True
                    self._notify("lost")
            except CredentialRefusedError as error:
                self._has_ended, self.failure = True, error
                self._notify("refused")
            except Exception as error:  # the edge of this thread, without which the lease would expire
                self._note_failure(error)
                if isinstance(error, PlatformError) and error.platform_code is not None:
                    # The platform would refuse the same content again: the work ends, and the lease is kept until then.
                    with suppress(OsmosisError):
                        self.sync()
                    self._ask_to_stop()
                next_at = self._clock.monotonic() + min(1.0, self.term_s / 6)
            if self.has_expired() and not self._is_cut_off:
                self._is_cut_off = True
                self._notify("cut_off")

    def exchange(self) -> bool:
        """Report what is new; return whether it did not all fit."""
        with self._exchanging:
            log = self._next_log()
            with self._lock:
                parcels, facts = self._next_parcels(), dict(self._facts)
                is_full = len(parcels) < len(self._parcels) or len(log) == _MOST_LOG_LINES
            fields = dict(facts)
            if log:
                fields["log"] = wire.LogPart(first=self._log_sent, lines=log)
            if parcels:
                fields["files"] = [part for parcel in parcels for part in parcel.files]
                fields["sent"] = [each for parcel in parcels for each in parcel.sent]
            if lines := [parcel for parcel in parcels if parcel.line]:
                content = b"".join(parcel.line for parcel in lines).decode()
                fields["journal"] = wire.JournalPart(offset=lines[0].offset, lines=content)
            try:
                self.sync(**fields)
            except JournalOffsetError as error:
                self._rewind(error.stored)
                raise
            except UploadGoneError:
                self._rewind(parcels[0].offset if parcels else self._read_to)
                raise
            now = self._clock.monotonic()
            with self._lock:
                for _ in log:
                    self._log.popleft()
                self._log_sent += len(log)
                for name, value in facts.items():
                    if self._facts[name] == value:
                        del self._facts[name]
                for parcel in parcels:
                    self._parcels.popleft()
                    self._waiting_bytes -= parcel.size
                    if parcel.attempt is not None:
                        self._trials.append((now, parcel.attempt.rollout_id))
        if parcels:
            self._collect_now.set()
        return is_full

    def _next_parcels(self) -> list[_Parcel]:
        """Return the parcels that fit into an exchange, at least one."""
        parcels, size, files = list[_Parcel](), 0, 0
        for parcel in self._parcels:
            size += parcel.size
            files += max(1, len(parcel.files), len(parcel.sent))
            if parcels and (size > _MOST_EXCHANGE_BYTES or files > _MOST_EXCHANGE_FILES):
                break
            parcels.append(parcel)
        return parcels

    def _next_log(self) -> list[wire.WorkerLogLine]:
        lines: list[wire.WorkerLogLine] = []
        room = _MOST_LOG_BYTES
        # By index: other threads append lines, which would invalidate an iterator.
        for place in range(min(len(self._log), _MOST_LOG_LINES)):
            line = self._log[place]
            assert line.timestamp is not None  # `log` dates them
            sent = wire.WorkerLogLine(
                timestamp=line.timestamp,
                level=line.level,
                step=line.step[:64],
                message=bounded(self.redactor.text(storable(line.message))),
            )
            if line.details is not None:
                sent.details = bounded_details(line.details, self.redactor)
            room -= len(orjson.dumps([sent.message, sent.details]))
            if lines and room < 0:
                break
            lines.append(sent)
        return lines

    def _rewind(self, stored: int) -> None:
        """Report again from byte ``stored`` of the journal; the collecting thread reads from there."""
        with self._lock:
            for parcel in self._parcels:
                if not parcel.line and parcel.attempt is not None:
                    self._late[parcel.attempt.rollout_id] = None
            self._parcels.clear()
            self._waiting_bytes = 0
            self._rewind_to = stored
        self._collect_now.set()

    # -- collecting ------------------------------------------------------------------------------------

    def _keep_collecting(self) -> None:
        failing_since: float | None = None
        has_explained = False
        while not self._is_closing:
            began = self._clock.monotonic()
            is_busy = False
            try:
                is_busy = self._collect_some()
                failing_since = None
            except _INTERRUPTED as error:
                self.failure = error
                return
            except Exception as error:  # the edge of this thread: everything is tried again, nothing is lost
                self._note_failure(error)
                failing_since = began if failing_since is None else failing_since
                has_records = self._directory is not None and self._directory.events.exists()
                is_long = self._clock.monotonic() - failing_since >= _EXPLAINED_AFTER_S
                if has_records and is_long and not has_explained:
                    has_explained = True
                    message = f"finished attempts are counted later, once their files are stored: {error}"
                    self.log(LogLine(message, level="warning", step="files"))
            if not is_busy:
                self._collect_now.wait(_ROUND_S if self._directory is not None else 1.0)
                self._collect_now.clear()

    def _note_failure(self, error: Exception) -> None:
        if not isinstance(error, (OsmosisError, OSError)) and type(error) is not type(self.failure):
            traceback.print_exception(error)
        self.failure = error

    def _flush_some(self) -> bool:
        """Report some of what there is; return whether there was anything."""
        while self._collect_some():
            pass
        if not (self._parcels or self._log or self._facts):
            return False
        self.exchange()
        return True

    def _collect_some(self) -> bool:
        """Prepare some of what is new; return whether there may be more."""
        while self._tasks:
            self._tasks[0]()
            self._tasks.popleft()
        directory = self._directory
        if directory is None:
            return False
        with self._lock:
            if self._rewind_to is not None:
                self._read_to, self._rewind_to = self._rewind_to, None
        self._remove_trials(directory)
        self._read_conversations(directory)
        is_busy = False
        for line, record in self._next_records(directory.events):
            attempt = _Attempt(record.rollout_id, record.row_index, record.run_index, record.source_row_index)
            if attempt.rollout_id not in self._conversations:
                # A conversation is on the disk before its line.
                self._read_conversations(directory)
            if not self._add(self._parcels_of(directory, attempt, line)):
                return True
            is_busy = True
        with self._lock:
            late = [self._reported[rollout_id] for rollout_id in self._late]
        for attempt in late:
            if self._waiting_bytes > _MOST_WAITING_BYTES:
                break
            if not self._add(self._parcels_of(directory, attempt)):
                return True
            is_busy = True
        return is_busy

    def _add(self, parcels: list[_Parcel]) -> bool:
        """Let parcels be sent; return False if the journal must be read from another place first."""
        for parcel in parcels:
            # JSON in JSON escapes quotes and backslashes; Base64 is a third longer.
            parcel.size = len(parcel.line) + parcel.line.count(b'"') + parcel.line.count(b"\\")
            parcel.size += sum(
                _FILE_BYTES + len(file.path) + len(file.content or b"") * 4 // 3 for file in parcel.files
            )
        last = parcels[-1]
        assert last.attempt is not None
        with self._lock:
            if self._rewind_to is not None:
                return False
            is_first = bool(last.line) and self._read_to == self.assignment.shard.journal_bytes
            self._read_to += len(last.line)
            self._reported[last.attempt.rollout_id] = last.attempt
            if not last.line:
                self._late.pop(last.attempt.rollout_id)
            self._parcels.extend(parcels)
            self._waiting_bytes += sum(parcel.size for parcel in parcels)
        if is_first:
            self._sync_now.set()
        return True

    def _next_records(self, events: Path) -> Iterator[tuple[bytes, TerminalRecord]]:
        """Yield the next lines of the journal while there is room for them."""
        if self.damage is not None or not events.exists():
            return
        try:
            for entry in islice(replay(events, self._read_to), _MOST_LINES_AT_ONCE):
                if self._waiting_bytes > _MOST_WAITING_BYTES:
                    return
                yield entry.line, entry.record
        except JournalCorruptionError as damage:
            self.damage = damage

    def _read_conversations(self, directory: RunDirectory) -> None:
        """Find the conversations that were stored since the last time; those of reported attempts are late."""
        stored = stored_conversations(directory.conversations, self._conversations_read)
        for rollout_id, content, end in stored:
            # A line ends with `}` and a newline after the conversation.
            self._conversations[rollout_id] = (end - 2 - len(content), len(content))
            self._conversations_read = end
            if rollout_id in self._reported:
                self._late[rollout_id] = None

    def _remove_trials(self, directory: RunDirectory) -> None:
        """Delete the directories of attempts that the platform has; late diagnostics are reported first."""
        # At the end of the shard, no server writes any more.
        until = math.inf if self._is_closing else self._clock.monotonic() - _TRIAL_KEPT_S
        while self._trials and self._trials[0][0] <= until:
            rollout_id = self._trials.popleft()[1]
            if rollout_id in self._undiagnosed and read_diagnostics(directory, rollout_id):
                self._late[rollout_id] = None
            else:
                remove_tree(directory.trial(rollout_id))
            self._undiagnosed.discard(rollout_id)

    # -- files -----------------------------------------------------------------------------------------

    def _parcels_of(self, directory: RunDirectory, attempt: _Attempt, line: bytes = b"") -> list[_Parcel]:
        """Return an attempt's files, and at last its line; without a line, only the files that may come late."""
        parcel = _Parcel(self._read_to, line, attempt)
        pieces: list[_Parcel] = []
        if self._keeps_files:
            try:
                self._add_conversation(directory, attempt, parcel)
                self._add_diagnostics(directory, attempt, parcel)
                if line:
                    self._add_artifacts(directory, attempt, pieces)
            except UploadLimitError:
                # The platform has reported this on the run, whose records continue without files.
                self._keeps_files = False
        return [*pieces, parcel]

    def _add_conversation(self, directory: RunDirectory, attempt: _Attempt, parcel: _Parcel) -> None:
        place = self._conversations.get(attempt.rollout_id)
        if place is None:
            return
        with open_regular(directory.conversations) as file:
            file.seek(place[0])
            content = file.read(place[1])
        with suppress(ValueError):  # not JSON
            text = content.decode()
            if self.redactor.text(text) != text:
                content = clean_json(content, self.redactor)
            self._add_file(parcel, attempt, f"trajectories/{attempt.name}.json", content)

    def _add_diagnostics(self, directory: RunDirectory, attempt: _Attempt, parcel: _Parcel) -> None:
        if diagnostics := read_diagnostics(directory, attempt.rollout_id):
            path = diagnostics_path(attempt.row_index, attempt.run_index)
            with suppress(ValueError):  # incomplete, or not JSON
                self._add_file(parcel, attempt, path, clean_json(diagnostics, self.redactor))
        elif parcel.line:
            self._undiagnosed.add(attempt.rollout_id)

    def _add_file(self, parcel: _Parcel, attempt: _Attempt, path: str, content: bytes) -> None:
        """Add a file to a parcel, or upload it if it is too large; its kind is the first part of its path."""
        packed = zlib.compress(content, 6)
        if len(packed) > wire.LARGEST_INLINE_BYTES or len(content) > wire.LARGEST_FILE_BYTES:
            self._upload_files(parcel, attempt, {path: BytesIO(content)})
            return
        self._add_part(parcel, attempt, path, len(content), content=packed)

    def _upload_files(self, parcel: _Parcel, attempt: _Attempt, contents: Mapping[str, IO[bytes]]) -> None:
        blobs = {path: _named(self.assignment.shard.id, path, content) for path, content in contents.items()}
        parcel.sent += self.upload(list(blobs.values()))
        for path, blob in blobs.items():
            self._add_part(parcel, attempt, path, blob.size, blob=blob.name)

    def _add_part(self, parcel: _Parcel, attempt: _Attempt, path: str, size: int, **where: Any) -> None:
        kind, row = path.partition("/")[0], attempt.source_row_index
        parcel.files.append(wire.RunFilePart(path=path, kind=kind, size=size, source_row_index=row, **where))

    def _add_artifacts(self, directory: RunDirectory, attempt: _Attempt, pieces: list[_Parcel]) -> None:
        trial = directory.trial(attempt.rollout_id)
        # A rollout may have put a link in the place of its directory.
        if trial.is_symlink() or not (trial / "artifacts").is_dir():
            return
        directory.artifacts.mkdir(parents=True, exist_ok=True)
        copied = directory.artifacts / attempt.name
        descriptor = os.open(trial, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            left_out = copy_artifacts(directory.artifacts, attempt.name, dir_fd=descriptor)
        finally:
            os.close(descriptor)
        if left_out:
            shown = ", ".join(left_out[:5]) + (f" and {len(left_out) - 5} more" if len(left_out) > 5 else "")
            where = f"row {attempt.row_index}, attempt {attempt.run_index}"
            self.log(LogLine(f"{where}: artifacts left out: {shown}", level="warning", step="artifacts"))
        found = [Path(folder, file) for folder, _, files in os.walk(copied) for file in sorted(files)]
        for start in range(0, len(found), _MOST_ARTIFACTS_AT_ONCE):
            pieces.append(_Parcel(self._read_to))
            with ExitStack() as opened:
                contents: dict[str, IO[bytes]] = {}
                for file in found[start : start + _MOST_ARTIFACTS_AT_ONCE]:
                    raw = opened.enter_context(open_regular(file))
                    path = f"artifacts/{file.relative_to(directory.artifacts).as_posix()}"
                    contents[path] = opened.enter_context(clean_artifact(raw, self.redactor))
                self._upload_files(pieces[-1], attempt, contents)
        remove_tree(copied)


def _named(shard_id: str, path: str, content: IO[bytes]) -> OutgoingBlob:
    """Return a file as a blob of a shard, whose name is derived from its path and content."""
    measured = OutgoingBlob.of("", content)
    digest = hashlib.sha256(f"{path}\0{measured.sha256}".encode()).hexdigest()
    return replace(measured, name=f"files/{shard_id}/{digest}")


_LARGEST_DOCUMENT_BYTES = 8 << 20
"""Larger content is not read as one JSON document or line, but piece by piece, as text."""
_PIECE_BYTES = 1 << 20


def clean_artifact(raw: IO[bytes], redactor: Redactor) -> IO[bytes]:
    """Return an artifact without secrets, in a file to be closed; a document of JSON stays one."""
    clean = tempfile.SpooledTemporaryFile(max_size=_PIECE_BYTES)  # noqa: SIM115 - the caller closes it
    document = None
    if os.fstat(raw.fileno()).st_size <= _LARGEST_DOCUMENT_BYTES:
        document = _clean_document(raw.read(), redactor)
        raw.seek(0)
    for piece in _clean_lines(raw, redactor) if document is None else [document]:
        clean.write(piece)
    clean.seek(0)
    return clean


def _clean_lines(raw: IO[bytes], redactor: Redactor) -> Iterator[bytes]:
    while line := raw.readline(_LARGEST_DOCUMENT_BYTES):
        if len(line) == _LARGEST_DOCUMENT_BYTES and not line.endswith(b"\n"):
            for text in redactor.in_pieces(_texts_of_line(line, raw)):
                yield text.encode("utf-8", "surrogateescape")
        elif line[:1] in b"{[" and (document := _clean_document(line, redactor)) is not None:
            # A line of JSON stays one (``.jsonl``).
            yield document.rstrip(b"\n") + line[len(line.rstrip(b"\n")) :]
        else:
            text = redactor.text(line.decode("utf-8", "surrogateescape"))
            yield text.encode("utf-8", "surrogateescape")


def _texts_of_line(beginning: bytes, raw: IO[bytes]) -> Iterator[str]:
    """Yield the text of a long line: its beginning, and its rest in ``raw``."""
    decoder = codecs.getincrementaldecoder("utf-8")("surrogateescape")
    for start in range(0, len(beginning), _PIECE_BYTES):
        yield decoder.decode(beginning[start : start + _PIECE_BYTES])
    while (piece := raw.readline(_PIECE_BYTES)) and not piece.endswith(b"\n"):
        yield decoder.decode(piece)
    yield decoder.decode(piece, final=True)


def _clean_document(content: bytes, redactor: Redactor) -> bytes | None:
    """Return a JSON value without secrets, byte for byte unchanged if it has none; None if it is not JSON."""
    try:
        document = json.loads(content)
        clean = redactor.tree(document)
    except (ValueError, RecursionError):
        return None
    # Compared as written: NaN equals nothing, and 1 equals true.
    return content if repr(clean) == repr(document) else json.dumps(clean).encode()
