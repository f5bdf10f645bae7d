from __future__ import annotations

import pytest

from osmosis_ai.errors import OsmosisError
from osmosis_ai.platform.log_lines import MAX_MESSAGE_CHARS, LogLine
from osmosis_ai.platform.logs import Direction
from tests.platform.conftest import World


def pages(world: World, direction: Direction, limit: int) -> list[list[str | None]]:
    found: list[list[str | None]] = []
    cursor: str | None = None
    while True:
        page = world.services.logs.page("run_1", limit=limit, direction=direction, cursor=cursor)
        found.append([entry.message for entry in page.logs])
        cursor = page.next_cursor
        if cursor is None:
            return found


@pytest.fixture
def ten_lines(world: World) -> None:
    world.services.logs.append("run_1", (LogLine(f"line {number}", step="run") for number in range(10)))
    world.services.logs.append("run_2", [LogLine("of another run")])


def test_older_pages_go_back_from_the_newest_line(world: World, ten_lines: None) -> None:
    assert pages(world, "older", 4) == [
        ["line 6", "line 7", "line 8", "line 9"],
        ["line 2", "line 3", "line 4", "line 5"],
        ["line 0", "line 1"],
    ]
    assert pages(world, "older", 10) == [[f"line {number}" for number in range(10)]]


def test_lines_written_between_two_pages_are_neither_skipped_nor_repeated(
    world: World, ten_lines: None
) -> None:
    older = world.services.logs.page("run_1", limit=5, direction="older")
    newer = world.services.logs.page("run_1", limit=9, direction="newer")
    world.services.logs.append("run_1", [LogLine("line 10")])
    back = world.services.logs.page("run_1", limit=5, direction="older", cursor=older.next_cursor)
    on = world.services.logs.page("run_1", limit=5, direction="newer", cursor=newer.next_cursor)
    assert [entry.message for entry in back.logs] == [f"line {number}" for number in range(5)]
    assert [entry.message for entry in on.logs] == ["line 9", "line 10"]


@pytest.mark.parametrize("cursor", ["x", "-1", "1; DROP TABLE log_lines", "9" * 40, "²", ""])
def test_a_cursor_from_elsewhere_is_refused(world: World, cursor: str) -> None:
    with pytest.raises(OsmosisError, match="cursor"):
        world.services.logs.page("run_1", cursor=cursor)


def test_an_entry_says_when_where_and_how_bad(world: World) -> None:
    world.services.logs.append(
        "run_1", [LogLine("no rows", level="error", step="validate", details={"row": 3})]
    )
    (entry,) = world.services.logs.page("run_1").logs
    assert entry.to_wire() == {
        "timestamp": "2026-11-02T09:30:00.000Z",
        "level": "error",
        "step": "validate",
        "message": "no rows",
        "details": {"row": 3},
    }


def test_a_line_is_bounded_and_always_text(world: World) -> None:
    endless = LogLine("x" * (MAX_MESSAGE_CHARS + 5), step="s" * 300, details={"all": "y" * 100_000})
    world.services.logs.append("run_1", [endless, LogLine("a\0b\ud800c")])
    long, odd = world.services.logs.page("run_1").logs
    assert long.message is not None and long.message.endswith("x… (5 more characters)")
    assert long.step == "s" * 64 and "truncated" in (long.details or {})
    assert odd.message == "a\N{REPLACEMENT CHARACTER}b?c"
