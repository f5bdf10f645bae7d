"""A platform's runs as one viewer shows them: rows, files and logs of one workspace, and of no other."""

from __future__ import annotations

import hashlib
import logging
import shutil
import tempfile
import weakref
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, BinaryIO

import orjson
from sqlalchemy import (
    ColumnElement,
    CompoundSelect,
    Select,
    String,
    and_,
    cast,
    func,
    literal,
    select,
    type_coerce,
    union,
)
from sqlalchemy.orm import Session

from osmosis_ai.api.models.base import LogPage
from osmosis_ai.config.issues import nearest
from osmosis_ai.datasets import file_digest
from osmosis_ai.decisions.samples import RunSamples
from osmosis_ai.errors import ConflictError, NotFoundError, OsmosisError
from osmosis_ai.evaluation.attempt_files import (
    MOST_OF_DIAGNOSTICS,
    StoredArtifact,
    StoredConversation,
    diagnostics_path,
    item_name,
)
from osmosis_ai.platform.blobs.store import BlobError, BlobNotFound, BlobStoreError
from osmosis_ai.platform.datasets.store import find_dataset
from osmosis_ai.platform.db.tables import DbDataset, DbLogLine, DbRun, DbRunFile, DbSample
from osmosis_ai.platform.log_lines import storable
from osmosis_ai.platform.runs.journals import journal_details
from osmosis_ai.platform.runs.lifecycle import (
    COMMAND_GROUPS,
    KIND_NAMES,
    OPEN,
    VALIDATION_SAMPLES,
    conversation_path,
)
from osmosis_ai.platform.runs.requests import evaluation_settings
from osmosis_ai.platform.runs.results import headline_of, logged_adapter, logged_marks, read_curves
from osmosis_ai.platform.services import PlatformServices
from osmosis_ai.platform.viewer.runs import (
    RUNS,
    WorkspaceRuns,
    compared_training,
    eval_detail,
    training_detail,
    viewed_training,
)
from osmosis_ai.platform.viewer.samples import (
    SAMPLE_COLUMNS,
    SampleLists,
    compared_runs,
    sampled_rows,
    samples_of_row,
)
from osmosis_ai.training.runs.curves import TrainingCurves
from osmosis_ai.training.runs.run_directory import LARGEST_BYTES, ValidationSamples
from osmosis_ai.ui.numbers import size
from osmosis_ai.viewer.local_runs import RunKind
from osmosis_ai.viewer.source import (
    ItemPage,
    RunDetail,
    RunEntry,
    RunQuery,
    RunState,
    SampleDetail,
    SampleEntry,
    SampleQuery,
    no_sample,
    sample_entry,
    sliceable_columns,
    traceback_in,
)

logger = logging.getLogger(__name__)

_LARGEST_PREVIEW_BYTES = 16 * 1024 * 1024
LARGEST_DATASET_BYTES = 256 * 1024 * 1024
"""The largest dataset that is read for a page."""
_LARGEST = 2**31 - 1
"""The largest row or attempt that the columns hold."""
_MOST_HELD_BYTES = 1 << 20
"""Maximum cached bytes of a journal; in a larger one each sample is looked up again."""
_STORE_AWAY = "The platform cannot get at its stored files now; try again a little later."
_TRAJECTORY_MISSING = "The platform has no trajectory of this attempt."
_RECORDED = (
    *("rollout_id", "prompt_tokens", "completion_tokens", "model_calls", "lost_attempts", "error_type"),
    *("resumed", "notes", "parts", "finish_reasons"),
    *("judge_calls", "judge_tokens", "judge_cost_usd", "judge_outside_scale"),
)
_POSITION = (
    select(func.max(DbSample.position)).where(DbSample.run_id == DbRun.id).correlate(DbRun).scalar_subquery()
)
_LINE = (
    select(func.max(DbLogLine.id)).where(DbLogLine.subject_id == DbRun.id).correlate(DbRun).scalar_subquery()
)
_COMPARED_NAMES = 1000
_NEAREST = 3
_DATASET_NAME_CHARS = 50  # with the extension, a file's name in any system


@dataclass(frozen=True)
class PlatformSource:
    """The runs of a workspace."""

    services: PlatformServices
    workspace_id: str

    def runs(self, query: RunQuery, *, limit: int, cursor: str | None = None) -> ItemPage[RunEntry]:
        with self.services.db.session() as session:
            return self._runs(session).page(query, limit=limit, cursor=cursor)

    def run(self, kind: RunKind, name: str) -> RunDetail:
        with self.services.db.session() as session:
            run, lists = self._run(session, kind, name), self._runs(session)
            entry, previous = lists.with_previous(run)
            if kind == "eval":
                counts = self.services.sample_counts
                sha256 = (run.selection or {}).get("sha256")
                columns: Sequence[str] = ()
                if run.metrics and run.status not in OPEN:
                    columns = counts.once(("columns", sha256), lambda: self._columns(session, sha256))
                detail = eval_detail(entry, previous, SampleLists(session, run, counts))
                return replace(detail, columns=columns)
        resumable = self.services.reopener.is_resumable(run)
        curves = read_curves(self.services.db, run.id)[run.id]
        adapter = logged_adapter(self.services.logs, run.id)
        return training_detail(entry, previous, run, curves, adapter, resumable=resumable)

    def samples(
        self, run: str, query: SampleQuery, *, limit: int, cursor: str | None = None
    ) -> ItemPage[SampleEntry]:
        with self.services.db.session() as session:
            return self._samples(session, run).page(query, limit=limit, cursor=cursor)

    def sample(self, run: str, row: int, attempt: int, query: SampleQuery) -> SampleDetail:
        with self.services.db.session() as session:
            samples = self._samples(session, run)
            attempts = samples.attempts(row) if row <= _LARGEST else []
            entry = next((each for each in attempts if each.attempt == attempt), None)
            if entry is None:
                raise _no_sample(samples, row, attempt)
            following, preceding = samples.neighbours(query, entry)
            stored = session.get_one(DbSample, (samples.run.id, row, attempt))
            diagnostics = session.get(DbRunFile, (samples.run.id, diagnostics_path(row, attempt)))
        kept = self._content(diagnostics, max_bytes=MOST_OF_DIAGNOSTICS).content
        return SampleDetail(
            entry,
            {name: value for name in _RECORDED if (value := getattr(stored, name)) not in (None, False)}
            | self._details(samples, (row, attempt)),
            traceback=traceback_in(kept or b""),
            next=following,
            previous=preceding,
            attempts=attempts,
        )

    def conversation(
        self, run: str, row: int, attempt: int, *, max_bytes: int, kind: RunKind = "eval"
    ) -> StoredConversation:
        if kind == "training":
            return self._validation_file(run, conversation_path(row, attempt), max_bytes=max_bytes)
        path = f"trajectories/{item_name(row, attempt)}.json"
        file = next(iter(self._files(run, row, attempt, DbRunFile.path == path)), None)
        return self._content(file, max_bytes=max_bytes)

    def read_conversations(
        self, run: str, samples: Sequence[SampleEntry], *, max_bytes: int
    ) -> Iterator[StoredConversation]:
        """Yield the trajectories of samples; where they lie is read in one statement however many they are."""
        paths = [f"trajectories/{item_name(sample.row, sample.attempt)}.json" for sample in samples]
        # The path as `item_name` composes it.
        row, attempt = cast(DbSample.row_index, String), cast(DbSample.run_index, String)
        path = literal("trajectories/row_", String) + row + "_run_" + attempt + ".json"
        asked: Any = select(path, DbRunFile).select_from(DbRun)
        places = (
            of_runs(asked, self.workspace_id, "eval", run)
            .join(DbSample, DbSample.run_id == DbRun.id)
            .outerjoin(DbRunFile, and_(DbRunFile.run_id == DbSample.run_id, DbRunFile.path == path))
            # Use the index to find the rows; PostgreSQL would scan a list of pairs for each sample.
            .where(DbSample.row_index.in_({sample.row for sample in samples}), path.in_(paths))
        )
        with self.services.db.session() as session:
            files = {found[0]: found[1] for found in session.execute(places)}
        return (_not_away(self._content(files.get(each), max_bytes=max_bytes)) for each in paths)

    def artifacts(self, run: str, row: int, attempt: int) -> Sequence[StoredArtifact]:
        below = f"artifacts/{item_name(row, attempt)}/"
        files = self._files(run, row, attempt, DbRunFile.path.startswith(below, autoescape=True))
        return [StoredArtifact(file.path.removeprefix(below), file.size) for file in files]

    def open_artifact(self, run: str, row: int, attempt: int, path: str) -> BinaryIO:
        stored = f"artifacts/{item_name(row, attempt)}/{path}"
        file = next(iter(self._files(run, row, attempt, DbRunFile.path == storable(stored))), None)
        if file is None:
            raise NotFoundError(
                f"row {row}, attempt {attempt} of the run '{run[:200]}' has left no such file."
            )
        return self.services.run_files.open(file)

    def elsewhere(self, row_digest: str, *, limit: int) -> Sequence[tuple[RunEntry, SampleEntry]]:
        """Return samples of the same row in other runs, the newest run first, in one statement."""
        newest_first = (DbRun.created_at.desc(), DbRun.id.desc())
        # Complete runs are read only if they are shown: a row may have been sampled very often.
        found = (
            select(*SAMPLE_COLUMNS)
            .join(DbRun, DbRun.id == DbSample.run_id)
            .where(DbSample.row_digest == row_digest, DbRun.workspace_id == self.workspace_id)
            .order_by(*newest_first, DbSample.row_index, DbSample.run_index)
            .limit(limit)
            .subquery()
        )
        asked = RUNS.add_columns(*found.c).join(found, found.c.run_id == DbRun.id)
        with self.services.db.session() as session:
            runs = self._runs(session)
            rows = session.execute(asked.order_by(*newest_first, found.c.row_index, found.c.run_index)).all()
            return [
                (runs.entry(row[0]), sample_entry(row, evaluation_settings(row[0].request).pass_threshold))
                for row in rows
            ]

    def log(self, kind: RunKind, run: str, *, limit: int, cursor: str | None = None) -> LogPage:
        with self.services.db.session() as session:
            found = self._run(session, kind, run)
        return self.services.logs.page(found.id, limit=limit, cursor=cursor)

    def curves(self, run: str) -> TrainingCurves:
        services = self.services
        with services.db.session() as session:
            found = self._run(session, "training", run)
        curves, happened = read_curves(services.db, found.id)[found.id], logged_marks(services.logs, found.id)
        return viewed_training(found, curves, services.lora_models.of_run(found.id), happened)

    def validation(self, run: str) -> ValidationSamples | None:
        stored = _not_away(self._validation_file(run, VALIDATION_SAMPLES, max_bytes=LARGEST_BYTES))
        return ValidationSamples.from_bytes(stored.content) if stored.content is not None else None

    def state(self, kind: RunKind, run: str) -> RunState:
        """Return the state of a run, in one statement."""
        asked: Any = select(DbRun, func.coalesce(_POSITION, 0), func.coalesce(_LINE, 0))
        with self.services.db.session() as session:
            found = session.execute(of_runs(asked, self.workspace_id, kind, run)).first()
            if found is None:
                raise _no_such_run(session, self.workspace_id, kind, run)
            row, position, log_line = found
            waits = self.services.runs.waits().read(session, [row]).why(row)
        cursor = f"{_state_digest(row, waits)}.{position}.{log_line}"
        return RunState(cursor, row.status, headline_of(row) if kind == "eval" else None)

    def kinds(self, names: Sequence[str]) -> Mapping[str, Collection[RunKind]]:
        with self.services.db.session() as session:
            found = session.execute(_named(self.workspace_id, names)).all()
        return {name: frozenset(run.kind for run in found if name in (run.name, run.id)) for name in names}

    def run_samples(self, runs: Sequence[str]) -> Sequence[RunSamples]:
        with self.services.db.session() as session:
            found = compared_runs(session, find_runs(session, self.workspace_id, "eval", runs))
        return [
            replace(run, open_dataset=_RunDataset(self.services, self.workspace_id, run)) for run in found
        ]

    def compared_training(self, runs: Sequence[str]) -> Sequence[tuple[RunDetail, TrainingCurves]]:
        with self.services.db.session() as session:
            found = find_runs(session, self.workspace_id, "training", runs)
        curves = read_curves(self.services.db, *(run.id for run in found))
        return [compared_training(run, curves[run.id], self.services.clock.now()) for run in found]

    def samples_of_row(self, digest: str, runs: Sequence[str], *, limit: int) -> list[list[SampleEntry]]:
        with self.services.db.session() as session:
            found = find_runs(session, self.workspace_id, "eval", runs)
            return samples_of_row(session, found, digest, limit=limit)

    def _columns(self, session: Session, sha256: str | None) -> Sequence[str]:
        """Return the columns by which results on a dataset can be divided; none if it is unavailable or large."""
        mine = (DbDataset.workspace_id == self.workspace_id, DbDataset.sha256 == sha256)
        found = session.scalar(select(DbDataset).where(*mine).limit(1))
        if found is None or found.blob_key is None or found.file_size > _LARGEST_PREVIEW_BYTES:
            return ()
        with (
            suppress(OsmosisError, OSError, ValueError),
            self.services.blobs.local_copy(found.blob_key) as file,
        ):
            return sliceable_columns(file)
        return ()

    def _runs(self, session: Session) -> WorkspaceRuns:
        return WorkspaceRuns(
            session, self.workspace_id, self.services.clock.now(), self.services.runs.waits()
        )

    def _samples(self, session: Session, run: str) -> SampleLists:
        return SampleLists(session, self._run(session, "eval", run), self.services.sample_counts)

    def _run(self, session: Session, kind: RunKind, name: str) -> DbRun:
        return find_runs(session, self.workspace_id, kind, [name])[0]

    def _validation_file(self, run: str, path: str, *, max_bytes: int) -> StoredConversation:
        with self.services.db.session() as session:
            found = self._run(session, "training", run)
            file = session.get(DbRunFile, (found.id, path))
        return self._content(file, max_bytes=max_bytes)

    def _content(self, file: DbRunFile | None, *, max_bytes: int) -> StoredConversation:
        """Return the content of a run's file, if it exists and is not too large."""
        if file is None:
            return StoredConversation(None, missing=_TRAJECTORY_MISSING)
        if file.size > max_bytes:
            return StoredConversation(None, file.size, open=partial(self.services.run_files.open, file))
        try:
            with self.services.run_files.open(file) as content:
                return StoredConversation(content.read(max_bytes + 1), file.size)
        except BlobNotFound:
            return StoredConversation(None, missing=_TRAJECTORY_MISSING)
        except BlobStoreError as error:
            logger.warning("%s", error.message)
            # Only the log names the address of the store.
            away = BlobStoreError(_STORE_AWAY)
            return StoredConversation(None, file.size, missing=_STORE_AWAY, away=away)
        except BlobError as error:
            return StoredConversation(None, file.size, missing=error.message)

    def _details(self, samples: SampleLists, item: tuple[int, int]) -> dict[str, Any]:
        """Return what the run's packed journal has about an attempt beyond the columns, if it can be read."""
        blobs, journal = self.services.blobs, samples.run.journal_blob
        if journal is None or samples.run.status in OPEN:
            return {}
        try:
            held = self.services.sample_counts.once(
                (samples.version, journal),
                lambda: journal_details(blobs, journal, most_bytes=_MOST_HELD_BYTES),
            )
            if held is None:
                held = journal_details(blobs, journal, only=item)
        except (BlobError, ConflictError, OSError):
            return {}
        return (held or {}).get(item, {})

    def _files(self, run: str, row: int, attempt: int, which: ColumnElement[bool]) -> list[DbRunFile]:
        """Return files that an attempt has left, in one statement."""
        of_attempt = (DbSample.row_index == min(row, _LARGEST), DbSample.run_index == min(attempt, _LARGEST))
        asked: Any = select(DbRunFile).select_from(DbRun)
        with self.services.db.session() as session:
            found = session.scalars(
                of_runs(asked, self.workspace_id, "eval", run)
                .join(DbSample, DbSample.run_id == DbRun.id)
                .outerjoin(DbRunFile, and_(DbRunFile.run_id == DbSample.run_id, which))
                .where(*of_attempt)
                .order_by(DbRunFile.path)
            ).all()
            if not found:
                raise _no_sample(self._samples(session, run), row, attempt)
        return [file for file in found if file is not None]


def _not_away(stored: StoredConversation) -> StoredConversation:
    if stored.away is not None:
        raise stored.away
    return stored


def _no_sample(samples: SampleLists, row: int, attempt: int) -> NotFoundError:
    run, near = samples.run, samples.near(min(row, _LARGEST), min(attempt, _LARGEST))
    return no_sample(
        run.name, row, attempt, near, rows=sampled_rows(run), n=evaluation_settings(run.request).n
    )


# -- runs by name ------------------------------------------------------------------------------------


def find_runs(session: Session, workspace_id: str, kind: RunKind, names: Sequence[str]) -> list[DbRun]:
    """Return the run of each name or id, in one statement."""
    found = session.scalars(of_runs(RUNS, workspace_id, kind, *names)).all()
    known = {run.id: run for run in found} | {run.name: run for run in found}
    for name in names:
        if name not in known:
            raise _no_such_run(session, workspace_id, kind, name)
    return [known[name] for name in names]


def of_runs(asked: Select[Any], workspace_id: str, kind: RunKind, *names: str) -> Select[Any]:
    """Return ``asked`` of the runs of these names or ids."""
    mine = _named(workspace_id, names, _not_by_index(DbRun.kind) == kind).subquery()
    return asked.join(mine, DbRun.id == mine.c.id)


def _named(workspace_id: str, names: Sequence[str], *which: ColumnElement[bool]) -> CompoundSelect[Any]:
    """Return the statement of the runs of these names or ids."""
    known = [storable(name)[:255] for name in names]
    asked = select(DbRun.id, DbRun.kind, DbRun.name).where(*which)
    return union(
        asked.where(DbRun.workspace_id == workspace_id, DbRun.name.in_(known)),
        asked.where(_not_by_index(DbRun.workspace_id) == workspace_id, DbRun.id.in_(known)),
    )


def _not_by_index(column: Any) -> ColumnElement[str]:
    return type_coerce(column.concat(""), String)


def _no_such_run(session: Session, workspace_id: str, kind: RunKind, name: str) -> NotFoundError:
    """Return the error about an unknown run, with the nearest names."""
    mine = select(DbRun.name).where(DbRun.workspace_id == workspace_id, DbRun.kind == kind)
    names = session.scalars(mine.order_by(DbRun.created_at.desc()).limit(_COMPARED_NAMES)).all()
    group = COMMAND_GROUPS.get(kind)
    return NotFoundError(
        f"there is no {KIND_NAMES.get(kind, kind)} run '{name[:200]}' in this workspace.",
        details={"nearest": nearest(name[:255], names, most=_NEAREST, cutoff=0)},
        hint=f"see `{group} list`" if group else None,
    )


def _state_digest(run: DbRun, waits: str | None) -> str:
    """Return a digest of everything that may change in a run except its samples and lines."""
    is_stopping = run.stop_requested_at is not None
    known = [run.id, run.status, run.revision, is_stopping, run.results, run.progress, run.error, waits]
    return hashlib.sha256(orjson.dumps(known)).hexdigest()[:12]


@dataclass(frozen=True)
class _RunDataset:
    """Opens the dataset of a run as a file, which exists as long as this object."""

    services: PlatformServices
    workspace_id: str
    run: RunSamples

    def __call__(self) -> Path:
        """Return the file, with the bytes that the run used."""
        name, wanted = self.run.name, self.run.inputs.dataset_sha256
        with self.services.db.session() as session:
            found = find_dataset(session, self.workspace_id, self.run.inputs.dataset_name or "")
        if found is None or wanted is None or found.sha256 != wanted:
            raise OsmosisError(f"the dataset that {name} used is not there any more, or another one by now.")
        if found.file_size > LARGEST_DATASET_BYTES:
            raise OsmosisError(
                f"the dataset {found.name} is too large to be read for a page: {size(found.file_size)}. "
                f"`osmosis eval info {name} --slice COLUMN` reads it on your machine."
            )
        target = self._directory / f"{found.name[:_DATASET_NAME_CHARS]}.{found.extension}"
        try:
            with self.services.blobs.open(found.blob_key or "") as source, target.open("wb") as copy:
                shutil.copyfileobj(source, copy)
        except BlobNotFound:
            raise OsmosisError(f"the dataset that {name} used has just been replaced.") from None
        except OSError as error:
            raise OsmosisError(f"the dataset {found.name} cannot be read here: {error.strerror}.") from error
        if file_digest(target) != wanted:
            raise OsmosisError(f"the stored bytes of the dataset {found.name} are damaged.")
        return target

    @cached_property
    def _directory(self) -> Path:
        made = Path(tempfile.mkdtemp(prefix="osmosis-dataset-"))
        weakref.finalize(self, shutil.rmtree, made, ignore_errors=True)
        return made
