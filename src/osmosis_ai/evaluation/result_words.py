"""An evaluation's numbers in words, one spelling for pages, reports and the terminal.

Each has its interval and what it stands on, so that no number is read without what it leaves out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from osmosis_ai.controller.outcomes import category_of
from osmosis_ai.evaluation.headline import LEAST_SCORED, Headline, breakdown, pass_rule, scored_of_planned
from osmosis_ai.ui import numbers

if TYPE_CHECKING:
    from osmosis_ai.controller.outcomes import LimitName
    from osmosis_ai.datasets.selection import RowsDrawn
    from osmosis_ai.evaluation.metrics_models import Estimates
    from osmosis_ai.evaluation.statistics import Percentiles


@dataclass(frozen=True, slots=True)
class NumberLine:
    """A number of a run as people read it."""

    label: str
    value: str
    interval: str
    over: str
    method: str = ""
    is_result: bool = False


def number_lines(estimates: Estimates) -> Iterator[NumberLine]:
    """Yield every number of an evaluation."""
    reward, rate = estimates.reward, estimates.pass_rate
    if reward is not None:
        over = f"{amount(reward.n, 'scored sample')} of {amount(reward.clusters, 'row')}"
        yield NumberLine(
            "Reward",
            numbers.number(reward.value),
            numbers.interval(reward),
            over,
            reward.method or "",
            is_result=True,
        )
    if rate is not None:
        over = f"{amount(rate.n, 'sample')} of {amount(rate.clusters, 'row')}"
        label = f"Pass rate ({pass_rule(estimates.pass_threshold)})"
        interval = numbers.interval(rate, percent=True)
        yield NumberLine(
            label, numbers.percent(rate.value), interval, over, rate.method or "", is_result=True
        )
    named = [
        (f"pass@{k}", f"with {k} or more scored attempts", each) for k, each in estimates.pass_at_k.items()
    ]
    # pass^1 is pass@1
    named += [
        (f"pass^{k}", f": all of {k} attempts pass", each)
        for k, each in estimates.pass_hat_k.items()
        if k > 1
    ]
    for label, rule, each in named:
        rows = amount(each.clusters, "row")
        over = f"{rows}{rule}" if rule.startswith(":") else f"{rows} {rule}"
        interval = numbers.interval(each, percent=True)
        yield NumberLine(label, numbers.percent(each.value), interval, over, each.method or "")
    yield from _spent(estimates)
    latency, calling = estimates.latency, "that called the model"
    yield from _latencies("Latency of a rollout", latency.rollout_ms, "that ended")
    yield from _latencies("  of it, in the model", latency.model_ms, calling)
    yield from _latencies("  elsewhere (agent, tools, grader, queue)", latency.elsewhere_ms, calling)


def _spent(estimates: Estimates) -> Iterator[NumberLine]:
    tokens, cost, judges = estimates.tokens, estimates.cost_usd, estimates.judges
    unreported = tokens.unreported_samples
    is_known = tokens.known_samples > 0 or not unreported
    said = [f"{tokens.prompt:,} prompt, {tokens.completion:,} completion"] if is_known else []
    if tokens.per_sample is not None:
        said.append(f"{tokens.per_sample:,.0f} a sample")
    if unreported:
        attempts = amount(tokens.known_samples + unreported, "attempt")
        said.append(f"reported for {tokens.known_samples:,} of {attempts}")
    yield NumberLine("Tokens", f"{tokens.total:,}" if is_known else "unknown", "", ", ".join(said))
    if cost.total is not None:
        known = f"{cost.known_samples:,} of {cost.recorded_samples:,} samples"
        yield NumberLine("Cost", numbers.money(cost.total), "", known)
    if judges is not None:
        spent = "price not known" if judges.cost_usd is None else numbers.money(judges.cost_usd)
        judged = amount(judges.tokens, "token") if judges.tokens else "tokens unknown"
        said = [amount(judges.calls, "call"), judged]
        if judges.outside_scale:
            said.append(f"{amount(judges.outside_scale, 'score')} outside the scale, clamped")
        yield NumberLine("Judges", spent, "", ", ".join(said))


def _latencies(label: str, latency: Percentiles | None, which: str) -> Iterator[NumberLine]:
    if latency is not None:
        tail = f"p90 {_ms(latency.p90)} · p95 {_ms(latency.p95)} · p99 {_ms(latency.p99)}"
        attempts = "attempts" if latency.n is None else amount(latency.n, "attempt")
        yield NumberLine(label, f"p50 {_ms(latency.p50)}", "", f"{tail} · over {attempts} {which}")


LIMITS: dict[LimitName, str] = {
    "provider": "the model",
    "rate_limit": "the provider's rate limit",
    "this_machine": "this machine",
}


_RAISED = "agent_error"
"""The wire's word for any exception, of the grader's code too: beside the boundary where it failed, it would name another."""


def _reasons(unscored: Mapping[str, int]) -> dict[str, int]:
    """Return why samples have no score, and how many for each reason, in words that name no boundary."""
    said: Counter[str] = Counter()
    for reason, count in unscored.items():
        said[category_of(reason) if reason == _RAISED else reason] += count
    return dict(said)


def sample_counts(estimates: Estimates, rows: RowsDrawn | None) -> Iterator[tuple[str, str]]:
    """Yield what became of the work items, and of which rows they are."""
    counts = estimates.counts
    if rows is not None:
        yield "Rows", rows.words
    yield "Scored", scored_of_planned(counts.scored, counts.planned)
    if counts.unscored:
        yield "Unscored", breakdown(_reasons(counts.unscored))
    if counts.failed_by_boundary:
        yield "Failed, by boundary", breakdown(counts.failed_by_boundary)
        yield "  for reasons of infrastructure", f"{counts.infrastructure_failures:,}"
    if counts.skipped:
        yield "Skipped by the grader", f"{counts.skipped:,}"
    if counts.lost_attempts:
        yield "Lost and made again", f"{counts.lost_attempts:,}"
    if (finish := estimates.finish) is not None:
        found = {
            "Truncated (token limit)": finish.truncated,
            "Filtered": finish.filtered,
            "Refused": finish.refused,
        }
        for label, count in found.items():
            if count:
                yield label, f"{count:,} of {amount(finish.known_samples, 'attempt')}"
    limited = estimates.limited_by
    if limited is not None:
        yield "Held back by", f"{LIMITS[limited.most]}, {getattr(limited, limited.most):.0%} of the time"


def sentence(headline: Headline | None, *, goes_on: bool, is_readable: bool = True) -> str:
    """Return a run's result in a sentence: how many pass of what was scored, and of how many that is."""
    if headline is None and not is_readable:
        return "Its results can not be read."
    if headline is None or headline.pass_rate is None:
        planned = headline.scored_words if headline is not None else ""
        may_come = goes_on and not (headline is not None and headline.is_over)
        none = f"No sample has a score{' yet' if may_come else ''}"
        return f"{none}: {planned} scored." if planned else f"{none}."
    within = ""
    if headline.low is not None and headline.high is not None:
        within = f" ({numbers.percent_range(headline.low, headline.high)})"
    verb = "passes" if headline.scored == 1 else "pass"
    passing = f"{numbers.percent(headline.pass_rate)} of {amount(headline.scored, 'scored sample')}"
    return f"{passing} {verb}{within}; {headline.scored_words} scored."


def few_scored_bounds(headline: Headline | None, passed: int | None = None) -> str | None:
    """Return between what a pass rate lies that too few of the finished samples are behind; None where there are enough.

    The bounds are the rates, were all that have no score to fail, and to pass (Manski 1990); over samples.

    Args:
        headline: of the run.
        passed: how many samples passed; None where nobody says, which takes them from the rate.
    """
    if headline is None:
        return None
    scored, finished = headline.scored, headline.planned - headline.pending - headline.skipped
    if finished <= 0 or scored >= LEAST_SCORED * finished:
        return None
    unscored = finished - scored
    known = round((headline.pass_rate or 0.0) * scored) if passed is None else passed
    share, worst, best = (numbers.percent(count / finished) for count in (scored, known, known + unscored))
    return (
        f"Only {scored:,} of {finished:,} finished samples have a score ({share}). Were all {unscored:,} others to fail, "
        f"{worst} of {finished:,} would pass; were all to pass, {best}."
    )


def amount(count: int, noun: str) -> str:
    """Return ``1 row``, ``2 rows``."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def _ms(milliseconds: float) -> str:
    return numbers.duration(milliseconds / 1000)
