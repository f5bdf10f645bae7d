"""Training runs on the platform and in local directories: read, compare, report and watch."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timezone
from functools import cached_property
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from osmosis_ai.api.capabilities import Capability
from osmosis_ai.api.http_errors import PlatformError
from osmosis_ai.api.models import training_runs as wire
from osmosis_ai.api.models.runs import Run
from osmosis_ai.api.paging import iterate_samples
from osmosis_ai.config.issues import nearest
from osmosis_ai.config.training import DEFAULT_IMPORTANCE_CAP, TrainingSettings
from osmosis_ai.errors import ConflictError, NotFoundError, OsmosisError, WorkspaceRequiredError
from osmosis_ai.evaluation.attempt_files import AttemptFiles, StoredConversation
from osmosis_ai.evaluation.conversation import LARGEST_CONVERSATION_BYTES
from osmosis_ai.evaluation.run_directory import RunDirectory
from osmosis_ai.files import expanded, write_json
from osmosis_ai.services.capabilities import require_offered
from osmosis_ai.services.downloaded_runs import is_downloaded_run
from osmosis_ai.services.eval_runs.local_runs import local_item
from osmosis_ai.services.eval_runs.show import (
    ShownRun,
    WantedSamples,
    of_outcome,
    platform_entry,
    shown_samples,
)
from osmosis_ai.services.listing import fetch_listing
from osmosis_ai.services.report_files import ReportFile
from osmosis_ai.services.runs.download import safe_name
from osmosis_ai.services.runs.lifecycle import (
    RUN_PATHS,
    TERMINAL,
    WAITING,
    DescribedRun,
    RunKind,
    get_training,
    is_temporary,
    list_checkpoints,
    run_path,
)
from osmosis_ai.training.runs import run_differences
from osmosis_ai.training.runs.curves import CurveMark, SavedAdapter, TrainingCurves, reward_at
from osmosis_ai.training.runs.metrics import LARGEST_STEP, TITLES
from osmosis_ai.viewer.local_runs import RunPlaces, kind_of
from osmosis_ai.viewer.source import (
    Outcome,
    RunDetail,
    RunEntry,
    SampleDetail,
    SampleEntry,
    known_of,
    no_sample,
    sample_entry,
)
from osmosis_ai.workspace.layout import WorkspaceDirectory, find_workspace

if TYPE_CHECKING:
    from osmosis_ai.api.client import PlatformClient


METRICS_NOT_YET = "the run has no metrics before it starts."
_EXPORTED_NAMES: Mapping[str, str] = {
    "rollout/raw_reward": "training_reward",
    "eval/validation/reward": "validation_reward",
    "train/entropy_loss": "entropy",
    "rollout/response_lengths": "response_length",
    "rollout/total_lengths": "total_length",
    "rollout/truncated_ratio": "truncation_ratio",
}
"""Names of the platform's metrics in the exported file; other metrics keep their keys."""

_DRAWN: Mapping[str, Literal["restart", "warning"]] = {"restart": "restart", "warning": "warning"}
_SHOWN_ID_CHARS = 8


@dataclass(frozen=True)
class DescribedTraining(DescribedRun):
    """A training run with its metrics and, once it has ended, its checkpoints."""

    kind: ClassVar[RunKind] = "train"
    detail: wire.TrainingRunDetail
    metrics: wire.TrainingMetrics | None = None
    metrics_error: str | None = None
    checkpoints: tuple[wire.Checkpoint, ...] = ()

    @property
    def run(self) -> wire.DescribedTrainingRun:
        return self.detail.training_run

    @property
    def summary(self) -> dict[str, Any]:
        return run_summary(self.run)

    @cached_property
    def values(self) -> Mapping[str, Sequence[tuple[int, float]]]:
        """Steps and values of each metric."""
        series = self.metrics.metrics if self.metrics is not None else ()
        return {
            each.metric_key: [
                (point.step, point.value) for point in each.data_points if point.value is not None
            ]
            for each in series
        }

    @cached_property
    def curves(self) -> TrainingCurves:
        metrics = self.metrics or wire.TrainingMetrics()
        own = {each.metric_key: each.title for each in metrics.metrics if each.metric_key not in TITLES}
        saved = [
            SavedAdapter(
                each.checkpoint_name or each.id,
                each.checkpoint_step,
                reward_at(self.values, each.checkpoint_step),
                each.size,
            )
            for each in self.checkpoints
            if each.checkpoint_step is not None
        ]
        marks = [
            CurveMark(mark.step, kind, mark.text)
            for mark in metrics.marks
            if (kind := _DRAWN.get(mark.kind)) and mark.step is not None and 0 <= mark.step <= LARGEST_STEP
        ]
        return TrainingCurves.of(self.values, {**TITLES, **own}, marks, saved)

    @property
    def changed_settings(self) -> Mapping[str, Any]:
        return changed_settings(self.detail.config or {})

    @property
    def duration_s(self) -> float | None:
        return None if self.duration_ms is None else self.duration_ms / 1000

    @property
    def run_detail(self) -> RunDetail:
        """The run as the viewer describes it."""
        run, detail = self.run, self.detail
        entry = RunEntry(
            "training",
            self.name,
            run.id,
            run.status,
            started_at=run.started_at,
            ended_at=run.completed_at,
            model=self.model,
            dataset=detail.dataset.name if detail.dataset else None,
            rollout=detail.rollout.name if detail.rollout else None,
            person=run.creator_name,
            commit=detail.commit_sha,
            reward=run.reward,
            error=run.error,
        )
        steps = None if run.current_step is None else f"{run.current_step} of {run.total_steps or '?'}"
        facts = {"Steps": steps, "Entrypoint": detail.entrypoint, "Branch": detail.branch, "Run id": run.id}
        return RunDetail(
            entry,
            config_effective=detail.config or {},
            facts=[(label, value) for label, value in facts.items() if value],
            secret_names=sorted(detail.resolved_secret_scopes or ()),
            problems=[self.metrics_error] if self.metrics_error else [],
        )

    def data(self) -> dict[str, Any]:
        detail, run = self.detail, self.run
        names = [
            (part.id, part.name) if part else None for part in (detail.model, detail.dataset, detail.rollout)
        ]
        own = {**_own_fields(run, names), "examples_processed_count": run.examples_processed_count}
        return {
            **super().data(),
            "training_run": {**own, "notes": run.notes},
            "validation": _headline(self.curves),
            **({"platform_url": run.platform_url} if run.platform_url else {}),
            "checkpoints": [checkpoint.printed() for checkpoint in self.checkpoints],
            "in_progress": self.in_progress,
            "metrics": metrics_document(self) if self.metrics is not None else None,
        }

    def outcome(self) -> dict[str, Any]:
        data = self.data()
        return {**super().outcome(), **{key: data[key] for key in ("validation", "checkpoints", "metrics")}}


def _headline(curves: TrainingCurves) -> dict[str, Any] | None:
    return curves.headline.to_json() if curves.headline is not None else None


def list_runs(client: PlatformClient, limit: int, everything: bool) -> wire.TrainingRunList:
    pages = client.pages(RUN_PATHS["train"], wire.TrainingRunList)
    return fetch_listing(pages, limit=limit, everything=everything)


def describe_run(client: PlatformClient, name: str) -> DescribedTraining:
    detail = get_training(client, name)
    run = detail.training_run
    checkpoints: tuple[wire.Checkpoint, ...] = ()
    if run.status in TERMINAL["train"]:
        with suppress(PlatformError):
            checkpoints = tuple(list_checkpoints(client, run.id).checkpoints)
    if run.status in WAITING:
        return DescribedTraining(detail, metrics_error=METRICS_NOT_YET)
    try:
        metrics = _get_metrics(client, run.id)
    except PlatformError as error:
        return DescribedTraining(detail, metrics_error=error.message, checkpoints=checkpoints)
    return DescribedTraining(detail, metrics, checkpoints=checkpoints)


def find_checkpoint(client: PlatformClient, reference: str) -> tuple[str, str]:
    """Return the name of the checkpoint that ``RUN``, ``RUN@best``, ``RUN@last`` or ``RUN@STEP`` means, and why.

    ``RUN`` is the best one by validation, or the last one if there was no selection.
    """
    name, _, which = reference.partition("@")
    run = describe_run(client, name)
    listed = run.checkpoints or tuple(list_checkpoints(client, run.run.id).checkpoints)
    curves = replace(run, checkpoints=listed).curves
    choices = {str(each.step): (each.name, f"step {each.step}") for each in curves.checkpoints}
    known = ", ".join(choices)
    if choices:
        choices["last"] = curves.checkpoints[-1].name, f"last, step {curves.checkpoints[-1].step}"
    if (found := curves.best_checkpoint()) is not None:
        of_run = " of a run that became worse" if curves.collapsed else ""
        choices["best"] = found[0].name, f"best, selected among {found[1]} validations{of_run}"
    # The last policy of a run that collapsed is deployed only by its name.
    which = which or ("best" if "best" in choices or curves.collapsed else "last")
    chosen = choices.get(which)
    if chosen is None:
        if choices and which == "best" and curves.collapsed:
            raise NotFoundError(
                f"The policy of {run.name} became worse in training, so no checkpoint was selected.",
                hint=f"choose one: {name}@last or {name}@STEP ({known})",
            )
        what = f" {which[:40]!r}" if choices else ""
        raise NotFoundError(
            f"The run {run.name} has no checkpoint{what}.",
            hint=f"{name}@last, {name}@STEP ({known}), or {name}@best if several were validated"
            if known
            else None,
        )
    return chosen


def _get_metrics(client: PlatformClient, run_id: str) -> wire.TrainingMetrics:
    return client.get(run_path("train", run_id, "/metrics"), model=wire.TrainingMetrics)


def resume_run(client: PlatformClient, name: str) -> wire.ResumeReply:
    return client.post(run_path("train", name, "/resume"), None, model=wire.ResumeReply)


def run_item(row: wire.TrainingRunRow) -> dict[str, Any]:
    names = [
        (row.model.id, row.model.model_name) if row.model else None,
        (row.dataset.id, row.dataset.file_name) if row.dataset else None,
        (row.rollout.id, row.rollout.name) if row.rollout else None,
    ]
    return {**_own_fields(row, names), "summary": run_summary(row)}


def run_summary(run: wire.TrainingRun) -> dict[str, Any]:
    known: dict[str, Any] = {"reward": run.reward} if run.reward is not None else {}
    if run.current_step is not None and run.total_steps is not None:
        total = max(run.total_steps, run.current_step)
        known["progress"] = {"completed": run.current_step, "total": total, "unit": "steps"}
    return known


_OPTIONAL = {"platform_url", "current_step", "total_steps", "reward", "error", "waits"}


def _own_fields(
    run: wire.TrainingRun, names: Sequence[tuple[str | None, str | None] | None]
) -> dict[str, Any]:
    """Return a run's fields, and id and name of its model, dataset and rollout."""
    fields = run.model_dump(mode="json", include=Run.model_fields.keys() - _OPTIONAL)
    for what, name in zip(("model", "dataset", "rollout"), names, strict=True):
        fields[f"{what}_id"], fields[f"{what}_name"] = name or (None, None)
    return fields | run.model_dump(mode="json", include=_OPTIONAL, exclude_none=True)


def metrics_document(described: DescribedTraining) -> dict[str, Any]:
    """Return the content of a metrics file; a run without metrics has no series in it."""
    run, detail, metrics = described.run, described.detail, described.metrics
    overview = metrics.overview if metrics else None
    about = {
        **run.model_dump(mode="json", include={"id", "status", "name", "started_at", "completed_at"}),
        "base_model_name": detail.model_name,
        "dataset_name": detail.dataset.name if detail.dataset else None,
        "rollout_name": detail.rollout.name if detail.rollout else None,
        "duration_ms": described.duration_ms,
        "rows_processed": run.examples_processed_count,
        "latest_step": run.current_step,
        "total_steps": run.total_steps,
    }
    if overview is not None:
        measured = (overview.examples_processed_count, overview.latest_step, overview.total_steps)
        keys = ("rows_processed", "latest_step", "total_steps")
        about |= {key: value for key, value in zip(keys, measured, strict=True) if value is not None}
    return {
        "training_run": {key: value for key, value in about.items() if value is not None},
        "summary": {
            _EXPORTED_NAMES.get(summary.key, summary.key): summary.model_dump(
                exclude={"key", "title"}, exclude_none=True
            )
            for summary in (overview.metric_summaries if overview else ())
        },
        "metrics": [
            {
                "key": _EXPORTED_NAMES.get(series.metric_key, series.metric_key),
                "title": series.title,
                "data": [
                    {"step": point.step, "value": point.value, "timestamp": _iso(point.timestamp)}
                    for point in series.data_points
                ],
            }
            for series in (metrics.metrics if metrics else ())
        ],
    }


def save_metrics(
    described: DescribedTraining, workspace: WorkspaceDirectory, output: str | None
) -> tuple[Path | None, str | None]:
    """Write a metrics file and return its path or, if it cannot be written, the reason."""
    run = described.run
    name = f"{safe_name(run.name or 'run')}_{safe_name(run.id[:_SHOWN_ID_CHARS])}.json"
    if output is None:
        path = workspace.state_dir / "metrics" / name
    else:
        path = expanded(output).absolute()
        separators = tuple(filter(None, (os.sep, os.altsep)))
        is_folder = output.endswith(separators) or path.is_dir()
        path = path / name if is_folder else path.with_suffix(".json")
    try:
        if output is None:
            workspace.create_state_dir()
        write_json(path, metrics_document(described), mode=0o644, durable=False)
    except OSError as error:
        return None, f"the metrics could not be saved to {path}: {error.strerror or error}."
    return path, None


def _iso(timestamp_ms: int) -> str | None:
    try:
        moment = datetime.fromtimestamp(timestamp_ms / 1000, timezone.utc)
    except (OverflowError, ValueError, OSError):
        return None  # outside the calendar's range
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


_PATHS = ("/", "./", "../", "~")
"""Prefixes of a path; a run's name may contain a slash, too."""


@dataclass(frozen=True)
class LocalTraining:
    """A local training directory; ``metrics`` has the platform's format."""

    directory: Path
    run_detail: RunDetail
    curves: TrainingCurves
    metrics: wire.TrainingMetrics

    @property
    def changed_settings(self) -> Mapping[str, Any]:
        return changed_settings(self.run_detail.config_effective.get("settings", {}))

    @property
    def duration_s(self) -> float | None:
        return self.run_detail.summary.duration_s

    def data(self) -> dict[str, Any]:
        return {
            "local_run": local_item(self.run_detail.summary, self.directory),
            "config": dict(self.run_detail.config_effective),
            "config_written": self.run_detail.config_written,
            "problems": list(self.run_detail.problems),
            "validation": _headline(self.curves),
            "checkpoints": [
                {"name": saved.name, "step": saved.step, "reward": saved.reward, "size_bytes": saved.size}
                for saved in self.curves.checkpoints
            ],
            "metrics": self.metrics.model_dump(mode="json"),
        }


def training_directory(word: str) -> Path | None:
    """Return the training directory at a path, or None if the word may name a platform run."""
    try:
        given = expanded(word).absolute()
        kind, exists = kind_of(given), given.exists()
    except (OSError, ValueError, RuntimeError):
        return None
    if kind == "training":
        return given
    if kind == "eval" or is_downloaded_run(given):
        raise OsmosisError(
            f"{word} is an evaluation directory, not a training directory.",
            hint=f"osmosis eval info {quote(word)}",
        )
    is_path = _is_path(word)
    if is_path and exists:
        folder = Path(word) if given.is_dir() else Path(word).parent
        raise OsmosisError(
            f"{word} is not a training directory: it needs a manifest.json and a metrics.jsonl.",
            hint=f"osmosis view {quote(str(folder))} lists the runs below it",
        )
    if is_path and (word.startswith(_PATHS) or not is_logged_in()):
        raise _missing(word, given.parent)
    try:
        find_workspace(require_scaffold=False)
    except WorkspaceRequiredError:
        raise NotFoundError(
            f"Training directory not found: {word[:200]}.",
            hint="use the path of a local run, or run the command in a workspace directory",
        ) from None
    return None


def require_platform_run(word: str, command: str) -> None:
    """Reject a training directory in a command that accepts only platform runs.

    With a login, a word without a slash is always the name of such a run.
    """
    try:
        is_local = kind_of(Path(word).absolute()) == "training"
    except (OSError, ValueError):
        is_local = False
    if not _is_path(word) and (not is_local or is_logged_in()):
        return
    if training_directory(word) is not None:
        shown = quote(word)
        raise OsmosisError(
            f"{word} is a local training directory, but `{command}` accepts only platform runs.",
            hint=f"osmosis train info {shown}, osmosis train logs {shown} --follow, osmosis view {shown}",
        )


def _is_path(word: str) -> bool:
    return word in (".", "..", "~") or "/" in word or os.sep in word


def is_logged_in() -> bool:
    """Whether there is a login; no platform is asked."""
    from osmosis_ai.api.credentials import require_credentials

    try:
        require_credentials()
    except OsmosisError:
        return False
    return True


def _missing(word: str, folder: Path) -> NotFoundError:
    """Return the error about a missing path, with the most similar training directories."""
    written = Path(word).parent
    if not folder.is_dir():
        folder, written = Path.cwd(), Path()
    places = [place.path for place in RunPlaces(folder).all() if place.kind == "training"]
    near = nearest(word, [str(written / path.relative_to(folder)) for path in places], most=3, cutoff=0)
    meant = f"did you mean {' or '.join(map(quote, near))}?" if near else ""
    return NotFoundError(
        f"Training directory not found: {word[:200]}.",
        details={"nearest": near},
        hint=meant or "osmosis train list shows the names of platform runs",
    )


def describe_training(directory: Path) -> LocalTraining:
    from osmosis_ai.viewer.local.run_files import read_training, with_time_so_far

    known = read_training(directory, directory.name)
    if known.recorded is None:
        raise OsmosisError(known.detail.problems[0])
    curves = known.recorded.curves()
    times = {record.step: record.timestamp_ms for record in known.recorded.records}
    series, summaries = [], []
    for curve in curves.curves:
        key, title, values = curve.key, curve.title, [each.value for each in curve.points]
        points = [
            wire.MetricPoint(step=each.step, value=each.value, timestamp=times.get(each.step, 0))
            for each in curve.points
        ]
        series.append(wire.MetricSeries(metric_key=key, title=title, data_points=points))
        summary = wire.MetricSummary(key=key, title=title, min=min(values), max=max(values))
        summary.initial, summary.latest, summary.delta = values[0], values[-1], values[-1] - values[0]
        summaries.append(summary)
    overview = wire.TrainingMetricsOverview(latest_step=max(times, default=None), metric_summaries=summaries)
    metrics = wire.TrainingMetrics(
        status=known.detail.summary.status, overview=overview, metrics=series, validation=curves.validation
    )
    detail = replace(known.detail, summary=with_time_so_far(known.detail.summary))
    return LocalTraining(directory, detail, curves, metrics)


_HINT = "a run that validates (`[checkpoints].eval_interval`) keeps the attempts of its newest validation"


@dataclass(frozen=True)
class ShownValidation:
    """Conversations of the validation after ``step``, of whose samples so many were kept."""

    run: ShownRun
    step: int
    total: int | None
    kept: int

    def data(self) -> dict[str, Any]:
        return {
            **self.run.data(),
            "validation": {"step": self.step, "samples": self.total, "kept": self.kept},
        }


@dataclass(frozen=True)
class _Validation:
    """The samples of a validation by row and attempt, as ``RunConversations``."""

    name: str
    place: str
    step: int
    total: int | None
    details: Mapping[tuple[int, int], SampleDetail]
    fetch: Callable[[int, int], StoredConversation]

    @property
    def subject(self) -> str:
        of = f" of {self.total:,}" if self.total is not None else ""
        return f"the validation of `{self.name}` after step {self.step} ({len(self.details):,}{of} attempts are kept)"

    def samples(self, row: int | None, outcome: Outcome | None) -> Iterator[SampleEntry]:
        entries = [each.summary for each in self.details.values() if row in (None, each.summary.row)]
        yield from of_outcome(entries, outcome)

    def detail(self, sample: SampleEntry) -> SampleDetail:
        return self.details[sample.row, sample.attempt]

    def conversations(self, samples: Sequence[SampleEntry]) -> Sequence[StoredConversation]:
        return [self.fetch(each.row, each.attempt) for each in samples]

    def no_sample(self, row: int, attempt: int | None) -> NotFoundError:
        missing = no_sample(self.name, row, attempt, self.details, of=self.subject)
        missing.hint = "rows and attempts are numbered from 0"
        return missing

    def problems(self) -> Sequence[str]:
        return ()

    def same_row(self, sample: SampleEntry) -> SampleEntry | None:
        found = self.details.get((sample.row, sample.attempt))
        return found.summary if found is not None else None


def show_validation(
    reference: str, wanted: WantedSamples, *, step: int | None, client: Callable[[], PlatformClient]
) -> ShownValidation:
    """Return conversations of a run's validation, worst first."""
    directory = training_directory(reference)
    found = _here(directory) if directory is not None else _there(client(), reference)
    if found is None:
        raise NotFoundError(f"the run `{reference}` has no record of a validation.", hint=_HINT)
    if step not in (None, found.step):
        raise NotFoundError(
            f"the attempts of the validation after step {step} are not kept: the newest is after step {found.step}.",
            hint="omit --step: only the newest validation's attempts are kept",
        )
    return ShownValidation(shown_samples(found, wanted), found.step, found.total, len(found.details))


def _here(directory: Path) -> _Validation | None:
    from osmosis_ai.training.runs.run_directory import TrainingDirectory

    samples = TrainingDirectory(directory).read_validation()
    if samples is None:
        return None
    records = {(each.row_index, each.run_index): each for each in samples.records}

    def fetch(row: int, attempt: int) -> StoredConversation:
        files = AttemptFiles(RunDirectory(directory), records[row, attempt].rollout_id, row, attempt)
        return files.conversation(max_bytes=LARGEST_CONVERSATION_BYTES)

    details = {
        place: SampleDetail(sample_entry(record, samples.pass_threshold), known_of(record))
        for place, record in records.items()
    }
    return _Validation(directory.name, "file", samples.step, samples.total, details, fetch)


def _there(client: PlatformClient, name: str) -> _Validation | None:
    run = get_training(client, name).run
    require_offered(client, Capability.TRAINING_VALIDATION)
    newest = wire.ValidationPage()

    def page(cursor: str | None) -> wire.ValidationPage:
        nonlocal newest
        path = run_path("train", run.id, "/validation")
        newest = client.get(path, model=wire.ValidationPage, params={"cursor": cursor})
        return newest

    details = {}
    for each in iterate_samples(page):
        threshold = 1.0 if newest.pass_threshold is None else newest.pass_threshold
        known = {"notes": each.notes, "parts": each.parts}
        details[each.row, each.attempt] = SampleDetail(platform_entry(each, threshold), known)
    if newest.step is None:
        return None

    def fetch(row: int, attempt: int) -> StoredConversation:
        try:
            path = run_path("train", run.id, f"/validation/{row}/{attempt}")
            said = client.get(path, model=wire.ValidationConversation)
        except PlatformError as error:
            if error.status != 404:
                raise
            return StoredConversation(None, missing="a newer validation has replaced it")
        content = said.text.encode("utf-8", "replace") if said.text is not None else None
        return StoredConversation(content, said.size, said.missing, whole="its page on the platform")

    return _Validation(run.name or run.id, "platform", newest.step, newest.total, details, fetch)


def report_training(run: LocalTraining | DescribedTraining, report: ReportFile) -> None:
    from osmosis_ai.viewer.reports import write_training_report

    with report.opened("training") as file:
        write_training_report(file, run.run_detail, run.curves, text=report.text)


@dataclass(frozen=True)
class TrainingComparison:
    """Two runs and their differences; ``sentence`` names the better one, with caveats."""

    a: DescribedTraining
    b: DescribedTraining
    differences: run_differences.TrainingDifferences
    sentence: str

    def data(self) -> dict[str, Any]:
        a, b = self.a.data(), self.b.data()
        keys = ("training_run", "summary", "config", "commit_sha", "metrics_available", "metrics_error")
        return {
            "verdict": {**self.differences.verdict.data(), "sentence": self.sentence},
            "a": {key: a[key] for key in keys},
            "b": {key: b[key] for key in keys},
            "config_differences": [asdict(setting) for setting in self.differences.settings],
            "metrics": [asdict(metric) for metric in self.differences.metrics],
        }


def compare_runs(client: PlatformClient, a: str, b: str) -> TrainingComparison:
    first, second = describe_run(client, a), describe_run(client, b)
    if first.run.id == second.run.id:
        raise ConflictError(f"the run {first.name} is compared with itself.", hint="name another run")
    compared = _compared(first), _compared(second)
    differences = run_differences.compare_training(*compared)
    return TrainingComparison(first, second, differences, run_differences.summary(compared, [differences]))


def _compared(run: DescribedTraining) -> run_differences.ComparedTraining:
    detail, metrics = run.detail, run.metrics or wire.TrainingMetrics()
    experiment = {
        "model": run.model,
        "dataset": detail.dataset.name if detail.dataset else None,
        "rollout": detail.rollout.name if detail.rollout else None,
        "entrypoint": detail.entrypoint,
        "commit_sha": detail.commit_sha,
    }
    settings = {"experiment": experiment, **(detail.config or {}), "env": detail.env_config or {}}
    return run_differences.ComparedTraining(
        run.name,
        {key: value for key, value in run_differences.flat_settings(settings) if value is not None},
        {series.metric_key: series.title for series in metrics.metrics},
        {key: dict(values) for key, values in run.values.items()},
        metrics.validation,
        run.curves.hollow_validations(),
    )


def changed_settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a config that differ from the trainer's defaults, and keys of other trainers."""
    fields, flat = TrainingSettings.model_fields, list(run_differences.flat_settings(config))
    named = {key.rpartition(".")[2]: value for key, value in flat}
    if named.get("importance_cap") == DEFAULT_IMPORTANCE_CAP and (
        named.get("max_staleness") or named.get("policy_engine") == "vllm"
    ):
        flat = [
            (key, value) for key, value in flat if not key.endswith("importance_cap")
        ]  # it follows from them
    found = {}
    for key, value in flat:
        field = fields.get(key.rpartition(".")[2])
        if value is not None and (field is None or value != field.get_default(call_default_factory=True)):
            found[key] = value
    return found


class TrainingLook:
    """Polls a training run, fetching its curves, which can be large, only once per step."""

    def __init__(self, client: PlatformClient, name: str) -> None:
        self._client = client
        self._name = name
        self._step: int | None = None
        self._metrics: wire.TrainingMetrics | None = None

    def __call__(self) -> DescribedTraining:
        detail = get_training(self._client, self._name)
        run = detail.training_run
        self._name = run.id
        if run.current_step is not None and run.current_step != self._step:
            try:
                self._metrics = _get_metrics(self._client, run.id)
            except PlatformError as error:
                # The progress is available even if the metrics are not.
                if is_temporary(error):
                    raise
            self._step = run.current_step
        return DescribedTraining(detail, self._metrics)
