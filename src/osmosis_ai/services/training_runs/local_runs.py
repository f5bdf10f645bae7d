"""Training directories of this machine, described as a platform's runs are: their curves in the same tables."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

from osmosis_ai.errors import NotFoundError, OsmosisError, WorkspaceRequiredError

if TYPE_CHECKING:
    from osmosis_ai.api.wire.training_runs import TrainingMetrics
    from osmosis_ai.training.runs.curves import TrainingCurves
    from osmosis_ai.training.runs.validation_headline import ValidationHeadline
    from osmosis_ai.viewer.source import RunDetail


@dataclass(frozen=True)
class LocalTraining:
    """A training directory; ``metrics`` are its curves as a platform tells them."""

    directory: Path
    detail: RunDetail
    curves: TrainingCurves
    metrics: TrainingMetrics

    @property
    def validation(self) -> ValidationHeadline | None:
        """What the newest validation came to; None before there is one."""
        return self.curves.headline()

    def data(self) -> dict[str, Any]:
        """Return it as scripts see it."""
        from osmosis_ai.services.eval_runs.local_runs import local_item

        return {
            "local_run": local_item(self.detail.summary, self.directory),
            "config": dict(self.detail.config_effective),
            "config_written": self.detail.config_written,
            "problems": list(self.detail.problems),
            "validation": self.validation.to_json() if self.validation is not None else None,
            "checkpoints": [
                {"name": saved.name, "step": saved.step, "reward": saved.reward, "size_bytes": saved.size}
                for saved in self.curves.checkpoints
            ],
            "metrics": self.metrics.model_dump(mode="json"),
        }


def training_directory(word: str) -> Path | None:
    """Return the training directory that a word is the path of; None where it may be the name of a platform's run.

    Raises:
        NotFoundError: it is none, and outside of a workspace no platform can be meant.
        OsmosisError: it is a path that leads to something else.
    """
    from osmosis_ai.evaluation.run_places import kind_of
    from osmosis_ai.services.downloaded_runs import is_downloaded_run

    try:
        given = Path(word).expanduser().absolute()
        kind, there = kind_of(given), given.exists()
    except (OSError, ValueError, RuntimeError):
        return None
    if kind == "training":
        return given
    if kind == "eval" or is_downloaded_run(given):
        raise OsmosisError(
            f"{word} is the directory of an evaluation, and no training directory.",
            hint=f"osmosis eval info {quote(word)}, osmosis eval show {quote(word)}",
        )
    if there and (word in (".", "..", "~") or "/" in word or os.sep in word):
        what = (
            "a directory without a training run's manifest.json and metrics.jsonl"
            if given.is_dir()
            else "a file"
        )
        raise OsmosisError(
            f"{word} is no training directory: it is {what}.",
            hint=f"osmosis view {quote(word if given.is_dir() else str(Path(word).parent))} finds the runs below it; "
            "a platform's run goes by its name (`osmosis train list`)",
        )
    _require_platform_of(word, there=there)
    return None


def _require_platform_of(word: str, *, there: bool) -> None:
    """Refuse a word that is no training directory where no platform can be meant: outside of any workspace."""
    from osmosis_ai.workspace.layout import find_workspace

    try:
        find_workspace(require_scaffold=False)
    except WorkspaceRequiredError:
        raise NotFoundError(
            f"there is no training run {'in ' if there else ''}`{word[:200]}`.",
            hint="a run of this machine goes by the path of its directory, a platform's by its name, inside its workspace",
        ) from None


def describe_training(directory: Path) -> LocalTraining:
    """Return a training directory with its curves.

    Raises:
        OsmosisError: its manifest can not be read.
    """
    from osmosis_ai.viewer.local.training_runs import read_training, training_detail

    known = read_training(directory, directory.name)
    if known.recorded is None:
        raise OsmosisError(known.problems[0])
    curves = known.recorded.curves()
    moments = {record.step: record.timestamp_ms for record in known.recorded.records}
    return LocalTraining(
        directory, training_detail(known, directory), curves, _metrics(known.entry.status, curves, moments)
    )


def _metrics(status: str, curves: TrainingCurves, moments: dict[int, int]) -> TrainingMetrics:
    from osmosis_ai.api.wire.training_runs import (
        MetricPoint,
        MetricSeries,
        MetricSummary,
        TrainingMetrics,
        TrainingMetricsOverview,
    )

    series, summaries = [], []
    for curve in curves.curves:
        values = [point.value for point in curve.points]
        first, last = values[0], values[-1]
        summaries.append(
            MetricSummary(
                key=curve.key,
                title=curve.title,
                initial=first,
                latest=last,
                delta=last - first,
                min=min(values),
                max=max(values),
            )
        )
        points = [
            MetricPoint(step=point.step, value=point.value, timestamp=moments.get(point.step, 0))
            for point in curve.points
        ]
        series.append(MetricSeries(metric_key=curve.key, title=curve.title, data_points=points))
    overview = TrainingMetricsOverview(latest_step=max(moments, default=None), metric_summaries=summaries)
    return TrainingMetrics(status=status, overview=overview, metrics=series, validation=curves.validation)
