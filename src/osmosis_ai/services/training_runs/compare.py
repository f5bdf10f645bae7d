"""`osmosis train compare`: two training runs of the platform, found and compared (``training/runs/run_differences.py``)."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from osmosis_ai.errors import ConflictError

if TYPE_CHECKING:
    from osmosis_ai.api.client import PlatformClient
    from osmosis_ai.services.training_runs.info import DescribedTraining
    from osmosis_ai.training.runs.run_differences import ComparedTraining, TrainingDifferences


@dataclass(frozen=True)
class TrainingComparison:
    """Two runs side by side."""

    a: DescribedTraining
    b: DescribedTraining
    differences: TrainingDifferences
    sentence: str
    """Which run is better, with the caveats."""

    def data(self) -> dict[str, Any]:
        """Return it as scripts see it."""
        return {
            "verdict": {**self.differences.verdict.data(), "sentence": self.sentence},
            "a": _described(self.a),
            "b": _described(self.b),
            "config_differences": [asdict(setting) for setting in self.differences.settings],
            "metrics": [asdict(metric) for metric in self.differences.metrics],
        }


def compare_runs(client: PlatformClient, a: str, b: str) -> TrainingComparison:
    """Compare two training runs.

    Raises:
        ConflictError: both are one run.
        PlatformError: one of them does not exist, or as every call.
    """
    from osmosis_ai.services.training_runs.info import describe_run
    from osmosis_ai.training.runs.run_differences import compare_training, summary

    first, second = describe_run(client, a), describe_run(client, b)
    if first.run.id == second.run.id:
        raise ConflictError(
            f"the run {first.run.name or first.run.id} is compared with itself.", hint="name another run"
        )
    compared = _compared(first), _compared(second)
    differences = compare_training(*compared)
    return TrainingComparison(first, second, differences, summary(compared, [differences]))


def _compared(run: DescribedTraining) -> ComparedTraining:
    from osmosis_ai.services.training_runs.report import curves_of
    from osmosis_ai.services.training_runs.watch import points
    from osmosis_ai.training.runs.run_differences import ComparedTraining

    titles = {series.metric_key: series.title for series in run.metrics.metrics} if run.metrics else {}
    return ComparedTraining(
        run.run.name or run.run.id,
        _settings(run),
        titles,
        {key: dict(points(run.metrics, key)) for key in titles},
        run.metrics.validation if run.metrics else None,
        curves_of(run).hollow_validations(),
    )


def _described(run: DescribedTraining) -> dict[str, Any]:
    data = run.data()
    keys = ("training_run", "summary", "config", "commit_sha", "metrics_available", "metrics_error")
    return {key: data[key] for key in keys}


def _settings(run: DescribedTraining) -> dict[str, Any]:
    """Return everything that decided how a run went, under dotted names."""
    from osmosis_ai.training.runs.run_differences import flat_settings

    detail = run.detail
    experiment = {
        "model": detail.model.name if detail.model else None,
        "dataset": detail.dataset.name if detail.dataset else None,
        "rollout": detail.rollout.name if detail.rollout else None,
        "entrypoint": detail.entrypoint,
        "commit_sha": detail.commit_sha,
    }
    found = dict(
        flat_settings({"experiment": experiment, **(detail.config or {}), "env": detail.env_config or {}})
    )
    return {key: value for key, value in found.items() if value is not None}
