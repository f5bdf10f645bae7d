"""Results for people, drawn with rich. The only module of the command line that imports it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TextIO

from rich import box
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.panel import Panel
from rich.progress import BarColumn, ProgressColumn, SpinnerColumn, Task, TextColumn, TimeElapsedColumn
from rich.progress import Progress as RichProgress
from rich.rule import Rule
from rich.table import Column as RichColumn
from rich.table import Table as RichTable
from rich.text import Text as RichText

from osmosis_ai.cli.output import formats
from osmosis_ai.cli.output.chart import draw
from osmosis_ai.cli.output.progress import Progress, ProgressState
from osmosis_ai.cli.output.results import (
    Block,
    Cell,
    Chart,
    Column,
    ConversationBlock,
    ConversationTurn,
    DetailResult,
    ListResult,
    OperationResult,
    Result,
    Row,
    Section,
    SectionedListResult,
    SideBySide,
    Status,
    StreamResult,
    Styled,
    Table,
    Timestamp,
    Tone,
    cell_text,
)

_STYLES: dict[Tone, str] = {
    "good": "green",
    "bad": "red",
    "warn": "yellow",
    "active": "blue",
    "pending": "orange3",
    "accent": "cyan",
    "strong": "bold",
    "dim": "dim",
}
_STATUS_TONES: dict[str, Tone] = {
    **dict.fromkeys(("finished", "success", "uploaded", "active", "deployed", "synced", "valid"), "good"),
    **dict.fromkeys(("pending", "queued", "partial"), "pending"),
    **dict.fromkeys(("running", "uploading", "processing", "syncing"), "active"),
    **dict.fromkeys(("failed", "crashed", "error", "invalid"), "bad"),
    **dict.fromkeys(("stopped", "killed", "cancelled", "skipped", "inactive", "unknown"), "dim"),
}
_ROLE_STYLES = {"system": "dim", "user": "bold blue", "assistant": "bold green", "tool": "bold magenta"}
_WIDTH_WHEN_PIPED = 120
_READING_WIDTH = 100
_CHART_HEIGHT, _CHART_MARGIN, _NARROWEST_CHART = 10, 12, 20


def open_console(stream: TextIO) -> Console:
    """Return a console on ``stream`` that takes text literally and highlights nothing."""
    coloured = formats.has_colour(stream)
    console = Console(
        file=stream,
        markup=False,
        emoji=False,
        highlight=False,
        no_color=not coloured,
        color_system="auto" if coloured else None,
    )
    if not stream.isatty() and "COLUMNS" not in os.environ:
        console.width = _WIDTH_WHEN_PIPED
    return console


def print_line(console: Console, text: str) -> None:
    """Print ``text``, with the ANSI styles it may carry, above what ``console`` animates."""
    console.print(RichText.from_ansi(text), soft_wrap=True)


# -- results -------------------------------------------------------------------------------


def print_result(console: Console, result: Result) -> None:
    if isinstance(result, ListResult):
        _print_list(console, result)
    elif isinstance(result, SectionedListResult):
        for name, section in result.sections.items():
            _print_rule(console, section.title or name)
            print_result(console, section)
    elif isinstance(result, DetailResult):
        if result.title:
            _print_rule(console, result.title)
        if result.rows:
            console.print(_rows_table(result.rows))
    elif isinstance(result, OperationResult) and result.sentence:
        _print_text(console, result.sentence, style="green" if result.status == "success" else "yellow")
    elif isinstance(result, StreamResult):
        for item in result.items:
            _print_lines(console, [[column.cell(item) for column in result.columns]])
    print_blocks(console, result.blocks)
    for hint in result.next_steps if isinstance(result, OperationResult) else result.hints:
        _print_text(console, hint, style="dim")


def print_blocks(console: Console, blocks: Sequence[Block]) -> None:
    for block in blocks:
        if isinstance(block, Table):
            if block.title:
                _print_rule(console, block.title)
            console.print(_table(block.columns, block.rows))
            if block.note:
                _print_text(console, block.note, style="dim")
        elif isinstance(block, Section):
            if block.rows:
                _print_rule(console, block.title)
                console.print(_rows_table(block.rows))
        elif isinstance(block, ConversationBlock):
            console.print(_conversation(console, block))
        elif isinstance(block, SideBySide):
            _print_side_by_side(console, block)
        elif isinstance(block, Chart):
            _print_chart(console, block)
        elif block.title:
            framed = Panel(
                RichText(formats.literal(block.text)),
                title=RichText(formats.one_line(block.title)),
                title_align="left",
                border_style=_STYLES[block.tone] if block.tone else "dim",
                expand=False,
            )
            console.print(framed)
        else:
            _print_text(console, block.text, style=_STYLES[block.tone] if block.tone else "")


def _print_list(console: Console, result: ListResult) -> None:
    if not result.items:
        looked = f"No matches so far. {result.more}".rstrip()
        if not result.blocks:
            _print_text(console, looked if result.has_more else result.none, style="dim")
        return
    columns = [column for column in result.columns if column.in_rich]
    rows = [[column.cell(item) for column in columns] for item in result.items]
    if result.as_table:
        console.print(_table(columns, rows))
    else:
        _print_lines(console, rows)
    if result.has_more:
        shown, total = len(result.items), result.total_count
        of_total = f" of {total}" if total is not None else ""
        _print_text(console, f"Showing {shown}{of_total}. {result.more}".rstrip(), style="dim")


def _print_lines(console: Console, rows: Sequence[Sequence[Cell]]) -> None:
    """Print aligned cells; the last one is never broken."""
    drawn = [list(map(_cell, row)) for row in rows]
    for column in list(zip(*drawn, strict=True))[:-1]:
        width = max(cell.cell_len for cell in column)
        for cell in column:
            cell.pad_right(width - cell.cell_len)
    for cells in drawn:
        console.print(RichText("  ").join(cells), soft_wrap=True)


def _print_text(console: Console, text: str, *, style: str = "") -> None:
    # Soft wrapping leaves long paths and commands whole, to be copied.
    console.print(RichText(formats.literal(text), style=style), soft_wrap=True)


def _print_rule(console: Console, title: str) -> None:
    console.print(Rule(RichText(formats.one_line(title), style="bold"), align="left", style="dim"))


# -- tables --------------------------------------------------------------------------------


def _table(columns: Sequence[Column | str], rows: Sequence[Sequence[Cell]]) -> RichTable:
    shown_columns = [column if isinstance(column, Column) else Column(column) for column in columns]
    headed = any(column.heading.strip() for column in shown_columns)
    drawn = RichTable(box=box.ROUNDED, show_header=headed, header_style="bold", border_style="dim")
    for shown in shown_columns:
        drawn.add_column(
            RichText(shown.heading),
            justify="right" if shown.right else "left",
            no_wrap=shown.keep,
            overflow="ellipsis" if shown.keep else "fold",
        )
    for row in rows:
        drawn.add_row(*map(_cell, row))
    return drawn


def _rows_table(rows: Sequence[Row]) -> RichTable:
    drawn = RichTable(box=box.ROUNDED, show_header=False, border_style="dim")
    drawn.add_column(style="cyan", no_wrap=True)
    drawn.add_column(overflow="fold")
    for label, value in rows:
        drawn.add_row(RichText(formats.one_line(label)), _cell(value))
    return drawn


def _cell(cell: Cell) -> RichText:
    if isinstance(cell, Styled):
        return RichText(_cell_text(cell.text), style=_STYLES[cell.tone])
    if isinstance(cell, Status):
        tone = _STATUS_TONES.get(cell.word.lower())
        return RichText(f"[{formats.one_line(cell.word)}]", style=_STYLES[tone] if tone else "")
    if isinstance(cell, Timestamp):
        return RichText(_cell_text(formats.date(cell.at, seconds=cell.seconds)))
    if isinstance(cell, str):
        return RichText(_cell_text(cell))
    return RichText(cell_text(cell))


def _cell_text(text: str) -> str:
    # A tab stop inside a table is measured as one column and drawn as several.
    return formats.literal(text).replace("\t", " ")


# -- conversations -------------------------------------------------------------------------


def _conversation(console: Console, conversation: ConversationBlock, *, width: int | None = None) -> Panel:
    drawn: list[RenderableType] = []
    for turn in conversation.turns:
        drawn.append(_turn_heading(turn))
        drawn.append(Padding(RichText(formats.literal(turn.text)), (0, 0, 0, 2)))
    if conversation.closing:
        closing = conversation.closing
        drawn.append(RichText(formats.literal(closing.text), style=_STYLES[closing.tone]))
    title = RichText(formats.one_line(conversation.title)) if conversation.title else None
    width = width or min(console.width, _READING_WIDTH)
    return Panel(Group(*drawn), title=title, title_align="left", border_style="dim", width=width)


def _print_side_by_side(console: Console, pair: SideBySide) -> None:
    """Draw two conversations side by side, or one below the other on a narrow terminal."""
    both = (pair.left, pair.right)
    if console.width < _READING_WIDTH:
        for each in both:
            console.print(_conversation(console, each))
        return
    width = min(console.width, 2 * _READING_WIDTH) // 2
    grid = RichTable.grid()
    for _ in both:
        grid.add_column(overflow="fold")
    grid.add_row(*(_conversation(console, each, width=width) for each in both))
    console.print(grid)


def _turn_heading(turn: ConversationTurn) -> RichText:
    heading = RichText(formats.one_line(turn.role), style=_ROLE_STYLES.get(turn.role, "bold"))
    if turn.label:
        heading.append(f"  {formats.one_line(turn.label)}", style="dim not bold")
    return heading


# -- charts --------------------------------------------------------------------------------


def _print_chart(console: Console, chart: Chart) -> None:
    width = max(_NARROWEST_CHART, min(console.width, _READING_WIDTH) - _CHART_MARGIN)
    lines = draw(chart.curves, width=width, height=_CHART_HEIGHT, x_label=chart.x_label)
    if lines and chart.title:
        _print_rule(console, chart.title)
    for line in lines:
        drawn = RichText(no_wrap=True)
        for span in line:
            drawn.append(span.text, "dim" if span.curve is None else _STYLES[chart.curves[span.curve].tone])
        drawn.rstrip()
        console.print(drawn, soft_wrap=True)


# -- what moves ----------------------------------------------------------------------------


@contextmanager
def spinner(console: Console, message: str) -> Iterator[None]:
    """Show a spinner next to ``message`` until the block ends, then remove it."""
    with console.status(RichText(message), spinner="dots"):
        yield


@contextmanager
def bar(console: Console, description: str, *, total: float | None, unit: str) -> Iterator[_Bar]:
    """Draw a progress bar until the block ends; its last state stays on the screen."""
    drawn = _BarWithLines(
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False, table_column=RichColumn(no_wrap=True)),
        BarColumn(bar_width=20),
        _Amount(RichColumn(no_wrap=True)),
        TimeElapsedColumn(),
        _Remaining(RichColumn(no_wrap=True)),
        _Note(),
        console=console,
    )
    with drawn:
        shown = formats.one_line(description)
        yield _Bar(drawn, drawn.add_task(shown, total=total, unit=unit, note="", waits=False))


class _BarWithLines(RichProgress):
    """A bar with lines of text under it."""

    below: Sequence[str] = ()
    waits = ""

    def get_renderables(self) -> Iterator[RenderableType]:
        """Yield the bar, then in full what it waits for, then the lines, each cut where the terminal ends."""
        yield from super().get_renderables()
        if self.waits:
            yield RichText(
                f"Run status: {formats.one_line(self.waits)}", style=_STYLES["warn"], overflow="fold"
            )
        for line in self.below:
            yield RichText(formats.one_line(line), no_wrap=True, overflow="ellipsis")


class _Bar(Progress):
    def __init__(self, drawn: _BarWithLines, task: Any) -> None:
        self._drawn = drawn
        self._task = task

    def show(self, now: ProgressState) -> None:
        self._drawn.below, self._drawn.waits = now.below, now.waits
        note = "" if now.below else formats.one_line(now.note)
        self._drawn.update(
            self._task, completed=now.completed, total=now.total, note=note, waits=bool(now.waits)
        )


class _Amount(ProgressColumn):
    def render(self, task: Task) -> RichText:
        return RichText(formats.amount(task.completed, task.total, task.fields["unit"]))


class _Note(ProgressColumn):
    def render(self, task: Task) -> RichText:
        """Return what else is worth seeing, cut where the terminal ends: the one column that gives way."""
        return RichText(task.fields["note"], style="dim", no_wrap=True, overflow="ellipsis")


class _Remaining(ProgressColumn):
    max_refresh = 1.0  # an estimate that changes ten times a second cannot be read

    def render(self, task: Task) -> RichText:
        """Return ``40s left``, or nothing if the time is unknown or nothing is running."""
        left = task.time_remaining
        if left is None or task.finished or task.fields["waits"]:
            return RichText("")
        shown = f"{max(1.0, left):.0f}s" if left < 59.5 else formats.duration(left)
        return RichText(f"{shown} left", style="dim")
