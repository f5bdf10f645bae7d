"""`osmosis train compare`: two training runs side by side, with how far their difference can be trusted.

Runs are compared at equal steps, however much longer one of them went on. Two intervals are given where the
runs' own numbers allow them, and none elsewhere:

- of the validation reward, at the last validation that both have: row by row where the platform tells what each
  held-out row came to, else that of two independent means, by the standard errors that each run reports;
- of other numbers of a validation none, but their difference at that same step;
- of a curve, that of the mean over the last steps that both have. Runs with the same seed, dataset and batch size
  saw the same prompts at a step and are paired step by step; others are two means of their own, and it is said.

The validation reward decides, or else the training reward; what the data leave open is unclear.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from osmosis_ai.errors import ConflictError

if TYPE_CHECKING:
    from osmosis_ai.api.client import PlatformClient
    from osmosis_ai.services.training_runs.info import DescribedTraining

LAST_STEPS = 10
"""Over how many steps the end of a curve is averaged."""
FEWEST_STEPS = 3
"""Below so many common steps their spread says nothing."""
_STDERR_OF = {"eval/validation/reward": "eval/validation/reward_stderr"}
_VALIDATIONS = "eval/validation/"
_NOT_COMPARED = frozenset({*_STDERR_OF.values(), "eval/validation/reward_low", "eval/validation/reward_high"})
"""What says how far a value can be trusted, and is none to compare."""
_DECIDING = (("eval/validation/reward", "validation reward"), ("rollout/raw_reward", "training reward"))
_DECIDE_PROMPTS = ("experiment.dataset", "advanced.seed", "training.rollout_batch_size")
"""Settings that say which prompts a step has."""

Verdict = Literal["better", "worse", "unclear"]


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
        estimator: how it was made, e.g. "sign-flip"; None by standard errors.
        p: two-sided, of no difference; None by standard errors.
        reason: why there is no interval.
        rows: how many rows a difference by row is a mean over.
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
    method: Literal["paired-rows", "standard-errors", "paired-steps", "unpaired-steps"] | None = None
    estimator: str | None = None
    p: float | None = None
    reason: str | None = None
    rows: int | None = None


@dataclass(frozen=True, slots=True)
class TrainingVerdict:
    """Whether ``b`` is better than ``a``, by which metric, and the same in a sentence."""

    direction: Verdict
    metric: str | None
    sentence: str

    def data(self) -> dict[str, Any]:
        """Return it as scripts see it."""
        return {"verdict": self.direction, "metric": self.metric, "sentence": self.sentence}


@dataclass(frozen=True)
class TrainingComparison:
    """Two runs side by side.

    Attributes:
        unpaired_because: which settings let the runs see different prompts at a step; None where they saw the same.
    """

    a: DescribedTraining
    b: DescribedTraining
    settings: tuple[SettingDifference, ...]
    metrics: tuple[MetricDifference, ...]
    unpaired_because: str | None

    @property
    def verdict(self) -> TrainingVerdict:
        """What decides, and what it says."""
        found = {metric.key: metric for metric in self.metrics}
        for key, name in _DECIDING:
            if key in found and found[key].difference is not None:
                return _verdict(found[key], name, *(run.run.name or run.run.id for run in (self.a, self.b)))
        return TrainingVerdict(
            "unclear", None, "They can not be compared: the runs have no reward at the same step."
        )

    def data(self) -> dict[str, Any]:
        """Return it as scripts see it."""
        return {
            "verdict": self.verdict.data(),
            "a": _described(self.a),
            "b": _described(self.b),
            "config_differences": [asdict(setting) for setting in self.settings],
            "metrics": [asdict(metric) for metric in self.metrics],
            "paired": self.unpaired_because is None,
            "unpaired_because": self.unpaired_because,
        }


def compare_runs(client: PlatformClient, a: str, b: str) -> TrainingComparison:
    """Compare two training runs.

    Raises:
        ConflictError: both are one run.
        PlatformError: one of them does not exist, or as every call.
    """
    from osmosis_ai.services.training_runs.info import describe_run

    first, second = describe_run(client, a), describe_run(client, b)
    if first.run.id == second.run.id:
        raise ConflictError(
            f"the run {first.run.name or first.run.id} is compared with itself.", hint="name another run"
        )
    other_prompts = _other_prompts(first, second)
    metrics = _metric_differences(first, second, paired=other_prompts is None)
    return TrainingComparison(
        first, second, tuple(_setting_differences(first, second)), tuple(metrics), other_prompts
    )


def _verdict(found: MetricDifference, name: str, a: str, b: str) -> TrainingVerdict:
    difference, low, high = found.difference or 0.0, found.low, found.high
    if low is None or high is None:
        why = found.reason or "the runs' numbers allow no interval"
        told = f"{b} can not be told apart from {a} by the {name}: {difference:+.3f} ({why})."
        return TrainingVerdict("unclear", found.key, told)
    how = {
        "paired-rows": f"{found.rows} rows at step {found.last_step}",
        "standard-errors": f"at step {found.last_step}, by the runs' standard errors",
        "paired-steps": f"{found.steps} steps, paired",
        "unpaired-steps": f"{found.steps} steps, unpaired",
    }[found.method or "paired-steps"]
    if low <= 0 <= high:
        doubts = f"95 % interval {low:.3f} to {high:.3f}, {how}"
        told = f"{b} can not be told apart from {a} by the {name}: {difference:+.3f} ({doubts})."
        return TrainingVerdict("unclear", found.key, told)
    direction: Verdict = "better" if difference > 0 else "worse"
    least, most = (low, high) if difference > 0 else (-high, -low)
    doubts = f"95 % interval {least:.3f} to {most:.3f}, {how}"
    told = f"{b} is {direction} than {a} by {abs(difference):.3f} of the {name} ({doubts})."
    return TrainingVerdict(direction, found.key, told)


def _other_prompts(a: DescribedTraining, b: DescribedTraining) -> str | None:
    """Return which settings let the runs see different prompts at a step; None where they saw the same."""
    from osmosis_ai.config.training import TrainingSettings

    defaults = {key: TrainingSettings.model_fields[key].default for key in ("seed", "rollout_batch_size")}
    settings, differing = (_settings(a), _settings(b)), []
    for key in _DECIDE_PROMPTS:
        name = key.rpartition(".")[2]
        first, second = (found.get(key, defaults.get(name)) for found in settings)
        if first != second:
            differing.append(f"{name} {first} and {second}")
    return ", ".join(differing) or None


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


def _metric_differences(
    a: DescribedTraining, b: DescribedTraining, *, paired: bool
) -> Iterator[MetricDifference]:
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
            by_row = _by_validated_row(found, common[-1], a, b)
            yield by_row or _at_last_step(found, common[-1], (curve_a, curve_b), errors)
        elif key.startswith(_VALIDATIONS):
            yield _at_last_step(found, common[-1], (curve_a, curve_b), ({}, {}))
        else:
            yield _over_last_steps(found, common[-LAST_STEPS:], curve_a, curve_b, paired=paired)


def _curve(run: DescribedTraining, key: str) -> dict[int, float]:
    from osmosis_ai.services.training_runs.watch import points

    return dict(points(run.metrics, key))


def _by_validated_row(
    found: MetricDifference, step: int, a: DescribedTraining, b: DescribedTraining
) -> MetricDifference | None:
    """Compare a validation row by row; None where not both runs tell that step's rows, or no row is in both."""
    from osmosis_ai.evaluation.comparison.differences import Pairs, mean_difference, scale_of_rewards

    validations = [run.metrics.validation if run.metrics else None for run in (a, b)]
    known = [
        {row: reward for row, reward in told.rewards.items() if reward is not None}
        for told in validations
        if told is not None and told.step == step
    ]
    if len(known) < 2 or not (common := sorted(known[0].keys() & known[1].keys())):
        return None
    places = range(len(common))
    values_a, values_b = ([rewards[row] for row in common] for rewards in known)
    pairs = Pairs.of(values_a, places, values_b, places, scale=scale_of_rewards(values_a, values_b))
    assert pairs is not None  # the rows are common to both
    estimated = mean_difference(pairs)
    return replace(
        found,
        difference=estimated.value,
        low=estimated.low,
        high=estimated.high,
        steps=1,
        last_step=step,
        method="paired-rows",
        estimator=estimated.method,
        p=estimated.p,
        reason=estimated.reason,
        rows=estimated.rows,
    )


def _at_last_step(
    found: MetricDifference,
    step: int,
    curves: tuple[Mapping[int, float], Mapping[int, float]],
    errors: tuple[Mapping[int, float], Mapping[int, float]],
) -> MetricDifference:
    """Compare the values of one step, by the standard errors that the runs measured with them."""
    from osmosis_ai.evaluation.comparison.unpaired import difference_of_means

    value_a, value_b = (curve[step] for curve in curves)
    error_a, error_b = (error.get(step) for error in errors)
    at_step = replace(
        found, difference=value_b - value_a, low=None, high=None, steps=1, last_step=step, method=None
    )
    if error_a is None or error_b is None:
        return at_step
    change = difference_of_means(value_a, error_a, value_b, error_b)
    method: Literal["standard-errors"] | None = None if change.low is None else "standard-errors"
    return replace(at_step, low=change.low, high=change.high, method=method)


def _over_last_steps(
    found: MetricDifference,
    steps: Sequence[int],
    curve_a: Mapping[int, float],
    curve_b: Mapping[int, float],
    *,
    paired: bool,
) -> MetricDifference:
    """Compare the ends of what both curves cover, step by step where both runs saw the same prompts."""
    from osmosis_ai.evaluation.comparison.differences import Pairs, mean_difference
    from osmosis_ai.evaluation.comparison.unpaired import unpaired_difference

    values_a, values_b = ([curve[step] for step in steps] for curve in (curve_a, curve_b))
    places = range(len(steps))
    if paired:
        pairs = Pairs.of(values_a, places, values_b, places)
        assert pairs is not None  # the steps are common to both
        estimated = mean_difference(pairs)
    else:
        apart = unpaired_difference(values_a, places, values_b, places)
        assert apart is not None  # neither is empty
        estimated = apart
    known = len(steps) >= FEWEST_STEPS and estimated.low is not None
    reason = (
        "no step differs" if values_a == values_b else f"{len(steps)} common steps do not rule out chance"
    )
    return replace(
        found,
        difference=estimated.value,
        low=estimated.low if known else None,
        high=estimated.high if known else None,
        steps=len(steps),
        last_step=steps[-1],
        method=("paired-steps" if paired else "unpaired-steps") if known else None,
        estimator=estimated.method if known else None,
        p=estimated.p if known else None,
        reason=None if known else reason,
    )
