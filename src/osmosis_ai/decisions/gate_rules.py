"""Margin rules: how much worse than a baseline a run may be.

A margin rule is a test of non-inferiority. With a difference of candidate minus baseline and a margin m, it passes if the
one-sided lower bound is above -m, fails if the upper bound is below -m, and is inconclusive otherwise. So a run that is
worse by the margin passes at most once in twenty times, and one that is worse by less fails at most as often. The verdict
must also hold with the unscored attempts at their worst and at their best.

Source:
    Walker and Nowacki 2011, "Understanding Equivalence and Noninferiority Testing", J. Gen. Intern. Med. 26(2).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from osmosis_ai.config.decisions import attempts_asked, needs_scores
from osmosis_ai.decisions.design import settle
from osmosis_ai.decisions.engine import pairs_by_value
from osmosis_ai.decisions.gating import (
    Evidence,
    Rule,
    RuleResult,
    Verdict,
    count_unscored,
    describe_unreported,
)
from osmosis_ai.decisions.metric_changes import (
    RATIO_METRICS,
    UnscoredBounds,
    change_of,
    estimate_of,
    quantity,
    values_of,
)
from osmosis_ai.decisions.numbers import Difference
from osmosis_ai.decisions.run_pairs import RunPair
from osmosis_ai.statistics.estimates import CONFIDENCE
from osmosis_ai.statistics.variance import VarianceComponents

if TYPE_CHECKING:
    from osmosis_ai.decisions.metric_changes import ChangeSettings, MetricChange
    from osmosis_ai.decisions.run_pairs import Attempts, LabelledRun
    from osmosis_ai.decisions.run_samples import RunSamples
    from osmosis_ai.statistics.estimates import Estimate


@dataclass(frozen=True)
class MarginEvidence:
    """What two runs say of the metric of a margin rule."""

    change: Difference | None
    bounds: UnscoredBounds | None = None
    spread: VarianceComponents | None = None
    attempts: int = 1
    cost_attempt: float | None = None
    undecided: str | None = None
    unscored: int = 0
    unreported: int = 0


def judge_margin(rule: Rule, found: MarginEvidence, *, confidence: float = CONFIDENCE) -> RuleResult:
    """Apply a margin rule."""
    margin, change = _Margin(rule, found, confidence), found.change
    evidence = _evidence(rule, found).shown()
    if found.undecided is not None:
        return RuleResult(rule, evidence, "unclear", found.undecided)
    if change is None:
        return RuleResult(rule, evidence, "unclear", _nothing_to_compare(rule))
    if change.at_least is None or change.at_most is None:
        return RuleResult(rule, evidence, "unclear", f"{_compared(margin, change)}; {change.reason}.")
    verdict = margin.verdict(change)
    if verdict != "unclear" and found.bounds is not None:
        for extreme, how in ((found.bounds.worst, "against it"), (found.bounds.best, "in its favor")):
            if margin.verdict(extreme) != verdict:
                return RuleResult(
                    rule,
                    evidence,
                    "unclear",
                    f"{_compared(margin, change)} over scored attempts, but between {_between(rule, extreme)} with "
                    f"{count_unscored(found.unscored)} counted {how}.",
                    f"score {count_unscored(found.unscored)}",
                )
    settles = None if verdict == "pass" else _settles(margin, change)
    return RuleResult(rule, evidence, verdict, _reason(margin, change, verdict), settles)


@dataclass(frozen=True)
class _Margin:
    """A margin rule beside what is known, turned so that higher is better and 0 is no difference."""

    rule: Rule
    found: MarginEvidence
    confidence: float

    @property
    def limit(self) -> float:
        """The change on the margin: better ones are acceptable, worse ones are not."""
        return -math.log1p(self.rule.limit) if self.rule.described.scale == "amount" else -self.rule.limit

    def turned(self, number: float) -> float:
        """Return a number of a change with its good side up."""
        if self.rule.described.scale == "amount":
            number = math.log(number) if number > 0 else -math.inf
        return number if self.rule.described.higher_is_better else -number

    def verdict(self, change: Difference) -> Verdict:
        """Return what the bounds of a change say about the margin."""
        if change.at_least is None or change.at_most is None:
            return "unclear"
        worst, best = sorted((self.turned(change.at_least), self.turned(change.at_most)))
        return "pass" if worst > self.limit else "fail" if best < self.limit else "unclear"


def _reason(margin: _Margin, change: Difference, verdict: Verdict) -> str:
    level = f"with {100 * margin.confidence:g} % confidence"
    bounds, rule, attempts = margin.found.bounds, margin.rule, count_unscored(margin.found.unscored)
    text = _compared(margin, change)
    if verdict == "unclear":
        text = f"{text}, between {_between(rule, change)}"
        if bounds is not None:
            at_worst, at_best = _between(rule, bounds.worst), _between(rule, bounds.best)
            text = f"{text}; between {at_worst} with {attempts} counted against it, and between {at_best} in its favor"
    else:
        is_low = (verdict == "pass") == rule.described.higher_is_better
        how = "at worst" if verdict == "pass" else "at best"
        text = f"{text}, {how} {margin_words(rule, _shown_bounds(change)[0 if is_low else 1])} {level}"
        if bounds is not None:
            extreme = _shown_bounds(bounds.worst if verdict == "pass" else bounds.best)[0 if is_low else 1]
            counted = "against it" if verdict == "pass" else "in its favor"
            text = f"{text}, {margin_words(rule, extreme)} with {attempts} counted {counted}"
    counted = f"{change.rows:,} {'row' if change.rows == 1 else 'rows'}"
    method = "" if change.method is None else f", {change.method}"
    warned = "" if change.warning is None else f"; {change.warning.rstrip('.')}"
    if margin.found.unreported:
        warned = f"{warned}; {describe_unreported(margin.found.unreported)}"
    return f"{text} ({counted}{method}){warned}."


def _between(rule: Rule, change: Difference) -> str:
    low, high = _shown_bounds(change)
    return f"{margin_words(rule, low)} and {margin_words(rule, high)}"


def _shown_bounds(change: Difference) -> tuple[float | None, float | None]:
    """Return the one-sided bounds as they are printed, as :meth:`Evidence.shown`."""
    shown = _evidence_of(change).shown()
    return shown.at_least, shown.at_most


def _settles(margin: _Margin, change: Difference) -> str:
    found = margin.found
    return settle(
        found.spread,
        margin.turned(change.value) - margin.limit,
        change.rows,
        found.attempts,
        confidence=margin.confidence,
        cost_attempt=found.cost_attempt,
    ).words


def _nothing_to_compare(rule: Rule) -> str:
    asked = attempts_asked(rule.metric)
    if asked is not None and asked > 1:
        return f"no row has {asked} attempts with a score in both runs."
    if rule.described.scale == "amount":
        return "no row has more than nothing of it in both runs."
    return "no row has this number in both runs."


def _evidence(rule: Rule, found: MarginEvidence) -> Evidence:
    if found.change is None:
        return Evidence(note=_nothing_to_compare(rule), unscored=found.unscored)
    extremes = None
    if found.bounds is not None:
        extremes = _evidence_of(found.bounds.worst), _evidence_of(found.bounds.best)
    return replace(
        _evidence_of(found.change), unscored=found.unscored, extremes=extremes, unreported=found.unreported
    )


def _evidence_of(change: Difference) -> Evidence:
    return Evidence(
        value=change.value,
        at_least=change.at_least,
        at_most=change.at_most,
        rows=change.rows,
        samples=change.samples,
        note=change.reason or "",
        low=change.low,
        high=change.high,
        method=change.method,
        p=change.p,
    )


def _compared(margin: _Margin, change: Difference | None) -> str:
    value = None if change is None else change.value
    return f"it is {margin_words(margin.rule, value)} against the baseline"


def margin_words(rule: Rule, number: float | None) -> str:
    """Return a change in the words of its rule: points, percent or as it is; always with its sign."""
    if number is None:
        return "unknown"
    unit = {"amount": " %", "share": " points"}.get(rule.described.scale, "")
    return f"{margin_number(rule, number)}{unit}"


def margin_number(rule: Rule, number: float) -> str:
    """Return the same without its unit: ``-3.6`` points or percent, ``+0.033``."""
    scale = rule.described.scale
    if scale == "amount":
        return _signed(100 * (number - 1), 1)
    return _signed(100 * number, 1) if scale == "share" else _signed(number, 3)


def _signed(number: float, digits: int) -> str:
    text = f"{number:+.{digits}f}"
    return text.lstrip("+-") if float(text) == 0 else text


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
