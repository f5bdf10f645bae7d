"""The log of a run, which its worker writes and clients read page by page."""

from __future__ import annotations

from typing import Any

import pytest
from fastapi.testclient import TestClient

from tests.platform.conftest import World, assert_flat_error
from tests.platform.fake_worker import EVALS, FakeWorker


class Log:
    """The log of a run that a worker executes."""

    def __init__(self, api: TestClient, world: World) -> None:
        self.api, self.world = api, world
        self.run_id = EVALS.taken(api)["id"]
        FakeWorker.claims(world)
        self.before = self.page(limit=50)["logs"]

    def page(self, **query: Any) -> Any:
        return self.api.get(f"{EVALS.route}/{self.run_id}/logs", params=query).json()

    def write(self, *messages: str) -> None:
        for message in messages:
            self.world.log(self.run_id, message, step="run")

    def pages(self, direction: str, limit: int) -> list[list[str]]:
        found, cursor = [], None
        while True:
            page = self.page(limit=limit, direction=direction, **({"cursor": cursor} if cursor else {}))
            found.append([entry["message"] for entry in page["logs"]])
            cursor = page.get("next_cursor")
            if cursor is None:
                return found


@pytest.fixture
def log(api: TestClient, world: World) -> Log:
    made = Log(api, world)
    EVALS.taken(api)  # has a log of its own
    made.write(*(f"line {number}" for number in range(10)))
    return made


def test_older_pages_go_back_from_the_newest_line(log: Log) -> None:
    first, second, third, *_ = log.pages("older", 4)
    assert first == ["line 6", "line 7", "line 8", "line 9"]
    assert second == ["line 2", "line 3", "line 4", "line 5"]
    assert third[-2:] == ["line 0", "line 1"]
    whole = [*(entry["message"] for entry in log.before), *(f"line {number}" for number in range(10))]
    assert log.pages("older", len(whole)) == log.pages("newer", len(whole)) == [whole]


def test_lines_written_between_two_pages_are_neither_skipped_nor_repeated(log: Log) -> None:
    known = len(log.before)
    older = log.page(limit=5, direction="older")
    newer = log.page(limit=known + 9, direction="newer")
    log.write("line 10")
    back = log.page(limit=5, direction="older", cursor=older["next_cursor"])
    on = log.page(limit=5, direction="newer", cursor=newer["next_cursor"])
    assert [entry["message"] for entry in back["logs"]] == [f"line {number}" for number in range(5)]
    assert [entry["message"] for entry in on["logs"]] == ["line 9", "line 10"]


@pytest.mark.parametrize("cursor", ["x", "-1", "1; DROP TABLE log_lines", "9" * 40, "²"])
def test_a_cursor_from_elsewhere_is_refused(log: Log, cursor: str) -> None:
    reply = log.api.get(f"{EVALS.route}/{log.run_id}/logs", params={"cursor": cursor})
    assert "cursor" in assert_flat_error(reply, 400, "VALIDATION")["error"]


def test_an_entry_says_when_where_and_how_bad(log: Log) -> None:
    log.world.log(log.run_id, "no rows", "error", step="validate", details={"row": 3})
    assert log.page(limit=1)["logs"] == [
        {
            "timestamp": "2026-11-02T09:30:00.000Z",
            "level": "error",
            "step": "validate",
            "message": "no rows",
            "details": {"row": 3},
        }
    ]


def test_a_line_is_bounded_and_always_text(log: Log) -> None:
    log.world.log(log.run_id, "x" * 20_000, step="s" * 300, details={"all": "y" * 100_000})
    log.world.log(log.run_id, "a\0b\ud800c")
    long, odd = log.page(limit=2)["logs"]
    assert long["message"].startswith("xxx") and "… (" in long["message"] and len(long["message"]) < 20_000
    assert long["message"].endswith(" more characters)")
    assert long["step"] == "s" * 64 and "truncated" in long["details"]
    assert odd["message"] == "a\N{REPLACEMENT CHARACTER}b?c"
