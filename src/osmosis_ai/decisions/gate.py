"""Check a run against rules.

``--min`` passes if the one-sided 95% lower bound of a metric is at or above the limit, fails if the upper bound is below
it, and is inconclusive in between. ``--max`` is the mirror image. So an agent below the limit passes at most once in
twenty times, however small the run.

``--margin`` limits how much worse than a baseline a run may be (non-inferiority). With a margin m, it passes if the
one-sided lower bound of candidate minus baseline is above -m, fails if the upper bound is below -m, and is inconclusive
otherwise. So a run that is worse by the margin passes at most once in twenty times.

Attempts without a score are missing evidence. A verdict on a score must also hold with all of them at the lowest score
and with all of them at the highest, each with its own interval.

A gate passes if all its rules pass, so passing needs no adjustment (an intersection-union test, Berger 1982). Any rule
can fail it, so failures are adjusted for the number of rules (Holm).

Sources:
    Berger 1982, "Multiparameter Hypothesis Testing and Acceptance Sampling", Technometrics 24(4).
    Holm 1979, "A Simple Sequentially Rejective Multiple Test Procedure".
    Manski 1990, "Nonparametric Bounds on Treatment Effects" (worst and best case of missing outcomes).
    Walker and Nowacki 2011, "Understanding Equivalence and Noninferiority Testing", J. Gen. Intern. Med. 26(2).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import product
from typing import Any, Literal

import numpy as np

from osmosis_ai.config.decisions import (
    METRICS,
    Metric,
    attempts_asked,
    limit_problem,
    margin_problem,
    metric_named,
    needs_scores,
    suggested_metric,
)
from osmosis_ai.config.issues import closest
from osmosis_ai.decisions.changes import RATIO_METRICS, ChangeSettings, MetricChange, change_of, estimate_of
from osmosis_ai.decisions.differences import NUMBER_KEYS, Difference
from osmosis_ai.decisions.samples import Attempts, LabelledRun, RunPair, RunSamples
from osmosis_ai.errors import UsageError
from osmosis_ai.statistics.estimates import (
    CONFIDENCE,
    ClusteredRate,
    Estimate,
    korn_graubard_interval,
    student_interval,
)
from osmosis_ai.statistics.power import MOST_ROWS, n_needed, rows_needed
from osmosis_ai.statistics.variance import VarianceComponents
from osmosis_ai.ui.numbers import percent

Bound = Literal["min", "max", "margin"]
Verdict = Literal["pass", "fail", "unclear"]

SHARES = ("unscored", "failed", "infrastructure")
"""Shares of the finished attempts. They are counted exactly, so a limit of 0 allows none."""
RUN_METRICS = tuple(METRICS)
RUBRIC_METRICS = ("score", "alpha", "unscored")
"""Metrics in a judge's result file: mean score, self-agreement, share of calls without a score."""


@dataclass(frozen=True)
class Rule:
    """``metric`` must be at least (``min``) or at most (``max``) ``limit``, or at most that much worse
    (``margin``)."""

    metric: str
    bound: Bound
    limit: float
    slice: tuple[str, str | None] | None = None

    @property
    def kind(self) -> str:
        """The name of the metric in :data:`RUN_METRICS`."""
        return self.described.name

    @property
    def described(self) -> Metric:
        """The metric; one that only a judge's result file has counts as a value."""
        return metric_named(self.metric) or Metric(self.metric, True, "value", compared=False)

    def __str__(self) -> str:
        scale, higher = self.described.scale, self.described.higher_is_better
        if self.bound != "margin":
            limit = f"{100 * self.limit:g}%" if scale == "share" else f"{self.limit:g}"
            text = f"{self.metric} {'>=' if self.bound == 'min' else '<='} {limit}"
        elif self.limit == 0:
            text = f"{self.metric} {'>' if higher else '<'} baseline"
        else:
            loss = f"{self.limit:g}" if scale == "value" else f"{100 * self.limit:g}"
            loss += {"share": " points", "amount": "%"}.get(scale, "")
            text = f"{self.metric} {'>= baseline -' if higher else '<= baseline +'} {loss}"
        if self.slice is None:
            return text
        column, value = self.slice
        return f"{text} where {column} {'is missing' if value is None else f'= {value}'}"


@dataclass(frozen=True)
class Evidence:
    """A number of a run, with its bounds."""

    value: float | None = None
    at_least: float | None = None
    at_most: float | None = None
    rows: int | None = None
    samples: int | None = None
    note: str = ""
    low: float | None = None
    high: float | None = None
    method: str | None = None
    p: float | None = None
    unscored: int = 0
    extremes: tuple[Evidence, Evidence] | None = None
    undecided: str | None = None
    unreported: int = 0

    @classmethod
    def of(cls, found: Estimate | Difference | None) -> Evidence:
        """Return a number and its bounds as evidence."""
        if found is None:
            return cls(note="no attempt has a value for this metric.")
        if isinstance(found, Difference):
            rows, samples, p, note = found.rows, found.samples, found.p, found.reason or ""
        else:
            clauses = [part.rstrip(".") for part in (found.reason, found.warning) if part]
            note = f"{'; '.join(clauses)}." if clauses else ""
            rows, samples, p = found.clusters, found.n, None
        bounds = found.at_least, found.at_most
        return cls(found.value, *bounds, rows, samples, note, found.low, found.high, found.method, p)

    def shown(self) -> Evidence:
        """Return the evidence as printed, with no one-sided bound beyond the two-sided interval."""
        if self.low is None or self.high is None:
            return self
        at_least, at_most = (
            None if bound is None else min(max(bound, self.low), self.high)
            for bound in (self.at_least, self.at_most)
        )
        return replace(self, at_least=at_least, at_most=at_most)

    def number(self) -> dict[str, Any]:
        """Return the JSON form of a number (as ``differences.number_data``)."""
        reason = self.note or None if self.at_least is None and self.at_most is None else None
        return {name: getattr(self, name, None) for name in NUMBER_KEYS} | {"reason": reason}


@dataclass(frozen=True)
class RuleResult:
    """The verdict on a rule, with the reason in a sentence.

    ``is_adjusted`` marks a failure that is not significant among all rules and is therefore unclear.
    """

    rule: Rule
    evidence: Evidence
    verdict: Verdict
    reason: str
    settles: str | None = None
    is_adjusted: bool = False

    def data(self) -> dict[str, Any]:
        rule, evidence = self.rule, self.evidence
        numbers = ("value", "at_least", "at_most", "rows", "samples")
        found: dict[str, Any] = {
            **{name: getattr(rule, name) for name in ("metric", "bound", "limit")},
            "slice": None if rule.slice is None else dict(zip(("column", "value"), rule.slice, strict=True)),
            **{name: getattr(evidence, name) for name in numbers},
            "number": evidence.number(),
            "verdict": self.verdict,
            "reason": self.reason,
            "settles": self.settles,
        }
        if evidence.unscored:
            found["unscored"] = evidence.unscored
        if evidence.extremes is not None:
            lowest, highest = evidence.extremes
            found["unscored_at_worst"], found["unscored_at_best"] = lowest.number(), highest.number()
        if evidence.unreported:
            found["unreported"] = evidence.unreported
        return found


def parse_rules(minima: Iterable[str], maxima: Iterable[str], margins: Iterable[str] = ()) -> list[Rule]:
    """Read ``METRIC=X`` rules."""
    given: tuple[tuple[Bound, Iterable[str]], ...] = (("min", minima), ("max", maxima), ("margin", margins))
    return [_rule(text, bound) for bound, texts in given for text in texts]


def require_rules(rules: Sequence[Rule]) -> None:
    """Check that there are rules and that they do not contradict each other."""
    if not rules:
        raise UsageError(
            "A gate needs at least one rule.", hint="for example --min pass_rate=0.8 --max unscored=0.05"
        )
    minima, maxima = ([rule for rule in rules if rule.bound == bound] for bound in ("min", "max"))
    for least, most in product(minima, maxima):
        if least.metric == most.metric and least.limit > most.limit:
            raise UsageError(f"No run meets both '{least}' and '{most}'.", hint="remove one of them")


def require_known(rules: Iterable[Rule], metrics: Sequence[str], of: str) -> None:
    """Check that the metrics of all rules are available."""
    for rule in rules:
        if rule.kind not in metrics:
            raise UsageError(f"{of} has no metric '{rule.metric}'.", hint=f"it has {', '.join(metrics)}")


def require_pass_at(rules: Iterable[Rule], known: Sequence[int]) -> None:
    """Check that a finished run has the k of each pass@k and pass^k rule, which is otherwise never decided."""
    for rule in rules:
        wanted_k = attempts_asked(rule.metric)
        if wanted_k is not None and wanted_k not in known:
            listed = ", ".join(f"{rule.metric[:5]}{k}" for k in known)
            raise UsageError(
                f"The run has no {rule.metric}.",
                hint=f"it has {listed}" if known else "it has one attempt per row; use pass_rate",
            )


def judge(
    rule: Rule, evidence: Evidence, *, unfinished: str | None = None, confidence: float = CONFIDENCE
) -> RuleResult:
    """Apply a rule; the evidence of a margin rule is the difference from the baseline."""
    reason = unfinished or evidence.undecided
    if reason is not None:
        return RuleResult(rule, evidence.shown(), "unclear", reason)
    found = _measured(rule, evidence, confidence)
    attempts = count_unscored(evidence.unscored)
    for each, how in zip(evidence.extremes or (), _extreme_names(rule), strict=False):
        if found.verdict != "unclear" and _measured(rule, each, confidence).verdict != found.verdict:
            bounds = f"between {_between(rule, each)} with {attempts} {how}"
            reason = f"{found.reason.rstrip('.')}, but {bounds}."
            return replace(found, verdict="unclear", reason=reason, settles=f"score {attempts}")
    return replace(found, reason=_with_unscored(found, evidence))


def _extreme_names(rule: Rule) -> tuple[str, str]:
    margin = rule.bound == "margin"
    return (
        ("counted against it", "counted in its favor")
        if margin
        else ("at the lowest score", "at the highest score")
    )


def _between(rule: Rule, evidence: Evidence) -> str:
    shown = evidence.shown()
    return f"{_number(rule, shown.at_least)} and {_number(rule, shown.at_most)}"


def _with_unscored(found: RuleResult, evidence: Evidence) -> str:
    """Return the reason for a verdict, with the bounds under all scores of the unscored attempts."""
    if evidence.extremes is None or evidence.value is None:
        return found.reason
    attempts, names = count_unscored(evidence.unscored), _extreme_names(found.rule)
    limited_by = zip(evidence.extremes, names, strict=True)
    bounds = "; ".join(
        f"between {_between(found.rule, each)} with {attempts} {how}" for each, how in limited_by
    )
    return f"{found.reason.rstrip('.')}; {bounds}."


def count_unscored(count: int) -> str:
    """Return "the 11 unscored attempts"."""
    return f"the {count:,} unscored {'attempt' if count == 1 else 'attempts'}"


def _measured(rule: Rule, evidence: Evidence, confidence: float) -> RuleResult:
    """Apply a rule to a measured number."""
    level = f"with {100 * confidence:g}% confidence"
    low, high, shown = evidence.at_least, evidence.at_most, evidence.shown()

    def result(verdict: Verdict, reason: str) -> RuleResult:
        return RuleResult(rule, shown, verdict, reason)

    if evidence.value is None:
        return result("unclear", _why(evidence, "the run does not have this metric."))
    if is_exact(rule):
        # No upper bound ever reaches a limit of 0, so the share itself decides.
        clause = f"the share is {_number(rule, evidence.value)}"
        return result("fail" if evidence.value else "pass", _sentence(clause, evidence))
    is_amount = rule.described.scale == "amount"
    if is_amount and rule.bound == "max" and evidence.value == 0 and not evidence.unreported:
        return result("pass", _sentence("it is zero", evidence))
    lower, upper = f"at least {_number(rule, shown.at_least)}", f"at most {_number(rule, shown.at_most)}"
    met, missed = _met_and_missed(rule, low, high)
    below = rule.bound == "max" or (rule.bound == "margin" and not rule.described.higher_is_better)
    if met or missed:
        clause = f"it is {upper if met == below else lower} {level}"
        return result("pass" if met else "fail", _sentence(clause, evidence))
    if low is None or high is None:
        no_variance = "the data do not determine the variance; evaluate more rows."
        if evidence.rows == 1:
            no_variance = "the variance cannot be estimated from one row; evaluate more."
        return result("unclear", _why(evidence, no_variance))
    between = f"it is between {_between(rule, evidence)}"
    return result("unclear", _sentence(between, evidence, "evaluate more rows"))


def _met_and_missed(rule: Rule, low: float | None, high: float | None) -> tuple[bool, bool]:
    """Return whether bounds prove that a rule is met, and that it is not."""
    limit = rule.limit
    if rule.bound == "max":
        return high is not None and high <= limit, low is not None and low > limit
    if rule.bound == "min":
        return low is not None and low >= limit, high is not None and high < limit
    if low is None or high is None:
        return False, False
    worst, best = sorted((_turned(rule, low), _turned(rule, high)))
    return worst > _margin_limit(rule), best < _margin_limit(rule)


def is_exact(rule: Rule) -> bool:
    """Return whether a rule limits a counted share to 0, so that chance plays no part."""
    return rule.bound == "max" and rule.limit == 0 and rule.metric in SHARES


Judge = Callable[[float], RuleResult]
"""Returns the verdict on a rule at a confidence."""


def judge_together(rules: Mapping[Rule, Judge], *, confidence: float = CONFIDENCE) -> dict[Rule, RuleResult]:
    """Judge rules together; failures are adjusted for the number of rules that may fail by chance (Holm)."""
    found = {rule: judge_at(confidence) for rule, judge_at in rules.items()}
    by_chance = [
        rule
        for rule, each in found.items()
        if not is_exact(rule) and not (each.evidence.at_least is None and each.evidence.at_most is None)
    ]
    open_rules = [rule for rule in by_chance if found[rule].verdict == "fail"]
    proved: set[Rule] = set()
    while remaining := [rule for rule in open_rules if rule not in proved]:
        level = 1 - (1 - confidence) / (len(by_chance) - len(proved))
        also = {rule for rule in remaining if rules[rule](level).verdict == "fail"}
        if not also:
            break
        proved |= also
    for rule in open_rules:
        if rule not in proved:
            reason = f"{found[rule].reason.rstrip('.')}; not significant among {len(by_chance)} rules."
            found[rule] = replace(found[rule], verdict="unclear", reason=reason, is_adjusted=True)
    return {
        rule: each if each.verdict == "unclear" else replace(each, settles=None)
        for rule, each in found.items()
    }


def overall(judgements: Sequence[RuleResult]) -> Verdict:
    """Return the verdict on all rules: fail if one fails, otherwise unclear if one is unclear."""
    verdicts = {judgement.verdict for judgement in judgements}
    return "fail" if "fail" in verdicts else "unclear" if "unclear" in verdicts else "pass"


def evidence_of(
    metric: str, estimates: Mapping[str, Any], *, rows: int | None = None, confidence: float = CONFIDENCE
) -> Evidence:
    """Return the evidence about a metric in a run's ``estimates``."""
    if metric in SHARES and (estimates.get(metric) is None or confidence != CONFIDENCE):
        return _counted_share(metric, estimates.get("counts") or {}, rows, confidence)
    if confidence != CONFIDENCE:
        return Evidence(note=f"the bounds of {metric} are only known at 95% confidence.")
    wanted_k = attempts_asked(metric)
    if wanted_k is not None:
        known = estimates.get("pass_at_k" if metric.startswith("pass@") else "pass_hat_k") or {}
        found = known.get(str(wanted_k))
        if found is None:
            name = metric[: len("pass@")]
            has = ", ".join(f"{name}{k}" for k in sorted(known, key=int))
            none = f"the run has no {name}k: it has one attempt per row (use pass_rate), or no scores."
            return Evidence(note=f"the run has no {metric}, only {has}." if known else none)
    else:
        found = estimates.get(metric)
    if not isinstance(found, Mapping):
        return Evidence(note="no attempt of the run has a score.")
    told: dict[str, Any] = {each.name: found.get(each.name) for each in fields(Estimate)}
    return Evidence.of(Estimate(**told))


def evidence_of_share(
    hits: float, samples: int, rows: int | None, *, note: str = "", confidence: float = CONFIDENCE
) -> Evidence:
    """Return the evidence about a counted share, with the exact bounds of Clopper and Pearson."""
    if samples <= 0:
        return Evidence(note=note or "no attempt of the run has a score.")
    share, size = hits / samples, min(samples, rows or samples)
    exact = korn_graubard_interval(ClusteredRate(share, None, samples, size, size, 0), confidence)
    return Evidence(share, exact.at_least, exact.at_most, rows, samples, note)


def evidence_of_mean(
    mean: float, std: float, samples: int, rows: int | None, *, note: str = "", confidence: float = CONFIDENCE
) -> Evidence:
    """Return the evidence about a mean, counting observations as :func:`evidence_of_share`."""
    size = min(samples, rows or samples)
    if size < 2:
        none = "the variance cannot be estimated from one attempt."
        return Evidence(mean, rows=rows, samples=samples, note=none)
    interval = student_interval(mean, std / math.sqrt(size - 1), size, confidence)
    known = f"{interval.reason}." if interval.reason else note
    return Evidence(mean, interval.at_least, interval.at_most, rows, samples, known)


def evidence_of_figure(figure: Mapping[str, Any], *, note: str = "") -> Evidence:
    """Return the evidence about a figure of a judge, with the ends of its two-sided interval as bounds."""
    reason = str(figure.get("reason") or "").rstrip(".")
    return Evidence(
        value=figure.get("value"),
        at_least=figure.get("low"),
        at_most=figure.get("high"),
        rows=figure.get("records"),
        samples=figure.get("scores"),
        note=f"{reason}{'; ' if reason and note else ''}{note}",
    )


def weakest(rule: Rule, found: Sequence[Evidence]) -> Evidence:
    """Return the evidence that meets a rule least; unknown bounds are the weakest."""

    def least_met(each: Evidence) -> float:
        parts = (each, *(each.extremes or ()))
        ends: list[float | None] = [part.at_least if rule.bound == "min" else part.at_most for part in parts]
        if each.undecided is not None or None in ends:
            return -math.inf
        sign = 1.0 if rule.bound == "min" else -1.0
        return min(sign * end for end in ends if end is not None)

    return min(found, key=least_met)


def _rule(text: str, bound: Bound) -> Rule:
    name, equals, number = (part.strip() for part in text.partition("="))
    shown = f"--{bound} {text}"
    if not equals or not name or not number:
        raise UsageError(f"'{shown}' is not a rule.", hint=f"write it as --{bound} METRIC=NUMBER")
    rule, metric = Rule(name, bound, 0.0), metric_named(name)
    known = list(dict.fromkeys((*RUN_METRICS, *RUBRIC_METRICS)))
    if metric is None and name not in RUBRIC_METRICS:
        suggestion = suggested_metric(name) or closest(name, RUBRIC_METRICS)
        raise UsageError(
            f"'{shown}' has an unknown metric: '{name}'.",
            details={"metric": name, "metrics": known, "suggestion": suggestion},
            hint=f"did you mean '{suggestion}'?" if suggestion else f"choose from {', '.join(known)}",
        )
    try:
        limit = float(number)
    except ValueError:
        limit = math.nan
    if not math.isfinite(limit):
        raise UsageError(
            f"'{shown}' has an invalid number: '{number}'.", hint=f"for example --{bound} {name}=0.8"
        )
    problem = (margin_problem if bound == "margin" else limit_problem)(rule.described, limit)
    if problem:
        raise UsageError(f"'{shown}' is invalid: {problem if bound == 'margin' else f'{name} {problem}'}.")
    return replace(rule, limit=limit)


def _counted_share(metric: str, counts: Mapping[str, Any], rows: int | None, confidence: float) -> Evidence:
    planned, pending, skipped = (counts.get(key) or 0 for key in ("planned", "pending", "skipped"))
    made = planned - pending - skipped
    if made <= 0:
        return Evidence(note="the run has no finished attempts.")
    hits = {
        "unscored": made - (counts.get("scored") or 0),
        "failed": sum((counts.get("failed_by_boundary") or {}).values()),
        "infrastructure": counts.get("infrastructure_failures") or 0,
    }[metric]
    return evidence_of_share(hits, made, rows, confidence=confidence)


def describe_unreported(count: int) -> str:
    """Return "3 attempts did not report it"."""
    return f"{count:,} {'attempt' if count == 1 else 'attempts'} did not report it"


def _why(evidence: Evidence, otherwise: str) -> str:
    """Return the reason for missing bounds, with the number of unreported attempts."""
    why = evidence.note or otherwise
    return f"{why.rstrip('.')}; {describe_unreported(evidence.unreported)}." if evidence.unreported else why


def _sentence(clause: str, evidence: Evidence, advice: str = "") -> str:
    over = [f"{evidence.samples} attempts" if evidence.samples is not None else ""]
    over += [f"{evidence.rows} rows" if evidence.rows is not None else ""]
    counted = " of ".join(part for part in over if part)
    text = f"{clause} ({counted})" if counted else clause
    text = f"{text}; {advice}" if advice else text
    if evidence.unreported:
        text = f"{text}; {describe_unreported(evidence.unreported)}"
    return f"{text}; {evidence.note}" if evidence.note else f"{text}."


def _number(rule: Rule, value: float | None) -> str:
    if rule.bound == "margin":
        return margin_words(rule, value)
    shown = format_share if rule.described.scale == "share" else "{:.4g}".format
    return "unknown" if value is None else shown(value)


def format_share(value: float) -> str:
    """Return a share as a percentage; one that is not 0 never reads as 0.0%."""
    return f"{100 * value:.1g}%" if 0 < value < 0.0005 else percent(value)


def settle(
    spread: VarianceComponents | None,
    distance: float,
    rows: int,
    n: int,
    *,
    confidence: float = CONFIDENCE,
    cost_attempt: float | None = None,
) -> str:
    """Return the additional rows, or the attempts a row, that would decide an inconclusive result."""
    if spread is None:
        return "more rows: one row has no variance"
    if distance == 0 or not math.isfinite(distance):
        return "no number of rows or attempts: the value is on the limit"
    if spread.row_mean_variance(n) == 0:
        return "more rows: all rows have the same result, so the variance is unknown"
    asked = rows_needed(distance, spread, n, confidence=confidence, sides=1)
    attempts = n_needed(distance, spread, rows, confidence=confidence, sides=1)

    def cost(of_rows: int, of_n: int) -> str:
        if cost_attempt is None or cost_attempt < 0:
            return ""
        dollars = cost_attempt * of_rows * of_n
        return f": ${dollars:,.2f}" if dollars >= 0.01 or not dollars else ": under $0.01"

    ways = []
    if asked is not None:
        # If Student's t would have sufficed, the interval used a more conservative method, so ask for at least a tenth more rows.
        more = _about(max(asked - rows, math.ceil(rows / 10)))
        ways.append(f"about {more:,} more {'row' if more == 1 else 'rows'}{cost(more, n)}")
    if attempts is not None:
        attempts = max(attempts, n + 1)
        ways.append(f"n = {attempts:,}{cost(rows, attempts - n)}")
    none = f"no number of attempts on {rows:,} rows, nor {MOST_ROWS:,} of them"
    return ", or ".join(ways) or none


def _about(count: int) -> int:
    """Return a count with two digits that matter, rounded up: it comes from an estimate."""
    unit: int = 10 ** max(0, len(str(count)) - 2)
    return math.ceil(count / unit) * unit


def margin_evidence(rule: Rule, found: MetricChange) -> Evidence:
    """Return the difference from the baseline as the evidence for a margin rule."""
    if found.change is None:
        nothing = _nothing_to_compare(rule)
        return Evidence(note=nothing, unscored=found.unscored, undecided=found.undecided)
    bounds = found.bounds
    return replace(
        Evidence.of(found.change),
        unscored=found.unscored,
        extremes=None if bounds is None else (Evidence.of(bounds.worst), Evidence.of(bounds.best)),
        undecided=found.undecided,
        unreported=found.unreported,
    )


def _margin_limit(rule: Rule) -> float:
    """Return the change on the margin, as :func:`_turned`: better ones are acceptable, worse ones are not."""
    return -math.log1p(rule.limit) if rule.described.scale == "amount" else -rule.limit


def _turned(rule: Rule, number: float) -> float:
    """Return a change so that higher is better and 0 is no difference."""
    if rule.described.scale == "amount":
        number = math.log(number) if number > 0 else -math.inf
    return number if rule.described.higher_is_better else -number


def _nothing_to_compare(rule: Rule) -> str:
    asked = attempts_asked(rule.metric)
    if asked is not None and asked > 1:
        return f"no row has {asked} attempts with a score in both runs."
    if rule.described.scale == "amount":
        return "no row has a value above zero in both runs."
    return "no row has this number in both runs."


def margin_words(rule: Rule, number: float | None) -> str:
    """Format a change in the unit of its rule (points, percent or plain), always with its sign."""
    if number is None:
        return "unknown"
    unit = {"amount": "%", "share": " points"}.get(rule.described.scale, "")
    return f"{margin_number(rule, number)}{unit}"


def margin_number(rule: Rule, number: float) -> str:
    """Return a change without its unit: ``-3.6`` points or percent, ``+0.033``."""
    scale = rule.described.scale
    digits = 3 if scale == "value" else 1
    number = {"amount": 100 * (number - 1), "share": 100 * number}.get(scale, number)
    text = f"{number:+.{digits}f}"
    return text.lstrip("+-") if float(text) == 0 else text


def alone(run: RunSamples) -> RunPair:
    """Return a run as a pair of which only the candidate's side is looked at."""
    return RunPair.of(run, run, None)


def rows_of(pair: RunPair) -> int:
    """Return on how many rows the candidate has samples."""
    rows = pair.b.rows
    return int(np.unique(rows[rows >= 0]).size)


def sampled_evidence(side: LabelledRun, rule: Rule, settings: ChangeSettings) -> Evidence:
    """Return the values of a rule's metric for the attempts of a run."""
    metric = rule.metric
    if not rule.described.compared:
        return Evidence(note=f"`{metric}` is known only for a whole run.")
    found = Evidence.of(estimate_of(side, metric, settings))
    if metric in RATIO_METRICS:
        return replace(found, unreported=side.unreported(metric))
    return with_unscored(found, side, metric, settings)


def with_unscored(found: Evidence, side: LabelledRun, metric: str, settings: ChangeSettings) -> Evidence:
    """Add to a metric what it would be with all unscored attempts at the lowest, and at the highest score."""
    missing = int(side.values("unscored").values.sum()) if needs_scores(metric) else 0
    if not missing:
        return found
    lowest, highest = settings.reward_range or (None, None) if metric == "reward" else (0.0, 1.0)
    if lowest is None or highest is None:
        return replace(found, unscored=missing, undecided=describe_unknown_range(missing))
    at_lowest, at_highest = (
        Evidence.of(estimate_of(side, metric, settings, score)) for score in (lowest, highest)
    )
    return replace(found, unscored=missing, extremes=(at_lowest, at_highest))


def describe_unknown_range(missing: int) -> str:
    """Explain why a rule on rewards has no verdict."""
    what = "1 attempt has" if missing == 1 else f"{missing:,} attempts have"
    return f"{what} no score and the range of rewards is unknown; set it with --reward-range LOW,HIGH."


def spread_of_run(side: LabelledRun, metric: str) -> VarianceComponents | None:
    """Return the variance of a metric in a run; None if the metric is not one number per attempt."""
    attempts = _by_attempt(side, metric)
    return None if attempts is None else VarianceComponents.of(*attempts)


def judge_pair(
    rule: Rule, pair: RunPair, settings: ChangeSettings, undecided: str | None = None
) -> RuleResult:
    """Apply a margin rule to two runs; ``undecided`` is why they decide nothing."""
    found = change_of(pair, rule.metric, settings)
    undecided = undecided or found.undecided
    if undecided is None and rule.metric == "reward" and found.unscored and settings.reward_range is None:
        undecided = describe_unknown_range(found.unscored)
    evidence = margin_evidence(rule, replace(found, undecided=undecided))
    judged = judge(rule, evidence, confidence=settings.confidence)
    change = found.change
    if undecided is not None or change is None or change.at_least is None or change.at_most is None:
        return judged
    if judged.verdict == "pass" or judged.settles is not None:
        return judged
    costs = [cost_of_attempt(side.run) for side in (pair.a, pair.b)]
    settles = settle(
        _spread(pair, found, settings),
        _turned(rule, change.value) - _margin_limit(rule),
        change.rows,
        attempts_of(pair.b.run),
        confidence=settings.confidence,
        cost_attempt=None if None in costs else math.fsum(cost or 0.0 for cost in costs),
    )
    return replace(judged, settles=settles)


def cost_of_attempt(run: RunSamples) -> float | None:
    """Return the mean cost of the attempts with a known cost, in US dollars; None if it is unknown or zero."""
    costs = run.samples["cost_usd"]
    known = costs[np.isfinite(costs)]
    return float(known.mean()) or None if known.size else None


def attempts_of(run: RunSamples) -> int:
    """Return how many attempts a run makes on each row."""
    if run.inputs.n is not None:
        return run.inputs.n
    return max(1, int(np.bincount(run.samples["row"]).max(initial=1)))


def _spread(pair: RunPair, found: MetricChange, settings: ChangeSettings) -> VarianceComponents | None:
    a, b, change = _by_attempt(pair.a, found.metric), _by_attempt(pair.b, found.metric), found.change
    if pair.paired and a is not None and b is not None and found.described.scale != "amount":
        return VarianceComponents.of_pairs(*a, *b)
    if change is not None and found.spread is not None:
        return VarianceComponents(found.spread, None, change.rows, 1.0)
    if change is None or change.low is None or change.high is None or change.rows < 2:
        return None
    # The variance behind the interval; for a ratio, that of its logarithm.
    low, high = change.low, change.high
    if change.kind == "ratio":
        if low <= 0:
            return None
        low, high = math.log(low), math.log(high)
    from scipy.special import stdtrit

    stderr = (high - low) / 2 / float(stdtrit(change.rows - 1, (1 + settings.confidence) / 2))
    return VarianceComponents(stderr**2 * change.rows, None, change.rows, 1.0)


def _by_attempt(side: LabelledRun, metric: str) -> Attempts | None:
    """Return the number that each attempt, or row, has of a metric; None of one that needs several attempts."""
    return None if attempts_asked(metric) is not None else side.values(metric)
