"""Reports what a worker does to its platform, and keeps the lease of its shard.

One thread calls ``sync``: at the interval that the platform sets, and at once when the first record or the end is to be
reported. Another thread prepares what is sent. It reads the engine's journal and adds each attempt's files: a small
conversation travels with the lines, larger files and artifacts are uploaded first. So every accepted line has its files,
and while the store is unavailable the lease is kept all the same. Lines are repeated until the platform has acknowledged
them.
"""

from __future__ import annotations

import hashlib
import math
import os
import threading
import time
import traceback
import zlib
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO, Literal, TypeVar

import orjson
from pydantic import SecretStr

from osmosis_ai.api.http_errors import PlatformError
from osmosis_ai.api.retrying import Transient, Waits
from osmosis_ai.api.wire.workers import (
    LARGEST_FILE_BYTES,
    LARGEST_INLINE_BYTES,
    MOST_FILES,
    MOST_WANTED,
    AgentPlace,
    Assignment,
    FinishRequest,
    InputDownload,
    JournalPart,
    LogPart,
    ReleaseRequest,
    RunFilePart,
    SentUpload,
    ShardClosed,
    SyncReply,
    SyncRequest,
    WantedUpload,
    WorkerLogLine,
)
from osmosis_ai.controller.record import TerminalRecord
from osmosis_ai.errors import OsmosisError
from osmosis_ai.evaluation.attempt_files import (
    copy_artifacts,
    diagnostics_path,
    item_name,
    read_diagnostics,
    stored_conversations,
)
from osmosis_ai.evaluation.journal import JournalCorruptionError, committed_lines, replay
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
from osmosis_ai.platform.worker.artifacts import clean_artifact
from osmosis_ai.platform.worker.client import (
    CredentialRefusedError,
    OutgoingBlob,
    PlatformUnreachableError,
    WorkerClient,
)
from osmosis_ai.redaction import Redactor, clean_json

Answer = TypeVar("Answer")
_ROUND_S = 0.1
_MOST_PARCEL_LINES = 200
_MOST_PARCEL_BYTES = 1 << 20
_MOST_WAITING_BYTES = 16 << 20
"""Of parcels that wait to be sent: everything else waits on the disk."""
_MOST_EXCHANGE_BYTES = 3 << 20
_MOST_EXCHANGE_FILES = MOST_FILES // 2
_FILE_BYTES = 512
"""What a file takes of an exchange, in addition to its path and content."""
_MOST_LOG_LINES, _MOST_LOG_BYTES = 500, 160 << 10
_MOST_ARTIFACTS_AT_ONCE = 32
_PATIENCE_S = 60.0
"""How long the end of a shard waits at least for an unreachable platform."""
_LONGEST_PAUSE_S = 5.0
_EXPLAINED_AFTER_S = 10.0
"""After this the run's log says why its samples are not counted yet."""
_TRIAL_KEPT_S = 3.0
"""How long an attempt's directory is kept after it was reported: its server may still write a version of its own."""
_WAITS = Waits((0.25, 1.0))
_INTERRUPTED = (LeaseLostError, CredentialRefusedError)


@dataclass
class _Parcel:
    """Lines of the journal, with the files of their attempts; without lines, files that replace earlier ones."""

    offset: int
    end: int
    lines: str = ""
    files: list[RunFilePart] = field(default_factory=list)
    sent: list[SentUpload] = field(default_factory=list)
    trials: list[str] = field(default_factory=list)
    size: int = 0
    """Roughly its bytes in the body of an exchange."""


@dataclass
class _Message:
    """What one exchange reports."""

    fields: dict[str, Any]
    parcels: int = 0
    log_lines: int = 0
    is_full: bool = False


class Reporter:
    """Reports about one shard.

    Args:
        on_stop: Called when the shard must end.
        on_lost: Called when another worker has the shard, or the run has ended.
        on_refused: Called when the platform refuses the worker's lease or release.
        on_cut_off: Called when the platform has not answered for the term of the lease.
        on_round: Called before each exchange.
    """

    def __init__(
        self,
        client: WorkerClient,
        assignment: Assignment,
        redactor: Redactor,
        clock: Clock,
        *,
        on_stop: Callable[[], None],
        on_lost: Callable[[], None],
        on_refused: Callable[[], None],
        on_cut_off: Callable[[], None],
        on_round: Callable[[], None] = lambda: None,
    ) -> None:
        self._client = client
        self.assignment = assignment
        self.redactor = redactor
        self._clock = clock
        self._on_stop, self._on_lost = on_stop, on_lost
        self._on_refused, self._on_cut_off, self._on_round = on_refused, on_cut_off, on_round
        self._lock = threading.Lock()
        self._exchanging = threading.Lock()
        """Held from choosing what is reported until it is acknowledged: the end of a shard reports next to the thread."""
        self._answered_at = clock.monotonic()
        self._term_s = assignment.lease.term_s
        self._next_poll_s = assignment.next_poll_s
        self.stop_requested = False
        self._is_cut_off = False
        # What is to be reported; lines of the log are removed when they have been accepted.
        self._log: deque[LogLine] = deque()
        self._log_sent = 0
        self._facts: dict[str, Any] = {}
        self._facts_sent: dict[str, Any] = {}
        self._parcels: deque[_Parcel] = deque()
        self._tasks: deque[Callable[[], None]] = deque()
        # The engine's files, and how far they have been read.
        self._directory: RunDirectory | None = None
        self._keeps_files = True
        self._read_to = assignment.shard.journal_bytes
        self._conversations_read = 0
        self._conversations: dict[str, tuple[int, int]] = {}
        self._reported: dict[str, TerminalRecord] = {}
        self._late: dict[str, None] = {}
        # Rollouts that were reported without diagnostics, which their server may write last.
        self._undiagnosed: set[str] = set()
        self._rewinds = 0
        self._trials: deque[tuple[float, str]] = deque()
        self._waiting_since: float | None = None
        self._has_explained = False
        self.damage: JournalCorruptionError | None = None
        self.failure: Exception | None = None
        self.refusal: PlatformError | None = None
        self._is_closing = self._has_ended = False
        self._sync_now, self._collect_now = threading.Event(), threading.Event()
        self._threads = [
            threading.Thread(target=self._keep_syncing, name="sync", daemon=True),
            threading.Thread(target=self._keep_collecting, name="collect", daemon=True),
        ]

    # -- what the worker reports -----------------------------------------------------------------------

    def start(self) -> None:
        """Begin: the first exchange tells whether the shard must end."""
        self._sync_now.set()
        for thread in self._threads:
            thread.start()

    def follow(self, directory: RunDirectory) -> None:
        """Report the engine's journal and the files of its attempts from now on."""
        if self._directory is None:
            self._directory = directory
            self._collect_now.set()

    def recorded(self) -> None:
        """Note that the engine has recorded an attempt."""
        self._collect_now.set()

    def log(self, line: LogLine) -> None:
        """Report a log line, dated now unless it has a date; may be called from any thread."""
        self._log.append(line if line.timestamp is not None else replace(line, timestamp=self._clock.now()))

    def know(self, **facts: Any) -> None:
        """Report facts of the run: fields of a :class:`SyncRequest`."""
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
        collecting = self._threads[1]
        if collecting.is_alive() and collecting is not threading.current_thread():
            collecting.join()
        if isinstance(self.failure, _INTERRUPTED):
            raise self.failure
        self._patiently(self._collect_all)
        while self._patiently(self._flush_some):
            pass

    def close(self) -> None:
        """Stop syncing."""
        self._has_ended = True
        self._sync_now.set()

    def finish(
        self, outcome: Literal["finished", "failed"], error: str | None = None, note: str | None = None
    ) -> ShardClosed:
        """End the shard."""
        self.close()
        request = FinishRequest(outcome=outcome, error=error, note=note)
        return self._client.finish(self._shard_id, self._lease, request, lasting_s=self._term_s)

    def release(self, reason: str | None = None, *, counts: bool = False, unfit: bool = False) -> ShardClosed:
        """Return the shard for another worker."""
        self.close()
        request = ReleaseRequest(reason=reason, counts=counts, unfit=unfit)
        return self._client.release(self._shard_id, self._lease, request, lasting_s=self._term_s)

    # -- the lease -------------------------------------------------------------------------------------

    @property
    def term_s(self) -> float:
        """How long the lease lasts from each answer, in seconds."""
        return self._term_s

    def silence_s(self) -> float:
        """Return for how long the platform has not answered, in seconds."""
        return self._clock.monotonic() - self._answered_at

    def has_expired(self) -> bool:
        """Whether the lease has expired, as far as this machine knows."""
        return self.silence_s() >= self._term_s

    @property
    def _shard_id(self) -> str:
        return self.assignment.shard.id

    @property
    def _lease(self) -> SecretStr:
        return self.assignment.lease.token

    def sync(self, **fields: Any) -> SyncReply:
        """Exchange these fields of a :class:`SyncRequest`; tried once."""
        asked_at = self._clock.monotonic()
        # There is time to try again before the lease expires.
        left_s = self._term_s - self.silence_s()
        timeout_s = min(self._term_s / 3, max(1.0, left_s)) if left_s > 0 else max(1.0, self._term_s / 6)
        reply = self._client.sync(self._shard_id, self._lease, SyncRequest(**fields), timeout_s=timeout_s)
        with self._lock:
            # A lease counts from when it was asked for: the reply may have taken long.
            self._answered_at = max(self._answered_at, asked_at)
            self._term_s, self._next_poll_s = reply.term_s, min(reply.next_poll_s, reply.term_s / 3)
            self._is_cut_off = False
            is_new = reply.stop and not self.stop_requested
            self.stop_requested = self.stop_requested or reply.stop
        if is_new:
            self._on_stop()
        return reply

    def insist(self, call: Callable[[], Answer]) -> Answer:
        """Return what ``call`` does, repeated while the platform is unreachable for less than a lease."""

        def attempt() -> Answer:
            try:
                return call()
            except PlatformUnreachableError as error:
                raise Transient(error) from None

        return _WAITS.lasting(self._term_s).run(attempt)

    def find_agent(self) -> AgentPlace | None:
        """Return where the run's remote agent is served now."""
        return self.insist(lambda: self.sync(find_agent=True)).agent

    def fetch(self, download: InputDownload, target: Path) -> None:
        """Download an input to a file."""
        self._client.fetch(download, target, lasting_s=self._term_s)

    def fetch_journal(self, target: Path) -> None:
        """Download the stored journal of the shard."""
        most = self.assignment.shard.journal_bytes
        self._client.journal(self._shard_id, self._lease, target, most_bytes=most)

    def upload(self, blobs: Sequence[OutgoingBlob]) -> list[SentUpload]:
        """Upload blobs; the result belongs into ``sent`` of the exchange that names them."""
        sent: list[SentUpload] = []
        for start in range(0, len(blobs), MOST_WANTED):
            some = blobs[start : start + MOST_WANTED]
            wanted = [WantedUpload(name=each.name, size=each.size, sha256=each.sha256) for each in some]
            granted = {grant.name: grant for grant in self.sync(wanted=wanted).uploads}
            if missing := [each.name for each in some if each.name not in granted]:
                raise PlatformUnreachableError(f"the platform did not say where to upload `{missing[0]}`.")
            pairs = [(each, granted[each.name]) for each in some]
            sent += self._client.send_all(pairs, lasting_s=self._term_s)
        return sent

    def _keep_syncing(self) -> None:
        next_at = 0.0
        while not self._has_ended:
            self._sync_now.wait(max(0.0, next_at - self._clock.monotonic()))
            self._sync_now.clear()
            if self._has_ended:
                return
            self._on_round()
            try:
                with self._exchanging:
                    message = self._next_message()
                    self._exchange(message)
                next_at = self._clock.monotonic() + (0.0 if message.is_full else self._next_poll_s)
            except LeaseLostError:
                if not self._has_ended:
                    self._has_ended = True
                    self._on_lost()
            except CredentialRefusedError as error:
                self._has_ended, self.failure = True, error
                self._on_refused()
            except Exception as error:  # the edge of this thread, without which the lease would expire
                self._note_failure(error)
                if isinstance(error, PlatformError) and error.platform_code is not None:
                    self._end_refused(error)
                next_at = self._clock.monotonic() + min(1.0, self._term_s / 6)
            if self.has_expired() and not self._is_cut_off:
                self._is_cut_off = True
                self._on_cut_off()

    def _end_refused(self, error: PlatformError) -> None:
        """End the work, because a report that the platform refuses is refused again; the lease is kept until then."""
        with suppress(OsmosisError):
            self.sync()
        if self.refusal is None:
            self.refusal = error
            self._on_stop()

    def _exchange(self, message: _Message) -> None:
        try:
            self.sync(**message.fields)
        except JournalOffsetError as error:
            self._rewind(error.stored)
            raise
        except UploadGoneError:
            self._rewind(self._parcels[0].offset if self._parcels else self._read_to)
            raise
        with self._lock:
            self._log_sent += message.log_lines
            for _ in range(message.log_lines):
                self._log.popleft()
            self._facts_sent |= {name: message.fields[name] for name in self._facts if name in message.fields}
            done = [self._parcels.popleft() for _ in range(min(message.parcels, len(self._parcels)))]
            now = self._clock.monotonic()
            self._trials.extend((now, trial) for parcel in done for trial in parcel.trials)
            if done:
                self._waiting_since = now if self._parcels else None
        if done:
            self._collect_now.set()

    def _next_message(self) -> _Message:
        message = _Message({})
        fields = message.fields
        with self._lock:
            parcels, size, files = list[_Parcel](), 0, 0
            for parcel in self._parcels:
                size += parcel.size
                files += max(len(parcel.files), len(parcel.sent))
                if parcels and (size > _MOST_EXCHANGE_BYTES or files > _MOST_EXCHANGE_FILES):
                    message.is_full = True
                    break
                parcels.append(parcel)
        if parcels:
            message.parcels = len(parcels)
            with_lines = [parcel for parcel in parcels if parcel.lines]
            if with_lines:
                lines = "".join(parcel.lines for parcel in with_lines)
                fields["journal"] = JournalPart(offset=with_lines[0].offset, lines=lines)
            fields["files"] = [part for parcel in parcels for part in parcel.files]
            fields["sent"] = [each for parcel in parcels for each in parcel.sent]
        if lines_of_log := self._next_log():
            message.log_lines = len(lines_of_log)
            message.is_full = message.is_full or len(lines_of_log) == _MOST_LOG_LINES
            fields["log"] = LogPart(first=self._log_sent, lines=lines_of_log)
        known = dict(self._facts)
        fields |= {name: value for name, value in known.items() if self._facts_sent.get(name) != value}
        return message

    def _next_log(self) -> list[WorkerLogLine]:
        lines: list[WorkerLogLine] = []
        room = _MOST_LOG_BYTES
        # By index: other threads append lines, which would invalidate an iterator.
        for place in range(min(len(self._log), _MOST_LOG_LINES)):
            line = self._log[place]
            assert line.timestamp is not None  # `log` dates them
            sent = WorkerLogLine(
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

    # -- collecting ------------------------------------------------------------------------------------

    def _keep_collecting(self) -> None:
        while not self._is_closing:
            try:
                is_busy = self._collect_some()
            except _INTERRUPTED as error:
                self.failure = error
                return
            except Exception as error:  # the edge of this thread: everything is tried again, nothing is lost
                self._note_failure(error)
                self._explain_wait(error)
                is_busy = False
            if not is_busy:
                self._collect_now.wait(_ROUND_S if self._directory is not None else 1.0)
                self._collect_now.clear()

    def _collect_some(self) -> bool:
        """Prepare some of what is new; return whether there may be more."""
        while self._tasks:
            self._tasks[0]()
            self._tasks.popleft()
        if self._remove_trials():
            return True
        with self._lock:
            waiting = sum(parcel.size for parcel in self._parcels)
        if self._directory is None or self.damage is not None or waiting > _MOST_WAITING_BYTES:
            return False
        parcel = self._next_parcel(self._directory)
        if parcel is None:
            return False
        with self._lock:
            is_first = parcel.offset == self.assignment.shard.journal_bytes
            self._parcels.extend(_split(parcel))
            self._waiting_since = self._waiting_since or self._clock.monotonic()
        if is_first and parcel.lines:
            self._sync_now.set()
        return True

    def _collect_all(self) -> bool:
        while self._collect_some():
            if sum(parcel.size for parcel in self._parcels) > _MOST_WAITING_BYTES:
                self._flush_some()
        return False

    def _flush_some(self) -> bool:
        with self._exchanging:
            message = self._next_message()
            if message.fields:
                self._exchange(message)
        return bool(message.fields) or self._collect_some()

    def _patiently(self, call: Callable[[], bool]) -> bool:
        """Return what ``call`` does, repeated until the platform has been away for long."""
        pause_s, waiting = 0.25, threading.Event()
        until = time.monotonic() + max(_PATIENCE_S, 4 * self._term_s)
        while True:
            try:
                return call()
            except _INTERRUPTED:
                raise
            except OsmosisError as error:
                is_passing = error.is_infrastructure or isinstance(
                    error, (JournalOffsetError, UploadGoneError)
                )
                if not is_passing or time.monotonic() >= until:
                    raise
            waiting.wait(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    def _rewind(self, stored: int) -> None:
        """Report again from byte ``stored`` of the journal."""
        with self._lock:
            self._parcels.clear()
            self._read_to = stored
            # The conversations of lines that are read again.
            self._conversations_read = 0
            self._conversations.clear()
            self._rewinds += 1
            self._waiting_since = None
        self._collect_now.set()

    def _next_parcel(self, directory: RunDirectory) -> _Parcel | None:
        rewinds, read_to = self._rewinds, self._read_to
        parcel = _Parcel(read_to, read_to)
        lines, records = self._read_lines(directory, parcel)
        # A conversation is on the disk before its line.
        self._read_conversations(directory, {record.rollout_id for record in records})
        late, kept = list[str](), 0
        for record in records:
            self._add_files(directory, record, parcel)
            kept += 1
            if parcel.size >= _MOST_PARCEL_BYTES and kept < len(records):
                # The rest is for the next parcel.
                parcel.end -= sum(map(len, lines[kept:]))
                break
        for rollout_id in list(self._late):
            if parcel.size >= _MOST_PARCEL_BYTES:
                break
            self._add_files(directory, self._reported[rollout_id], parcel, is_late=True)
            late.append(rollout_id)
        if not kept and not parcel.files:
            return None
        with self._lock:
            if self._rewinds != rewinds:
                return None
            self._read_to = parcel.end
            for record in records[:kept]:
                self._reported[record.rollout_id] = record
                self._conversations.pop(record.rollout_id, None)
                parcel.trials.append(record.rollout_id)
            for rollout_id in late:
                self._conversations.pop(rollout_id, None)
                self._late.pop(rollout_id, None)
        parcel.lines = b"".join(lines[:kept]).decode()
        return parcel

    def _read_lines(
        self, directory: RunDirectory, parcel: _Parcel
    ) -> tuple[list[bytes], list[TerminalRecord]]:
        """Read the next lines of the journal; adds their length to ``end`` of the parcel."""
        lines: list[bytes] = []
        records: list[TerminalRecord] = []
        if directory.events.exists():
            for offset, line in committed_lines(directory.events, parcel.offset):
                try:
                    records.append(TerminalRecord.from_line(line))
                except ValueError:
                    self.damage = _damage(directory, offset)
                    break
                lines.append(line)
                parcel.end += len(line)
                # JSON in a JSON string: its quotes and backslashes are escaped.
                parcel.size += len(line) + line.count(b'"') + line.count(b"\\")
                if len(lines) >= _MOST_PARCEL_LINES or parcel.size >= _MOST_PARCEL_BYTES:
                    break
        return lines, records

    def _read_conversations(self, directory: RunDirectory, expected: set[str]) -> None:
        """Index the conversations that were stored since the last time; those of reported attempts are late versions."""
        stored = stored_conversations(directory.conversations, self._conversations_read)
        for rollout_id, content, end in stored:
            # A line ends with `}` and a newline after the conversation.
            self._conversations[rollout_id] = (end - 2 - len(content), len(content))
            self._conversations_read = end
            if rollout_id in self._reported and rollout_id not in expected:
                self._late[rollout_id] = None

    def _add_files(
        self, directory: RunDirectory, record: TerminalRecord, parcel: _Parcel, *, is_late: bool = False
    ) -> None:
        """Add the files of an attempt, or only its conversation if that is late; those that are too large are uploaded."""
        if not self._keeps_files:
            return
        try:
            self._add_conversation(directory, record, parcel)
            if is_late:
                return
            self._add_artifacts(directory, record, parcel)
            if not self._add_diagnostics(directory, record, parcel):
                self._undiagnosed.add(record.rollout_id)
        except UploadLimitError:
            # The platform has said so on the run, whose records continue without files.
            self._keeps_files = False

    def _add_diagnostics(self, directory: RunDirectory, record: TerminalRecord, parcel: _Parcel) -> bool:
        """Add the diagnostics of an attempt; return whether there are any."""
        if not (diagnostics := read_diagnostics(directory, record.rollout_id)):
            return False
        path = diagnostics_path(record.row_index, record.run_index)
        with suppress(ValueError):  # incomplete, or not JSON
            self._add(parcel, path, "diagnostics", clean_json(diagnostics, self.redactor), record)
        return True

    def _add_conversation(self, directory: RunDirectory, record: TerminalRecord, parcel: _Parcel) -> None:
        place = self._conversations.get(record.rollout_id)
        if place is None:
            return
        with open_regular(directory.conversations) as file:
            file.seek(place[0])
            content = file.read(place[1])
        try:
            text = content.decode()
            if self.redactor.text(text) != text:
                content = clean_json(content, self.redactor)
        except ValueError:
            return
        name = item_name(record.row_index, record.run_index)
        self._add(parcel, f"trajectories/{name}.json", "trajectories", content, record)

    def _add(self, parcel: _Parcel, path: str, kind: str, content: bytes, record: TerminalRecord) -> None:
        part: dict[str, Any] = {
            "path": path,
            "kind": kind,
            "size": len(content),
            "source_row_index": record.source_row_index,
        }
        packed = zlib.compress(content, 6)
        parcel.size += len(path) + _FILE_BYTES
        if len(packed) <= LARGEST_INLINE_BYTES and len(content) <= LARGEST_FILE_BYTES:
            parcel.files.append(RunFilePart(content=packed, **part))
            parcel.size += len(packed) * 4 // 3
            return
        blob = _named(path, BytesIO(content))
        parcel.sent += self.upload([blob])
        parcel.files.append(RunFilePart(blob=blob.name, **part))

    def _add_artifacts(self, directory: RunDirectory, record: TerminalRecord, parcel: _Parcel) -> None:
        name = item_name(record.row_index, record.run_index)
        trial = directory.trial(record.rollout_id)
        # A rollout may have put a link in the place of its directory.
        if trial.is_symlink() or not (trial / "artifacts").is_dir():
            return
        directory.artifacts.mkdir(parents=True, exist_ok=True)
        copied = directory.artifacts / name
        descriptor = os.open(trial, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            left_out = copy_artifacts(directory.artifacts, name, dir_fd=descriptor)
        finally:
            os.close(descriptor)
        if left_out:
            shown = ", ".join(left_out[:5]) + (f" and {len(left_out) - 5} more" if len(left_out) > 5 else "")
            where = f"row {record.row_index}, attempt {record.run_index}"
            self.log(LogLine(f"{where}: artifacts left out: {shown}", level="warning", step="artifacts"))
        found = [Path(folder, file) for folder, _, files in os.walk(copied) for file in sorted(files)]
        for start in range(0, len(found), _MOST_ARTIFACTS_AT_ONCE):
            self._upload_artifacts(
                found[start : start + _MOST_ARTIFACTS_AT_ONCE], copied, name, record, parcel
            )
        remove_tree(copied)

    def _upload_artifacts(
        self, files: Sequence[Path], root: Path, name: str, record: TerminalRecord, parcel: _Parcel
    ) -> None:
        with ExitStack() as opened:
            blobs: list[tuple[str, OutgoingBlob]] = []
            for file in files:
                raw = opened.enter_context(open_regular(file))
                clean = opened.enter_context(clean_artifact(raw, self.redactor))
                path = f"artifacts/{name}/{file.relative_to(root).as_posix()}"
                blobs.append((path, _named(path, clean)))
            parcel.sent += self.upload([blob for _, blob in blobs])
        for path, blob in blobs:
            parcel.files.append(
                RunFilePart(
                    path=path,
                    kind="artifacts",
                    size=blob.size,
                    blob=blob.name,
                    source_row_index=record.source_row_index,
                )
            )
            parcel.size += len(path) + _FILE_BYTES

    def _remove_trials(self) -> bool:
        """Delete the directories of attempts that the platform has; return whether one has a late file to report first."""
        directory = self._directory
        if directory is None:
            return False
        # At the end of the shard, no server writes any more.
        until = math.inf if self._is_closing else self._clock.monotonic() - _TRIAL_KEPT_S
        while self._trials and self._trials[0][0] <= until:
            rollout_id = self._trials[0][1]
            late = _Parcel(self._read_to, self._read_to, trials=[rollout_id])
            if rollout_id in self._undiagnosed and self._keeps_files:
                with suppress(UploadLimitError):
                    self._add_diagnostics(directory, self._reported[rollout_id], late)
            self._undiagnosed.discard(rollout_id)
            self._trials.popleft()
            if late.files:
                with self._lock:
                    self._parcels.append(late)
                return True
            remove_tree(directory.trial(rollout_id))
        return False

    # -- failures --------------------------------------------------------------------------------------

    def _note_failure(self, error: Exception) -> None:
        if not isinstance(error, (OsmosisError, OSError)) and type(error) is not type(self.failure):
            traceback.print_exception(error)
        self.failure = error

    def _explain_wait(self, error: Exception) -> None:
        """Say once in the run's log why finished attempts are not counted yet."""
        directory = self._directory
        if self._has_explained or directory is None or not directory.events.exists():
            return
        now = self._clock.monotonic()
        self._waiting_since = self._waiting_since or now
        if now - self._waiting_since >= _EXPLAINED_AFTER_S:
            self._has_explained = True
            problem = error.message if isinstance(error, OsmosisError) else str(error)
            message = f"finished attempts are counted later, once their files are stored: {problem}"
            self.log(LogLine(message, level="warning", step="files"))


def _split(parcel: _Parcel) -> list[_Parcel]:
    """Return a parcel in pieces that go into an exchange: completed uploads and files first, the lines last."""
    pieces: list[_Parcel] = []
    while max(len(parcel.files), len(parcel.sent)) > _MOST_EXCHANGE_FILES:
        piece = _Parcel(parcel.offset, parcel.offset)
        # Uploads before the files that name them.
        if parcel.sent:
            piece.sent, parcel.sent = parcel.sent[:_MOST_EXCHANGE_FILES], parcel.sent[_MOST_EXCHANGE_FILES:]
        else:
            piece.files, parcel.files = (
                parcel.files[:_MOST_EXCHANGE_FILES],
                parcel.files[_MOST_EXCHANGE_FILES:],
            )
        piece.size = sum(len(file.path) + _FILE_BYTES for file in piece.files)
        parcel.size -= piece.size
        pieces.append(piece)
    return [*pieces, parcel]


def _named(path: str, content: BinaryIO) -> OutgoingBlob:
    """Return a file as a blob whose name is derived from its path and content."""
    measured = OutgoingBlob.of("", content)
    digest = hashlib.sha256(f"{path}\0{measured.sha256}".encode()).hexdigest()
    return replace(measured, name=f"files/{digest}")


def _damage(directory: RunDirectory, offset: int) -> JournalCorruptionError:
    try:
        for _ in replay(directory.events, offset):
            pass
    except JournalCorruptionError as error:
        return error
    return JournalCorruptionError(f"'{directory.events}' has a line that is not a record.")
