"""What a command hands back: plain data that the frame renders once, in the mode the user asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

Tone = Literal["good", "bad", "warn", "active", "pending", "accent", "strong", "dim"]
OperationStatus = Literal["success", "noop", "cancelled", "partial", "no_update", "failed", "unclear"]
_EXIT_CODES: Mapping[OperationStatus, int] = {"partial": 1, "failed": 1, "unclear": 3}


@dataclass(frozen=True, slots=True)
class Styled:
    """Text with a tone; the tone shows on a colour terminal only."""

    text: str
    tone: Tone


@dataclass(frozen=True, slots=True)
class Status:
    """A status word of the platform, shown as ``[word]`` in the colour of its family."""

    word: str


@dataclass(frozen=True, slots=True)
class Timestamp:
    """A point in time: in the reader's own zone for people, ISO 8601 in UTC for lines that programs read."""

    at: datetime | str | None
    seconds: bool = False


Cell = str | int | float | bool | Styled | Status | Timestamp | None
Row = tuple[str, Cell]


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a table."""

    heading: str
    key: str = ""
    value: Callable[[Mapping[str, Any]], Cell] | None = None
    right: bool = False
    keep: bool = False
    in_plain: bool = True
    in_rich: bool = True

    def cell(self, item: Mapping[str, Any]) -> Cell:
        """Return what this column shows of ``item``."""
        if self.value is not None:
            return self.value(item)
        found: Cell = item.get(self.key)
        return found


@dataclass(frozen=True, slots=True)
class Table:
    """A table for people: shown in rich mode, in plain mode only with ``in_plain``, never in JSON."""

    columns: Sequence[Column | str]
    rows: Sequence[Sequence[Cell]]
    title: str | None = None
    note: str | None = None
    in_plain: bool = False


@dataclass(frozen=True, slots=True)
class Text:
    """A paragraph for people; with a ``title`` it gets a frame. See :class:`Table` for the modes."""

    text: str
    title: str | None = None
    tone: Tone | None = None
    in_plain: bool = False


@dataclass(frozen=True, slots=True)
class ConversationTurn:
    """One turn of a conversation: who spoke (``user``, ``assistant``, ``tool`` …) and what."""

    role: str
    text: str
    label: str = ""


@dataclass(frozen=True, slots=True)
class ConversationBlock:
    """An agent's conversation, turn by turn, with a closing line (its reward). Modes as :class:`Table`."""

    turns: Sequence[ConversationTurn]
    title: str | None = None
    closing: Styled | None = None
    in_plain: bool = False


@dataclass(frozen=True, slots=True)
class SideBySide:
    """Two conversations, beside each other where there is room. Modes as those of ``left``."""

    left: ConversationBlock
    right: ConversationBlock


@dataclass(frozen=True, slots=True)
class Curve:
    """A named curve: points by rising x."""

    name: str
    points: Sequence[tuple[float, float]]
    tone: Tone


@dataclass(frozen=True, slots=True)
class Chart:
    """Curves over one x axis: drawn for people, in plain mode (with ``in_plain``) a line each, never in JSON."""

    curves: Sequence[Curve]
    title: str | None = None
    x_label: str = ""
    in_plain: bool = False


Block = Table | Text | ConversationBlock | SideBySide | Chart


@dataclass(frozen=True, slots=True)
class Section:
    """A titled group of label/value rows below the main ones of a detail."""

    title: str
    rows: Sequence[Row]


@dataclass(frozen=True)
class _Result:
    @property
    def exit_code(self) -> int:
        """The process's exit status that follows from this result."""
        return 0


@dataclass(frozen=True)
class ListResult(_Result):
    """One page (or all) of a collection."""

    items: Sequence[Mapping[str, Any]]
    columns: Sequence[Column] = ()
    title: str = ""
    total_count: int | None = None
    has_more: bool = False
    next_offset: int | None = None
    more: str = "Use --all to see every one."
    none: str = "Nothing here yet."
    extra: Mapping[str, Any] = field(default_factory=dict)
    hints: Sequence[str] = ()
    blocks: Sequence[Block] = ()


@dataclass(frozen=True)
class SectionedListResult(_Result):
    """Several lists under one envelope, each with its own pagination, keyed by its JSON name."""

    sections: Mapping[str, ListResult]
    extra: Mapping[str, Any] = field(default_factory=dict)
    hints: Sequence[str] = ()
    blocks: Sequence[Block] = ()


@dataclass(frozen=True)
class DetailResult(_Result):
    """One thing in full: ``data`` for scripts; ``title``, ``rows``, ``sections``, ``hints`` for people."""

    data: Mapping[str, Any]
    title: str = ""
    rows: Sequence[Row] = ()
    sections: Sequence[Section] = ()
    hints: Sequence[str] = ()
    blocks: Sequence[Block] = ()


@dataclass(frozen=True)
class OperationResult(_Result):
    """Something was done, or deliberately not."""

    operation: str
    status: OperationStatus = "success"
    message: str | None = None
    shown: str | None = None
    resource: Mapping[str, Any] | None = None
    next_steps: Sequence[str] = ()
    next_steps_structured: Sequence[Mapping[str, Any]] = ()
    extra: Mapping[str, Any] = field(default_factory=dict)
    blocks: Sequence[Block] = ()

    @property
    def sentence(self) -> str:
        """What people see first."""
        return self.shown or self.message or f"{self.operation}: {self.status}"

    @property
    def exit_code(self) -> int:
        """What follows from the status; 0 for one that is good."""
        return _EXIT_CODES.get(self.status, 0)


@dataclass(frozen=True)
class MessageResult(_Result):
    """A sentence, when there is nothing else to say."""

    message: str
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class StreamResult(_Result):
    """Items that are shown one by one while they come (a log that is followed), without an envelope."""

    items: Iterable[Mapping[str, Any]]
    columns: Sequence[Column] = ()


Result = ListResult | SectionedListResult | DetailResult | OperationResult | MessageResult | StreamResult
RESULT_TYPES = (
    ListResult,
    SectionedListResult,
    DetailResult,
    OperationResult,
    MessageResult,
    StreamResult,
)
