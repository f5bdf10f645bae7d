"""Runs, compared, as tables: the same ones for a terminal, for plain lines and for a pull request."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from osmosis_ai.cli.output import formats
from osmosis_ai.cli.output.reports import DecisionDocument
from osmosis_ai.cli.output.results import Cell, Column, Styled, Table, Text, Tone
from osmosis_ai.decisions.compare import (
    DECIDES,
    ComparedTable,
    changed_metrics,
    changed_rows,
    changed_slices,
    differing_inputs,
    row_counts,
    runs_of,
    taken,
)

if TYPE_CHECKING:
    from osmosis_ai.decisions.compare import ComparedCandidate, RunComparison

_TONES: dict[str, Tone] = {"better": "good", "worse": "bad", "unclear": "warn", "too few rows": "dim"}
# The name of a metric, and of a slice, is what can be wrapped and still be read.
_KEPT = ("Difference", "p", "p (Holm)", "p (BH)", "Rows", "Run")


def comparison_blocks(found: RunComparison) -> list[Table | Text]:
    """Return everything below the sentence that decides, in the order in which it is read."""
    rows: list[Table | Text] = []
    for candidate in found.candidates:
        rows += [*_row_counts(found, candidate), *_rows(found, candidate)]
    notes = [Text(note, tone="dim", in_plain=True) for note in _note_texts(found)]
    return [*notes, *_summary(found), *rows, *_slices_of_all(found), _table(taken(found))]


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
            _table(taken(found)),
        ],
    )


def _note_texts(found: RunComparison) -> list[str]:
    said = {note: None for candidate in found.candidates for note in candidate.comparability.notes}
    compared = []
    for run in runs_of(found):
        place = {"local": "on this machine", "platform": "on the platform", "file": run.location}[run.place]
        compared.append(
            f"{run.name} (revision {run.revision}, {place})" if run.revision else f"{run.name} ({place})"
        )
    return [formats.one_line(note) for note in (f"Compared: {', '.join(compared)}.", *said)]


def _summary(found: RunComparison) -> Iterator[Table]:
    differing = differing_inputs(found)
    if differing is not None:
        yield _table(differing)
    for candidate in found.candidates:
        yield _table(changed_metrics(found, candidate))


def _row_counts(found: RunComparison, candidate: ComparedCandidate) -> Iterator[Text]:
    rows = candidate.rows
    if rows is not None:
        yield Text(f"{_of(found, candidate)}{row_counts(rows)}", in_plain=True)


def _rows(found: RunComparison, candidate: ComparedCandidate) -> Iterator[Table]:
    names = (found.baseline.name, candidate.name)
    table = changed_rows(names, candidate.rows, " are not shown (--rows N)")
    if table is not None:
        yield _table(table, of=_of(found, candidate))


def _of(found: RunComparison, candidate: ComparedCandidate) -> str:
    return f"{candidate.name}: " if len(found.candidates) > 1 else ""


def _slices_of_all(found: RunComparison) -> Iterator[Table]:
    for candidate in found.candidates:
        slices = changed_slices(found, candidate)
        if slices is not None:
            yield _table(slices)


def _table(found: ComparedTable, *, of: str = "") -> Table:
    columns = [
        Column(heading, right=place not in found.texts, keep=heading in _KEPT)
        for place, heading in enumerate(found.headings)
    ]
    rows = [
        [_styled(cell, heading) for cell, heading in zip(row, found.headings, strict=True)]
        for row in found.rows
    ]
    return Table(columns, rows, title=of + found.title, note=found.note, in_plain=True)


def _styled(cell: str, heading: str) -> Cell:
    if heading == "Metric" and cell.endswith(DECIDES):
        return Styled(cell, "strong")
    return Styled(cell, _TONES[cell]) if heading == "Verdict" else cell
