"""Results of commands, and their JSON and plain output; ``terminal.py`` renders them for terminals.

A JSON envelope is one line. It never holds NaN or an infinity, and a command's extra keys never replace the contract's own.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime
from typing import Any, Literal, NamedTuple

from osmosis_ai.cli.output import formats

Tone = Literal["good", "bad", "warn", "active", "pending", "accent", "strong", "dim"]
OperationStatus = Literal["success", "noop", "cancelled", "partial", "failed", "unclear"]
SCHEMA_VERSION = 1
_EXIT_CODES: Mapping[OperationStatus, int] = {"partial": 1, "failed": 1, "unclear": 3}
_CURVE_WIDTH = 40


def dumps(value: Any) -> str:
    """Return ``value`` as one line of JSON, not escaped beyond what JSON asks for."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=_encode)
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        # A file name that is not UTF-8 holds lone surrogates; escaped they survive the trip.
        return json.dumps(value, allow_nan=False, separators=(",", ":"), default=_encode)
    return text


def _encode(value: Any) -> Any:
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, date):
        return value.isoformat()
    raise TypeError(f"{type(value).__name__} has no JSON form")


# -- cells ---------------------------------------------------------------------------------


class Styled(NamedTuple):
    """Text with a tone; the tone shows on a colour terminal only."""

    text: str
    tone: Tone


class Status(NamedTuple):
    """A status word of the platform, shown as ``[word]`` in the colour of its family."""

    word: str


class Timestamp(NamedTuple):
    """A point in time: in the reader's own zone for people, ISO 8601 in UTC for lines that programs read."""

    at: datetime | str | None
    seconds: bool = False


Cell = str | int | float | bool | Styled | Status | Timestamp | None
Row = tuple[str, Cell]


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
    return f"{cell:g}" if isinstance(cell, float) else formats.one_line(str(cell))


def joined(cells: Iterable[Cell]) -> str:
    """Return a record's line."""
    return "\t".join(map(cell_text, cells))


class Column(NamedTuple):
    """One column of a table."""

    heading: str
    key: str = ""
    value: Callable[[Mapping[str, Any]], Cell] | None = None
    right: bool = False
    keep: bool = False
    in_plain: bool = True
    in_rich: bool = True

    def cell(self, item: Mapping[str, Any]) -> Cell:
        if self.value is not None:
            return self.value(item)
        return cell_of(self.key, item.get(self.key))


def cell_of(key: str, value: Any) -> Cell:
    """Return a JSON value as a cell; its key shows whether it is a time or a status."""
    if value is not None and key == "status":
        return Status(str(value))
    if key.endswith("_at"):
        return Timestamp(value)
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value)) or None
    return value if isinstance(value, Cell) else formats.one_line(str(value))


# -- blocks: shown on a terminal, in plain mode only with ``in_plain``, never in JSON ------------


class Table(NamedTuple):
    """A table for people."""

    columns: Sequence[Column | str]
    rows: Sequence[Sequence[Cell]]
    title: str | None = None
    note: str | None = None
    in_plain: bool = False

    def plain_lines(self) -> Iterator[str]:
        headings = [each.heading if isinstance(each, Column) else each for each in self.columns]
        if any(heading.strip() for heading in headings):
            yield joined(headings)
        yield from map(joined, self.rows)
        if self.note:
            yield formats.literal(self.note)


class Text(NamedTuple):
    """A paragraph for people; with a ``title`` it gets a frame."""

    text: str
    title: str | None = None
    tone: Tone | None = None
    in_plain: bool = False

    def plain_lines(self) -> Iterator[str]:
        yield formats.literal(self.text)


class ConversationTurn(NamedTuple):
    """One turn of a conversation: who spoke (``user``, ``assistant``, ``tool`` …) and what."""

    role: str
    text: str
    label: str = ""


class ConversationBlock(NamedTuple):
    """An agent's conversation, turn by turn, with a closing line (its reward)."""

    turns: Sequence[ConversationTurn]
    title: str | None = None
    closing: Styled | None = None
    in_plain: bool = False

    def plain_lines(self) -> Iterator[str]:
        for turn in self.turns:
            yield f"{turn.role}: {formats.one_line(turn.text)}"
        if self.closing:
            yield formats.literal(self.closing.text)


class SideBySide(NamedTuple):
    """Two conversations, next to each other if there is room."""

    left: ConversationBlock
    right: ConversationBlock


class Curve(NamedTuple):
    """A named curve: points by rising x."""

    name: str
    points: Sequence[tuple[float, float]]
    tone: Tone


class Chart(NamedTuple):
    """Curves over one x axis; in plain mode a line each."""

    curves: Sequence[Curve]
    title: str | None = None
    x_label: str = ""
    in_plain: bool = False

    def plain_lines(self) -> Iterator[str]:
        for curve in self.curves:
            values = [value for _, value in curve.points]
            ends = f"{values[0]:.3g} → {values[-1]:.3g}" if values else formats.MISSING
            yield joined([curve.name, formats.sparkline(values, width=_CURVE_WIDTH), ends])


class Section(NamedTuple):
    """A titled group of label/value rows of a detail."""

    title: str
    rows: Sequence[Row]
    in_plain: bool = True

    def plain_lines(self) -> Iterator[str]:
        yield from (f"{label}: {cell_text(value)}" for label, value in self.rows)


Block = Table | Text | Section | ConversationBlock | SideBySide | Chart


def _block_lines(blocks: Iterable[Block]) -> Iterator[str]:
    for block in blocks:
        if isinstance(block, SideBySide):
            yield from _block_lines([block.left, block.right])
        elif block.in_plain:
            if block.title:
                yield f"{formats.one_line(block.title)}:"
            yield from block.plain_lines()


# -- results -------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Result:
    """The result of a command."""

    blocks: Sequence[Block] = ()
    hints: Sequence[str] = ()
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def exit_code(self) -> int:
        """The process's exit status that follows from this result."""
        return 0

    def body(self) -> dict[str, Any]:
        """Return the contract's own keys of the JSON document."""
        raise NotImplementedError

    def plain_lines(self) -> Iterator[str]:
        """Yield lines without line ends."""
        yield from _block_lines(self.blocks)

    def envelope(self) -> dict[str, Any]:
        document = {"schema_version": SCHEMA_VERSION, **self.body()}
        return {**document, **{key: value for key, value in self.extra.items() if key not in document}}


@dataclass(frozen=True)
class ListResult(Result):
    """One page (or all) of a collection, as a table, or as lines that can be copied whole."""

    items: Sequence[Mapping[str, Any]]
    columns: Sequence[Column] = ()
    title: str = ""
    total_count: int | None = None
    has_more: bool = False
    next_offset: int | None = None
    more: str = "Use --all to list all."
    none: str = "No items."
    as_table: bool = True

    def body(self) -> dict[str, Any]:
        return {
            "items": [dict(item) for item in self.items],
            "total_count": len(self.items) if self.total_count is None else self.total_count,
            "has_more": self.has_more,
            "next_offset": self.next_offset,
        }

    def plain_lines(self) -> Iterator[str]:
        shown = [column for column in self.columns if column.in_plain]
        yield from (joined(column.cell(item) for column in shown) for item in self.items)
        yield from super().plain_lines()


@dataclass(frozen=True)
class SectionedListResult(Result):
    """Several lists under one envelope, each with its own pagination, keyed by its JSON name."""

    sections: Mapping[str, ListResult]

    def body(self) -> dict[str, Any]:
        return {name: part.body() for name, part in self.sections.items()}

    def plain_lines(self) -> Iterator[str]:
        for name, section in self.sections.items():
            yield f"{section.title or name}:"
            yield from section.plain_lines()


@dataclass(frozen=True)
class DetailResult(Result):
    """One thing in full: ``data`` for scripts; ``title``, ``rows``, ``blocks``, ``hints`` for people."""

    data: Mapping[str, Any]
    title: str = ""
    rows: Sequence[Row] = ()

    def body(self) -> dict[str, Any]:
        return {"data": dict(self.data)}

    def plain_lines(self) -> Iterator[str]:
        yield from Section("", self.rows).plain_lines()
        yield from super().plain_lines()
        yield from map(formats.literal, self.hints)


@dataclass(frozen=True)
class OperationResult(Result):
    """Something was done, or deliberately not; ``shown`` replaces the message for people, "" omits it."""

    operation: str
    status: OperationStatus = "success"
    message: str | None = None
    shown: str | None = None
    resource: Mapping[str, Any] | None = None
    next_steps: Sequence[str] = ()
    next_steps_structured: Sequence[Mapping[str, Any]] = ()

    @property
    def sentence(self) -> str:
        """The first line on a terminal."""
        if self.shown is not None:
            return self.shown
        return self.message or f"{self.operation}: {self.status}"

    @property
    def exit_code(self) -> int:
        return _EXIT_CODES.get(self.status, 0)

    def body(self) -> dict[str, Any]:
        optional = {
            "resource": self.resource and dict(self.resource),
            "message": self.message,
            "next_steps_structured": [dict(step) for step in self.next_steps_structured] or None,
        }
        present = {key: value for key, value in optional.items() if value is not None}
        return {"status": self.status, "operation": self.operation, **present}

    def plain_lines(self) -> Iterator[str]:
        if self.sentence:
            yield formats.literal(self.sentence)
        yield from super().plain_lines()
        yield from map(formats.literal, self.next_steps)


@dataclass(frozen=True)
class StreamResult(Result):
    """Items that are printed as they arrive, such as a followed log, without an envelope."""

    items: Iterable[Mapping[str, Any]]
    columns: Sequence[Column] = ()
