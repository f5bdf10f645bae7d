"""Two training runs side by side: what they did differently, and how far the difference can be trusted.

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
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from osmosis_ai.ui import numbers

if TYPE_CHECKING:
    from osmosis_ai.api.wire.training_runs import ValidatedRows

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
        estimator: how it was made, e.g. "paired-t"; None by standard errors.
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

    @property
    def words(self) -> tuple[str, ...]:
        """Its line of a table: title, both values, the difference and its interval."""
        interval = numbers.MISSING
        if self.low is not None:
            interval = f"{numbers.compact(self.low)} to {numbers.compact(self.high)}"
        return (self.title, *map(numbers.compact, (self.a, self.b, self.difference)), interval)


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
class ComparedTraining:
    """A training run as a comparison sees it.

    Attributes:
        settings: everything that decided how it went, under dotted names.
        titles: of its metrics, by their keys.
        curves: by metric the value of each step that has one.
        validation: what each row came to in the newest validation, where that is known.
        hollow: the steps after which too few samples of the validation had a score.
    """

    name: str
    settings: Mapping[str, Any]
    titles: Mapping[str, str]
    curves: Mapping[str, Mapping[int, float]]
    validation: ValidatedRows | None = None
    hollow: Sequence[int] = ()


@dataclass(frozen=True)
class TrainingDifferences:
    """What two runs do not share.

    Attributes:
        verdict: what decides, and what it says.
        unpaired_because: which settings let the runs see different prompts at a step; None where they saw the same.
    """

    verdict: TrainingVerdict
    settings: tuple[SettingDifference, ...]
    metrics: tuple[MetricDifference, ...]
    unpaired_because: str | None

    @property
    def note(self) -> str | None:
        """What the differences of metrics are taken over; None without any."""
        steps = [metric.last_step for metric in self.metrics if metric.last_step is not None]
        if not steps:
            return None
        pairing = (
            f"unpaired, for the runs saw different prompts at a step ({self.unpaired_because})"
            if self.unpaired_because
            else "paired by step"
        )
        by_row = any(metric.method == "paired-rows" for metric in self.metrics)
        validation = "row by row" if by_row else "by the standard errors that the runs measured"
        return (
            f"B - A at equal steps, up to step {max(steps)}: the mean over the last {LAST_STEPS} that both have, "
            f"{pairing}; of the validation the last, its reward {validation}"
        )


def compare_training(a: ComparedTraining, b: ComparedTraining) -> TrainingDifferences:
    """Return how ``b`` differs from ``a``."""
    other_prompts = _other_prompts(a, b)
    metrics = tuple(_metric_differences(a, b, paired=other_prompts is None))
    return TrainingDifferences(
        _decided(metrics, a, b), tuple(_setting_differences(a, b)), metrics, other_prompts
    )


def hollow_words(runs: Sequence[ComparedTraining]) -> str:
    """Return the sentence about validations in which few samples have a score; nothing where there is none."""
    from osmosis_ai.training.runs.validation_headline import LEAST_WORDS, after_steps

    told = [f"of {run.name} after {after_steps(run.hollow)}" for run in runs if run.hollow]
    if not told:
        return ""
    few = f"under {LEAST_WORDS} of the samples have a score"
    return f"In the validation {' and '.join(told)}, {few}: those points say nothing of the rest."


def flat_settings(settings: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield settings under dotted names."""
    for key, value in settings.items():
        if isinstance(value, Mapping):
            yield from flat_settings(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _decided(
    metrics: Sequence[MetricDifference], a: ComparedTraining, b: ComparedTraining
) -> TrainingVerdict:
    found = {metric.key: metric for metric in metrics}
    for key, name in _DECIDING:
        if key in found and found[key].difference is not None:
            return _verdict(found[key], name, a.name, b.name)
    return TrainingVerdict(
        "unclear", None, "They can not be compared: the runs have no reward at the same step."
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


def _other_prompts(a: ComparedTraining, b: ComparedTraining) -> str | None:
    """Return which settings let the runs see different prompts at a step; None where they saw the same."""
    from osmosis_ai.config.training import TrainingSettings

    defaults = {key: TrainingSettings.model_fields[key].default for key in ("seed", "rollout_batch_size")}
    settings, differing = (a.settings, b.settings), []
    for key in _DECIDE_PROMPTS:
        name = key.rpartition(".")[2]
        first, second = (found.get(key, defaults.get(name)) for found in settings)
        if first != second:
            differing.append(f"{name} {first} and {second}")
    return ", ".join(differing) or None


def _setting_differences(a: ComparedTraining, b: ComparedTraining) -> Iterator[SettingDifference]:
    settings_a, settings_b = a.settings, b.settings
    for key in dict.fromkeys([*settings_a, *settings_b]):
        if settings_a.get(key) != settings_b.get(key):
            yield SettingDifference(key, settings_a.get(key), settings_b.get(key))


def _metric_differences(
    a: ComparedTraining, b: ComparedTraining, *, paired: bool
) -> Iterator[MetricDifference]:
    for key, title in a.titles.items():
        curve_a, curve_b = a.curves.get(key, {}), b.curves.get(key, {})
        if key in _NOT_COMPARED or not curve_a or not curve_b:
            continue
        found = MetricDifference(key, title, curve_a[max(curve_a)], curve_b[max(curve_b)])
        common = sorted(curve_a.keys() & curve_b.keys())
        if not common:
            yield found
        elif key in _STDERR_OF:
            errors = a.curves.get(_STDERR_OF[key], {}), b.curves.get(_STDERR_OF[key], {})
            by_row = _by_validated_row(found, common[-1], a, b)
            yield by_row or _at_last_step(found, common[-1], (curve_a, curve_b), errors)
        elif key.startswith(_VALIDATIONS):
            yield _at_last_step(found, common[-1], (curve_a, curve_b), ({}, {}))
        else:
            yield _over_last_steps(found, common[-LAST_STEPS:], curve_a, curve_b, paired=paired)


def _by_validated_row(
    found: MetricDifference, step: int, a: ComparedTraining, b: ComparedTraining
) -> MetricDifference | None:
    """Compare a validation row by row; None where not both runs tell that step's rows, or no row is in both."""
    from osmosis_ai.evaluation.comparison.differences import Pairs, mean_difference, scale_of_rewards

    known = [
        {row: reward for row, reward in told.rewards.items() if reward is not None}
        for told in (a.validation, b.validation)
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
