"""What a comparison found, in words: the same ones in a terminal, in a pull request and on a page."""

from __future__ import annotations

from typing import TYPE_CHECKING

from osmosis_ai.evaluation.comparison.metric_changes import described
from osmosis_ai.evaluation.comparison.verdict import change_words, signed_words
from osmosis_ai.ui import numbers

if TYPE_CHECKING:
    from osmosis_ai.evaluation.comparison.engine import ComparedCandidate
    from osmosis_ai.evaluation.comparison.numbers import Difference
    from osmosis_ai.evaluation.comparison.row_changes import RowChanges


def value_words(metric: str, value: float | None) -> str:
    """Return a metric's value: ``62.5 %``, ``0.625``, ``$0.0123``, ``1,234``, ``1.5s``."""
    if value is None:
        return numbers.MISSING
    if metric == "cost_per_row":
        return numbers.money(value)
    if metric == "tokens":
        return f"{value:,.0f}"
    if metric == "latency":
        return numbers.duration(value)
    return numbers.percent(value) if described(metric).scale == "share" else change_words(metric, value)


def difference_words(metric: str, change: Difference | None) -> str:
    """Return a difference with its sign, ``+6.2 points``; a ratio as ``x 1.25``."""
    if change is None:
        return numbers.MISSING
    words = signed_words(metric, change.value)
    scale = described(metric).scale
    return f"x {words}" if scale == "amount" else f"{words} points" if scale == "share" else words


def interval_words(metric: str, change: Difference | None) -> str:
    """Return ``1.9 to 10.5``."""
    if change is None or change.low is None or change.high is None:
        return numbers.MISSING
    return f"{change_words(metric, change.low)} to {change_words(metric, change.high)}"


def metrics_note(candidate: ComparedCandidate) -> str:
    """Return what the values of a candidate's metrics were taken over."""
    said = ["values and differences are of the rows that have a score in both runs"]
    if candidate.comparability.matched is None:
        said = ["unpaired: each run's values are of its own rows"]
    if any(described(each.metric).scale == "amount" for each in candidate.changes):
        said.append(
            "cost is of a row, tokens and latency are of an attempt; x is the ratio of geometric means"
        )
    warnings = dict.fromkeys(each.change.warning for each in candidate.changes if each.change is not None)
    return "; ".join([*said, *filter(None, warnings)])


def row_counts(rows: RowChanges) -> str:
    """Return ``Pass rate by row: 3 higher, 1 lower, 96 equal.``"""
    metric = "Reward" if rows.metric == "reward" else "Pass rate"
    equal = rows.compared - rows.higher - rows.lower
    return f"{metric} by row: {rows.higher:,} higher, {rows.lower:,} lower, {equal:,} equal."
