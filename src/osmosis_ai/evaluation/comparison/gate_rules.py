"""Rules about a baseline: how much worse than it a run may be, and what is proved about that.

A margin rule is a test of non-inferiority. It passes when the one-sided bound on the bad side lies within the margin:
a run that is worse by the margin passes at most once in twenty times. It fails when the bound on the good side is
worse than the baseline and it does not pass; in between nobody can tell. A gate passes when all its rules do, each
at its own level (an intersection-union test needs no adjustment); of what fails, any one would do, so that fails are
adjusted by Holm. A verdict that the scores of unscored attempts could turn round is none.

Sources:
    Walker and Nowacki 2011, "Understanding Equivalence and Noninferiority Testing", J. Gen. Intern. Med. 26(2).
    Berger 1982, "Multiparameter Hypothesis Testing and Acceptance Sampling", Technometrics 24(4)
        (intersection-union tests).
    Holm 1979, "A Simple Sequentially Rejective Multiple Test Procedure".
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from osmosis_ai.config.decisions import attempts_asked
from osmosis_ai.evaluation.comparison.design import settle
from osmosis_ai.evaluation.comparison.multiplicity import holm
from osmosis_ai.evaluation.comparison.numbers import Difference
from osmosis_ai.evaluation.comparison.unscored_bounds import UnscoredBounds
from osmosis_ai.evaluation.gating import Evidence, Rule, RuleResult, Verdict
from osmosis_ai.evaluation.statistics import CONFIDENCE
from osmosis_ai.evaluation.variance import VarianceComponents

FEWEST_ROWS = 10
"""A slice of fewer rows has no verdict."""


@dataclass(frozen=True)
class MarginEvidence:
    """What two runs say of the metric of a margin rule.

    Attributes:
        change: B - A, or B / A of an amount; None where no row has it in both.
        bounds: the same with every unscored attempt at its worst, then at its best.
        spread: of the difference, of the logarithm of a ratio; None where one row cannot tell.
        attempts: on each row.
        cost_attempt: of one attempt of each run together, in USD; None where no price is known.
        undecided: why nothing may be decided on the two runs, in a sentence.
    """

    change: Difference | None
    bounds: UnscoredBounds | None = None
    spread: VarianceComponents | None = None
    attempts: int = 1
    cost_attempt: float | None = None
    undecided: str | None = None


def judge_margins(
    asked: Sequence[tuple[Rule, MarginEvidence]], *, confidence: float = CONFIDENCE
) -> list[RuleResult]:
    """Apply margin rules, all that a gate has at once: what fails is adjusted for how many there are."""
    adjusted = holm([_p_of_worse(rule, found.change) for rule, found in asked])
    return [
        _judged(_Margin(rule, found, confidence), p) for (rule, found), p in zip(asked, adjusted, strict=True)
    ]


def _p_of_worse(rule: Rule, change: Difference | None) -> float | None:
    """Return the one-sided p-value of "it is no worse", half of the two-sided one where it looks worse."""
    if change is None or change.p is None:
        return None
    worse = change.value < change.none if rule.described.higher_is_better else change.value > change.none
    return change.p / 2 if worse else 1 - change.p / 2


@dataclass(frozen=True)
class _Margin:
    """A margin rule beside what is known, turned so that higher is better and 0 is no difference.

    A ratio is turned into its logarithm, so that twice and half of the baseline are equally far away.
    """

    rule: Rule
    found: MarginEvidence
    confidence: float

    @property
    def limit(self) -> float:
        """The worst that passes, exclusively."""
        return -math.log1p(self.rule.limit) if self.rule.described.scale == "amount" else -self.rule.limit

    def turned(self, number: float) -> float:
        """Return a number of a change with its good side up."""
        if self.rule.described.scale == "amount":
            number = math.log(number) if number > 0 else -math.inf
        return number if self.rule.described.higher_is_better else -number

    def ends(self, change: Difference) -> tuple[float, float] | None:
        """Return the bounds on the bad and on the good side; None where there are none."""
        if change.at_least is None or change.at_most is None:
            return None
        worst, best = sorted((self.turned(change.at_least), self.turned(change.at_most)))
        return worst, best


def _judged(margin: _Margin, p_adjusted: float | None) -> RuleResult:
    rule, found, change = margin.rule, margin.found, margin.found.change
    evidence = _evidence(rule, change, p_adjusted)
    if found.undecided is not None:
        return RuleResult(rule, evidence, "unclear", found.undecided)
    if change is None:
        return RuleResult(rule, evidence, "unclear", _nothing_to_compare(rule))
    ends = margin.ends(change)
    if ends is None:
        return RuleResult(rule, evidence, "unclear", f"{_compared(margin, change)}; {change.reason}.")
    verdict = _verdict(margin, ends, p_adjusted)
    turned = _turned_by_unscored(margin, verdict)
    if turned is not None:
        return RuleResult(rule, evidence, "unclear", turned)
    result = RuleResult(rule, evidence, verdict, _reason(margin, change, verdict))
    return replace(result, settles=_settles(margin, change)) if verdict == "unclear" else result


def _verdict(margin: _Margin, ends: tuple[float, float], p_adjusted: float | None) -> Verdict:
    worst, best = ends
    if worst > margin.limit:
        return "pass"
    # Both agree where there is one rule; where there are several, the p-value is the stricter one.
    if best < 0 and p_adjusted is not None and p_adjusted <= 1 - margin.confidence:
        return "fail"
    return "unclear"


def _turned_by_unscored(margin: _Margin, verdict: Verdict) -> str | None:
    """Return, of a verdict that unscored attempts could turn round, how; None of one that stands."""
    bounds = margin.found.bounds
    if bounds is None or verdict == "unclear":
        return None
    extremes = [(margin.turned(each.value), each) for each in (bounds.worst, bounds.best)]
    if verdict == "pass":
        value, extreme = min(extremes, key=lambda each: each[0])
        if value > margin.limit:
            return None
    else:
        value, extreme = max(extremes, key=lambda each: each[0])
        if value < 0:
            return None
    missing = bounds.unscored_a + bounds.unscored_b
    return (
        f"{_compared(margin, margin.found.change)} over scored attempts, but what the {missing:,} unscored "
        f"{'one' if missing == 1 else 'ones'} would have scored can make it {margin_words(margin.rule, extreme.value)}."
    )


def _reason(margin: _Margin, change: Difference, verdict: Verdict) -> str:
    level = f"with {100 * margin.confidence:g} % confidence"
    low, high = margin_words(margin.rule, change.at_least), margin_words(margin.rule, change.at_most)
    worst, best = (low, high) if margin.rule.described.higher_is_better else (high, low)
    said = _compared(margin, change)
    if verdict == "pass":
        text = f"{said}, at worst {worst} {level}"
    elif verdict == "fail":
        text = f"{said}, at best {best} {level}"
    else:
        text = f"{said}, between {low} and {high}"
    counted = f"{change.rows:,} {'row' if change.rows == 1 else 'rows'}"
    method = "" if change.method is None else f", {change.method}"
    warned = "" if change.warning is None else f"; {change.warning.rstrip('.')}"
    return f"{text} ({counted}{method}){warned}."


def _settles(margin: _Margin, change: Difference) -> str:
    found = margin.found
    value = margin.turned(change.value)
    # If the value stayed, it would pass once it is told from the margin, or fail once it is told from no worse.
    distance = max(value - margin.limit, -value)
    return settle(
        found.spread,
        distance,
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


def _evidence(rule: Rule, change: Difference | None, p_adjusted: float | None) -> Evidence:
    if change is None:
        return Evidence(note=_nothing_to_compare(rule))
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
        p_adjusted=p_adjusted,
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
