"""What the samples of one run, or of a run and its baseline, say of the metric of a rule."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from osmosis_ai.config.decisions import attempts_asked, needs_scores
from osmosis_ai.evaluation.comparison.gate_rules import MarginEvidence
from osmosis_ai.evaluation.comparison.metric_changes import (
    RATIO_METRICS,
    change_of,
    estimate_of,
    quantity,
    values_of,
)
from osmosis_ai.evaluation.comparison.run_pairs import RunPair
from osmosis_ai.evaluation.comparison.slice_changes import pairs_by_value
from osmosis_ai.evaluation.gating import Evidence, Rule
from osmosis_ai.evaluation.variance import VarianceComponents

if TYPE_CHECKING:
    from osmosis_ai.evaluation.comparison.metric_changes import ChangeSettings, MetricChange
    from osmosis_ai.evaluation.comparison.run_pairs import Attempts, LabelledRun
    from osmosis_ai.evaluation.comparison.run_samples import RunSamples
    from osmosis_ai.evaluation.statistics import Estimate

NO_SAMPLE = "no sample has this number."


def alone(run: RunSamples) -> RunPair:
    """Return a run as a pair of which only the candidate's side is looked at."""
    return RunPair.of(run, run, None)


def by_slice(pair: RunPair, column: str) -> Mapping[tuple[str, str | None], RunPair]:
    """Return the pair of each value of a column."""
    return {(column, value): part for value, part in pairs_by_value(pair, column).items()}


def rows_of(pair: RunPair) -> int:
    """Return on how many rows the candidate has samples."""
    import numpy as np

    rows = pair.b.rows
    return int(np.unique(rows[rows >= 0]).size)


def sampled_evidence(side: LabelledRun, rule: Rule, settings: ChangeSettings) -> Evidence:
    """Return what the attempts of a run say about the metric of a rule."""
    metric = rule.metric
    if not rule.described.compared:
        return Evidence(note=f"`{metric}` is known only for a whole run.")
    found = _of_estimate(estimate_of(side, metric, settings))
    if metric in RATIO_METRICS:
        return replace(found, unreported=side.unreported(metric))
    return with_unscored(found, side, metric, settings)


def with_unscored(found: Evidence, side: LabelledRun, metric: str, settings: ChangeSettings) -> Evidence:
    """Add to a metric what it would be with all unscored attempts at the lowest, and at the highest score."""
    missing = int(side.unscored().values.sum()) if needs_scores(metric) else 0
    if not missing:
        return found
    lowest, highest = settings.reward_range or (None, None) if metric == "reward" else (0.0, 1.0)
    if lowest is None or highest is None:
        return replace(found, unscored=missing, undecided=describe_unknown_range(missing))
    extremes = (
        _of_estimate(estimate_of(side, metric, settings, lowest)),
        _of_estimate(estimate_of(side, metric, settings, highest)),
    )
    return replace(found, unscored=missing, extremes=extremes)


def describe_unknown_range(missing: int) -> str:
    """Explain why a rule on rewards has no verdict."""
    what = "1 attempt has" if missing == 1 else f"{missing:,} attempts have"
    return f"{what} no score and the range of rewards is unknown; set it with --reward-range LOW,HIGH."


def spread_of_run(side: LabelledRun, metric: str) -> VarianceComponents | None:
    """Return the variance of a metric in a run; None if the metric is not one number per attempt."""
    attempts = _by_attempt(side, metric)
    return None if attempts is None else VarianceComponents.of(*attempts)


def margin_evidence(
    pair: RunPair, rule: Rule, settings: ChangeSettings, undecided: str | None = None
) -> MarginEvidence:
    """Return what two runs say of the metric of a margin rule."""
    found = change_of(pair, rule.metric, settings)
    costs = [cost_of_attempt(side.run) for side in (pair.a, pair.b)]
    undecided = undecided or found.undecided
    if undecided is None and rule.metric == "reward" and found.unscored and settings.reward_range is None:
        undecided = describe_unknown_range(found.unscored)
    return MarginEvidence(
        change=found.change,
        bounds=found.bounds,
        spread=_spread(pair, found, settings),
        attempts=attempts_of(pair.b.run),
        cost_attempt=None if None in costs else math.fsum(cost or 0.0 for cost in costs),
        undecided=undecided,
        unscored=found.unscored,
        unreported=found.unreported,
    )


def cost_of_attempt(run: RunSamples) -> float | None:
    """Return what one attempt of a run costs, in US dollars, on average of those that tell; None of what is free, too."""
    import numpy as np

    costs = run.samples["cost_usd"]
    known = costs[np.isfinite(costs)]
    return float(known.mean()) or None if known.size else None


def attempts_of(run: RunSamples) -> int:
    """Return how many attempts a run makes on each row."""
    import numpy as np

    if run.inputs.n is not None:
        return run.inputs.n
    return max(1, int(np.bincount(run.samples["row"]).max(initial=1)))


def _of_estimate(found: Estimate | None) -> Evidence:
    if found is None:
        return Evidence(note=NO_SAMPLE)
    said = [part.rstrip(".") for part in (found.reason, found.warning) if part]
    return Evidence(
        value=found.value,
        at_least=found.at_least,
        at_most=found.at_most,
        rows=found.clusters,
        samples=found.n,
        note=f"{'; '.join(said)}." if said else "",
        low=found.low,
        high=found.high,
        method=found.method,
    )


def _spread(pair: RunPair, found: MetricChange, settings: ChangeSettings) -> VarianceComponents | None:
    a, b = _by_attempt(pair.a, found.metric), _by_attempt(pair.b, found.metric)
    if pair.paired and a is not None and b is not None and found.described.scale != "amount":
        return VarianceComponents.of_pairs(*a, *b)
    if found.change is None:
        return None
    if found.spread is not None:
        return VarianceComponents(found.spread, None, found.change.rows, 1.0)
    return _behind_the_interval(found, settings.confidence)


def _behind_the_interval(found: MetricChange, confidence: float) -> VarianceComponents | None:
    """Return the spread that an interval tells of, of the logarithm where it is a ratio's."""
    from scipy.special import stdtrit

    change = found.change
    if change is None or change.low is None or change.high is None or change.rows < 2:
        return None
    ends = change.low, change.high
    if change.kind == "ratio":
        if ends[0] <= 0:
            return None
        ends = math.log(ends[0]), math.log(ends[1])
    stderr = (ends[1] - ends[0]) / 2 / float(stdtrit(change.rows - 1, (1 + confidence) / 2))
    return VarianceComponents(stderr**2 * change.rows, None, change.rows, 1.0)


def _by_attempt(side: LabelledRun, metric: str) -> Attempts | None:
    """Return the number that each attempt, or row, has of a metric; None of one that needs several attempts."""
    if metric in RATIO_METRICS:
        return quantity(side, metric)
    return None if attempts_asked(metric) is not None else values_of(side, metric)
