"""The numbers of an evaluation as text, for terminal, pages, reports and JSON."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from osmosis_ai.ui import numbers
from osmosis_ai.ui.numbers import amount, percent

if TYPE_CHECKING:
    from osmosis_ai.datasets.selection import RowsDrawn
    from osmosis_ai.evaluation.metrics import Estimates, RunScore

_BOTTLENECKS = {"provider": "model", "rate_limit": "provider's rate limit", "this_machine": "this machine"}


def pass_rule(threshold: float) -> str:
    return f"reward >= {float(threshold)}, scored attempts only"


def format_rate(score: RunScore) -> str:
    return f"{percent(score.pass_rate)}{format_interval(score)}"


def format_interval(score: RunScore) -> str:
    """Return the interval of the pass rate, ` (62.1–96.8%)`, or ""."""
    if score.pass_rate is None or score.low is None or score.high is None:
        return ""
    return f" ({numbers.percent_range(score.low, score.high)})"


def format_scored(score: RunScore) -> str:
    return f"{score.scored:,} of {score.planned:,} planned"


def format_failed(score: RunScore) -> str:
    """Return the failures by source: ``2: 1 agent, 1 provider``; "" for none."""
    return format_counts(score.failed_by_boundary) if score.failed_by_boundary else f"{score.failed or ''}"


def format_counts(counts: Mapping[str, int]) -> str:
    return f"{sum(counts.values()):,}: " + ", ".join(f"{n:,} {name}" for name, n in counts.items())


def describe_score(score: RunScore) -> str:
    parts = [
        f"pass rate {format_rate(score)} ({pass_rule(score.pass_threshold)})",
        f"scored {format_scored(score)}",
        f"failed {format_failed(score) or 0}",
        f"{score.skipped:,} skipped" if score.skipped else None,
        f"{score.pending:,} pending" if score.pending else None,
        score.rows.words if score.rows is not None else None,
    ]
    return "; ".join(filter(None, parts))


def describe_briefly(score: RunScore) -> str:
    """Return the score for a list whose heading mentions that only scored attempts count."""
    rate = "pass rate unknown" if score.scored else "no scores"
    if score.pass_rate is not None:
        rate = f"{percent(score.pass_rate)} pass (reward >= {float(score.pass_threshold)})"
    failed = f", failed {format_failed(score)}" if score.failed else ""
    return f"{rate}, {format_scored(score)} scored{failed}"


def score_json(score: RunScore | None) -> dict[str, Any] | None:
    if score is None:
        return None
    texts = {"words": describe_score(score), "brief": describe_briefly(score)}
    return {**score.model_dump(mode="json"), "rule": pass_rule(score.pass_threshold), **texts}


def execution_rows(
    advanced: Mapping[str, Any] | None, retry_budget: Mapping[str, Any] | None = None
) -> list[tuple[str, str]]:
    """Return the execution settings of a run's ``[advanced]``; ``retry_budget`` replaces its budget if not empty."""
    from osmosis_ai.config.execution import read_execution

    asked = read_execution(advanced)
    if retry_budget:
        asked = asked.model_copy(update={"max_cost": None, "max_tokens": None, **retry_budget})
    limits = [numbers.money(asked.max_cost)] if asked.max_cost is not None else []
    limits += [amount(asked.max_tokens, "token")] if asked.max_tokens is not None else []
    alone = " for this retry; earlier use does not count" if limits and retry_budget is not None else ""
    requires = [
        f"{number:g} {unit}{'s' if unit.endswith('PU') and number != 1 else ''}"
        for number, unit in ((asked.cpus, "CPU"), (asked.gpus, "GPU"), (asked.memory_gb, "GiB of memory"))
        if number
    ]
    requires += ["sandbox"] * (asked.isolation == "required") + ["no network"] * (asked.network == "none")
    rows = {
        "Pool": asked.pool,
        "Requires": ", ".join(requires),
        "Workers": asked.workers and f"{asked.workers}",
        "Labels": ", ".join(asked.labels or ()),
        "Budget": " or ".join(limits) + alone,
    }
    return [(label, text) for label, text in rows.items() if text]


class NumberLine(NamedTuple):
    label: str
    value: str
    interval: str
    over: str
    method: str = ""
    is_result: bool = False


def number_lines(estimates: Estimates) -> Iterator[NumberLine]:
    reward, rate = estimates.reward, estimates.pass_rate
    if reward is not None:
        value, interval = numbers.number(reward.value), numbers.interval(reward)
        over = f"mean over {amount(reward.clusters, 'row')}, {amount(reward.n, 'scored attempt')}"
        yield NumberLine("Reward", value, interval, over, reward.method or "", is_result=True)
    rates = []
    if rate is not None:
        over = f"mean over {amount(rate.clusters, 'row')}, {amount(rate.n, 'scored attempt')}"
        rates.append((f"Pass rate (reward >= {float(estimates.pass_threshold)})", rate, over))
    for k, each in estimates.pass_at_k.items():
        rates.append((f"pass@{k}", each, f"{amount(each.clusters, 'row')} with {k} or more scored attempts"))
    for k, each in estimates.pass_hat_k.items():
        if k > 1:  # pass^1 is pass@1
            rates.append((f"pass^{k}", each, f"{amount(each.clusters, 'row')}: all of {k} attempts pass"))
    for label, each, over in rates:
        interval = numbers.interval(each, percent=True)
        yield NumberLine(label, percent(each.value), interval, over, each.method or "", each is rate)
    yield from _cost_lines(estimates)
    latency = estimates.latency
    for label, percentiles, which in (
        ("Latency per attempt", latency.rollout_ms, "that ended"),
        ("  in the model", latency.model_ms, "that called the model"),
        ("  elsewhere (agent, tools, grader, queue)", latency.elsewhere_ms, "that called the model"),
    ):
        if percentiles is not None:
            known = (percentiles.p50, percentiles.p90, percentiles.p95, percentiles.p99)
            p50, p90, p95, p99 = (numbers.duration(each / 1000) for each in known)
            over = f"p90 {p90} · p95 {p95} · p99 {p99} · over {amount(percentiles.n, 'attempt')} {which}"
            yield NumberLine(label, f"p50 {p50}", "", over)


def _cost_lines(estimates: Estimates) -> Iterator[NumberLine]:
    tokens, cost, judges = estimates.tokens, estimates.cost_usd, estimates.judges
    known, unreported = tokens.known_samples, tokens.unreported_samples
    is_known = known > 0 or not unreported
    details = [f"{tokens.prompt:,} prompt, {tokens.completion:,} completion"] if is_known else []
    if tokens.per_sample is not None:
        details.append(f"{tokens.per_sample:,.0f} per attempt")
    if unreported:
        details.append(f"reported for {known:,} of {amount(known + unreported, 'attempt')}")
    yield NumberLine("Tokens", f"{tokens.total:,}" if is_known else "unknown", "", ", ".join(details))
    if cost.total is not None:
        over = f"{cost.known_samples:,} of {cost.recorded_samples:,} attempts"
        yield NumberLine("Cost", numbers.money(cost.total), "", over)
    if judges is not None:
        spent = "price unknown" if judges.cost_usd is None else numbers.money(judges.cost_usd)
        used = amount(judges.tokens, "token") if judges.tokens else "tokens unknown"
        details = [amount(judges.calls, "call"), used]
        if judges.outside_scale:
            details.append(f"{amount(judges.outside_scale, 'score')} outside the scale, clamped")
        yield NumberLine("Judges", spent, "", ", ".join(details))


def sample_counts(estimates: Estimates, rows: RowsDrawn | None) -> Iterator[tuple[str, str]]:
    counts, finish, limited = estimates.counts, estimates.finish, estimates.limited_by
    pending = f"{amount(counts.pending, 'attempt')}; the numbers so far favor attempts that end quickly"
    failed = counts.failed_by_boundary
    found: dict[str, object] = {
        "Rows": rows and rows.words,
        "Scored": f"{counts.scored:,} of {counts.planned:,} planned",
        "Pending": counts.pending and pending,
        "Unscored, by code": counts.unscored and format_counts(counts.unscored),
        "Failed, by source": failed and format_counts(failed),
        "  infrastructure failures": failed and f"{counts.infrastructure_failures:,}",
        "Skipped by the grader": counts.skipped and f"{counts.skipped:,}",
        "Lost and repeated": counts.lost_attempts and f"{counts.lost_attempts:,}",
    }
    if finish is not None:
        of = amount(finish.known_samples, "attempt")
        found["Truncated (token limit)"] = finish.truncated and f"{finish.truncated:,} of {of}"
        found["Filtered"] = finish.filtered and f"{finish.filtered:,} of {of}"
        found["Refused"] = finish.refused and f"{finish.refused:,} of {of}"
    if limited is not None:
        share = getattr(limited, limited.most)
        found["Bottleneck"] = f"{_BOTTLENECKS[limited.most]} ({share:.0%} of run time)"
    yield from ((label, str(text)) for label, text in found.items() if text)
