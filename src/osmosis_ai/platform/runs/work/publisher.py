"""Publish a worker's results, numbers, log lines and files while the run is active.

The engine's journal is authoritative, and whole lines are copied from it. The platform compares and acknowledges
repeated data, so sending again changes nothing. Lines are sent with or after their attempts' files, so that another
machine can continue from whole samples. The platform sets the sync interval; at the end everything is sent at once.
"""

from __future__ import annotations

import threading
import time
import traceback
from collections import deque
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import orjson

from osmosis_ai.api.wire.workers import JournalPart, LogPart, SyncReply, WorkerLogLine
from osmosis_ai.errors import OsmosisError
from osmosis_ai.evaluation.hooks import ProgressSnapshot
from osmosis_ai.evaluation.journal import JournalCorruptionError
from osmosis_ai.evaluation.run_directory import RunDirectory
from osmosis_ai.platform.clock import Clock
from osmosis_ai.platform.log_lines import LogLine, bounded, bounded_details, storable
from osmosis_ai.platform.runs.journalled import engine_metrics, grader_digest_of
from osmosis_ai.platform.runs.lifecycle import (
    JournalOffsetError,
    LeaseLostError,
    UploadGoneError,
    UploadLimitError,
)
from osmosis_ai.platform.runs.work.held_lines import HeldLines
from osmosis_ai.platform.runs.work.journal_tail import JournalTail, TailPart
from osmosis_ai.platform.runs.work.platform_link import CredentialRefusedError
from osmosis_ai.platform.runs.work.run_channel import RunChannel
from osmosis_ai.platform.runs.work.sample_files import FileNews, SampleFiles
from osmosis_ai.redaction import Redactor

ROUND_S = 0.25
_LINES_PER_ROUND = 500
_MOST_LOG_BYTES = 160 * 1024
"""Of log lines in an exchange, as JSON; what a part of the journal leaves of one is more."""
_FILES_BYTES = 512 * 1024
"""Of files that one exchange tells of, as they are written there."""
_BESIDE_BYTES = 128 * 1024
"""Maximum bytes of files sent together with journal lines, if these are few."""
_MOST_LINES_BYTES = 256 * 1024
_PATIENCE_S = 60.0
"""How long the end of a run waits at least for a platform that does not answer."""
_LONGEST_PAUSE_S = 5.0
_SAID_AGAIN = (JournalOffsetError, UploadGoneError)
"""What the platform has less of than this worker believed: the next round says it from there on."""
_WAITS_LONG_S = 10.0
"""After this the run's log says why its samples are not counted yet."""


@dataclass
class _News:
    """What one exchange says."""

    tail: TailPart | None = None
    lines: list[LogLine] = field(default_factory=list)
    facts: dict[str, str] = field(default_factory=dict)
    progress: ProgressSnapshot | None = None
    numbers_of: tuple[int, int] | None = None
    fields: dict[str, Any] = field(default_factory=dict)
    has_files: bool = False

    @property
    def is_full(self) -> bool:
        """Whether more of it waits for the next exchange."""
        return len(self.lines) == _LINES_PER_ROUND or (self.tail is not None and self.tail.is_full)


class Publisher:
    """Publishes one worker's findings in a thread of its own."""

    def __init__(
        self,
        channel: RunChannel,
        clock: Clock,
        redactor: Redactor,
        *,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._channel = channel
        self._clock = clock
        self._monotonic = monotonic
        self.redactor = redactor
        self._lines: deque[LogLine] = deque()
        self._lines_told = 0
        # Sent facts and progress are not removed, since other threads may have updated them meanwhile.
        self._facts: dict[str, str] = {}
        self._facts_told: dict[str, str] = {}
        self._writes: deque[Callable[[], None]] = deque()
        self._progress: ProgressSnapshot | None = None
        self._progress_told: ProgressSnapshot | None = None
        self._directory: RunDirectory | None = None
        self._files: SampleFiles | None = None
        self._tail: JournalTail | None = None
        self._generation = 0
        self._held = HeldLines(monotonic)
        self._has_said_why = False
        self._numbers_of: tuple[int, int] | None = None
        self._say_at = 0.0
        self._wake = threading.Event()
        self._closing = False
        self._thread: threading.Thread | None = None
        self.failure: Exception | None = None
        self.damage: JournalCorruptionError | None = None

    def start(self) -> None:
        """Publish from now on, round by round."""
        self._thread = threading.Thread(target=self._work, name="publisher", daemon=True)
        self._thread.start()

    @property
    def is_following(self) -> bool:
        """Whether a run directory's journal is followed."""
        return self._tail is not None

    def follow(self, directory: RunDirectory, files: SampleFiles, generation: int) -> None:
        """Also publish the engine's run directory and sample files, as this ``generation`` of the journal."""
        if self._tail is None:
            self._files, self._directory, self._generation = files, directory, generation
            self._tail = JournalTail(directory.events, self._channel.assignment.journal)

    def log(self, line: LogLine) -> None:
        """Publish a log line, dated now unless it says otherwise; may be called from any thread."""
        self._lines.append(line if line.timestamp is not None else replace(line, timestamp=self._clock.now()))

    def write(self, write: Callable[[], None]) -> None:
        """Have something said in the publisher's thread, behind what was handed over before it."""
        self._writes.append(write)

    def know(self, **facts: str) -> None:
        """Publish what is known of the run, by the column of its row; may be called from any thread."""
        self._facts |= {name: storable(self.redactor.text(words)) for name, words in facts.items()}

    def progress(self, snapshot: ProgressSnapshot) -> None:
        """Publish how far the run is; may be called from any thread."""
        self._progress = snapshot

    def finish(self) -> None:
        """Publish everything there still is, and end; blocking."""
        self._closing = True
        self._wake.set()
        if self._thread is not None:
            self._thread.join()
        if isinstance(self.failure, LeaseLostError | CredentialRefusedError):
            raise self.failure
        self.flush()

    def flush(self) -> None:
        """Publish what there is, once :meth:`finish` has been called; as that."""
        self._closing = True
        while self._patiently(self._round):
            pass

    def _patiently(self, say: Callable[[], bool]) -> bool:
        """Say it until the platform has taken it, or has been away for long."""
        pause_s, waiting = 0.25, threading.Event()
        until = time.monotonic() + max(_PATIENCE_S, 4 * self._channel.term_s)
        while True:
            try:
                return say()
            except (LeaseLostError, CredentialRefusedError):
                raise
            except OsmosisError as error:
                is_to_be_said_again = error.is_infrastructure or isinstance(error, _SAID_AGAIN)
                if not is_to_be_said_again or time.monotonic() >= until:
                    raise
            waiting.wait(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    def _work(self) -> None:
        while not self._closing:
            try:
                busy = self._round()
                self._has_said_why = self._has_said_why and bool(self._held)
            except (LeaseLostError, CredentialRefusedError) as error:
                self.failure = error
                return
            except (OsmosisError, OSError) as error:
                # The disk is full or the platform unavailable: everything is retried, nothing is lost.
                self.failure, busy = error, False
                self._say_why_samples_wait(error)
            except (
                Exception
            ) as error:  # the edge of this thread, without which nothing of the run is seen until its end
                if type(error) is not type(self.failure):
                    traceback.print_exception(error)
                self.failure, busy = error, False
            if not busy:
                self._wake.wait(ROUND_S)

    def _say_why_samples_wait(self, error: Exception) -> None:
        """Say once, after a while, why what the run has done does not count yet: its pages stand still meanwhile."""
        if self._held.waits_s >= _WAITS_LONG_S and not self._has_said_why:
            self._has_said_why = True
            words = error.message if isinstance(error, OsmosisError) else str(error)
            line = f"samples are counted later, once their conversations are stored: {words}"
            self.log(LogLine(line, level="warning", step="files"))

    def _round(self) -> bool:
        """Publish some of what is new; return whether there is more."""
        if self._writes:
            self._writes[0]()
            self._writes.popleft()
        if not self._closing and self._monotonic() < self._say_at:
            return bool(self._writes)
        self._read_on()
        files, told = FileNews(), False
        try:
            if self._closing:
                told = self._tell_rest()
            elif self._files is not None:
                files = self._files.ready()
        except UploadLimitError:
            # The platform has said so on the run, whose records and numbers go on without files.
            self._files = None
        finally:
            # An unavailable store must not stop the heartbeat.
            news = self._say_all(files)
        if self._closing:
            return bool(news.fields or news.tail or told or self._held or self._writes)
        return news.is_full or bool(files) or bool(self._writes)

    def _say_all(self, files: FileNews) -> _News:
        """Say which files were sent, and everything new beside the last of them."""
        try:
            parts = deque(_exchanges(files))
            while parts and (len(parts) > 1 or not self._fits_beside(parts[-1])):
                self._channel.sync(**parts.popleft().fields)
            is_told = bool(files) and not parts
            if is_told and self._files is not None:
                self._files.written()
            news = self._news(telling=bool(parts))
            for part in parts:
                news.fields |= part.fields
                news.has_files = True
            self._say_if_any(news)
        except (LeaseLostError, CredentialRefusedError, JournalOffsetError):
            raise
        except OsmosisError as error:
            self._begin_files_anew(error)
            if files:
                # Problems with files must not stop the heartbeat.
                self._say_if_any(self._news())
            raise
        return news

    def _begin_files_anew(self, error: OsmosisError) -> None:
        if self._files is not None and isinstance(error, UploadGoneError):
            self._files.send_again()

    def _say_if_any(self, news: _News) -> None:
        if news.fields:
            self._say(news)
        elif news.tail is not None:
            self._held.told(news.tail)

    def _fits_beside(self, part: _FilesExchange) -> bool:
        tail = self._held.due(self._files, telling=True)
        return part.size <= _BESIDE_BYTES and (tail is None or tail.size <= _MOST_LINES_BYTES)

    def _read_on(self) -> None:
        """Read what was recorded meanwhile, and watch out for its files."""
        if self._tail is None or self.damage is not None or self._held.is_full:
            return
        part = self._tail.read()
        self.damage = self._tail.damage
        if part is not None:
            self._tail.take(part)
            self._held.add(part)
            if self._files is not None:
                self._files.expect(part.items, resumed=part.is_resumed)

    def _tell_rest(self) -> bool:
        """Say which files there are at the end; return whether there were any."""
        told = False
        while self._files is not None and (rest := self._files.rest()):
            try:
                for part in _exchanges(rest):
                    self._channel.sync(**part.fields)
            except UploadGoneError as error:
                self._begin_files_anew(error)
                raise
            self._files.written()
            told = True
        return told

    def _news(self, *, telling: bool = False) -> _News:
        news = _News()
        said = news.fields
        if self._tail is not None:
            news.tail = tail = self._held.due(self._files, telling=telling)
            if tail is not None and tail.is_sent:
                said["journal"] = JournalPart(
                    generation=self._generation,
                    offset=tail.offset,
                    lines=tail.lines,
                    resumed=self._tail.resumed,
                )
        news.lines = self._next_lines()
        if news.lines:
            lines = [self._line(line) for line in news.lines]
            said["log"] = LogPart(first=self._lines_told, lines=lines)
        known = dict(self._facts).items()
        if facts := {name: words for name, words in known if self._facts_told.get(name) != words}:
            said["facts"] = news.facts = facts
        news.progress = self._progress
        if news.progress is not None and _counted(news.progress) != self._progress_told:
            said["progress"] = asdict(news.progress)
        self._add_numbers(news)
        return news

    def _say(self, news: _News) -> None:
        try:
            reply = self._channel.sync(**news.fields)
        except JournalOffsetError as error:
            if self._tail is not None:
                self._held.forget()
                self._tail.go_to(error.stored)
            raise
        # A full exchange is followed at once, others at the pace that the platform sets.
        self._say_at = self._monotonic() + (0.0 if news.is_full else self._channel.pace_s)
        self._note_told(news, reply)

    def _note_told(self, news: _News, reply: SyncReply) -> None:
        for _ in news.lines:
            self._lines.popleft()
        self._lines_told += len(news.lines)
        self._facts_told |= news.facts
        if news.progress is not None and "progress" in news.fields:
            self._progress_told = _counted(news.progress)
        self._numbers_of = news.numbers_of or self._numbers_of
        if news.tail is not None:
            self._held.told(news.tail)
        if news.has_files and self._files is not None:
            self._files.written()

    def _next_lines(self) -> list[LogLine]:
        lines: list[LogLine] = []
        room = _MOST_LOG_BYTES
        # Use indices: other threads append lines, which would invalidate an iterator.
        for place in range(min(len(self._lines), _LINES_PER_ROUND)):
            line = self._lines[place]
            # As JSON a character may be six bytes, and a body has so many bytes and no more.
            said = bounded(storable(line.message)), storable(str(line.details)) if line.details else ""
            room -= len(orjson.dumps(said))
            if lines and room < 0:
                break
            lines.append(line)
        return lines

    def _line(self, line: LogLine) -> WorkerLogLine:
        assert line.timestamp is not None  # `log` dates them
        told = WorkerLogLine(
            timestamp=line.timestamp,
            level=line.level,
            step=line.step[:64],
            message=bounded(self.redactor.text(storable(line.message))),
        )
        if line.details is not None:
            told.details = bounded_details(line.details, self.redactor)
        return told

    def _add_numbers(self, news: _News) -> None:
        """Have ``news`` say what the engine has written of the run's numbers since they were last said."""
        directory = self._directory
        if directory is None:
            return
        try:
            state = directory.metrics.stat()
        except FileNotFoundError:
            return
        version = (state.st_mtime_ns, state.st_ino)
        if version == self._numbers_of or (metrics := engine_metrics(directory)) is None:
            return
        news.numbers_of, news.fields["metrics"] = version, metrics
        if (digest := grader_digest_of(directory)) is not None:
            news.fields["grader_digest"] = digest


@dataclass
class _FilesExchange:
    """What one exchange says of files: ``size`` is about that of its words, in bytes."""

    fields: dict[str, list[Any]] = field(default_factory=dict)
    size: int = 0


def _exchanges(news: FileNews) -> list[_FilesExchange]:
    """Return what is to be said of files, in parts that fit an exchange: uploads before the files that lie in them."""
    parts: list[_FilesExchange] = []
    told = [("sent", each) for each in news.sent] + [("files", each) for each in news.files]
    for name, each in told:
        size = len(each.model_dump_json())
        if not parts or parts[-1].size + size > _FILES_BYTES:
            parts.append(_FilesExchange())
        parts[-1].fields.setdefault(name, []).append(each)
        parts[-1].size += size
    return parts


def _counted(progress: ProgressSnapshot) -> ProgressSnapshot:
    """Return what pages show of it: that time passes is no news."""
    return replace(progress, elapsed_s=0.0, in_flight=None)
