"""Results as plain lines: no colour, no boxes, one record a line, for `grep`, `cut` and logs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from osmosis_ai.cli.output import formats
from osmosis_ai.cli.output.chart import sparkline
from osmosis_ai.cli.output.results import (
    Block,
    Cell,
    Chart,
    Column,
    ConversationBlock,
    Curve,
    DetailResult,
    ListResult,
    MessageResult,
    OperationResult,
    Result,
    Row,
    SectionedListResult,
    SideBySide,
    Status,
    Styled,
    Table,
    Timestamp,
)

_CURVE_WIDTH = 40


def lines_of(result: Result) -> Iterator[str]:
    """Yield the lines of a result, without line ends."""
    if isinstance(result, MessageResult):
        yield formats.literal(result.message)
    elif isinstance(result, ListResult):
        yield from _list_lines(result)
        yield from block_lines(result.blocks)
    elif isinstance(result, SectionedListResult):
        for name, section in result.sections.items():
            yield f"{section.title or name}:"
            yield from _list_lines(section)
        yield from block_lines(result.blocks)
    elif isinstance(result, DetailResult):
        yield from _row_lines(result.rows)
        for part in result.sections:
            yield f"{part.title}:"
            yield from _row_lines(part.rows)
        yield from block_lines(result.blocks)
        yield from map(formats.literal, result.hints)
    elif isinstance(result, OperationResult):
        yield formats.literal(result.sentence)
        yield from block_lines(result.blocks)
        yield from map(formats.literal, result.next_steps)


def block_lines(blocks: Sequence[Block]) -> Iterator[str]:
    """Yield the lines of those blocks that ask to be shown in plain mode."""
    for block in blocks:
        if isinstance(block, SideBySide):
            yield from block_lines([block.left, block.right])
            continue
        if not block.in_plain:
            continue
        if block.title:
            yield f"{formats.one_line(block.title)}:"
        if isinstance(block, Table):
            headings = [c.heading if isinstance(c, Column) else c for c in block.columns]
            if any(heading.strip() for heading in headings):
                yield joined(headings)
            yield from (joined(row) for row in block.rows)
            if block.note:
                yield formats.literal(block.note)
        elif isinstance(block, ConversationBlock):
            for turn in block.turns:
                yield f"{turn.role}: {formats.one_line(turn.text)}"
            if block.closing:
                yield formats.literal(block.closing.text)
        elif isinstance(block, Chart):
            yield from map(curve_line, block.curves)
        else:
            yield formats.literal(block.text)


def curve_line(curve: Curve) -> str:
    """Return a curve on one line: its name, its shape, where it begins and ends."""
    values = [value for _, value in curve.points]
    ends = f"{values[0]:.3g} → {values[-1]:.3g}" if values else formats.MISSING
    return joined([curve.name, sparkline(values, width=_CURVE_WIDTH), ends])


def cell_text(cell: Cell) -> str:
    """Return a cell's text on one line."""
    if cell is None:
        return formats.MISSING
    if isinstance(cell, bool):
        return "yes" if cell else "no"
    if isinstance(cell, Styled):
        return formats.one_line(cell.text)
    if isinstance(cell, Timestamp):
        return formats.one_line(formats.iso(cell.at))
    if isinstance(cell, Status):
        return f"[{formats.one_line(cell.word)}]"
    if isinstance(cell, float):
        return f"{cell:g}"
    return formats.one_line(str(cell))


def _list_lines(result: ListResult) -> Iterator[str]:
    shown = [column for column in result.columns if column.in_plain]
    for item in result.items:
        yield joined(column.cell(item) for column in shown)


def _row_lines(rows: Sequence[Row]) -> Iterator[str]:
    for label, value in rows:
        yield f"{label}: {cell_text(value)}"


def joined(cells: Iterable[Cell]) -> str:
    """Return a record's line."""
    return "\t".join(map(cell_text, cells))
