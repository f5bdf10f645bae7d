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

LinesOption = Annotated[int, typer.Option(min=1, max=200, help="How many lines at most, the newest.")]
CursorOption = Annotated[
    str | None, typer.Option(help="Go on towards older lines from a `next_cursor`.", show_default=False)
]
FollowOption = Annotated[
    bool, typer.Option("--follow", "-f", help="Go on showing lines until the run has ended.")
]
LevelOption = Annotated[
    Literal["debug", "info", "warning", "error"] | None,
    typer.Option(help="Only lines of this level and above.", show_default=False),
]
_TONES: dict[str, Tone] = {
    "error": "bad",
    "critical": "bad",
    "warning": "warn",
    "warn": "warn",
    "debug": "dim",
}


def require_no_cursor(cursor: str | None) -> None:
    """Refuse a place to go back from to who wants what comes."""
    if cursor is not None:
        raise OsmosisError("--follow and --cursor are mutually exclusive.")


def page_result(
    page: LogPage,
    *,
    older: str,
    extra: Mapping[str, Any],
    level: str | None = None,
    looked_through: int = 0,
) -> ListResult:
    """Return a page of a log."""
    from osmosis_ai.services.log_following import none_of_level

    result = ListResult(
        items=[entry_item(entry) for entry in page.logs],
        columns=_columns(),
        has_more=page.next_cursor is not None,
        more=f"Older lines: {older} --cursor {page.next_cursor}",
        extra={**extra, "next_cursor": page.next_cursor},
    )
    if level is None or not looked_through:
        return result
    return replace(result, none=none_of_level(level, looked_through))


def stream_result(entries: Iterable[LogEntry]) -> StreamResult:
    """Return a log that is shown line by line as it grows."""
    return StreamResult(items=map(entry_item, entries), columns=_columns())


def entry_item(entry: LogEntry) -> dict[str, Any]:
    """Return a line as scripts see it."""
    return {
        "timestamp": entry.timestamp,
        "level": entry.level,
        "step": entry.step,
        "message": entry.message,
        "details": entry.details,
    }


def _columns() -> tuple[Column, ...]:
    return (
        Column("Time", value=lambda item: Timestamp(item["timestamp"], seconds=True)),
        Column("Level", value=lambda item: _toned(item["level"])),
        Column("Step", "step"),
        Column("Message", value=lambda item: _said(item["message"], item["details"])),
    )


def _said(message: str | None, details: Mapping[str, Any] | None) -> str | None:
    """Return what a line says and of which sample, without terminal sequences, which are counted behind it."""
    from osmosis_ai.evaluation.run_log import with_attempt
    from osmosis_ai.ui.terminal_text import told_without_sequences

    return told_without_sequences(with_attempt(message, details)) if message else message


def _toned(level: str | None) -> Cell:
    tone = _TONES.get((level or "").lower())
    return Styled(level or "", tone) if tone else level
