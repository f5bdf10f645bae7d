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
from typing import TYPE_CHECKING, Any, Literal

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
from osmosis_ai.decisions.changes import RATIO_METRICS, change_of, estimate_of
from osmosis_ai.decisions.differences import NUMBER_KEYS, Difference
from osmosis_ai.decisions.samples import RunPair
from osmosis_ai.errors import OsmosisError
from osmosis_ai.statistics.estimates import (
    CONFIDENCE,
    ClusteredRate,
    Estimate,
    korn_graubard_interval,
    student_interval,
)
from osmosis_ai.statistics.power import MOST_ROWS, POWER, n_needed, rows_needed
from osmosis_ai.statistics.variance import VarianceComponents
from osmosis_ai.ui.numbers import percent

if TYPE_CHECKING:
    from osmosis_ai.decisions.changes import ChangeSettings, MetricChange
    from osmosis_ai.decisions.samples import Attempts, LabelledRun, RunSamples


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
            return cls(note="no sample has this number.")
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
        raise OsmosisError(
            "A gate needs at least one rule.", hint="for example --min pass_rate=0.8 --max unscored=0.05"
        )
    minima, maxima = ([rule for rule in rules if rule.bound == bound] for bound in ("min", "max"))
    for least, most in product(minima, maxima):
        if least.metric == most.metric and least.limit > most.limit:
            raise OsmosisError(f"No run meets both '{least}' and '{most}'.", hint="remove one of them")


def require_known(rules: Iterable[Rule], metrics: Sequence[str], of: str) -> None:
    """Check that the metrics of all rules are available."""
    for rule in rules:
        if rule.kind not in metrics:
            raise OsmosisError(f"{of} has no metric '{rule.metric}'.", hint=f"it has {', '.join(metrics)}")


def require_pass_at(rules: Iterable[Rule], known: Sequence[int]) -> None:
    """Check that a finished run has the k of each pass@k and pass^k rule, which is otherwise never decided."""
    for rule in rules:
        wanted_k = attempts_asked(rule.metric)
        if wanted_k is not None and wanted_k not in known:
            listed = ", ".join(f"{rule.metric[:5]}{k}" for k in known)
            raise OsmosisError(
                f"The run has no {rule.metric}.",
                hint=f"it has {listed}" if known else "it has one attempt per row; use pass_rate",
            )


def judge(
    rule: Rule, evidence: Evidence, *, unfinished: str | None = None, confidence: float = CONFIDENCE
) -> RuleResult:
    """Apply a rule."""
    if unfinished is not None:
        return RuleResult(rule, evidence.shown(), "unclear", unfinished)
    if evidence.undecided is not None:
        return RuleResult(rule, evidence.shown(), "unclear", evidence.undecided)
    found = _measured(rule, evidence, confidence)
    if found.verdict == "unclear":
        return replace(found, reason=_with_unscored(found, evidence))
    for each, score in zip(evidence.extremes or (), ("lowest", "highest"), strict=False):
        if _measured(rule, each, confidence).verdict != found.verdict:
            return replace(
                found,
                verdict="unclear",
                reason=(
                    f"{found.reason.rstrip('.')}, but between {_number(rule, each.at_least)} and "
                    f"{_number(rule, each.at_most)} with {count_unscored(evidence.unscored)} at the {score} score."
                ),
                settles=f"score {count_unscored(evidence.unscored)}",
            )
    return replace(found, reason=_with_unscored(found, evidence))


def _with_unscored(found: RuleResult, evidence: Evidence) -> str:
    """Return the reason for a verdict, with the bounds under all scores of the unscored attempts."""
    if evidence.extremes is None or evidence.value is None:
        return found.reason
    lowest, highest = (each.shown() for each in evidence.extremes)
    low, high = _number(found.rule, lowest.at_least), _number(found.rule, highest.at_most)
    attempts = count_unscored(evidence.unscored)
    if found.verdict == "unclear":
        if lowest.at_least is None or highest.at_most is None:
            return found.reason
        bounds = f"between {low} and {high} with {attempts} at any score"
    elif (found.rule.bound == "min") == (found.verdict == "pass"):
        bounds = f"at least {low} with {attempts} at the lowest score"
    else:
        bounds = f"at most {high} with {attempts} at the highest score"
    return f"{found.reason.rstrip('.')}; it is {bounds}."


def count_unscored(count: int) -> str:
    """Return "the 11 unscored attempts"."""
    return f"the {count:,} unscored {'attempt' if count == 1 else 'attempts'}"


def _measured(rule: Rule, evidence: Evidence, confidence: float) -> RuleResult:
    """Apply a rule to a measured number."""
    level = f"with {100 * confidence:g}% confidence"
    low, high, limit = evidence.at_least, evidence.at_most, rule.limit
    evidence = evidence.shown()
    lower, upper = _number(rule, evidence.at_least), _number(rule, evidence.at_most)
    if evidence.value is None:
        return RuleResult(rule, evidence, "unclear", _why(evidence, "the run does not have this metric."))
    if is_exact(rule):
        # No upper bound ever reaches a limit of 0, so the share itself decides.
        clause = f"the share is {_number(rule, evidence.value)}"
        return RuleResult(rule, evidence, "fail" if evidence.value else "pass", _sentence(clause, evidence))
    is_amount = rule.described.scale == "amount"
    if is_amount and rule.bound == "max" and evidence.value == 0 and not evidence.unreported:
        return RuleResult(rule, evidence, "pass", _sentence("it is zero", evidence))
    if rule.bound == "max":
        met, missed = high is not None and high <= limit, low is not None and low > limit
        safe, beyond = f"at most {upper}", f"at least {lower}"
    else:
        met, missed = low is not None and low >= limit, high is not None and high < limit
        safe, beyond = f"at least {lower}", f"at most {upper}"
    if met:
        return RuleResult(rule, evidence, "pass", _sentence(f"it is {safe} {level}", evidence))
    if missed:
        return RuleResult(rule, evidence, "fail", _sentence(f"it is {beyond} {level}", evidence))
    if low is None or high is None:
        no_variance = "the data do not determine the variance; evaluate more rows."
        if evidence.rows == 1:
            no_variance = "the variance cannot be estimated from one row; evaluate more."
        return RuleResult(rule, evidence, "unclear", _why(evidence, no_variance))
    between = f"it is between {lower} and {upper}"
    return RuleResult(rule, evidence, "unclear", _sentence(between, evidence, "evaluate more rows"))


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
    metric: str,
    estimates: Mapping[str, Any],
    *,
    rows: int | None = None,
    confidence: float = CONFIDENCE,
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
    mean: float,
    std: float,
    samples: int,
    rows: int | None,
    *,
    note: str = "",
    confidence: float = CONFIDENCE,
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
        raise OsmosisError(f"'{shown}' is not a rule.", hint=f"write it as --{bound} METRIC=NUMBER")
    rule, metric = Rule(name, bound, 0.0), metric_named(name)
    known = list(dict.fromkeys((*RUN_METRICS, *RUBRIC_METRICS)))
    if metric is None and name not in RUBRIC_METRICS:
        suggestion = suggested_metric(name) or closest(name, RUBRIC_METRICS)
        raise OsmosisError(
            f"'{shown}' has an unknown metric: '{name}'.",
            details={"metric": name, "metrics": known, "suggestion": suggestion},
            hint=f"did you mean '{suggestion}'?" if suggestion else f"choose from {', '.join(known)}",
        )
    try:
        limit = float(number)
    except ValueError:
        limit = math.nan
    if not math.isfinite(limit):
        raise OsmosisError(
            f"'{shown}' has an invalid number: '{number}'.", hint=f"for example --{bound} {name}=0.8"
        )
    problem = (margin_problem if bound == "margin" else limit_problem)(rule.described, limit)
    if problem:
        raise OsmosisError(f"'{shown}' is invalid: {problem if bound == 'margin' else f'{name} {problem}'}.")
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
    over = [f"{evidence.samples} samples" if evidence.samples is not None else ""]
    over += [f"{evidence.rows} rows" if evidence.rows is not None else ""]
    counted = " of ".join(part for part in over if part)
    text = f"{clause} ({counted})" if counted else clause
    text = f"{text}; {advice}" if advice else text
    if evidence.unreported:
        text = f"{text}; {describe_unreported(evidence.unreported)}"
    return f"{text}; {evidence.note}" if evidence.note else f"{text}."


def _number(rule: Rule, value: float | None) -> str:
    shown = format_share if rule.described.scale == "share" else "{:.4g}".format
    return "unknown" if value is None else shown(value)


def format_share(value: float) -> str:
    """Return a share as a percentage; one that is not 0 never reads as 0.0%."""
    return f"{100 * value:.1g}%" if 0 < value < 0.0005 else percent(value)


@dataclass(frozen=True, slots=True)
class Settlement:
    """The additional rows, or the attempts a row, that would decide an inconclusive result."""

    words: str
    more_rows: int | None = None
    n: int | None = None


def settle(
    spread: VarianceComponents | None,
    distance: float,
    rows: int,
    n: int,
    *,
    confidence: float = CONFIDENCE,
    power: float = POWER,
    sides: int = 1,
    cost_attempt: float | None = None,
    rows_left: int | None = None,
) -> Settlement:
    """Say what would settle a question, if the value stayed where it was found."""
    if spread is None:
        return Settlement("more rows: one says nothing about others")
    if distance == 0 or not math.isfinite(distance):
        return Settlement("no number of rows or attempts would do: the value lies on the limit itself")
    if spread.row_mean_variance(n) == 0:
        return Settlement(
            "more rows: those there are came out all the same, which says nothing of the spread"
        )
    asked = rows_needed(distance, spread, n, confidence=confidence, power=power, sides=sides)
    # Where t would have been enough, a more careful method was at work: a tenth more is the least that may tell.
    more_rows = None if asked is None else _about(max(asked - rows, math.ceil(rows / 10)))
    attempts = n_needed(distance, spread, rows, confidence=confidence, power=power, sides=sides)
    if attempts is not None:
        attempts = max(attempts, n + 1)
    if rows_left is not None and more_rows is not None and more_rows > rows_left:
        more_rows = None
    price = cost_attempt if cost_attempt is not None and cost_attempt >= 0 else None

    def cost(of_rows: int, of_n: int) -> str:
        if price is None:
            return ""
        dollars = price * of_rows * of_n
        return f": ${dollars:,.2f}" if dollars >= 0.01 or not dollars else ": under $0.01"

    ways = []
    if more_rows is not None:
        ways.append(f"about {more_rows:,} more {'row' if more_rows == 1 else 'rows'}{cost(more_rows, n)}")
    if attempts is not None:
        ways.append(f"n = {attempts:,}{cost(rows, attempts - n)}")
    if rows_left is not None:
        none = f"no number of attempts on {rows + rows_left:,} rows: the dataset has no more"
    else:
        none = f"no number of attempts on {rows:,} rows, nor {MOST_ROWS:,} of them"
    return Settlement(", or ".join(ways) or none, more_rows, attempts)


def _about(count: int) -> int:
    """Return a count with two digits that matter, rounded up: it comes from an estimate."""
    unit: int = 10 ** max(0, len(str(count)) - 2)
    return math.ceil(count / unit) * unit


def judge_margin(
    rule: Rule,
    found: MetricChange,
    *,
    confidence: float = CONFIDENCE,
    spread: VarianceComponents | None = None,
    attempts: int = 1,
    cost_attempt: float | None = None,
) -> RuleResult:
    """Apply a margin rule to the metric's change; the last three say what would settle it (:func:`settle`)."""
    margin, change, bounds = _Margin(rule), found.change, found.bounds
    unscored = count_unscored(found.unscored)
    if change is None:
        evidence = Evidence(note=_nothing_to_compare(rule), unscored=found.unscored)
    else:
        extremes = None if bounds is None else (Evidence.of(bounds.worst), Evidence.of(bounds.best))
        evidence = replace(
            Evidence.of(change), unscored=found.unscored, extremes=extremes, unreported=found.unreported
        )

    def result(verdict: Verdict, reason: str, settles: str | None = None) -> RuleResult:
        return RuleResult(rule, evidence.shown(), verdict, reason, settles)

    if found.undecided is not None:
        return result("unclear", found.undecided)
    if change is None:
        return result("unclear", evidence.note)
    text = f"it is {margin_words(rule, change.value)} against the baseline"
    if change.at_least is None or change.at_most is None:
        return result("unclear", f"{text}; {change.reason}.")
    verdict = margin.verdict(change)
    if bounds is not None and verdict != "unclear":
        for extreme, how in ((bounds.worst, "against it"), (bounds.best, "in its favor")):
            if margin.verdict(extreme) != verdict:
                between = f"between {margin.between(extreme)} with {unscored} counted {how}"
                reason = f"{text} over scored attempts, but {between}."
                return result("unclear", reason, f"score {unscored}")
    if verdict == "unclear":
        text = f"{text}, between {margin.between(change)}"
        if bounds is not None:
            text = (
                f"{text}; between {margin.between(bounds.worst)} with {unscored} counted against it, "
                f"and between {margin.between(bounds.best)} in its favor"
            )
    else:
        passes = verdict == "pass"
        end = 0 if passes == rule.described.higher_is_better else 1
        bound = margin.shown_bounds(change)[end]
        text = f"{text}, at {'worst' if passes else 'best'} {bound} with {100 * confidence:g}% confidence"
        if bounds is not None:
            bound = margin.shown_bounds(bounds.worst if passes else bounds.best)[end]
            text = f"{text}, {bound} with {unscored} counted {'against it' if passes else 'in its favor'}"
    counted = f"{change.rows:,} {'row' if change.rows == 1 else 'rows'}"
    method = "" if change.method is None else f", {change.method}"
    notes = [] if change.warning is None else [change.warning.rstrip(".")]
    notes += [describe_unreported(found.unreported)] if found.unreported else []
    reason = f"{'; '.join([f'{text} ({counted}{method})', *notes])}."
    if verdict == "pass":
        return result(verdict, reason)
    distance = margin.turned(change.value) - margin.limit
    settles = settle(
        spread, distance, change.rows, attempts, confidence=confidence, cost_attempt=cost_attempt
    )
    return result(verdict, reason, settles.words)


@dataclass(frozen=True)
class _Margin:
    """A margin rule, with changes turned so that higher is better and 0 is no difference."""

    rule: Rule

    @property
    def limit(self) -> float:
        """The change on the margin: better ones are acceptable, worse ones are not."""
        return -math.log1p(self.rule.limit) if self.rule.described.scale == "amount" else -self.rule.limit

    def turned(self, number: float) -> float:
        if self.rule.described.scale == "amount":
            number = math.log(number) if number > 0 else -math.inf
        return number if self.rule.described.higher_is_better else -number

    def verdict(self, change: Difference) -> Verdict:
        """Return what the bounds of a change prove about the margin."""
        if change.at_least is None or change.at_most is None:
            return "unclear"
        worst, best = sorted((self.turned(change.at_least), self.turned(change.at_most)))
        return "pass" if worst > self.limit else "fail" if best < self.limit else "unclear"

    def shown_bounds(self, change: Difference) -> tuple[str, str]:
        shown = Evidence.of(change).shown()
        return margin_words(self.rule, shown.at_least), margin_words(self.rule, shown.at_most)

    def between(self, change: Difference) -> str:
        return " and ".join(self.shown_bounds(change))


def _nothing_to_compare(rule: Rule) -> str:
    asked = attempts_asked(rule.metric)
    if asked is not None and asked > 1:
        return f"no row has {asked} attempts with a score in both runs."
    if rule.described.scale == "amount":
        return "no row has more than nothing of it in both runs."
    return "no row has this number in both runs."


def margin_words(rule: Rule, number: float | None) -> str:
    """Return a change in the words of its rule: points, percent or as it is; always with its sign."""
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
    import numpy as np

    rows = pair.b.rows
    return int(np.unique(rows[rows >= 0]).size)


def sampled_evidence(side: LabelledRun, rule: Rule, settings: ChangeSettings) -> Evidence:
    """Return what the attempts of a run say about the metric of a rule."""
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
    costs = [cost_of_attempt(side.run) for side in (pair.a, pair.b)]
    undecided = undecided or found.undecided
    if undecided is None and rule.metric == "reward" and found.unscored and settings.reward_range is None:
        undecided = describe_unknown_range(found.unscored)
    return judge_margin(
        rule,
        replace(found, undecided=undecided),
        confidence=settings.confidence,
        spread=_spread(pair, found, settings),
        attempts=attempts_of(pair.b.run),
        cost_attempt=None if None in costs else math.fsum(cost or 0.0 for cost in costs),
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
