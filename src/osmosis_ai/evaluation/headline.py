"""What a run's result says wherever it is told in a line: never a number without what it leaves out.

One pass rate, with its rule; how many of the planned samples it stands on; what failed, and where; how the rows
were chosen. Terminal, lists, pages and JSON take the words from here, so that they say the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, ValidationError

from osmosis_ai.datasets.selection import RowsDrawn
from osmosis_ai.ui.numbers import percent, percent_range

if TYPE_CHECKING:
    from osmosis_ai.evaluation.metrics_models import Counts, Estimates, FinishTotals, VarianceShares
    from osmosis_ai.evaluation.statistics import Estimate

FEWEST_ROWS = 10
"""Fewer do not tell how rows differ."""
MOST_AFFECTED = 0.05
"""If a larger share of attempts is truncated, filtered or refused, the results may not reflect the model."""
LEAST_SCORED = 0.9
"""With a smaller share of finished attempts scored, what is said of the others is a guess."""


class Headline(BaseModel):
    """A run's result in a line."""

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
    def of(cls, estimates: Estimates, rows: RowsDrawn | None = None) -> Headline:
        """Return the headline of a run whose estimates are known."""
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
    ) -> Headline | None:
        """Return the headline that a platform's results allow, which may have no more than plain counts."""
        known = _read(results.get("headline"))
        if known is not None:
            return known.model_copy(update={"rows": rows or known.rows})
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
            warnings=[*filter(None, [few_scored(scored, finished)])],
        )

    @property
    def is_over(self) -> bool:
        """Whether no sample is to come: each one planned has an outcome."""
        return 0 < self.planned <= self.scored + self.skipped + self.failed

    @property
    def rule(self) -> str:
        """What the pass rate counts."""
        return pass_rule(self.pass_threshold)

    @property
    def rate_words(self) -> str:
        """The pass rate and its interval, as in ``85.0 % (62.1 – 96.8 %)``."""
        if self.pass_rate is None:
            return "–"
        if self.low is None or self.high is None:
            return percent(self.pass_rate)
        return f"{percent(self.pass_rate)} ({percent_range(self.low, self.high)})"

    @property
    def scored_words(self) -> str:
        """How many samples the numbers stand on, as in ``18 of 20 planned``."""
        return scored_of_planned(self.scored, self.planned)

    @property
    def failed_words(self) -> str:
        """How many failed and where, as in ``2: 1 agent, 1 provider``; "" for none."""
        return breakdown(self.failed_by_boundary) if self.failed_by_boundary else f"{self.failed or ''}"

    @property
    def words(self) -> str:
        """All of it in a line."""
        parts = [
            f"pass rate {self.rate_words} ({self.rule})",
            f"scored {self.scored_words}",
            f"failed {self.failed_words or 0}",
            *([f"{self.skipped:,} skipped"] if self.skipped else []),
            *([f"{self.pending:,} pending"] if self.pending else []),
            *([self.rows.words] if self.rows is not None else []),
        ]
        return "; ".join(parts)

    @property
    def brief(self) -> str:
        """The same for a list, whose heading says that only scored samples count."""
        parts = [
            f"{percent(self.pass_rate)} pass (reward >= {float(self.pass_threshold)})"
            if self.pass_rate is not None
            else ("pass rate not told" if self.scored else "nothing scored"),
            f"{self.scored_words} scored",
            f"failed {self.failed_words}" if self.failed else "",
        ]
        return ", ".join(filter(None, parts))

    def to_json(self) -> dict[str, Any]:
        """Return it as scripts get it, with the words that people do."""
        return {**self.model_dump(mode="json"), "rule": self.rule, "words": self.words, "brief": self.brief}


def pass_rule(threshold: float) -> str:
    """Return what a pass rate counts, and over what: ``reward >= 1.0, scored samples only``."""
    return f"reward >= {float(threshold)}, scored samples only"


def scored_of_planned(scored: int, planned: int) -> str:
    """Return ``18 of 20 planned``."""
    return f"{scored:,} of {planned:,} planned"


def breakdown(counts: Mapping[str, int]) -> str:
    """Return counts with their sum: ``3: 2 agent, 1 provider``."""
    return f"{sum(counts.values()):,}: " + ", ".join(f"{n:,} {name}" for name, n in counts.items())


def spread_words(shares: VarianceShares) -> str | None:
    """Return where the spread lies and what would help: ``62 % of the spread is between rows: …``; None for
    few rows."""
    if shares.rows < FEWEST_ROWS:
        return None
    if not shares.between_rows:
        told = " (its estimate came out below zero)" if shares.below_zero else ""
        return f"none of the spread is between rows{told}: more attempts help as much as more rows"
    of_attempts = shares.between_attempts / shares.attempts_per_row
    more_rows = of_attempts < shares.between_rows
    help_ = (
        "more rows help more than more attempts"
        if more_rows
        else "more attempts help nearly as much as more rows"
    )
    return f"{shares.between_rows * 100:.0f} % of the spread is between rows: {help_}"


def few_scored(scored: int, finished: int) -> str | None:
    """Return what should stand beside numbers that too few of the finished attempts are behind."""
    if finished <= 0 or scored >= LEAST_SCORED * finished:
        return None
    share = percent(scored / finished)
    return f"only {scored:,} of {finished:,} finished attempts have a score ({share}); the numbers leave out the rest"


def copied_rows(copies: int, rows: int) -> str | None:
    """Return what should stand beside numbers of rows that are copies of others."""
    if not copies:
        return None
    found = "row is a copy" if copies == 1 else "rows are copies"
    return f"{copies:,} of {rows:,} {found} of another: copies count as one row in every interval"


def many_affected(finish: FinishTotals | None) -> str | None:
    """Return a warning when more than 5% of the attempts have a truncated, filtered or refused reply."""
    if finish is None or finish.affected <= MOST_AFFECTED * finish.known_samples:
        return None
    found = {"truncated": finish.truncated, "filtered": finish.filtered, "refused": finish.refused}
    share = percent(finish.affected / finish.known_samples)
    return (
        f"{finish.affected:,} of {finish.known_samples:,} attempts ({share}) have a model reply that was "
        + ", ".join(f"{name} ({count:,})" for name, count in found.items() if count)
    )


def warnings_of(
    counts: Counts, rows: int, estimates: Iterable[Estimate | None], finish: FinishTotals | None = None
) -> list[str]:
    """Return what should stand beside a run's numbers."""
    finished = counts.planned - counts.pending - counts.skipped
    own = [found.warning for found in estimates if found is not None]
    said = [
        few_scored(counts.scored, finished),
        many_affected(finish),
        copied_rows(counts.copies, rows),
        *own,
    ]
    return list(dict.fromkeys(filter(None, said)))


def _read(headline: object) -> Headline | None:
    try:
        return Headline.model_validate(headline) if headline else None
    except ValidationError:
        return None
