"""`osmosis dataset list`, `info`, `preview` and `logs` against replies written by hand."""

from __future__ import annotations

from typing import Any

import pytest

from tests.cli.maze import Maze, replies
from tests.logins import REFUSALS

FULL: dict[str, Any] = {
    "id": "ds_31",
    "file_name": "maze-walks",
    "file_size": 1536,
    "status": "uploaded",
    "file_format": "parquet",
    "original_file_format": "csv",
    "row_count": 1200,
    "original_file_size": 4096,
    "data_preview": [
        {"user_prompt": "left?", "ground_truth": "no"},
        {"user_prompt": "right?", "ground_truth": None},
    ],
    "creator_name": "Mara",
    "created_at": "2026-10-02T07:00:00Z",
    "updated_at": "2026-10-02T07:03:10.250Z",
    "platform_url": "https://osmosis.fern.example/fern-lab/datasets/ds_31",
    "is_internal_user": True,
}
MINIMAL = {"id": "ds_1"}
NULLS = {**dict.fromkeys(FULL), "id": "ds_2"}


def test_all_pages_are_fetched_with_all_and_a_list_without_end_is_noticed(maze: Maze) -> None:
    pages = maze.get("/datasets")
    pages.side_effect = replies(
        {"datasets": [FULL] * 50, "next_offset": 50}, {"datasets": [MINIMAL], "next_offset": None}
    )
    found = maze.osmosis("dataset", "list", "--all", "--json").json
    assert (len(found["items"]), found["total_count"]) == (51, 51)
    assert (found["has_more"], found["next_offset"]) == (False, None)
    assert [call.request.url.params["offset"] for call in pages.calls] == ["0", "50"]
    pages.side_effect = None
    pages.respond(json={"datasets": [MINIMAL], "next_offset": 0})
    assert "does not end" in maze.osmosis("dataset", "list", "--all", "--json").error["message"]


def test_all_and_a_limit_exclude_each_other_and_a_limit_has_bounds(maze: Maze) -> None:
    error = maze.osmosis("dataset", "list", "--all", "--limit", "3", "--json").error
    assert (error["code"], error["message"]) == ("VALIDATION", "--all and --limit are mutually exclusive.")
    beyond = maze.osmosis("dataset", "list", "--limit", "51", "--json")
    assert (beyond.status, "1<=x<=50" in beyond.error["message"]) == (2, True)


@pytest.mark.parametrize("reply", [MINIMAL, NULLS])
def test_what_a_platform_leaves_out_is_a_dash(maze: Maze, reply: dict[str, Any]) -> None:
    maze.get("/datasets/x").respond(json=reply)
    assert maze.osmosis("dataset", "info", "x", "--plain").out.splitlines() == [
        "File: –",
        "Status: []",
        "File Format: –",
        "Total Rows: –",
        "Size: 0 B",
        "Uploaded: –",
        "Uploaded By: –",
    ]
    assert maze.osmosis("dataset", "info", "x").status == 0


@pytest.mark.parametrize("name", ["a/b", "..", "two words", "naïve", "x" * 300])
def test_any_name_stays_one_segment_of_the_path(maze: Maze, name: str) -> None:
    route = maze.router.get(url__regex=r".*/api/cli/datasets/[^/?]+$").respond(
        404, json={"error": "no such dataset"}
    )
    assert maze.osmosis("dataset", "info", name, "--json").error["code"] == "NOT_FOUND"
    assert route.called


def test_a_missing_preview_is_no_error(maze: Maze) -> None:
    maze.get("/datasets/x").respond(json={"id": "ds_1", "status": "processing"})
    outcome = maze.osmosis("dataset", "preview", "x", "--json")
    assert outcome.status == 0
    data = outcome.json["data"]
    assert (data["available"], data["rows"], data["returned_rows"]) == (False, [], 0)
    assert "still working" in data["message"]
    assert "still working" in maze.osmosis("dataset", "preview", "x", "--plain").out


def test_control_characters_of_a_platform_do_not_reach_the_terminal(maze: Maze) -> None:
    maze.get("/datasets/x/logs").respond(json={"logs": [{"message": "\x1b[2Jgone"}], "next_cursor": None})
    assert "\x1b[2J" not in maze.osmosis("dataset", "logs", "x").out


@pytest.mark.parametrize("arguments", [("list",), ("info", "x"), ("download", "x")])
@pytest.mark.parametrize("reply, code", REFUSALS)
def test_a_platform_that_is_not_well_is_told_by_its_code(
    maze: Maze, arguments: tuple[str, ...], reply: dict[str, Any], code: str
) -> None:
    maze.router.get(url__regex=".*/api/cli/.*").respond(**reply)
    outcome = maze.osmosis("dataset", *arguments, "--json")
    assert (outcome.status, outcome.error["code"]) == (1, code)
    plain = maze.osmosis("dataset", *arguments, "--plain")
    assert (plain.status, plain.out) == (1, "") and "Error: " in plain.err
