"""The rules of a gate and their verdicts.

A rule compares a metric with a limit; a metric measured on a sample is only known within bounds. ``--min`` passes if the
one-sided 95% lower bound is at or above the limit, fails if the upper bound is below it, and is inconclusive in between.
``--max`` is the mirror image. So an agent below the limit passes at most once in twenty times, however small the run.
``--margin`` compares a run with a baseline (:mod:`~osmosis_ai.decisions.gate_rules`).

Attempts without a score are missing evidence. A verdict on a score must also hold with all of them at the lowest score
and with all of them at the highest, each with its own interval.

A gate passes if all its rules pass, so passing needs no adjustment (an intersection-union test, Berger 1982). Any rule
can fail it, so failures are adjusted for the number of rules (Holm).

Sources:
    Berger 1982, "Multiparameter Hypothesis Testing and Acceptance Sampling", Technometrics 24(4).
    Holm 1979, "A Simple Sequentially Rejective Multiple Test Procedure".
    Manski 1990, "Nonparametric Bounds on Treatment Effects" (worst and best case of missing outcomes).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, Literal

from osmosis_ai.config.decisions import (
    METRICS,
    Metric,
    attempts_asked,
    limit_problem,
    margin_problem,
    metric_named,
    suggested_metric,
)
from osmosis_ai.config.issues import closest
from osmosis_ai.errors import OsmosisError
from osmosis_ai.statistics.estimates import CONFIDENCE
from osmosis_ai.statistics.intervals import ClusteredRate, korn_graubard_interval, student_interval

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
        described = metric_named(self.metric)
        return self.metric if described is None else described.name

    @property
    def described(self) -> Metric:
        """The metric; one that only a judge's result file has counts as a value."""
        return metric_named(self.metric) or Metric(self.metric, True, "value", compared=False)

    def __str__(self) -> str:
        sign = (
            ">="
            if self.bound == "min" or (self.bound == "margin" and self.described.higher_is_better)
            else "<="
        )
        if self.bound == "margin" and self.limit == 0:
            sign = sign.rstrip("=")
        text = f"{self.metric} {sign} {self._limit_words()}"
        if self.slice is None:
            return text
        column, value = self.slice
        return f"{text} where {column} {'is missing' if value is None else f'= {value}'}"

    def _limit_words(self) -> str:
        if self.bound != "margin":
            return f"{self.limit:g}"
        if self.limit == 0:
            return "baseline"
        metric = self.described
        unit = {"share": f"{100 * self.limit:g} points", "amount": f"{100 * self.limit:g} %"}
        return (
            f"baseline {'-' if metric.higher_is_better else '+'} {unit.get(metric.scale, f'{self.limit:g}')}"
        )


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
        """Return the JSON form of a number (as ``comparison.numbers.number_data``)."""
        reason = self.note or None if self.at_least is None and self.at_most is None else None
        names = ("value", "low", "high", "rows", "samples", "method", "p")
        return {**{name: getattr(self, name) for name in names}, "p_adjusted": None, "reason": reason}


@dataclass(frozen=True)
class RuleResult:
    """The verdict on a rule, with the reason in a sentence."""

    rule: Rule
    evidence: Evidence
    verdict: Verdict
    reason: str
    settles: str | None = None

    def data(self) -> dict[str, Any]:
        rule, evidence = self.rule, self.evidence
        found: dict[str, Any] = {
            "metric": rule.metric,
            "bound": rule.bound,
            "limit": rule.limit,
            "slice": None if rule.slice is None else dict(zip(("column", "value"), rule.slice, strict=True)),
            "value": evidence.value,
            "at_least": evidence.at_least,
            "at_most": evidence.at_most,
            "rows": evidence.rows,
            "samples": evidence.samples,
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
                    f"{found.reason.rstrip('.')}, but between {_number(each.at_least)} and {_number(each.at_most)} "
                    f"with {count_unscored(evidence.unscored)} at the {score} score."
                ),
                settles=f"score {count_unscored(evidence.unscored)}",
            )
    return replace(found, reason=_with_unscored(found, evidence))


def _with_unscored(found: RuleResult, evidence: Evidence) -> str:
    """Return the reason for a verdict, with the bounds under all scores of the unscored attempts."""
    if evidence.extremes is None or evidence.value is None:
        return found.reason
    lowest, highest = (each.shown() for each in evidence.extremes)
    attempts = count_unscored(evidence.unscored)
    if found.verdict == "unclear":
        if lowest.at_least is None or highest.at_most is None:
            return found.reason
        bounds = (
            f"between {_number(lowest.at_least)} and {_number(highest.at_most)} with {attempts} at any score"
        )
    elif (found.rule.bound == "min") == (found.verdict == "pass"):
        bounds = f"at least {_number(lowest.at_least)} with {attempts} at the lowest score"
    else:
        bounds = f"at most {_number(highest.at_most)} with {attempts} at the highest score"
    return f"{found.reason.rstrip('.')}; it is {bounds}."


def count_unscored(count: int) -> str:
    """Return "the 11 unscored attempts"."""
    return f"the {count:,} unscored {'attempt' if count == 1 else 'attempts'}"


def _measured(rule: Rule, evidence: Evidence, confidence: float) -> RuleResult:
    """Apply a rule to a measured number."""
    level = f"with {100 * confidence:g}% confidence"
    low, high, limit = evidence.at_least, evidence.at_most, rule.limit
    evidence = evidence.shown()
    if evidence.value is None:
        return RuleResult(rule, evidence, "unclear", _why(evidence, "the run does not have this metric."))
    if is_exact(rule):
        return _exactly_zero(rule, evidence)
    is_amount = rule.described.scale == "amount"
    if is_amount and rule.bound == "max" and evidence.value == 0 and not evidence.unreported:
        return RuleResult(rule, evidence, "pass", _sentence("it is zero", evidence))
    if rule.bound == "max":
        met, missed = high is not None and high <= limit, low is not None and low > limit
        safe, beyond = f"at most {_number(evidence.at_most)}", f"at least {_number(evidence.at_least)}"
    else:
        met, missed = low is not None and low >= limit, high is not None and high < limit
        safe, beyond = f"at least {_number(evidence.at_least)}", f"at most {_number(evidence.at_most)}"
    if met:
        return RuleResult(rule, evidence, "pass", _sentence(f"it is {safe} {level}", evidence))
    if missed:
        return RuleResult(rule, evidence, "fail", _sentence(f"it is {beyond} {level}", evidence))
    if low is None or high is None:
        return RuleResult(rule, evidence, "unclear", _why(evidence, _no_spread(evidence)))
    between = f"it is between {_number(evidence.at_least)} and {_number(evidence.at_most)}"
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
            found[rule] = replace(found[rule], verdict="unclear", reason=reason)
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
            return Evidence(note=_unknown_k(metric, known))
    else:
        found = estimates.get(metric)
    if not isinstance(found, Mapping):
        return Evidence(note="no attempt of the run has a score.")
    return Evidence(
        value=found.get("value"),
        at_least=found.get("at_least"),
        at_most=found.get("at_most"),
        rows=found.get("clusters"),
        samples=found.get("n"),
        note=_clause(found),
        low=found.get("low"),
        high=found.get("high"),
        method=found.get("method"),
    )


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
        return Evidence(
            mean, rows=rows, samples=samples, note="the variance cannot be estimated from one attempt."
        )
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
        ends: list[float | None] = [
            part.at_least if rule.bound == "min" else part.at_most for part in (each, *(each.extremes or ()))
        ]
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


def _exactly_zero(rule: Rule, evidence: Evidence) -> RuleResult:
    """Apply a limit of 0, which no upper bound ever reaches, to the share itself."""
    if evidence.value == 0:
        return RuleResult(rule, evidence, "pass", _sentence("the share is 0", evidence))
    return RuleResult(rule, evidence, "fail", _sentence(f"the share is {_number(evidence.value)}", evidence))


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


def _clause(found: Mapping[str, Any]) -> str:
    parts = [found[key].rstrip(".") for key in ("reason", "warning") if found.get(key)]
    return f"{'; '.join(parts)}." if parts else ""


def _unknown_k(metric: str, known: Mapping[str, Any]) -> str:
    name = metric[: len("pass@")]
    if not known:
        return f"the run has no {name}k: it has one attempt per row (use pass_rate), or no scores."
    return f"the run has no {metric}, only {', '.join(f'{name}{each}' for each in sorted(known, key=int))}."


def describe_unreported(count: int) -> str:
    """Return "3 attempts did not report it"."""
    return f"{count:,} {'attempt' if count == 1 else 'attempts'} did not report it"


def _why(evidence: Evidence, otherwise: str) -> str:
    """Return the reason for missing bounds, with the number of unreported attempts."""
    why = evidence.note or otherwise
    return f"{why.rstrip('.')}; {describe_unreported(evidence.unreported)}." if evidence.unreported else why


def _no_spread(evidence: Evidence) -> str:
    if evidence.rows == 1:
        return "the variance cannot be estimated from one row; evaluate more."
    return "the data do not determine the variance; evaluate more rows."


def _sentence(clause: str, evidence: Evidence, advice: str = "") -> str:
    over = [f"{evidence.samples} samples" if evidence.samples is not None else ""]
    over += [f"{evidence.rows} rows" if evidence.rows is not None else ""]
    counted = " of ".join(part for part in over if part)
    text = f"{clause} ({counted})" if counted else clause
    text = f"{text}; {advice}" if advice else text
    if evidence.unreported:
        text = f"{text}; {describe_unreported(evidence.unreported)}"
    return f"{text}; {evidence.note}" if evidence.note else f"{text}."


def _number(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.4g}"
