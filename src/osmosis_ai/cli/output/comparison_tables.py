"""Runs, compared, as tables: the same ones for a terminal, for plain lines and for a pull request."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from osmosis_ai.cli.output import formats
from osmosis_ai.cli.output.markdown_report import DecisionDocument
from osmosis_ai.cli.output.results import Cell, Column, Styled, Table, Text, Tone
from osmosis_ai.evaluation.comparison.verdict import confidence_words, p_words
from osmosis_ai.evaluation.comparison.words import (
    difference_words,
    interval_words,
    metrics_note,
    row_counts,
    value_words,
)

if TYPE_CHECKING:
    from osmosis_ai.evaluation.comparison.engine import ComparedCandidate, RunComparison
    from osmosis_ai.evaluation.comparison.metric_changes import MetricChange
    from osmosis_ai.evaluation.comparison.numbers import Difference
    from osmosis_ai.evaluation.comparison.row_outcomes import OutcomesOfKind
    from osmosis_ai.evaluation.comparison.run_totals import RunTotals
    from osmosis_ai.evaluation.comparison.slice_changes import SliceChange
    from osmosis_ai.evaluation.statistics import Estimate

_DIGEST_CHARACTERS = 12
_TONES: dict[str | None, Tone] = {"better": "good", "worse": "bad", "unclear": "warn", None: "dim"}


def comparison_blocks(found: RunComparison) -> list[Table | Text]:
    """Return everything below the sentence that decides, in the order in which it is read."""
    rows: list[Table | Text] = []
    for candidate in found.candidates:
        rows += [*_row_counts(found, candidate), *_rows(found, candidate)]
    return [*_notes(found), *_summary(found), *rows, *_slices_of_all(found), _totals(found)]


def comparison_document(found: RunComparison) -> DecisionDocument:
    """Return the comparison as a pull request's comment; rows are folded away."""
    inputs = found.candidates[0].totals.inputs
    return DecisionDocument(
        title="osmosis eval compare",
        marker=f"eval.compare:{inputs.config or f'{inputs.rollout}/{inputs.dataset_name}'}",
        verdict=found.sentence,
        notes=_note_texts(found),
        blocks=[
            *_summary(found),
            *_slices_of_all(found),
            *(text for candidate in found.candidates for text in _row_counts(found, candidate)),
        ],
        details=[
            *(table for candidate in found.candidates for table in _rows(found, candidate)),
            _totals(found),
        ],
    )


def _note_texts(found: RunComparison) -> list[str]:
    said = {note: None for candidate in found.candidates for note in candidate.comparability.notes}
    places = ", ".join(f"{run.name} ({_place(run)})" for run in _runs(found))
    return [formats.one_line(note) for note in (f"Compared: {places}.", *said)]


def _notes(found: RunComparison) -> Iterator[Text]:
    for note in _note_texts(found):
        yield Text(note, tone="dim", in_plain=True)


def _place(run: RunTotals) -> str:
    return {"local": "on this machine", "platform": "on the platform", "file": run.location}[run.place]


def _runs(found: RunComparison) -> list[RunTotals]:
    return [found.baseline, *(candidate.totals for candidate in found.candidates)]


def _summary(found: RunComparison) -> Iterator[Table]:
    if found.differs:
        headings = ["Input", *(run.name for run in _runs(found))]
        rows = [(each.name, *each.values) for each in found.differs]
        yield Table(headings, rows, title="What differs", in_plain=True)
    for candidate in found.candidates:
        yield _metrics(found, candidate)


def _metrics(found: RunComparison, candidate: ComparedCandidate) -> Table:
    return Table(
        _change_columns(found, candidate, first="Metric"),
        [
            row
            for change in candidate.changes
            for row in _metric_rows(change, decides=change.metric == found.metric)
        ],
        title=_against(found, candidate),
        note=metrics_note(candidate),
        in_plain=True,
    )


def _against(found: RunComparison, candidate: ComparedCandidate) -> str:
    label = candidate.comparability.label
    return f"{candidate.name} against {found.baseline.name}{f' ({label})' if label else ''}"


def _change_columns(found: RunComparison, candidate: ComparedCandidate, *, first: str) -> list[Column]:
    several = len(found.candidates) > 1 and first == "Metric"
    return [
        # The name of a metric, and of a slice, is what can be wrapped and still be read.
        Column(first),
        Column(found.baseline.name, right=True),
        Column(candidate.name, right=True),
        Column("Difference", right=True, keep=True),
        Column(f"{confidence_words(found.options.confidence)} interval", right=True),
        Column("p (Holm)" if several else "p (BH)" if first == "Slice" else "p", right=True, keep=True),
        Column("Rows", right=True, keep=True),
    ]


def _metric_rows(each: MetricChange, *, decides: bool) -> Iterator[Sequence[Cell]]:
    name = f"{each.metric} (decides)" if decides else each.metric
    yield (
        Styled(name, "strong") if decides else name,
        *_change_cells(each.metric, each.a, each.b, each.change),
    )
    if decides and each.bounds is not None:
        yield ("  unscored at worst", *_change_cells(each.metric, None, None, each.bounds.worst))
        yield ("  unscored at best", *_change_cells(each.metric, None, None, each.bounds.best))


def _change_cells(
    metric: str, a: Estimate | None, b: Estimate | None, change: Difference | None
) -> tuple[Cell, ...]:
    p = None if change is None else change.p if change.p_adjusted is None else change.p_adjusted
    return (
        value_words(metric, a.value if a else None),
        value_words(metric, b.value if b else None),
        difference_words(metric, change),
        interval_words(metric, change),
        p_words(p),
        change.rows if change else None,
    )


# -- rows ----------------------------------------------------------------------------------


def _row_counts(found: RunComparison, candidate: ComparedCandidate) -> Iterator[Text]:
    rows = candidate.rows
    if rows is not None:
        yield Text(f"{_of(found, candidate)}{row_counts(rows)}", in_plain=True)


def _rows(found: RunComparison, candidate: ComparedCandidate) -> Iterator[Table]:
    rows = candidate.rows
    if rows is not None:
        for name, kind in (("Broken", rows.broken), ("Fixed", rows.fixed), ("Unstable", rows.unstable)):
            if kind.shown:
                title = f"{_of(found, candidate)}{name} rows ({kind.count:,})"
                yield _rows_of_kind(found, candidate, title, kind)


def _of(found: RunComparison, candidate: ComparedCandidate) -> str:
    return f"{candidate.name}: " if len(found.candidates) > 1 else ""


def _rows_of_kind(
    found: RunComparison, candidate: ComparedCandidate, title: str, kind: OutcomesOfKind
) -> Table:
    headings = (found.baseline.name, candidate.name, "p (BH)")
    left_out = kind.count - len(kind.shown)
    return Table(
        [Column("Row", right=True), Column("Digest"), *(Column(heading, right=True) for heading in headings)],
        [
            (
                row.source_row,
                row.key[:_DIGEST_CHARACTERS],
                *(f"{passes} of {tried}" for passes, tried in zip(row.passes, row.attempts, strict=True)),
                p_words(row.p_adjusted),
            )
            for row in kind.shown
        ],
        title=title,
        note=f"{left_out:,} more; --rows N shows N" if left_out else None,
        in_plain=True,
    )


# -- slices, totals ------------------------------------------------------------------------


def _slices_of_all(found: RunComparison) -> Iterator[Table]:
    for candidate in found.candidates:
        if candidate.slices:
            yield Table(
                [*_change_columns(found, candidate, first="Slice"), Column("Verdict")],
                [_slice_row(each) for each in candidate.slices],
                title=f"{_against(found, candidate)}: {found.metric} by slice",
                note="p is adjusted for all slices; a slice of under 10 rows has no verdict",
                in_plain=True,
            )


def _slice_row(each: SliceChange) -> tuple[Cell, ...]:
    value = formats.MISSING if each.value is None else each.value
    change = each.change
    return (
        f"{each.column} = {value}",
        *_change_cells(change.metric, change.a, change.b, change.change),
        Styled(each.verdict or "too few rows", _TONES[each.verdict]),
    )


def _totals(found: RunComparison) -> Table:
    headings = ("Rows", "Attempts", "Scored", "Cost", "Tokens", "Time in attempts")
    return Table(
        [Column("Run", keep=True), *(Column(heading, right=True) for heading in headings)],
        [
            (
                run.name,
                run.rows,
                run.tried,
                run.scored,
                formats.money(run.cost_usd),
                formats.count(run.tokens),
                formats.duration(run.duration_s),
            )
            for run in _runs(found)
        ],
        title="What the runs took",
        in_plain=True,
    )
