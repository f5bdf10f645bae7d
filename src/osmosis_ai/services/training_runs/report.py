"""`osmosis train info --report`: a training run as one file, whether it is of this machine or of the platform."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Literal

from osmosis_ai.services.report_files import ReportFile
from osmosis_ai.training.runs.curves import LARGEST_STEP, CurveMark, SavedAdapter, TrainingCurves
from osmosis_ai.viewer.source import RunDetail, RunEntry

if TYPE_CHECKING:
    from osmosis_ai.api.wire.training_runs import TrainingMark
    from osmosis_ai.services.training_runs.info import DescribedTraining
    from osmosis_ai.services.training_runs.local_runs import LocalTraining

_DRAWN: Mapping[str, Literal["restart", "warning"]] = {"restart": "restart", "warning": "warning"}


def report_training(run: LocalTraining | DescribedTraining, report: ReportFile) -> None:
    """Write a training run into one file.

    Raises:
        ConflictError: the file exists, and is not to be overwritten.
        OsmosisError: it can not be written; nothing is left of it then.
    """
    from osmosis_ai.services.training_runs.local_runs import LocalTraining
    from osmosis_ai.viewer.one_file import write_training_report

    if isinstance(run, LocalTraining):
        detail, curves = run.detail, run.curves
    else:
        detail, curves = _detail(run), curves_of(run)
    with report.opened("training") as file:
        write_training_report(file, detail, curves, text=report.text)


def _detail(described: DescribedTraining) -> RunDetail:
    """Return what the viewer shows of a platform's run."""
    run, detail = described.run, described.detail
    entry = RunEntry(
        "training",
        run.name or run.id,
        run.id,
        run.status,
        started_at=run.started_at,
        ended_at=run.completed_at,
        model=described.model,
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
        problems=[described.metrics_error] if described.metrics_error else [],
    )


def curves_of(described: DescribedTraining) -> TrainingCurves:
    """Return a platform's metrics, checkpoints and marks as the viewer draws them."""
    from osmosis_ai.training.runs.curves import reward_at, viewed_curves
    from osmosis_ai.training.runs.metrics import TITLES

    series = described.metrics.metrics if described.metrics is not None else []
    values = {
        each.metric_key: [(point.step, point.value) for point in each.data_points if point.value is not None]
        for each in series
    }
    titles = {**TITLES, **{each.metric_key: each.title for each in series if each.metric_key not in TITLES}}
    saved = [
        SavedAdapter(
            each.checkpoint_name or each.id,
            each.checkpoint_step,
            reward_at(values, each.checkpoint_step),
            each.size,
        )
        for each in described.checkpoints
        if each.checkpoint_step is not None
    ]
    marks = [CurveMark(adapter.step, "checkpoint", adapter.name) for adapter in saved]
    marks += _marks(described.metrics.marks if described.metrics is not None else ())
    return TrainingCurves(
        viewed_curves({key: points for key, points in values.items() if points}, titles),
        sorted(marks, key=lambda mark: mark.step),
        saved,
    )


def _marks(told: Iterable[TrainingMark]) -> Iterator[CurveMark]:
    """Yield what is drawn of what a platform tells: marks of kinds that are known, at a step that a run can have."""
    for mark in told:
        kind = _DRAWN.get(mark.kind)
        if kind is not None and mark.step is not None and 0 <= mark.step <= LARGEST_STEP:
            yield CurveMark(mark.step, kind, mark.text)
