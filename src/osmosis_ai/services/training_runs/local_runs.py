"""Training directories of this machine, described as a platform's runs are: their curves in the same tables."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from osmosis_ai.errors import OsmosisError

if TYPE_CHECKING:
    from osmosis_ai.api.wire.training_runs import TrainingMetrics
    from osmosis_ai.viewer.source import RunDetail, TrainingCurves


@dataclass(frozen=True)
class LocalTraining:
    """A training directory; ``metrics`` are its curves as a platform tells them."""

    directory: Path
    detail: RunDetail
    curves: TrainingCurves
    metrics: TrainingMetrics

    def data(self) -> dict[str, Any]:
        """Return it as scripts see it."""
        from osmosis_ai.services.eval_runs.local_runs import local_item

        return {
            "local_run": local_item(self.detail.summary, self.directory),
            "config": dict(self.detail.config_effective),
            "config_written": self.detail.config_written,
            "problems": list(self.detail.problems),
            "checkpoints": [
                {"name": saved.name, "step": saved.step, "reward": saved.reward, "size_bytes": saved.size}
                for saved in self.curves.checkpoints
            ],
            "metrics": self.metrics.model_dump(mode="json"),
        }


def training_directory(word: str) -> Path | None:
    """Return the training directory that a word is the path of; None where it is none."""
    from osmosis_ai.viewer.local.places import kind_of

    try:
        given = Path(word).expanduser().absolute()
        return given if kind_of(given) == "training" else None
    except (OSError, ValueError, RuntimeError):
        return None


def describe_training(directory: Path) -> LocalTraining:
    """Return a training directory with its curves.

    Raises:
        OsmosisError: its manifest can not be read.
    """
    from osmosis_ai.viewer.local.training_runs import read_training, training_curves, training_detail

    known = read_training(directory, directory.name)
    if known.manifest is None:
        raise OsmosisError(known.problems[0])
    curves = training_curves(known, directory)
    moments = {record.step: record.timestamp_ms for record in known.records}
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
