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
from dataclasses import dataclass, replace

from osmosis_ai.config.decisions import attempts_asked
from osmosis_ai.evaluation.comparison.design import settle
from osmosis_ai.evaluation.comparison.numbers import Difference
from osmosis_ai.evaluation.comparison.unscored_bounds import UnscoredBounds
from osmosis_ai.evaluation.gating import (
    Evidence,
    Rule,
    RuleResult,
    Verdict,
    count_unscored,
    describe_unreported,
)
from osmosis_ai.evaluation.statistics import CONFIDENCE
from osmosis_ai.evaluation.variance import VarianceComponents

FEWEST_ROWS = 10
"""A slice of fewer rows has no verdict."""


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
