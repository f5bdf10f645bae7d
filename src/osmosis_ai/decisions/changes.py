"""A metric in two runs: its value in either, over the same rows, and the difference or the ratio of both.

Rewards and rates are compared by their difference over rows that have a score in both runs. Cost, tokens and time of
attempts are compared by the ratio of geometric means, row by row: such quantities multiply.

An attempt that failed to be scored is left out of the primary number, which takes for granted that it would have scored like the
others. Bounds with all unscored attempts at their worst and at their best hold whatever they would have scored; a verdict
that one of them reverses is not one.

Source:
    Manski 1990, "Nonparametric Bounds on Treatment Effects" (worst and best case of missing outcomes).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from osmosis_ai.config.decisions import (
    METRICS,
    Metric,
    attempts_asked,
    metric_named,
    needs_scores,
    suggested_metric,
)
from osmosis_ai.decisions.differences import (
    Difference,
    Pairs,
    PassCounts,
    difference_of_counts,
    mean_difference,
    number_data,
    ratio_of_means,
    unpaired_difference,
)
from osmosis_ai.decisions.samples import Attempts, LabelledRun, RunPair, RunSamples
from osmosis_ai.errors import UsageError
from osmosis_ai.statistics.estimates import (
    CONFIDENCE,
    Estimate,
    estimate_mean,
    estimate_rate,
    estimate_reward,
)
from osmosis_ai.statistics.pass_at_k import (
    estimate_pass_at_k,
    estimate_pass_hat_k,
    pass_at_k_by_row,
    pass_hat_k_by_row,
)

if TYPE_CHECKING:
    from osmosis_ai.statistics.estimates import Integers


@dataclass(frozen=True, slots=True)
class UnscoredBounds:
    """The difference with all unscored attempts against B, and in its favor."""

    worst: Difference
    best: Difference

    @classmethod
    def of(
        cls, difference: Callable[[float, float], Difference | None], scale: tuple[float, float]
    ) -> UnscoredBounds | None:
        """Return the bounds of a difference, given as a function of the scores of unscored attempts."""
        worst, best = difference(scale[1], scale[0]), difference(*scale)
        return None if worst is None or best is None else cls(worst, best)


RATIO_METRICS = tuple(metric.name for metric in METRICS.values() if metric.scale == "amount")


@dataclass(frozen=True, slots=True)
class MetricChange:
    """A metric in two runs."""

    metric: str
    a: Estimate | None
    b: Estimate | None
    change: Difference | None
    bounds: UnscoredBounds | None = None
    spread: float | None = None
    unscored: int = 0
    unreported: int = 0
    undecided: str | None = None

    @property
    def described(self) -> Metric:
        return described(self.metric)

    def data(self) -> dict[str, Any]:
        found: dict[str, Any] = {
            "metric": self.metric,
            "higher_is_better": self.described.higher_is_better,
            "baseline": number_data(self.a),
            "candidate": number_data(self.b),
            "ratio" if self.described.scale == "amount" else "difference": number_data(self.change),
        }
        if self.bounds is not None:
            found["unscored_at_worst"] = number_data(self.bounds.worst)
            found["unscored_at_best"] = number_data(self.bounds.best)
        return found

    @property
    def against(self) -> Difference | None:
        """The change with the unscored attempts placed against its direction."""
        if self.bounds is None or self.change is None:
            return None
        return self.bounds.worst if self.change.value > self.change.none else self.bounds.best


@dataclass(frozen=True, slots=True)
class ChangeSettings:
    """How differences are found."""

    confidence: float = CONFIDENCE
    seed: int = 0
    reward_range: tuple[float, float] | None = None


def change_of(pair: RunPair, metric: str, settings: ChangeSettings) -> MetricChange:
    """Return what became of a metric from the baseline to the candidate."""
    if pair.a.run.summary is not None or pair.b.run.summary is not None:
        return _of_counts(pair, metric, settings)
    if metric in RATIO_METRICS:
        return _ratio(pair, metric, settings)
    return _with_bounds(pair, metric, settings, _of_attempts if attempts_asked(metric) is None else _of_k)


def adjust(
    changes: Sequence[MetricChange], by: Callable[[Sequence[float | None]], list[float | None]]
) -> list[MetricChange]:
    """Adjust the p-values of changes that are tested together, also those of the worst case of unscored attempts."""

    def p_against(found: MetricChange) -> float | None:
        change, against = found.change, found.against
        if change is None or against is None:
            return None if change is None else change.p
        return against.p if against.value * change.value > 0 else 1.0

    found = list(changes)
    for place, p in enumerate(by([None if each.change is None else each.change.p for each in changes])):
        change = found[place].change
        if change is not None:
            found[place] = replace(found[place], change=replace(change, p_adjusted=p))
    for place, p in enumerate(by([p_against(each) for each in changes])):
        bounds, against = found[place].bounds, found[place].against
        if bounds is None or against is None:
            continue
        name = "worst" if against is bounds.worst else "best"
        bounds = replace(bounds, **{name: replace(against, p_adjusted=p)})
        found[place] = replace(found[place], bounds=bounds)
    return found


def described(metric: str) -> Metric:
    """Return what a metric is that two runs can be compared by."""
    found = metric_named(metric)
    if found is not None and found.compared:
        return found
    known = [each.name for each in METRICS.values() if each.compared]
    meant = None if metric in METRICS else suggested_metric(metric)
    raise UsageError(
        f"there is no metric '{metric}' to compare runs by.",
        details={"metric": metric, "metrics": known, "suggestion": meant},
        hint=f"did you mean '{meant}'?" if meant else f"choose from {', '.join(known)}",
    )


def pass_or_fail(*runs: RunSamples) -> bool:
    """Whether every reward of the runs is 0 or 1."""
    scored = (run.samples["reward"][run.scored] for run in runs)
    return all(bool(((rewards == 0) | (rewards == 1)).all()) for rewards in scored)


def metrics_of(pair: RunPair) -> list[str]:
    """Return the metrics that both runs can tell something of; k runs over the powers of two."""
    if pair.a.run.summary is not None or pair.b.run.summary is not None:
        return ["pass_rate"]
    attempts = [int(side.pass_counts().counts.max(initial=0)) for side in (pair.a, pair.b)]
    ks = [1 << exponent for exponent in range(1, min(attempts).bit_length())]
    of_k = [f"{name}{k}" for name in ("pass@", "pass^") for k in ks]
    sides = (pair.a, pair.b)
    recorded = [name for name in RATIO_METRICS if all(side.values(name).values.size for side in sides)]
    return ["reward", "pass_rate", *of_k, "unscored", *recorded]


_Ends = tuple[float, float]
_Found = tuple[Estimate | None, Estimate | None, Difference | None, float | None]
_Finder = Callable[[RunPair, str, ChangeSettings, "_Ends | None", "_Ends | None"], _Found]


def _with_bounds(pair: RunPair, metric: str, settings: ChangeSettings, find: _Finder) -> MetricChange:
    scale = _scale_of(pair, metric, settings)
    a, b, change, spread = find(pair, metric, settings, scale, None)
    bounds = None
    missing = [unscored_of(side) if needs_scores(metric) else 0 for side in (pair.a, pair.b)]
    if scale is not None and any(missing):

        def with_unscored(of_a: float, of_b: float) -> Difference | None:
            return find(pair, metric, settings, scale, (of_a, of_b))[2]

        bounds = UnscoredBounds.of(with_unscored, scale)
    return MetricChange(metric, a, b, change, bounds, spread, unscored=sum(missing))


def _scale_of(pair: RunPair, metric: str, settings: ChangeSettings) -> _Ends | None:
    if metric == "reward" and (settings.reward_range or not pass_or_fail(pair.a.run, pair.b.run)):
        return settings.reward_range
    return (0.0, 1.0)


def _of_attempts(
    pair: RunPair, metric: str, settings: ChangeSettings, scale: _Ends | None, unscored: _Ends | None
) -> _Found:
    """Compare the mean of a number that every attempt has."""
    as_a, as_b = unscored or (None, None)
    a, b = _on_common_rows(pair, pair.a.values(metric, as_a), pair.b.values(metric, as_b))
    estimates = _estimates(metric, a, b, settings)
    if not a.values.size or not b.values.size:
        return (*estimates, None, None)
    if not pair.paired:
        change = unpaired_difference(*a, *b, confidence=settings.confidence, scale=scale)
        return (*estimates, change, None)
    return (*estimates, *_difference(Pairs.of(*a, *b, scale=scale), settings))


def estimate_of(
    side: LabelledRun, metric: str, settings: ChangeSettings, unscored_as: float | None = None
) -> Estimate | None:
    """Estimate a metric of one run, optionally with a score for every unscored attempt; None without a value."""
    side, clusters = side.with_copies_apart()
    k = attempts_asked(metric)
    if k is not None:
        estimate = estimate_pass_at_k if metric.startswith("pass@") else estimate_pass_hat_k
        return estimate(*side.pass_counts(unscored_as), k, clusters, confidence=settings.confidence)
    attempts = side.values(metric, unscored_as)
    return _estimate(metric, attempts, settings, clusters[attempts.rows])


def _estimates(
    metric: str, a: Attempts, b: Attempts, settings: ChangeSettings
) -> tuple[Estimate | None, Estimate | None]:
    return _estimate(metric, a, settings), _estimate(metric, b, settings)


def _estimate(
    metric: str, attempts: Attempts, settings: ChangeSettings, clusters: Integers | None = None
) -> Estimate | None:
    if metric == "reward":
        return estimate_reward(
            *attempts, clusters, reward_range=settings.reward_range, confidence=settings.confidence
        )
    estimate = estimate_mean if metric in RATIO_METRICS else estimate_rate
    return estimate(*attempts, clusters, confidence=settings.confidence)


def _on_common_rows(pair: RunPair, a: Attempts, b: Attempts) -> tuple[Attempts, Attempts]:
    """Return what lies on rows that both have a number of, so that the values differ by just the difference."""
    if not pair.paired:
        return a, b
    rows = pair.a.index.size
    both = (np.bincount(a.rows, minlength=rows) > 0) & (np.bincount(b.rows, minlength=rows) > 0)
    at_a, at_b = both[a.rows], both[b.rows]
    return Attempts(a.values[at_a], a.rows[at_a]), Attempts(b.values[at_b], b.rows[at_b])


def _of_k(
    pair: RunPair, metric: str, settings: ChangeSettings, scale: _Ends | None, unscored: _Ends | None
) -> _Found:
    """Compare pass@k or pass^k over rows with at least k scored attempts."""
    k, at = attempts_asked(metric) or 1, metric.startswith("pass@")
    by_row, estimate = (
        (pass_at_k_by_row, estimate_pass_at_k) if at else (pass_hat_k_by_row, estimate_pass_hat_k)
    )
    worst = unscored or (None, None)
    (tried_a, passed_a), (tried_b, passed_b) = pair.a.pass_counts(worst[0]), pair.b.pass_counts(worst[1])
    enough_a, enough_b = tried_a >= k, tried_b >= k
    if pair.paired:
        enough_a = enough_b = enough_a & enough_b
    a = tried_a[enough_a], passed_a[enough_a]
    b = tried_b[enough_b], passed_b[enough_b]
    values = [estimate(*side, k, confidence=settings.confidence) for side in (a, b)]
    if not a[0].size or not b[0].size:
        return values[0], values[1], None, None
    means = by_row(*a, k), by_row(*b, k)
    if pair.paired:
        return values[0], values[1], *_difference(Pairs(*means, a[0], b[0], scale), settings)
    found = unpaired_difference(
        means[0],
        np.arange(a[0].size),
        means[1],
        np.arange(b[0].size),
        confidence=settings.confidence,
        scale=scale,
    )
    samples = int(a[0].sum() + b[0].sum())
    return values[0], values[1], None if found is None else replace(found, samples=samples), None


def _difference(pairs: Pairs | None, settings: ChangeSettings) -> tuple[Difference | None, float | None]:
    if pairs is None:
        return None, None
    spread = float(pairs.by_row.var(ddof=1)) if pairs.rows > 1 else None
    return mean_difference(pairs, confidence=settings.confidence, seed=settings.seed), spread


def _ratio(pair: RunPair, metric: str, settings: ChangeSettings) -> MetricChange:
    a, b = _on_common_rows(pair, pair.a.values(metric), pair.b.values(metric))
    pairs = Pairs.of(*a, *b) if pair.paired else None
    change = None if pairs is None else ratio_of_means(pairs, confidence=settings.confidence)
    unreported = sum(side.unreported(metric) for side in (pair.a, pair.b))
    return MetricChange(metric, *_estimates(metric, a, b, settings), change, unreported=unreported)


def _of_counts(pair: RunPair, metric: str, settings: ChangeSettings) -> MetricChange:
    """Compare the pass rates of runs if one has no data of attempts; other metrics cannot be compared then."""
    a, b = _pass_counts(pair.a), _pass_counts(pair.b)
    if metric != "pass_rate" or a is None or b is None:
        return MetricChange(metric, None, None, None)
    missing = unscored_of(pair.a), unscored_of(pair.b)
    unknown = [
        f"the platform does not report how many attempts of {run.name} have no score."
        for run in (pair.a.run, pair.b.run)
        if run.summary is not None and run.summary.unscored is None
    ]

    def with_unscored(of_a: float, of_b: float) -> Difference:
        return difference_of_counts(
            a.with_more(missing[0], of_a), b.with_more(missing[1], of_b), confidence=settings.confidence
        )

    return MetricChange(
        metric,
        _rate_of(a, settings),
        _rate_of(b, settings),
        difference_of_counts(a, b, confidence=settings.confidence),
        UnscoredBounds.of(with_unscored, (0.0, 1.0)) if any(missing) else None,
        unscored=sum(missing),
        undecided=next(iter(unknown), None),
    )


def unscored_of(side: LabelledRun) -> int:
    """Return how many attempts have no score, as far as the run reports them."""
    counts = side.run.summary
    return int(side.values("unscored").values.sum()) if counts is None else counts.unscored or 0


def _pass_counts(side: LabelledRun) -> PassCounts | None:
    """Return how many attempts passed, of how many with a score; None for none, and where it is not known."""
    told = side.run.summary
    if told is None:
        counts, passes = side.pass_counts()
        return (
            PassCounts(int(passes.sum()), int(counts.sum()), int((counts > 0).sum()))
            if counts.any()
            else None
        )
    if not told.scored or told.passed is None:
        return None
    return PassCounts(told.passed, told.scored, told.rows or told.scored)


def _rate_of(counts: PassCounts, settings: ChangeSettings) -> Estimate:
    found = counts.interval(settings.confidence)
    return Estimate(counts.rate, None, n=counts.samples, clusters=counts.rows, **asdict(found))
