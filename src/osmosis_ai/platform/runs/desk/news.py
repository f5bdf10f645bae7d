"""What a worker says of its run becomes rows: files before the records that name them, all of it or nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from functools import cache
from typing import Any

from pydantic import TypeAdapter, ValidationError
from sqlalchemy.orm import Session

from osmosis_ai.api.wire.workers import LogPart, RunFilePart, SyncRequest, TrainingNews
from osmosis_ai.errors import ConflictError, OsmosisError
from osmosis_ai.evaluation.hooks import ProgressSnapshot
from osmosis_ai.platform.blobs.store import BlobInfo, BlobStore, BlobUpload
from osmosis_ai.platform.clock import Clock
from osmosis_ai.platform.db.base import is_readable, upsert
from osmosis_ai.platform.db.engine import Database
from osmosis_ai.platform.db.tables import DbRun, DbRunFile
from osmosis_ai.platform.log_lines import LogLine, storable
from osmosis_ai.platform.logs import LogStore
from osmosis_ai.platform.runs.desk.accepted_numbers import MeasuredRun
from osmosis_ai.platform.runs.desk.journal_folding import is_worth_a_look
from osmosis_ai.platform.runs.desk.journal_intake import NewLines, as_next, compare_part, take_lines
from osmosis_ai.platform.runs.desk.run_extents import RunExtents
from osmosis_ai.platform.runs.desk.run_shards import ShardPlace, is_shard, note_shard
from osmosis_ai.platform.runs.desk.training import apply_training
from osmosis_ai.platform.runs.desk.uploads import (
    BegunUpload,
    RunUploads,
    blob_key,
    check_part,
    note_wanted,
    stored_blobs,
)
from osmosis_ai.platform.runs.eval_results import live_results
from osmosis_ai.platform.runs.heard_runs import HeardRun
from osmosis_ai.platform.runs.leases import Lease, Leases
from osmosis_ai.platform.runs.lifecycle import FRUITFUL, UploadLimitError

_FACTS = {"environment": 4096, "isolation": 255}
"""Columns of a run's row that a worker fills, and how many characters they take."""
_TRIES = 3
_LAST_LOG_LINE = 1 << 30
"""No worker comes there, and a column takes it."""


@dataclass
class TakenNews:
    """What became of a worker's news."""

    run: DbRun | HeardRun
    begun: Sequence[BegunUpload] = ()
    checkpoints: dict[int, str] = field(default_factory=dict)
    obsolete_below: list[str] = field(default_factory=list)
    replaced: Sequence[BlobUpload] = ()
    may_be_folded: bool = False


class WorkerNews:
    """Takes what workers say."""

    def __init__(
        self, db: Database, clock: Clock, logs: LogStore, blobs: BlobStore, uploads: RunUploads
    ) -> None:
        self._db = db
        self._clock = clock
        self._logs = logs
        self._blobs = blobs
        self._uploads = uploads
        self._limits_said: set[tuple[str, str]] = set()
        self._extents = RunExtents(db, logs)

    def take(self, leases: Leases, lease: Lease, request: SyncRequest) -> TakenNews:
        """Write everything that ``request`` says; blocking."""
        if request.sent or request.wanted:
            leases.require(
                lease
            )  # before the store is asked anything; the rest is not written without it anyway
        self._uploads.complete(lease.run_id, request.sent)
        begun = self._uploads.begin(lease.run_id, request.wanted)
        try:
            taken = self._tried(leases, lease, request, begun)
        except BaseException as error:
            self._uploads.give_up(lease.run_id, begun)
            if isinstance(error, UploadLimitError):
                self._say_limit(lease.run_id, error)
            raise
        self._uploads.abort(taken.replaced)
        for prefix in taken.obsolete_below:
            self._blobs.delete_below(prefix)
        return taken

    def _tried(
        self, leases: Leases, lease: Lease, request: SyncRequest, begun: Sequence[BegunUpload]
    ) -> TakenNews:
        part = request.journal
        lines = as_next(lease.run_id, part) if part is not None else None
        if lines is not None:
            self._extents.require(lease.run_id, lines.samples)
        for _ in range(_TRIES):
            if (taken := self._taken(leases, lease, request, begun, lines)) is not None:
                return taken
            assert part is not None
            lines = compare_part(self._db, self._blobs, lease.run_id, part)
        raise ConflictError("the journal grows from another side; say it again.")

    def _say_limit(self, run_id: str, error: UploadLimitError) -> None:
        """Say on the run what it was refused, once however often that is."""
        said = (run_id, error.message)
        if said not in self._limits_said:
            self._limits_said.add(said)
            hint = f" ({error.hint})" if error.hint else ""
            self._logs.append(run_id, [LogLine(error.message + hint, level="warning", step="run")])

    def _taken(
        self,
        leases: Leases,
        lease: Lease,
        request: SyncRequest,
        begun: Sequence[BegunUpload],
        lines: NewLines | None,
    ) -> TakenNews | None:
        """Write everything in one transaction; None, with nothing written, where ``lines`` are not what comes next."""
        # What only training says is written with the whole row at hand.
        writing: Any = leases.hearing if request.training is None else leases.writing
        with writing(lease) as (session, run):
            taken = TakenNews(run, begun)
            if lines is not None:
                if not take_lines(session, run, lines):
                    session.rollback()
                    return None
                taken.may_be_folded = is_worth_a_look(lines.offset, run.journal_bytes)
            self._write(session, run, request, taken)
        return taken

    def _write(self, session: Session, run: DbRun | HeardRun, request: SyncRequest, taken: TakenNews) -> None:
        run.is_claim_answered = True
        taken.replaced = note_wanted(session, run, taken.begun, self._uploads.most_bytes)
        if request.files:
            upsert(session, DbRunFile, file_rows(session, run, request.files, self._clock.now()))
        if request.log is not None:
            self._take_log(session, run, request.log)
        _take_facts(run, request)
        if request.training is not None:
            if run.kind != "training":
                raise OsmosisError("this run is not a training run.")
            assert isinstance(run, DbRun)
            self._take_training(session, run, request.training, taken)

    def _take_log(self, session: Session, run: DbRun | HeardRun, part: LogPart) -> None:
        if part.first > _LAST_LOG_LINE:
            raise OsmosisError("a worker's log has no line of this number.", details={"first": part.first})
        # Fewer are known where an older state of the database was restored: what it has lost is lost, and no worker's fault.
        new = part.lines[max(0, run.log_lines - part.first) :]
        self._logs.add(
            session,
            run.id,
            [
                LogLine(storable(line.message), line.level, storable(line.step), line.details, line.timestamp)
                for line in new
            ],
        )
        run.log_lines = max(run.log_lines, part.first + len(part.lines))

    def _take_training(self, session: Session, run: DbRun, news: TrainingNews, taken: TakenNews) -> None:
        files = [each.blob for each in news.validation.files] if news.validation is not None else []
        adapters = [name for part in news.checkpoints for name in part.files.values()]
        sent = stored_blobs(session, run.id, {*files, *adapters})
        applied = apply_training(session, run, news, sent, self._clock.now())
        taken.checkpoints, taken.obsolete_below = applied.checkpoints, applied.obsolete
        if applied.is_further:
            run.fruitless = FRUITFUL


def file_rows(
    session: Session, run: DbRun | HeardRun, files: Sequence[RunFilePart], now: datetime
) -> list[dict[str, Any]]:
    """Return the rows of a run's files and their blobs, following merged shards."""
    blobs = stored_blobs(session, run.id, {file.blob for file in files})
    for file in files:
        check_part(file, blobs[file.blob])
    places = {
        name: note_shard(session, run.id, blob_key(run.id, name), blob, now)
        for name, blob in blobs.items()
        if is_shard(name)
    }
    return [_file_row(run, file, blobs[file.blob], places.get(file.blob)) for file in files]


def _file_row(
    run: DbRun | HeardRun, file: RunFilePart, blob: BlobInfo, place: ShardPlace | None
) -> dict[str, Any]:
    moved = place.offset if place is not None else 0
    return {
        "run_id": run.id,
        "revision": run.revision,
        "path": file.path,
        "kind": file.kind,
        "source_row_index": file.source_row_index,
        "size": file.size,
        "blob_key": place.key if place is not None else blob_key(run.id, file.blob),
        "shard_offset": None if file.shard_offset is None else file.shard_offset + moved,
        "shard_length": file.shard_length,
        "sha256": blob.sha256 if file.shard_offset is None else None,
    }


def _take_facts(run: DbRun | HeardRun, request: SyncRequest) -> None:
    for name, words in request.facts.items():
        if name not in _FACTS:
            raise OsmosisError(f"a worker does not say the `{name[:40]}` of a run.")
        setattr(run, name, storable(words)[: _FACTS[name]])
    run.grader_digest = run.grader_digest or request.grader_digest
    if run.kind != "eval":
        return
    try:
        if request.metrics is not None:
            run.metrics = _readable("metrics", MeasuredRun.model_validate(request.metrics).record())
        if request.progress is not None:
            progress = _snapshots().validate_python(request.progress)
            _readable("progress", asdict(progress))
            run.results = live_results(run.results or {}, progress, run.metrics)
            run.progress = {"completed": progress.completed, "total": progress.total}
    except ValidationError as error:
        wrong = ".".join(str(each) for each in error.errors()[0]["loc"])[:100]
        raise OsmosisError(f"the numbers of the run are none: `{wrong}`.") from None


def _readable(name: str, numbers: dict[str, Any]) -> dict[str, Any]:
    if not is_readable(numbers):
        raise OsmosisError(f"the numbers of the run are none: `{name}`.")
    return numbers


@cache
def _snapshots() -> TypeAdapter[ProgressSnapshot]:
    return TypeAdapter(ProgressSnapshot)
