"""What a worker finds out becomes visible: samples, numbers, log lines and files, while the run goes on.

The engine's journal is the truth and this only copies from it: it is read from its beginning by every worker of a
run, and each row written is keyed by (run, row, attempt), so that copying again changes nothing. Each round is one
short transaction under the run's lease; blobs are stored before it, never inside.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

from sqlalchemy.orm import Session

from osmosis_ai.errors import OsmosisError
from osmosis_ai.evaluation.journal import JournalCorruptionError, replay
from osmosis_ai.evaluation.record import TerminalRecord
from osmosis_ai.evaluation.run_directory import RunDirectory
from osmosis_ai.evaluation.run_state import ProgressSnapshot
from osmosis_ai.platform.clock import Clock
from osmosis_ai.platform.db.base import upsert
from osmosis_ai.platform.db.tables import DbRun, DbRunFile, DbSample
from osmosis_ai.platform.log_lines import LogLine, storable
from osmosis_ai.platform.logs import LogStore
from osmosis_ai.platform.runs.eval_results import live_results
from osmosis_ai.platform.runs.journalled import engine_metrics, grader_digest_of, sample_row
from osmosis_ai.platform.runs.leases import Lease, Leases
from osmosis_ai.platform.runs.lifecycle import LeaseLostError
from osmosis_ai.platform.runs.work.sample_files import SampleFiles
from osmosis_ai.redaction import Redactor

ROUND_S = 0.25
_RECORDS_PER_ROUND = 2000
_LINES_PER_ROUND = 500


class Publisher:
    """Publishes one worker's findings in a thread of its own.

    Args:
        lease: the right to write the run.
        leases, logs: where it is written.
        clock: dates the lines.
        redactor: blanks the run's secrets in everything that is published.

    Attributes:
        damage: of the journal, where it was found damaged; what stands before that is published.
    """

    def __init__(
        self, lease: Lease, leases: Leases, logs: LogStore, clock: Clock, redactor: Redactor
    ) -> None:
        self._lease = lease
        self._leases = leases
        self._logs = logs
        self._clock = clock
        self._redactor = redactor
        self._lines: deque[LogLine] = deque()
        self._writes: deque[Callable[[], None]] = deque()
        self._progress: ProgressSnapshot | None = None
        self._directory: RunDirectory | None = None
        self._files: SampleFiles | None = None
        self._read_bytes = 0
        self._resumed_bytes = 0
        self._wake = threading.Event()
        self._closing = False
        self._thread: threading.Thread | None = None
        self.failure: Exception | None = None
        self.damage: JournalCorruptionError | None = None

    def start(self) -> None:
        """Publish from now on, round by round."""
        self._thread = threading.Thread(target=self._work, name="publisher", daemon=True)
        self._thread.start()

    def follow(self, directory: RunDirectory, files: SampleFiles) -> None:
        """Also publish what is recorded in the engine's run directory, and the files of its samples."""
        self._resumed_bytes = directory.events.stat().st_size if directory.events.exists() else 0
        self._files = files
        self._directory = directory

    def log(self, line: LogLine) -> None:
        """Publish a log line, dated now unless it says otherwise; may be called from any thread."""
        self._lines.append(line if line.timestamp is not None else replace(line, timestamp=self._clock.now()))

    def write(self, write: Callable[[], None]) -> None:
        """Have something written in the publisher's thread, behind what was handed over before it.

        It is called again, from its beginning, when the database or the blobs did not take it. May be called
        from any thread.
        """
        self._writes.append(write)

    def know(self, **facts: str) -> None:
        """Publish what is known of the run, by the column of its row; may be called from any thread."""

        def write() -> None:
            with self._leases.writing(self._lease) as (_, run):
                for name, words in facts.items():
                    setattr(run, name, storable(self._redactor.text(words)))

        self.write(write)

    def progress(self, snapshot: ProgressSnapshot) -> None:
        """Publish how far the run is; may be called from any thread."""
        self._progress = snapshot

    def finish(self) -> None:
        """Publish everything there still is, and end; blocking.

        Raises:
            LeaseLostError: the run has another owner.
            OsmosisError, OSError: the database or the blobs did not take it.
        """
        self._closing = True
        self._wake.set()
        if self._thread is not None:
            self._thread.join()
        if isinstance(self.failure, LeaseLostError):
            raise self.failure
        while self._round():
            pass
        while self._files is not None and (rows := self._files.rest()):
            with self._leases.writing(self._lease) as (session, _):
                upsert(session, DbRunFile, rows)
            self._files.written()

    def _work(self) -> None:
        while not self._closing:
            try:
                busy = self._round()
            except LeaseLostError as error:
                self.failure = error
                return
            except (OsmosisError, OSError) as error:
                # A full disk or a busy database: everything is tried again, and nothing was lost.
                self.failure, busy = error, False
            if not busy:
                self._wake.wait(ROUND_S)

    def _round(self) -> bool:
        """Publish some of what is new; return whether there is more."""
        if self._writes:
            self._writes[0]()
            self._writes.popleft()
        records = list(islice(self._new_records(), _RECORDS_PER_ROUND))
        lines = list(islice(self._lines, _LINES_PER_ROUND))
        progress = self._progress
        files = self._files.ready() if self._files is not None else []
        if not (records or lines or files or progress):
            return bool(self._writes)
        with self._leases.writing(self._lease) as (session, run):
            self._write(session, run, records, lines, files, progress)
        if self._files is not None:
            self._expect_files(self._files, records, files)
        if records:
            self._read_bytes = records[-1][1]
        for _ in lines:
            self._lines.popleft()
        if self._progress is progress:
            self._progress = None
        return (
            len(records) == _RECORDS_PER_ROUND
            or len(lines) == _LINES_PER_ROUND
            or bool(files or self._writes)
        )

    def _expect_files(
        self,
        sample_files: SampleFiles,
        records: Sequence[tuple[int, int, TerminalRecord]],
        rows: list[dict[str, Any]],
    ) -> None:
        if rows:
            sample_files.written()
        for resumed in (True, False):
            # Those of earlier workers come first.
            found = [each for offset, _, each in records if (offset < self._resumed_bytes) is resumed]
            if found:
                sample_files.expect(found, resumed=resumed)

    def _new_records(self) -> Iterator[tuple[int, int, TerminalRecord]]:
        if self._directory is None or self.damage or not self._directory.events.exists():
            return
        try:
            for entry in replay(self._directory.events, self._read_bytes):
                yield entry.offset, entry.end, entry.record
        except JournalCorruptionError as error:
            self.damage = error

    def _write(
        self,
        session: Session,
        run: DbRun,
        records: Iterable[tuple[int, int, TerminalRecord]],
        lines: Iterable[LogLine],
        files: list[dict[str, Any]],
        progress: ProgressSnapshot | None,
    ) -> None:
        upsert(
            session,
            DbSample,
            [
                {**sample_row(run.id, record), "resumed": offset < self._resumed_bytes, "position": end}
                for offset, end, record in records
            ],
        )
        upsert(session, DbRunFile, files)
        if progress is not None:
            written = engine_metrics(self._directory) if self._directory is not None else None
            run.metrics = written or run.metrics
            run.results = live_results(run.results or {}, progress, run.metrics)
            run.progress = {"completed": progress.completed, "total": progress.total}
            if self._directory is not None:
                run.grader_digest = run.grader_digest or grader_digest_of(self._directory)
        self._logs.add(session, run.id, lines, redactor=self._redactor)
