"""The score of a run and its numbers as text, formatted alike in terminal, pages, reports and JSON.

Every number comes with its interval, the rule of its pass rate, and how many attempts it covers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, ValidationError

from osmosis_ai.controller.outcomes import category_of
from osmosis_ai.datasets.selection import RowsDrawn
from osmosis_ai.evaluation.metrics import LEAST_SCORED, Estimates, describe_few_scored
from osmosis_ai.ui import numbers
from osmosis_ai.ui.numbers import percent, percent_range

if TYPE_CHECKING:
    from osmosis_ai.controller.outcomes import LimitName
    from osmosis_ai.evaluation.statistics import Estimate
    from osmosis_ai.evaluation.variance import VarianceShares

# Fewer rows do not show how rows differ.
_MIN_VARIANCE_ROWS = 10
# The wire's error type of any exception, also of one in the grader's code.
_EXCEPTION = "agent_error"
_BOTTLENECKS: dict[LimitName, str] = {
    "provider": "model",
    "rate_limit": "provider's rate limit",
    "this_machine": "this machine",
}


class RunScore(BaseModel):
    """The result of a run in a line."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    pass_rate: float | None = None
    low: float | None = None
    high: float | None = None
    reward: float | None = None
    pass_threshold: float = 1.0
    scored: int = 0
    planned: int = 0
    pending: int = 0
    skipped: int = 0
    failed: int = 0
    failed_by_boundary: dict[str, int] = {}
    rows: RowsDrawn | None = None
    warnings: list[str] = []

    @classmethod
    def of(cls, estimates: Estimates, rows: RowsDrawn | None = None) -> RunScore:
        """Return the score of a run with these estimates."""
        rate, reward, counts = estimates.pass_rate, estimates.reward, estimates.counts
        return cls(
            pass_rate=rate.value if rate else None,
            low=rate.low if rate else None,
            high=rate.high if rate else None,
            reward=reward.value if reward else None,
            pass_threshold=estimates.pass_threshold,
            scored=counts.scored,
            planned=counts.planned,
            pending=counts.pending,
            skipped=counts.skipped,
            failed=sum(counts.failed_by_boundary.values()),
            failed_by_boundary=counts.failed_by_boundary,
            rows=rows,
            warnings=estimates.warnings,
        )

    @classmethod
    def of_results(
        cls, results: Mapping[str, Any], *, planned: int, rows: RowsDrawn | None = None
    ) -> RunScore | None:
        """Return the score in a platform's results, which may have no more than counts."""
        try:
            if results.get("headline"):
                known = cls.model_validate(results["headline"])
                return known.model_copy(update={"rows": rows or known.rows})
        except ValidationError:
            pass
        scored, done, passed = (results.get(name) for name in ("graded", "total_runs", "passed"))
        if scored is None:
            return None
        failed, skipped = (results.get(name) or 0 for name in ("failed", "skipped"))
        threshold = results.get("pass_threshold")
        finished = scored + failed if done is None else done - skipped
        warning = describe_few_scored(scored, finished)
        return cls(
            pass_rate=passed / scored if scored and passed is not None else None,
            pass_threshold=1.0 if threshold is None else threshold,
            scored=scored,
            planned=max(planned, scored),
            pending=0 if done is None else max(planned - done, 0),
            skipped=skipped,
            failed=failed,
            rows=rows,
            warnings=[warning] if warning else [],
        )

    @property
    def rule(self) -> str:
        """The rule of the pass rate, such as ``reward >= 1.0, scored samples only``."""
        return _pass_rule(self.pass_threshold)

    def format_rate(self) -> str:
        """Return the pass rate and its interval: ``85.0 % (62.1 – 96.8 %)``."""
        if self.pass_rate is None:
            return "–"
        return f"{percent(self.pass_rate)}{self._format_interval()}"

    def format_scored(self) -> str:
        """Return how many samples the numbers cover: ``18 of 20 planned``."""
        return format_scored(self.scored, self.planned)

    def format_failed(self) -> str:
        """Return how many failed and where: ``2: 1 agent, 1 provider``; "" for none."""
        return format_counts(self.failed_by_boundary) if self.failed_by_boundary else f"{self.failed or ''}"

    def describe(self) -> str:
        """Return the score in a line."""
        parts = [
            f"pass rate {self.format_rate()} ({self.rule})",
            f"scored {self.format_scored()}",
            f"failed {self.format_failed() or 0}",
            f"{self.skipped:,} skipped" if self.skipped else None,
            f"{self.pending:,} pending" if self.pending else None,
            self.rows.words if self.rows is not None else None,
        ]
        return "; ".join(filter(None, parts))

    def describe_briefly(self) -> str:
        """Return the score for a list, whose heading says that only scored samples count."""
        if self.pass_rate is not None:
            rate = f"{percent(self.pass_rate)} pass (reward >= {float(self.pass_threshold)})"
        else:
            rate = "pass rate unknown" if self.scored else "nothing scored"
        failed = f", failed {self.format_failed()}" if self.failed else ""
        return f"{rate}, {self.format_scored()} scored{failed}"

    def describe_passing(self, *, may_continue: bool) -> str:
        """Return a sentence how many of the scored samples pass, and how many are scored."""
        if self.pass_rate is None:
            is_over = 0 < self.planned <= self.scored + self.skipped + self.failed
            yet = " yet" if may_continue and not is_over else ""
            return f"No sample has a score{yet}: {self.format_scored()} scored."
        verb = "passes" if self.scored == 1 else "pass"
        passing = f"{percent(self.pass_rate)} of {amount(self.scored, 'scored sample')}"
        return f"{passing} {verb}{self._format_interval()}; {self.format_scored()} scored."

    def describe_bounds(self, passed: int | None = None) -> str | None:
        """Return bounds of the pass rate if too few of the finished samples have a score; None otherwise.

        The bounds are the rates if all samples without a score failed, and if all passed (Manski 1990). The number of
        samples that ``passed`` is computed from the rate if it is unknown.
        """
        finished = self.planned - self.pending - self.skipped
        if finished <= 0 or self.scored >= LEAST_SCORED * finished:
            return None
        unscored = finished - self.scored
        known = round((self.pass_rate or 0.0) * self.scored) if passed is None else passed
        counts = (self.scored, known, known + unscored)
        share, worst, best = (percent(count / finished) for count in counts)
        return (
            f"Only {self.scored:,} of {finished:,} finished samples have a score ({share}). "
            f"If the other {unscored:,} all failed, {worst} would pass; if they all passed, {best}."
        )

    def to_json(self) -> dict[str, Any]:
        """Return the score as JSON values, with its texts."""
        return {
            **self.model_dump(mode="json"),
            "rule": self.rule,
            "words": self.describe(),
            "brief": self.describe_briefly(),
        }

    def _format_interval(self) -> str:
        return "" if self.low is None or self.high is None else f" ({percent_range(self.low, self.high)})"


def format_scored(scored: int, planned: int) -> str:
    """Return ``18 of 20 planned``."""
    return f"{scored:,} of {planned:,} planned"


def format_counts(counts: Mapping[str, int]) -> str:
    """Return counts with their sum: ``3: 2 agent, 1 provider``."""
    return f"{sum(counts.values()):,}: " + ", ".join(f"{n:,} {name}" for name, n in counts.items())


def amount(count: int, noun: str) -> str:
    """Return ``1 row``, ``2 rows``."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def describe_variance(shares: VarianceShares) -> str | None:
    """Return the share of the variance between rows and whether more rows or attempts help; None for few rows."""
    if shares.rows < _MIN_VARIANCE_ROWS:
        return None
    if not shares.between_rows:
        return "Between-row variance: 0%. More attempts help as much as more rows."
    more_rows = shares.between_attempts / shares.attempts_per_row < shares.between_rows
    advice = (
        "More rows help more than more attempts."
        if more_rows
        else "More attempts help nearly as much as more rows."
    )
    return f"Between-row variance: {shares.between_rows:.0%}. {advice}"


@dataclass(frozen=True, slots=True)
class NumberLine:
    """A row of the table of a run's numbers."""

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
        yield NumberLine(
            "Reward",
            numbers.number(reward.value),
            numbers.interval(reward),
            f"{amount(reward.n, 'scored sample')} of {amount(reward.clusters, 'row')}",
            reward.method or "",
            is_result=True,
        )
    rates: list[tuple[str, Estimate, str]] = []
    if rate is not None:
        over = f"{amount(rate.n, 'sample')} of {amount(rate.clusters, 'row')}"
        rates.append((f"Pass rate ({_pass_rule(estimates.pass_threshold)})", rate, over))
    for k, each in estimates.pass_at_k.items():
        rates.append((f"pass@{k}", each, f"{amount(each.clusters, 'row')} with {k} or more scored attempts"))
    for k, each in estimates.pass_hat_k.items():
        if k > 1:  # pass^1 is pass@1
            rates.append((f"pass^{k}", each, f"{amount(each.clusters, 'row')}: all of {k} attempts pass"))
    for label, each, over in rates:
        interval = numbers.interval(each, percent=True)
        is_result = each is rate
        yield NumberLine(label, percent(each.value), interval, over, each.method or "", is_result)
    yield from _cost_lines(estimates)
    latency = estimates.latency
    for label, percentiles, which in (
        ("Latency per attempt", latency.rollout_ms, "that ended"),
        ("  in the model", latency.model_ms, "that called the model"),
        ("  elsewhere (agent, tools, grader, queue)", latency.elsewhere_ms, "that called the model"),
    ):
        if percentiles is not None:
            p50, p90, p95, p99 = (
                numbers.duration(getattr(percentiles, name) / 1000) for name in ("p50", "p90", "p95", "p99")
            )
            over = f"p90 {p90} · p95 {p95} · p99 {p99} · over {amount(percentiles.n, 'attempt')} {which}"
            yield NumberLine(label, f"p50 {p50}", "", over)


def _cost_lines(estimates: Estimates) -> Iterator[NumberLine]:
    tokens, cost, judges = estimates.tokens, estimates.cost_usd, estimates.judges
    unreported = tokens.unreported_samples
    is_known = tokens.known_samples > 0 or not unreported
    details = [f"{tokens.prompt:,} prompt, {tokens.completion:,} completion"] if is_known else []
    if tokens.per_sample is not None:
        details.append(f"{tokens.per_sample:,.0f} per sample")
    if unreported:
        attempts = amount(tokens.known_samples + unreported, "attempt")
        details.append(f"reported for {tokens.known_samples:,} of {attempts}")
    yield NumberLine("Tokens", f"{tokens.total:,}" if is_known else "unknown", "", ", ".join(details))
    if cost.total is not None:
        known = f"{cost.known_samples:,} of {cost.recorded_samples:,} samples"
        yield NumberLine("Cost", numbers.money(cost.total), "", known)
    if judges is not None:
        spent = "price unknown" if judges.cost_usd is None else numbers.money(judges.cost_usd)
        details = [
            amount(judges.calls, "call"),
            amount(judges.tokens, "token") if judges.tokens else "tokens unknown",
        ]
        if judges.outside_scale:
            details.append(f"{amount(judges.outside_scale, 'score')} outside the scale, clamped")
        yield NumberLine("Judges", spent, "", ", ".join(details))


def sample_counts(estimates: Estimates, rows: RowsDrawn | None) -> Iterator[tuple[str, str]]:
    """Yield the number of attempts with each outcome, and how the rows were selected."""
    counts = estimates.counts
    if rows is not None:
        yield "Rows", rows.words
    yield "Scored", format_scored(counts.scored, counts.planned)
    if counts.unscored:
        reasons: Counter[str] = Counter()
        for reason, count in counts.unscored.items():
            reasons[category_of(reason) if reason == _EXCEPTION else reason] += count
        yield "Unscored", format_counts(reasons)
    if counts.failed_by_boundary:
        yield "Failed, by source", format_counts(counts.failed_by_boundary)
        yield "  infrastructure failures", f"{counts.infrastructure_failures:,}"
    if counts.skipped:
        yield "Skipped by the grader", f"{counts.skipped:,}"
    if counts.lost_attempts:
        yield "Lost and repeated", f"{counts.lost_attempts:,}"
    if (finish := estimates.finish) is not None:
        replies = (
            ("Truncated (token limit)", finish.truncated),
            ("Filtered", finish.filtered),
            ("Refused", finish.refused),
        )
        for label, count in replies:
            if count:
                yield label, f"{count:,} of {amount(finish.known_samples, 'attempt')}"
    limited = estimates.limited_by
    if limited is not None:
        share = getattr(limited, limited.most)
        yield "Bottleneck", f"{_BOTTLENECKS[limited.most]} ({share:.0%} of run time)"


def _pass_rule(threshold: float) -> str:
    return f"reward >= {float(threshold)}, scored samples only"
