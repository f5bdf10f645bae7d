"""Viewer source for the runs on this machine, which it only reads."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import RLock
from typing import TYPE_CHECKING, BinaryIO, TypeVar, get_args

from osmosis_ai.config.issues import nearest
from osmosis_ai.decisions.local_runs import read_local_samples, require_dataset_file
from osmosis_ai.decisions.run_dataset import dataset_files, expected_answer
from osmosis_ai.errors import NotFoundError, OsmosisError
from osmosis_ai.evaluation.attempt_files import (
    AttemptFiles,
    StoredArtifact,
    StoredConversation,
    read_config,
    read_diagnostics,
)
from osmosis_ai.evaluation.local_results import LocalResults, describe_lost_results
from osmosis_ai.evaluation.run_directory import RunDirectory
from osmosis_ai.evaluation.run_log import LogDirection, read_log
from osmosis_ai.files import size_of
from osmosis_ai.training.runs.curves import RecordedTraining, TrainingCurves
from osmosis_ai.training.runs.run_directory import TrainingDirectory
from osmosis_ai.viewer.local.attempts import AttemptIndex, file_state
from osmosis_ai.viewer.local.run_files import (
    KnownEvaluation,
    commands_of,
    facts_of,
    read_evaluation,
    read_session,
    read_training,
    secret_names,
    session_detail,
    training_detail,
    with_time_so_far,
)
from osmosis_ai.viewer.local.run_list import RunList
from osmosis_ai.viewer.local_runs import RunKind, RunPlace, RunPlaces, namesakes
from osmosis_ai.viewer.source import (
    ItemPage,
    RunDetail,
    RunEntry,
    RunQuery,
    RunState,
    SampleDetail,
    SampleEntry,
    SampleQuery,
    known_of,
    sliceable_columns,
    traceback_in,
    validated_record,
)
from osmosis_ai.workspace.config_files import decisions_around

if TYPE_CHECKING:
    from osmosis_ai.api.models.base import LogPage
    from osmosis_ai.decisions.samples import RunSamples
    from osmosis_ai.training.runs.run_directory import ValidationSamples

_OPEN_INDEXES = 8
_FOLLOWED_RUNS = 4
_ELSEWHERE_S = 1.0
_MOST_COMPARED = 1_000

_PARTLY_READ = "{share:.0%} of the results are read so far: failures and rewards are counted over these, the numbers over all."

OpenedT = TypeVar("OpenedT")


class _OpenRuns(OrderedDict[Path, OpenedT]):
    """The most recently used open runs, by directory."""

    def __init__(
        self, make: Callable[[Path], OpenedT], fits: Callable[[OpenedT], bool], *, most: int
    ) -> None:
        super().__init__()
        self._make, self._fits, self._most = make, fits, most

    def of(self, path: Path) -> OpenedT:
        """Return an open run or open it; the least recently used one is closed."""
        found = self.pop(path, None)
        self[path] = found if found is not None and self._fits(found) else self._make(path)
        while len(self) > self._most:
            self.popitem(last=False)
        return self[path]


def _columns(path: Path) -> Sequence[str]:
    """Return the columns by which a run's results can be divided; none if its dataset is unavailable."""
    with suppress(OsmosisError, OSError, ValueError):
        for file in dataset_files(path, path):
            return sliceable_columns(file)
    return ()


class LocalSource:
    def __init__(self, root: Path, *, cache_dir: Path, patience_s: float | None = None) -> None:
        self._patience_s = patience_s
        self._places = RunPlaces(root, results=cache_dir / "eval_result")
        self._list = RunList(patience_s=patience_s)
        self._lock = RLock()
        self._indexes = _OpenRuns(AttemptIndex, AttemptIndex.is_of_this_run, most=_OPEN_INDEXES)
        self._followed = _OpenRuns(LocalResults, LocalResults.is_current, most=_FOLLOWED_RUNS)

    def close(self) -> None:
        with self._lock:
            for samples in self._indexes.values():
                samples.close()
            self._indexes.clear()

    def runs(self, query: RunQuery, *, limit: int, cursor: str | None = None) -> ItemPage[RunEntry]:
        return self._list.page(self._places.all(), query, limit=limit, cursor=cursor)

    def run(self, kind: RunKind, name: str) -> RunDetail:
        place = self._place(kind, name)
        if kind == "eval":
            detail = self._evaluation_detail(place)
        elif kind == "training":
            detail = training_detail(read_training(place.path, name), place.path)
        else:
            detail = session_detail(*read_session(place.path, name), File=str(place.path))
        entry, previous = self._list.in_its_series(self._places.all(), detail.summary)
        return replace(
            detail, summary=entry, previous=previous, namesakes=namesakes(place, self._places.all())
        )

    def samples(
        self, run: str, query: SampleQuery, *, limit: int, cursor: str | None = None
    ) -> ItemPage[SampleEntry]:
        samples, progress = self._samples(self._place("eval", run))
        page, directory = samples.page(query, limit=limit, cursor=cursor), samples.directory
        lost = describe_lost_results(directory, directory.read_metrics() or {})
        problems = [*([lost] if lost else []), *([samples.damage] if samples.damage else [])]
        return replace(page, progress=progress, problems=problems)

    def sample(self, run: str, row: int, attempt: int, query: SampleQuery) -> SampleDetail:
        samples, entry = self._sample(run, row, attempt)
        record = samples.record(row, attempt)
        diagnostics = read_diagnostics(samples.directory, record.rollout_id) if record else b""
        following, previous = samples.neighbours(query, entry)
        return SampleDetail(
            summary=entry,
            record=known_of(record) if record is not None else {},
            ground_truth=expected_answer(samples.directory.path, entry.source_row, entry.row_digest),
            traceback=traceback_in(diagnostics),
            next=following,
            previous=previous,
            attempts=samples.attempts(row),
        )

    def conversation(self, run: str, row: int, attempt: int, *, max_bytes: int) -> StoredConversation:
        return self._attempt(run, row, attempt).conversation(max_bytes=max_bytes)

    def read_conversations(
        self, run: str, samples: Sequence[SampleEntry], *, max_bytes: int
    ) -> Iterator[StoredConversation]:
        return (self.conversation(run, each.row, each.attempt, max_bytes=max_bytes) for each in samples)

    def artifacts(self, run: str, row: int, attempt: int) -> Sequence[StoredArtifact]:
        return self._attempt(run, row, attempt).artifacts()

    def open_artifact(self, run: str, row: int, attempt: int, path: str) -> BinaryIO:
        return self._attempt(run, row, attempt).open_artifact(path)

    def elsewhere(self, row_digest: str, *, limit: int) -> Sequence[tuple[RunEntry, SampleEntry]]:
        found: list[tuple[RunEntry, SampleEntry]] = []
        deadline = time.monotonic() + _ELSEWHERE_S
        for entry in self._list.newest(self._places.all(), "eval"):
            if len(found) >= limit or time.monotonic() > deadline:
                break
            with suppress(OsmosisError):
                samples, _ = self._samples(self._place("eval", entry.name))
                found += [(entry, sample) for sample in samples.of_digest(row_digest, limit=limit)]
        return found[:limit]

    def log(
        self,
        kind: RunKind,
        run: str,
        *,
        limit: int,
        cursor: str | None = None,
        direction: LogDirection = "older",
    ) -> LogPage:
        path = RunDirectory(self._place(kind, run).path).log
        return read_log(path, limit=limit, cursor=cursor, direction=direction)

    def curves(self, run: str) -> TrainingCurves:
        return RecordedTraining.read(TrainingDirectory(self._place("training", run).path)).curves()

    def validation(self, run: str) -> ValidationSamples | None:
        return TrainingDirectory(self._place("training", run).path).read_validation()

    def validation_conversation(
        self, run: str, row: int, attempt: int, *, max_bytes: int
    ) -> StoredConversation:
        record = validated_record(self.validation(run), run, row, attempt)
        directory = RunDirectory(self._place("training", run).path)
        return AttemptFiles(directory, record.rollout_id, row, attempt).conversation(max_bytes=max_bytes)

    def state(self, kind: RunKind, run: str) -> RunState:
        place = self._place(kind, run)
        log = size_of(RunDirectory(place.path).log) if kind != "rubric" else 0
        if kind != "eval":
            entry = self._list.entry(place)
            size, changed = file_state(place.path / "metrics.jsonl" if kind == "training" else place.path)
            return RunState(f"{entry.status}.{size}.{changed}.{log}", entry.status)
        known = self._evaluation(place)
        read = self._samples(place)[0].read if known.manifest is not None else 0
        return RunState(f"{known.entry.status}.{read}.{log}", known.entry.status, known.entry.headline)

    def no_sample(self, run: str, row: int, attempt: int | None) -> NotFoundError:
        samples, _ = self._samples(self._place("eval", run))
        return samples.no_sample(run, row, attempt)

    def require_samples(self, run: str) -> None:
        samples, _ = self._samples(self._place("eval", run))
        if samples.damage is not None and not samples.read:
            raise OsmosisError(samples.damage)

    def kinds(self, names: Sequence[str]) -> Mapping[str, Collection[RunKind]]:
        return {
            name: [kind for kind in get_args(RunKind) if self._places.named(kind, name)] for name in names
        }

    def run_samples(self, runs: Sequence[str]) -> Sequence[RunSamples]:
        return [self._run_samples(run) for run in runs]

    def compared_training(self, runs: Sequence[str]) -> Sequence[tuple[RunDetail, TrainingCurves]]:
        return [(self.run("training", run), self.curves(run)) for run in runs]

    def samples_of_row(self, digest: str, runs: Sequence[str], *, limit: int) -> list[list[SampleEntry]]:
        opened = [self._samples(self._place("eval", run))[0] for run in runs]
        return [samples.of_digest(digest, limit=limit) for samples in opened]

    def _run_samples(self, run: str) -> RunSamples:
        directory = self._place("eval", run).path
        samples = read_local_samples(directory)
        decided, _ = decisions_around(samples.inputs.config, directory)
        reward_range = decided.reward_range if decided is not None else None
        opened = partial(require_dataset_file, samples, directory)
        return replace(samples, name=run, reward_range=reward_range, open_dataset=opened)

    def _place(self, kind: RunKind, name: str) -> RunPlace:
        place = self._places.named(kind, name)
        if place is not None:
            return place
        names = [place.name for place in self._places.all() if place.kind == kind]
        near = nearest(name[:255], names[:_MOST_COMPARED], most=3, cutoff=0)
        raise NotFoundError(f"there is no run `{name[:100]}`.", details={"nearest": near})

    def _evaluation_detail(self, place: RunPlace) -> RunDetail:
        known = self._evaluation(place)
        if known.manifest is None:
            return RunDetail(known.entry, facts=facts_of(known, place.path), problems=known.problems)
        samples, progress = self._samples(place)
        decided, refused = decisions_around(known.entry.config, place.path)
        problems = [*known.problems, *refused]
        if samples.damage is not None and known.entry.error is None:
            problems.insert(len(known.problems), samples.damage)
        if progress is not None:
            problems.append(_PARTLY_READ.format(share=progress))
        return RunDetail(
            summary=with_time_so_far(known.entry),
            estimates=known.estimates,
            summary_numbers=known.numbers or {},
            config_written=read_config(samples.directory),
            config_effective=known.manifest.inputs,
            facts=facts_of(known, place.path),
            secret_names=secret_names(known.manifest),
            failures=samples.failures(),
            rewards=samples.rewards(),
            problems=problems,
            context=known.context,
            commands=commands_of(known, place.path),
            decided=decided,
            columns=_columns(place.path),
        )

    def _evaluation(self, place: RunPlace) -> KnownEvaluation:
        with self._lock:
            return read_evaluation(place.path, place.name, follow=partial(self._followed.of, place.path))

    def _samples(self, place: RunPlace) -> tuple[AttemptIndex, float | None]:
        with self._lock:
            samples = self._indexes.of(place.path)
        return samples, samples.refresh(patience_s=self._patience_s)

    def _sample(self, run: str, row: int, attempt: int) -> tuple[AttemptIndex, SampleEntry]:
        samples, _ = self._samples(self._place("eval", run))
        rows, n = samples.rows, samples.n
        entry = samples.entry(row * n + attempt) if 0 <= row < rows and 0 <= attempt < n else None
        if entry is None:
            raise samples.no_sample(run, row, attempt)
        return samples, entry

    def _attempt(self, run: str, row: int, attempt: int) -> AttemptFiles:
        samples, _ = self._sample(run, row, attempt)
        record = samples.record(row, attempt)
        rollout_id = record.rollout_id if record is not None else "-"
        return AttemptFiles(samples.directory, rollout_id, row, attempt)
