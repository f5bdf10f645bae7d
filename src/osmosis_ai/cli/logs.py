"""Logs of runs, as a page and as they grow."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from osmosis_ai.cli.output.results import Cell, Column, ListResult, StreamResult, Styled, Timestamp, Tone
from osmosis_ai.errors import OsmosisError

if TYPE_CHECKING:
    from osmosis_ai.api.models.base import LogEntry, LogPage

LinesOption = Annotated[int, typer.Option(min=1, max=200, help="Maximum number of lines (the newest).")]
CursorOption = Annotated[str | None, typer.Option(help="Cursor of older lines (`next_cursor` of a result).")]
FollowOption = Annotated[bool, typer.Option("--follow", "-f", help="Show new lines until the run ends.")]
LevelOption = Annotated[
    Literal["debug", "info", "warning", "error"] | None,
    typer.Option(help="Minimum level of the lines to show."),
]
_TONES: dict[str, Tone] = {
    **dict.fromkeys(("error", "critical"), "bad"),
    **dict.fromkeys(("warning", "warn"), "warn"),
    "debug": "dim",
}


def require_no_cursor(cursor: str | None) -> None:
    """Refuse a place to go back from to who wants what comes."""
    if cursor is not None:
        raise OsmosisError("--follow and --cursor are mutually exclusive.")


def page_result(
    page: LogPage, *, older: str, extra: Mapping[str, Any], level: str | None = None, looked_through: int = 0
) -> ListResult:
    from osmosis_ai.services.log_following import none_of_level

    result = ListResult(
        items=[entry.model_dump() for entry in page.logs],
        columns=_COLUMNS,
        has_more=page.next_cursor is not None,
        more=f"Older lines: {older} --cursor {page.next_cursor}",
        extra={**extra, "next_cursor": page.next_cursor},
    )
    if level is None or not looked_through:
        return result
    return replace(result, none=none_of_level(level, looked_through))


def stream_result(entries: Iterable[LogEntry]) -> StreamResult:
    """Return a log that is shown line by line as it grows."""
    return StreamResult(items=(entry.model_dump() for entry in entries), columns=_COLUMNS)


def _message(item: Mapping[str, Any]) -> str | None:
    """Return what a line says and of which attempt; terminal sequences are removed and counted."""
    from osmosis_ai.evaluation.run_log import with_attempt
    from osmosis_ai.ui.terminal_text import told_without_sequences

    text: str | None = item["message"]
    return told_without_sequences(with_attempt(text, item["details"])) if text else text


def _level(item: Mapping[str, Any]) -> Cell:
    level: str | None = item["level"]
    tone = _TONES.get((level or "").lower())
    return Styled(level or "", tone) if tone else level


_COLUMNS = (
    Column("Time", value=lambda item: Timestamp(item["timestamp"], seconds=True)),
    Column("Level", value=_level),
    Column("Step", "step"),
    Column("Message", value=_message),
)
