"""A platform's runs as one viewer shows them: rows, files and logs of one workspace, and of no other."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, BinaryIO, Literal, get_args

from sqlalchemy import ColumnElement, String, and_, cast, literal, select
from sqlalchemy.orm import Session

from osmosis_ai.api.models.base import LogPage
from osmosis_ai.errors import ConflictError, NotFoundError
from osmosis_ai.evaluation.attempt_files import (
    MOST_OF_DIAGNOSTICS,
    StoredArtifact,
    StoredConversation,
    diagnostics_path,
    item_name,
)
from osmosis_ai.platform.blobs.store import BlobError, BlobNotFound, BlobStoreError
from osmosis_ai.platform.db.tables import DbRun, DbRunFile, DbSample
from osmosis_ai.platform.log_lines import storable
from osmosis_ai.platform.runs.journals import journal_details
from osmosis_ai.platform.runs.lifecycle import OPEN
from osmosis_ai.platform.runs.training_curves import logged_marks, read_curves, read_curves_of
from osmosis_ai.platform.runs.training_names import SAMPLES_PATH, conversation_path
from osmosis_ai.platform.services import PlatformServices
from osmosis_ai.platform.viewer.changes import read_changes
from osmosis_ai.platform.viewer.found_runs import find_runs, kinds_of, of_runs
from osmosis_ai.platform.viewer.run_details import (
    compared_training,
    eval_detail,
    training_detail,
    viewed_training,
)
from osmosis_ai.platform.viewer.run_lists import SUMMARIES, WorkspaceRuns
from osmosis_ai.platform.viewer.sample_lists import (
    SAMPLE_COLUMNS,
    SampleLists,
    evaluation_settings,
    sample_entry,
    sampled_rows,
)
from osmosis_ai.training.runs.curves import TrainingCurves
from osmosis_ai.training.runs.run_directory import LARGEST_BYTES, ValidationSamples
from osmosis_ai.viewer.local_runs import RunKind
from osmosis_ai.viewer.shared_reads import SharedReads
from osmosis_ai.viewer.source import (
    Capability,
    Changes,
    ItemPage,
    RunDetail,
    RunEntry,
    RunQuery,
    SampleDetail,
    SampleEntry,
    SampleQuery,
    no_sample,
    traceback_in,
)

if TYPE_CHECKING:
    from osmosis_ai.decisions.samples import RunSamples

logger = logging.getLogger(__name__)

_LARGEST = 2**31 - 1
"""Row or attempt: what the columns hold."""
_MOST_HELD_BYTES = 1 << 20
"""Maximum cached bytes of a journal; in a larger one each sample is looked up again."""
_STORE_AWAY = "The platform cannot get at its stored files now; try again a little later."
_TRAJECTORY_MISSING = "The platform has no trajectory of this sample."
_RECORDED = (
    *(
        "rollout_id",
        "prompt_tokens",
        "completion_tokens",
        "model_calls",
        "lost_attempts",
        "error_type",
        "resumed",
    ),
    *("notes", "parts", "finish_reasons"),
    *("judge_calls", "judge_tokens", "judge_cost_usd", "judge_outside_scale"),
)


@dataclass(frozen=True)
class PlatformSource:
    """The runs of a workspace."""

    services: PlatformServices
    workspace_id: str
    counts: SharedReads
    capabilities: frozenset[Capability] = field(
        default=frozenset(get_args(Capability)) - {"rubrics"}, init=False
    )

    def runs(self, query: RunQuery, *, limit: int, cursor: str | None = None) -> ItemPage[RunEntry]:
        """Return runs."""
        with self.services.db.session() as session:
            return self._runs(session).page(query, limit=limit, cursor=cursor)

    def run(self, kind: RunKind, name: str) -> RunDetail:
        """Return a run."""
        with self.services.db.session() as session:
            run, lists = self._run(session, kind, name), self._runs(session)
            entry, previous = lists.with_previous(run)
            if kind == "eval":
                samples = SampleLists(session, run, self.counts)
                return eval_detail(entry, samples, previous=previous, waits=lists.waits.why(run))
        curves = read_curves(self.services.db, run.id)
        resumable = self.services.resumption.resumable(run)
        return training_detail(
            entry,
            run,
            curves,
            previous=previous,
            waits=lists.waits.why(run),
            resumable=resumable,
        )

    def samples(
        self, run: str, query: SampleQuery, *, limit: int, cursor: str | None = None
    ) -> ItemPage[SampleEntry]:
        """Return samples of an evaluation."""
        with self.services.db.session() as session:
            return self._samples(session, run).page(query, limit=limit, cursor=cursor)

    def sample(self, run: str, row: int, attempt: int, query: SampleQuery) -> SampleDetail:
        """Return a sample, with its neighbours inside ``query``."""
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
            _record(stored) | self._details(samples, (row, attempt)),
            traceback=traceback_in(kept or b""),
            next=following,
            previous=preceding,
            attempts=attempts,
        )

    def conversation(self, run: str, row: int, attempt: int, *, max_bytes: int) -> StoredConversation:
        """Return the trajectory of a sample."""
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
        """Return the files that an attempt left."""
        below = f"artifacts/{item_name(row, attempt)}/"
        files = self._files(run, row, attempt, DbRunFile.path.startswith(below, autoescape=True))
        return [StoredArtifact(file.path.removeprefix(below), file.size) for file in files]

    def open_artifact(self, run: str, row: int, attempt: int, path: str) -> BinaryIO:
        """Open one of :meth:`artifacts`; a path that is none of them leads nowhere."""
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
        # Only of those that are shown whole runs are read: a row may have been sampled very often.
        found = (
            select(*SAMPLE_COLUMNS)
            .join(DbRun, DbRun.id == DbSample.run_id)
            .where(DbSample.row_digest == row_digest, DbRun.workspace_id == self.workspace_id)
            .order_by(*newest_first, DbSample.row_index, DbSample.run_index)
            .limit(limit)
            .subquery()
        )
        asked = SUMMARIES.add_columns(*found.c).join(found, found.c.run_id == DbRun.id)
        with self.services.db.session() as session:
            runs = self._runs(session)
            rows = session.execute(asked.order_by(*newest_first, found.c.row_index, found.c.run_index)).all()
            return [(entry := runs.entry(*row[:3]), sample_entry(row, _threshold(entry))) for row in rows]

    def log(
        self,
        kind: RunKind,
        run: str,
        *,
        limit: int,
        cursor: str | None = None,
        direction: Literal["older", "newer"] = "older",
    ) -> LogPage:
        """Return lines of a run's log, oldest first; without a cursor its end."""
        with self.services.db.session() as session:
            found = self._run(session, kind, run)
        return self.services.logs.page(found.id, limit=limit, direction=direction, cursor=cursor)

    def curves(self, run: str) -> TrainingCurves:
        """Return the curves of a training run."""
        with self.services.db.session() as session:
            found = self._run(session, "training", run)
        services = self.services
        curves = read_curves(services.db, found.id)
        happened = logged_marks(services.logs, found.id)
        return viewed_training(found, curves, services.lora_models.of_run(found.id), happened)

    def validation(self, run: str) -> ValidationSamples | None:
        """Return what became of the samples of a training run's newest validation."""
        stored = _not_away(self._validation_file(run, SAMPLES_PATH, max_bytes=LARGEST_BYTES))
        return ValidationSamples.from_bytes(stored.content) if stored.content is not None else None

    def validation_conversation(
        self, run: str, row: int, attempt: int, *, max_bytes: int
    ) -> StoredConversation:
        """Return the trajectory of one of these samples."""
        return self._validation_file(run, conversation_path(row, attempt), max_bytes=max_bytes)

    def changes(self, kind: RunKind, run: str, *, since: str | None = None) -> Changes:
        """Return how a run stands: one statement, and one more where samples have finished since."""
        with self.services.db.session() as session:
            return read_changes(
                session,
                self.workspace_id,
                kind,
                run,
                since=since,
                waits=self.services.run_waits(),
            )

    def kinds(self, names: Sequence[str]) -> Mapping[str, Collection[RunKind]]:
        """Return of which kinds there is a run of each name, in one statement."""
        with self.services.db.session() as session:
            return kinds_of(session, self.workspace_id, names)

    def run_samples(self, runs: Sequence[str]) -> Sequence[RunSamples]:
        """Return evaluations as ``decisions`` reads them, in two statements."""
        from osmosis_ai.platform.viewer.compared_runs import compared_runs
        from osmosis_ai.platform.viewer.run_datasets import RunDataset

        with self.services.db.session() as session:
            found = compared_runs(session, find_runs(session, self.workspace_id, "eval", runs))
        inputs = [(run.name, run.inputs.dataset_name, run.inputs.dataset_sha256) for run in found]
        opened = [RunDataset(self.services, self.workspace_id, *known) for known in inputs]
        return [replace(run, open_dataset=dataset) for run, dataset in zip(found, opened, strict=True)]

    def compared_training(self, runs: Sequence[str]) -> Sequence[tuple[RunDetail, TrainingCurves]]:
        """Return training runs with their settings and curves, in two statements."""
        with self.services.db.session() as session:
            found = find_runs(session, self.workspace_id, "training", runs)
        curves = read_curves_of(self.services.db, [run.id for run in found])
        now = self.services.clock.now()
        return [compared_training(run, curves[run.id], now=now) for run in found]

    def samples_of_row(self, digest: str, runs: Sequence[str], *, limit: int) -> list[list[SampleEntry]]:
        """Return each evaluation's samples of a row, in two statements."""
        from osmosis_ai.platform.viewer.compared_runs import samples_of_row

        with self.services.db.session() as session:
            found = find_runs(session, self.workspace_id, "eval", runs)
            return samples_of_row(session, found, digest, limit=limit)

    def _runs(self, session: Session) -> WorkspaceRuns:
        return WorkspaceRuns(session, self.workspace_id, self.services.clock.now(), self.services.run_waits())

    def _samples(self, session: Session, run: str) -> SampleLists:
        return SampleLists(session, self._run(session, "eval", run), self.counts)

    def _run(self, session: Session, kind: RunKind, name: str) -> DbRun:
        return find_runs(session, self.workspace_id, kind, [name])[0]

    def _validation_file(self, run: str, path: str, *, max_bytes: int) -> StoredConversation:
        with self.services.db.session() as session:
            found = self._run(session, "training", run)
            file = session.get(DbRunFile, (found.id, path))
        return self._content(file, max_bytes=max_bytes)

    def _content(self, file: DbRunFile | None, *, max_bytes: int) -> StoredConversation:
        """Return what a run's file holds, as far as it is there and not too large."""
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
            # Where the store is stands in the log alone.
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
            held = self.counts.once(
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


def _record(sample: DbSample) -> dict[str, Any]:
    """Return what else is known of a sample."""
    known = {name: getattr(sample, name) for name in _RECORDED}
    return {name: value for name, value in known.items() if value not in (None, False)}


def _threshold(run: RunEntry) -> float:
    return run.headline.pass_threshold if run.headline is not None else 1.0


def _no_sample(samples: SampleLists, row: int, attempt: int) -> NotFoundError:
    run, near = samples.run, samples.near(min(row, _LARGEST), min(attempt, _LARGEST))
    return no_sample(run.name, row, attempt, near, rows=sampled_rows(run), n=evaluation_settings(run).n)
