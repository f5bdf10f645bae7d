"""The score of a run and its numbers as text, with one spelling for terminal, pages, reports and JSON.

No number is shown without what it leaves out: its interval, the rule of a pass rate, and how many attempts it covers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, ValidationError

from osmosis_ai.controller.outcomes import error_code_of
from osmosis_ai.datasets.selection import RowsDrawn
from osmosis_ai.ui import numbers
from osmosis_ai.ui.numbers import percent, percent_range

if TYPE_CHECKING:
    from osmosis_ai.controller.outcomes import LimitName
    from osmosis_ai.evaluation.metrics_models import Counts, Estimates, FinishTotals, VarianceShares
    from osmosis_ai.evaluation.statistics import Estimate, Percentiles

FEWEST_ROWS = 10
"""Fewer rows do not show how rows differ."""
LEAST_SCORED = 0.9
"""With a smaller share of finished attempts scored, statements about the others are guesses."""
# If a larger share of attempts is truncated, filtered or refused, the results may not reflect the model.
_MAX_AFFECTED = 0.05
# The wire's error type of any exception, also of one in the grader's code. It would contradict the boundary next to it.
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
            pass_rate=rate.value if rate is not None else None,
            low=rate.low if rate is not None else None,
            high=rate.high if rate is not None else None,
            reward=reward.value if reward is not None else None,
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
        scored, done = results.get("graded"), results.get("total_runs")
        if scored is None:
            return None
        failed, skipped = (results.get(name) or 0 for name in ("failed", "skipped"))
        passed = results.get("passed")
        threshold = results.get("pass_threshold")
        finished = scored + failed if done is None else done - skipped
        return cls(
            pass_rate=passed / scored if scored and passed is not None else None,
            pass_threshold=1.0 if threshold is None else threshold,
            scored=scored,
            planned=max(planned, scored),
            pending=0 if done is None else max(planned - done, 0),
            skipped=skipped,
            failed=failed,
            rows=rows,
            warnings=[*filter(None, [describe_few_scored(scored, finished)])],
        )

    @property
    def is_over(self) -> bool:
        """Whether every planned attempt has a result."""
        return 0 < self.planned <= self.scored + self.skipped + self.failed

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
            *([f"{self.skipped:,} skipped"] if self.skipped else []),
            *([f"{self.pending:,} pending"] if self.pending else []),
            *([self.rows.words] if self.rows is not None else []),
        ]
        return "; ".join(parts)

    def describe_briefly(self) -> str:
        """Return the score for a list, whose heading says that only scored samples count."""
        parts = [
            f"{percent(self.pass_rate)} pass (reward >= {float(self.pass_threshold)})"
            if self.pass_rate is not None
            else ("pass rate unknown" if self.scored else "nothing scored"),
            f"{self.format_scored()} scored",
            f"failed {self.format_failed()}" if self.failed else "",
        ]
        return ", ".join(filter(None, parts))

    def describe_passing(self, *, may_continue: bool) -> str:
        """Return a sentence how many of the scored samples pass, and how many are scored."""
        if self.pass_rate is None:
            yet = " yet" if may_continue and not self.is_over else ""
            return f"No sample has a score{yet}: {self.format_scored()} scored."
        verb = "passes" if self.scored == 1 else "pass"
        passing = f"{percent(self.pass_rate)} of {amount(self.scored, 'scored sample')}"
        return f"{passing} {verb}{self._format_interval()}; {self.format_scored()} scored."

    def describe_bounds(self, passed: int | None = None) -> str | None:
        """Return bounds of the pass rate if too few of the finished samples have a score; None otherwise.

        The bounds are the rates if all samples without a score failed, and if all passed (Manski 1990).

        Args:
            passed: number of samples that passed; by default computed from the rate.
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
        """Return it as JSON values, with the texts."""
        texts = {"rule": self.rule, "words": self.describe(), "brief": self.describe_briefly()}
        return {**self.model_dump(mode="json"), **texts}

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
    if shares.rows < FEWEST_ROWS:
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


def describe_few_scored(scored: int, finished: int) -> str | None:
    """Return a warning if too few of the finished attempts have a score."""
    if finished <= 0 or scored >= LEAST_SCORED * finished:
        return None
    share = percent(scored / finished)
    return f"only {scored:,} of {finished:,} finished attempts have a score ({share}); the numbers leave out the rest"


def describe_copied_rows(copies: int, rows: int) -> str | None:
    """Return a warning if rows are duplicates of others."""
    if not copies:
        return None
    found = "row is a copy" if copies == 1 else "rows are copies"
    return f"{copies:,} of {rows:,} {found} of another: copies count as one row in every interval"


def warnings_of(
    counts: Counts, rows: int, estimates: Iterable[Estimate | None], finish: FinishTotals | None = None
) -> list[str]:
    """Return the warnings about a run's numbers."""
    affected = None
    if finish is not None and finish.affected > _MAX_AFFECTED * finish.known_samples:
        found = {"truncated": finish.truncated, "filtered": finish.filtered, "refused": finish.refused}
        share = percent(finish.affected / finish.known_samples)
        affected = (
            f"{finish.affected:,} of {finish.known_samples:,} attempts ({share}) have a model reply that was "
            + ", ".join(f"{name} ({count:,})" for name, count in found.items() if count)
        )
    warnings = [
        describe_few_scored(counts.scored, counts.planned - counts.pending - counts.skipped),
        affected,
        describe_copied_rows(counts.copies, rows),
        *(estimate.warning for estimate in estimates if estimate is not None),
    ]
    return list(dict.fromkeys(filter(None, warnings)))


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
        over = f"{amount(reward.n, 'scored sample')} of {amount(reward.clusters, 'row')}"
        interval = numbers.interval(reward)
        yield NumberLine(
            "Reward", numbers.number(reward.value), interval, over, reward.method or "", is_result=True
        )
    if rate is not None:
        over = f"{amount(rate.n, 'sample')} of {amount(rate.clusters, 'row')}"
        label = f"Pass rate ({_pass_rule(estimates.pass_threshold)})"
        interval = numbers.interval(rate, percent=True)
        yield NumberLine(label, percent(rate.value), interval, over, rate.method or "", is_result=True)
    powers = [
        (f"pass@{k}", f" with {k} or more scored attempts", each) for k, each in estimates.pass_at_k.items()
    ]
    # pass^1 is pass@1
    powers += [
        (f"pass^{k}", f": all of {k} attempts pass", each)
        for k, each in estimates.pass_hat_k.items()
        if k > 1
    ]
    for label, rule, each in powers:
        interval = numbers.interval(each, percent=True)
        over = f"{amount(each.clusters, 'row')}{rule}"
        yield NumberLine(label, percent(each.value), interval, over, each.method or "")
    yield from _cost_lines(estimates)
    latency = estimates.latency
    for label, percentiles, which in (
        ("Latency per attempt", latency.rollout_ms, "that ended"),
        ("  in the model", latency.model_ms, "that called the model"),
        ("  elsewhere (agent, tools, grader, queue)", latency.elsewhere_ms, "that called the model"),
    ):
        if percentiles is not None:
            yield _latency_line(label, percentiles, which)


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


def _latency_line(label: str, latency: Percentiles, which: str) -> NumberLine:
    p50, p90, p95, p99 = (
        numbers.duration(value / 1000) for value in (latency.p50, latency.p90, latency.p95, latency.p99)
    )
    attempts = "attempts" if latency.n is None else amount(latency.n, "attempt")
    return NumberLine(label, f"p50 {p50}", "", f"p90 {p90} · p95 {p95} · p99 {p99} · over {attempts} {which}")


def sample_counts(estimates: Estimates, rows: RowsDrawn | None) -> Iterator[tuple[str, str]]:
    """Yield the number of attempts with each outcome, and how the rows were selected."""
    counts = estimates.counts
    if rows is not None:
        yield "Rows", rows.words
    yield "Scored", format_scored(counts.scored, counts.planned)
    if counts.unscored:
        reasons: Counter[str] = Counter()
        for reason, count in counts.unscored.items():
            reasons[error_code_of(reason) if reason == _EXCEPTION else reason] += count
        yield "Unscored", format_counts(reasons)
    if counts.failed_by_boundary:
        yield "Failed, by source", format_counts(counts.failed_by_boundary)
        yield "  infrastructure failures", f"{counts.infrastructure_failures:,}"
    if counts.skipped:
        yield "Skipped by the grader", f"{counts.skipped:,}"
    if counts.lost_attempts:
        yield "Lost and repeated", f"{counts.lost_attempts:,}"
    if (finish := estimates.finish) is not None:
        replies = {
            "Truncated (token limit)": finish.truncated,
            "Filtered": finish.filtered,
            "Refused": finish.refused,
        }
        for label, count in replies.items():
            if count:
                yield label, f"{count:,} of {amount(finish.known_samples, 'attempt')}"
    limited = estimates.limited_by
    if limited is not None:
        share = getattr(limited, limited.most)
        yield "Bottleneck", f"{_BOTTLENECKS[limited.most]} ({share:.0%} of run time)"


def _pass_rule(threshold: float) -> str:
    return f"reward >= {float(threshold)}, scored samples only"
