"""What the samples of one run, or of a run and its baseline, say of the metric of a rule."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

from osmosis_ai.config.decisions import attempts_asked
from osmosis_ai.evaluation.comparison.gate_rules import MarginEvidence
from osmosis_ai.evaluation.comparison.metric_changes import RATIO_METRICS, change_of, quantity, values_of
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
    """Return the pair of each value of a column.

    Raises:
        OsmosisError: there is no such column, or it has too many values; the dataset cannot be read.
    """
    return {(column, value): part for value, part in pairs_by_value(pair, column).items()}


def rows_of(pair: RunPair) -> int:
    """Return on how many rows the candidate has samples."""
    import numpy as np

    rows = pair.b.rows
    return int(np.unique(rows[rows >= 0]).size)


def sampled_evidence(pair: RunPair, rule: Rule, settings: ChangeSettings) -> Evidence:
    """Return what the candidate's samples say of the metric of a rule, whatever the baseline."""
    if not rule.described.compared:
        return Evidence(note=f"`{rule.metric}` is known of a whole run alone.")
    found = change_of(pair, rule.metric, settings).b
    return Evidence(note=NO_SAMPLE) if found is None else _of_estimate(found)


def spread_of_run(pair: RunPair, metric: str) -> VarianceComponents | None:
    """Return the spread of a metric in the candidate; None where it is not one number of each attempt."""
    attempts = _by_attempt(pair.b, metric)
    return None if attempts is None else VarianceComponents.of(*attempts)


def margin_evidence(
    pair: RunPair, rule: Rule, settings: ChangeSettings, undecided: str | None = None
) -> MarginEvidence:
    """Return what two runs say of the metric of a margin rule."""
    found = change_of(pair, rule.metric, settings)
    costs = [cost_of_attempt(side.run) for side in (pair.a, pair.b)]
    return MarginEvidence(
        change=found.change,
        bounds=found.bounds,
        spread=_spread(pair, found, settings),
        attempts=attempts_of(pair.b.run),
        cost_attempt=None if None in costs else math.fsum(cost or 0.0 for cost in costs),
        undecided=undecided,
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


def _of_estimate(found: Estimate) -> Evidence:
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
