"""What a comparison found, in words and tables: the same in a terminal, in a pull request and on a page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from osmosis_ai.decisions.metric_changes import described
from osmosis_ai.decisions.verdict import change_words, confidence_words, p_words, signed_words
from osmosis_ai.ui import numbers

if TYPE_CHECKING:
    from osmosis_ai.decisions.engine import (
        ComparedCandidate,
        RowChange,
        RowChanges,
        RunComparison,
        RunTotals,
    )
    from osmosis_ai.decisions.metric_changes import MetricChange
    from osmosis_ai.decisions.numbers import Difference


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


DIGEST_CHARACTERS = 12
DECIDES = " (decides)"
_SLICES_NOTE = "p is adjusted for all slices; a slice of under 10 rows has no verdict"
Cells = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ComparedTable:
    """A table of a comparison."""

    title: str
    headings: Sequence[str]
    rows: Sequence[Cells]
    texts: Sequence[int] = (0,)
    note: str | None = None
    keys: Sequence[str] = ()


def runs_of(found: RunComparison) -> list[RunTotals]:
    """Return what all runs come to, the baseline first."""
    return [found.baseline, *(candidate.totals for candidate in found.candidates)]


def differing_inputs(found: RunComparison) -> ComparedTable | None:
    """Return what differs in the runs' inputs; None where nothing does."""
    if not found.differs:
        return None
    headings = ["Input", *(run.name for run in runs_of(found))]
    rows = [(each.name, *(value or numbers.MISSING for value in each.values)) for each in found.differs]
    return ComparedTable("What differs", headings, rows, range(len(headings)))


def changed_metrics(found: RunComparison, candidate: ComparedCandidate) -> ComparedTable:
    """Return a candidate's metrics against the baseline's."""
    rows = [row for change in candidate.changes for row in _metric_rows(change, found.metric)]
    headings = _change_headings(found, candidate, "Metric")
    return ComparedTable(_against(found, candidate), headings, rows, note=metrics_note(candidate))


def changed_slices(found: RunComparison, candidate: ComparedCandidate) -> ComparedTable | None:
    """Return the deciding metric by the values of a column; None where no column was asked for."""
    if not candidate.slices:
        return None
    headings = [*_change_headings(found, candidate, "Slice"), "Verdict"]
    rows = [
        (
            f"{each.column} = {numbers.MISSING if each.value is None else each.value}",
            *_change_cells(each.change, each.change.change),
            each.verdict or "too few rows",
        )
        for each in candidate.slices
    ]
    title = f"{_against(found, candidate)}: {found.metric} by slice"
    return ComparedTable(title, headings, rows, (0, len(headings) - 1), _SLICES_NOTE)


def changed_rows(runs: tuple[str, str], rows: RowChanges | None, more: str) -> ComparedTable | None:
    """Return the rows with the largest change between two runs; ``more`` follows the number of rows left out."""
    if rows is None or not rows.largest:
        return None

    def cells(row: RowChange) -> Cells:
        sides = (row.baseline, row.candidate)
        if rows.metric == "reward":
            return tuple(value_words("reward", side.reward) for side in sides)
        return tuple(f"{side.passes} of {side.attempts}" for side in sides)

    unit = "" if rows.metric == "reward" else " points"
    left_out = rows.higher + rows.lower - len(rows.largest)
    note = "single rows have too few attempts for a verdict"
    return ComparedTable(
        "Rows with the largest change",
        ("Row", "Digest", *runs, "Change"),
        [
            (
                str(row.source_row),
                row.key[:DIGEST_CHARACTERS],
                *cells(row),
                f"{signed_words(rows.metric, row.change)}{unit}",
            )
            for row in rows.largest
        ],
        (1,),
        f"{left_out:,} more{more}; {note}" if left_out else note,
        [row.key for row in rows.largest],
    )


def taken(found: RunComparison) -> ComparedTable:
    """Return what the runs took."""
    headings = ("Run", "Rows", "Attempts", "Scored", "Cost", "Tokens", "Time in attempts")
    rows = [
        (
            run.name,
            *map(numbers.count, (run.rows, run.tried, run.scored)),
            _over(numbers.money(run.cost_usd), run.priced, run.tried),
            _over(numbers.count(run.tokens), run.tokens_reported, run.tried),
            numbers.duration(run.duration_s),
        )
        for run in runs_of(found)
    ]
    return ComparedTable("What the runs took", headings, rows)


def _over(total: str, known: int, tried: int | None) -> str:
    """Return a sum, with the number of attempts that reported it if some did not."""
    return f"{total} ({known:,} of {tried:,})" if tried is not None and 0 < known < tried else total


def _against(found: RunComparison, candidate: ComparedCandidate) -> str:
    label = candidate.comparability.label
    return f"{candidate.name} against {found.baseline.name}{f' ({label})' if label else ''}"


def _change_headings(found: RunComparison, candidate: ComparedCandidate, first: str) -> Sequence[str]:
    several = len(found.candidates) > 1 and first == "Metric"
    p = "p (Holm)" if several else "p (BH)" if first == "Slice" else "p"
    interval = f"{confidence_words(found.options.confidence)} interval"
    return (first, found.baseline.name, candidate.name, "Difference", interval, p, "Rows")


def _metric_rows(each: MetricChange, deciding: str) -> Iterator[Cells]:
    decides = each.metric == deciding
    yield (each.metric + DECIDES if decides else each.metric, *_change_cells(each, each.change))
    if decides and each.bounds is not None:
        for name, bound in (("worst", each.bounds.worst), ("best", each.bounds.best)):
            yield (f"  unscored at {name}", *_change_cells(each, bound, has_values=False))


def _change_cells(each: MetricChange, change: Difference | None, *, has_values: bool = True) -> Cells:
    p = None if change is None else change.p if change.p_adjusted is None else change.p_adjusted
    values = (side.value if side is not None and has_values else None for side in (each.a, each.b))
    return (
        *(value_words(each.metric, value) for value in values),
        difference_words(each.metric, change),
        interval_words(each.metric, change),
        p_words(p),
        numbers.count(change.rows if change else None),
    )
