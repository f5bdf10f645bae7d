"""`osmosis train compare`: two training runs side by side, with how far their difference can be trusted.

Runs are compared at equal steps, however much longer one of them went on. Two intervals are given where the
runs' own numbers allow them, and none elsewhere:

- of the validation reward, whose standard error each run reports, that of two independent means, at the last
  validation that both have;
- of a curve, that of the mean over the last steps that both have, paired step by step: runs with the same seed
  saw the same prompts at a step.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from osmosis_ai.api.client import PlatformClient
    from osmosis_ai.services.training_runs.info import DescribedTraining

LAST_STEPS = 10
"""Over how many steps the end of a curve is averaged."""
FEWEST_STEPS = 3
"""Below so many common steps their spread says nothing."""
_STDERR_OF = {"eval/validation/reward": "eval/validation/reward_stderr"}
_NOT_COMPARED = frozenset(_STDERR_OF.values())


@dataclass(frozen=True, slots=True)
class SettingDifference:
    """A setting that the runs do not share; None where a run does not have it."""

    key: str
    a: Any
    b: Any


@dataclass(frozen=True, slots=True)
class MetricDifference:
    """A metric that both runs have.

    Attributes:
        a, b: the last value of each run.
        difference: ``b`` minus ``a`` at equal steps; None when they have no step in common.
        low, high: the 95 % interval of the difference; None where the data do not allow one.
        steps: how many steps the difference is a mean over.
        last_step: the last of them.
        method: where the interval comes from.
    """

    key: str
    title: str
    a: float
    b: float
    difference: float | None = None
    low: float | None = None
    high: float | None = None
    steps: int = 0
    last_step: int | None = None
    method: Literal["standard-errors", "paired-steps"] | None = None


@dataclass(frozen=True)
class Comparison:
    """Two runs side by side."""

    a: DescribedTraining
    b: DescribedTraining
    settings: tuple[SettingDifference, ...]
    metrics: tuple[MetricDifference, ...]

    def data(self) -> dict[str, Any]:
        """Return it as scripts see it."""
        return {
            "a": _described(self.a),
            "b": _described(self.b),
            "config_differences": [asdict(setting) for setting in self.settings],
            "metrics": [asdict(metric) for metric in self.metrics],
        }


def compare_runs(client: PlatformClient, a: str, b: str) -> Comparison:
    """Compare two training runs.

    Raises:
        PlatformError: one of them does not exist, or as every call.
    """
    from osmosis_ai.services.training_runs.info import describe_run

    first, second = describe_run(client, a), describe_run(client, b)
    return Comparison(
        first, second, tuple(_setting_differences(first, second)), tuple(_metric_differences(first, second))
    )


def _described(run: DescribedTraining) -> dict[str, Any]:
    data = run.data()
    keys = ("training_run", "summary", "config", "commit_sha", "metrics_available", "metrics_error")
    return {key: data[key] for key in keys}


def _setting_differences(a: DescribedTraining, b: DescribedTraining) -> Iterator[SettingDifference]:
    settings_a, settings_b = _settings(a), _settings(b)
    for key in dict.fromkeys([*settings_a, *settings_b]):
        if settings_a.get(key) != settings_b.get(key):
            yield SettingDifference(key, settings_a.get(key), settings_b.get(key))


def _settings(run: DescribedTraining) -> dict[str, Any]:
    """Return everything that decided how a run went, under dotted names."""
    detail = run.detail
    experiment = {
        "model": detail.model.name if detail.model else None,
        "dataset": detail.dataset.name if detail.dataset else None,
        "rollout": detail.rollout.name if detail.rollout else None,
        "entrypoint": detail.entrypoint,
        "commit_sha": detail.commit_sha,
    }
    found = dict(_flat({"experiment": experiment, **(detail.config or {}), "env": detail.env_config or {}}))
    return {key: value for key, value in found.items() if value is not None}


def _flat(settings: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in settings.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _metric_differences(a: DescribedTraining, b: DescribedTraining) -> Iterator[MetricDifference]:
    titles = {series.metric_key: series.title for series in a.metrics.metrics} if a.metrics else {}
    for key, title in titles.items():
        curve_a, curve_b = _curve(a, key), _curve(b, key)
        if key in _NOT_COMPARED or not curve_a or not curve_b:
            continue
        found = MetricDifference(key, title, curve_a[max(curve_a)], curve_b[max(curve_b)])
        common = sorted(curve_a.keys() & curve_b.keys())
        if not common:
            yield found
        elif key in _STDERR_OF:
            errors = _curve(a, _STDERR_OF[key]), _curve(b, _STDERR_OF[key])
            yield _at_last_step(found, common[-1], (curve_a, curve_b), errors)
        else:
            yield _over_last_steps(found, common[-LAST_STEPS:], curve_a, curve_b)


def _curve(run: DescribedTraining, key: str) -> dict[int, float]:
    from osmosis_ai.services.training_runs.watch import points

    return dict(points(run.metrics, key))


def _at_last_step(
    found: MetricDifference,
    step: int,
    curves: tuple[Mapping[int, float], Mapping[int, float]],
    errors: tuple[Mapping[int, float], Mapping[int, float]],
) -> MetricDifference:
    """Compare the values of one step, by the standard errors that the runs measured with them."""
    from osmosis_ai.evaluation.statistics import independent_difference

    value_a, value_b = (curve[step] for curve in curves)
    error_a, error_b = (error.get(step) for error in errors)
    low, high = independent_difference(value_b, error_b, value_a, error_a)
    return replace(
        found,
        difference=value_b - value_a,
        low=low,
        high=high,
        steps=1,
        last_step=step,
        method=None if low is None else "standard-errors",
    )


def _over_last_steps(
    found: MetricDifference, steps: Sequence[int], curve_a: Mapping[int, float], curve_b: Mapping[int, float]
) -> MetricDifference:
    """Compare the ends of what both curves cover, paired by step."""
    from osmosis_ai.evaluation.statistics import paired_difference

    paired = paired_difference(
        [curve_b[step] for step in steps], steps, [curve_a[step] for step in steps], steps
    )
    assert paired is not None  # the steps are common to both
    trusted = len(steps) >= FEWEST_STEPS and paired.low is not None
    return replace(
        found,
        difference=paired.value,
        low=paired.low if trusted else None,
        high=paired.high if trusted else None,
        steps=len(steps),
        last_step=steps[-1],
        method="paired-steps" if trusted else None,
    )
