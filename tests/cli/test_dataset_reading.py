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
ITEM = {
    "id": "ds_31",
    "file_name": "maze-walks",
    "file_size": 1536,
    "status": "uploaded",
    "file_format": "parquet",
    "original_file_format": "csv",
    "row_count": 1200,
    "original_file_size": 4096,
    "creator_name": "Mara",
    "created_at": "2026-10-02T07:00:00.000Z",
    "updated_at": "2026-10-02T07:03:10.250Z",
}
BARE_ITEM = {**dict.fromkeys(ITEM), "file_size": 0, "status": ""}
LINES = [
    {
        "timestamp": "2026-10-02T07:00:00Z",
        "level": "info",
        "step": "upload",
        "message": "begun",
        "details": None,
    },
    {
        "timestamp": None,
        "level": "error",
        "step": None,
        "message": "row 3:\tno prompt",
        "details": {"row": 3},
    },
    {},
]


def test_scripts_get_every_key_of_every_dataset(maze: Maze) -> None:
    maze.get("/datasets").respond(
        json={"datasets": [FULL, MINIMAL, NULLS], "total_count": 120, "has_more": True, "next_offset": 3}
    )
    outcome = maze.osmosis("dataset", "list", "--limit", "3", "--json")
    assert (outcome.status, outcome.err) == (0, "")
    assert outcome.json == {
        "schema_version": 1,
        "items": [
            {**ITEM, "platform_url": FULL["platform_url"]},
            {**BARE_ITEM, "id": "ds_1"},
            {**BARE_ITEM, "id": "ds_2"},
        ],
        "total_count": 120,
        "has_more": True,
        "next_offset": 3,
        **maze.resource,
    }
    assert maze.osmosis("--json", "dataset", "list", "--limit", "3") == outcome


def test_plain_is_one_line_a_dataset_and_people_see_a_table_and_how_to_see_the_rest(maze: Maze) -> None:
    page = {"datasets": [FULL, MINIMAL], "total_count": 120, "has_more": True, "next_offset": 2}
    maze.get("/datasets").respond(json=page)
    plain = maze.osmosis("dataset", "list", "--plain")
    assert plain.out == "maze-walks\t[uploaded]\t1.5 KB\t2026-10-02T07:00:00Z\tMara\n–\t[]\t0 B\t–\t–\n"
    assert plain.err == "Fetching datasets\n"
    rich = maze.osmosis("dataset", "list").out
    assert all(heading in rich for heading in ("Name", "Status", "Size", "Uploaded", "Uploaded By"))
    assert "Showing 2 of 120. Use --all" in rich


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


def test_nothing_is_no_error(maze: Maze) -> None:
    maze.get("/datasets").respond(json={"datasets": []})
    assert maze.osmosis("dataset", "list", "--json").json["items"] == []
    assert maze.osmosis("dataset", "list", "--plain").out == ""


def test_one_dataset_in_full(maze: Maze) -> None:
    maze.get("/datasets/maze-walks").respond(json=FULL)
    assert maze.osmosis("dataset", "info", "maze-walks", "--json").json == {
        "schema_version": 1,
        "data": {**ITEM, "platform_url": FULL["platform_url"], **maze.resource},
    }
    assert maze.osmosis("dataset", "info", "maze-walks", "--plain").out.splitlines() == [
        "File: maze-walks",
        "ID: ds_31",
        "Status: [uploaded]",
        "File Format: PARQUET (uploaded as CSV)",
        "Total Rows: 1,200",
        "Size: 1.5 KB (uncompressed: 4.0 KB)",
        "Uploaded: 2026-10-02T07:00:00Z",
        "Uploaded By: Mara",
        f"View: {FULL['platform_url']}",
    ]


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


def test_a_dataset_in_error_says_where_its_logs_are(maze: Maze) -> None:
    maze.get("/datasets/bad").respond(json={"id": "ds_9", "file_name": "bad", "status": "error"})
    assert "See logs with: osmosis dataset logs bad" in maze.osmosis("dataset", "info", "bad").out
    maze.get("/datasets/kept").respond(
        json={"id": "ds_8", "file_name": "kept", "status": "uploaded", "upload_error": "line 2: no prompt"}
    )
    assert "Last Upload: refused: line 2: no prompt" in maze.osmosis("dataset", "info", "kept", "--plain").out


@pytest.mark.parametrize("name", ["a/b", "..", "two words", "naïve", "x" * 300])
def test_any_name_stays_one_segment_of_the_path(maze: Maze, name: str) -> None:
    route = maze.router.get(url__regex=r".*/api/cli/datasets/[^/?]+$").respond(
        404, json={"error": "no such dataset"}
    )
    assert maze.osmosis("dataset", "info", name, "--json").error["code"] == "NOT_FOUND"
    assert route.called


def test_a_preview_is_rows_for_scripts_and_a_table_for_people(maze: Maze) -> None:
    maze.get("/datasets/maze-walks").respond(json=FULL)
    data = maze.osmosis("dataset", "preview", "maze-walks", "--rows", "1", "--json").json["data"]
    assert data == {
        "dataset": {**ITEM, "platform_url": FULL["platform_url"]},
        "rows": FULL["data_preview"][:1],
        "requested_rows": 1,
        "returned_rows": 1,
        "available": True,
        **maze.resource,
    }
    plain = maze.osmosis("dataset", "preview", "maze-walks", "--plain").out
    assert "user_prompt\tground_truth\nleft?\tno\nright?\t\n" in plain
    assert "right?" in maze.osmosis("dataset", "preview", "maze-walks").out


def test_a_missing_preview_is_no_error(maze: Maze) -> None:
    maze.get("/datasets/x").respond(json={"id": "ds_1", "status": "processing"})
    outcome = maze.osmosis("dataset", "preview", "x", "--json")
    assert outcome.status == 0
    data = outcome.json["data"]
    assert (data["available"], data["rows"], data["returned_rows"]) == (False, [], 0)
    assert "still working" in data["message"]
    assert "still working" in maze.osmosis("dataset", "preview", "x", "--plain").out


def test_a_page_of_the_log(maze: Maze) -> None:
    route = maze.get("/datasets/x/logs").respond(json={"logs": LINES, "next_cursor": "2026|7"})
    outcome = maze.osmosis("dataset", "logs", "x", "--limit", "3", "--cursor", "c1", "--json")
    assert dict(route.calls.last.request.url.params) == {"limit": "3", "direction": "older", "cursor": "c1"}
    assert outcome.json == {
        "schema_version": 1,
        "items": [
            {
                "timestamp": "2026-10-02T07:00:00Z",
                "level": "info",
                "step": "upload",
                "message": "begun",
                "details": None,
            },
            {
                "timestamp": None,
                "level": "error",
                "step": None,
                "message": "row 3:\tno prompt",
                "details": {"row": 3},
            },
            dict.fromkeys(("timestamp", "level", "step", "message", "details")),
        ],
        "total_count": 3,
        "has_more": True,
        "next_offset": None,
        "next_cursor": "2026|7",
        **maze.resource,
    }
    plain = maze.osmosis("dataset", "logs", "x", "--plain").out
    assert plain.splitlines()[:2] == [
        "2026-10-02T07:00:00Z\tinfo\tupload\tbegun",
        "–\terror\t–\trow 3: no prompt",
    ]
    people = maze.osmosis("dataset", "logs", "x").out
    assert "--all" not in people and "osmosis dataset logs x --cursor 2026|7" in people


def test_control_characters_of_a_platform_do_not_reach_the_terminal(maze: Maze) -> None:
    maze.get("/datasets/x/logs").respond(json={"logs": [{"message": "\x1b[2Jgone"}], "next_cursor": None})
    assert "\x1b[2J" not in maze.osmosis("dataset", "logs", "x").out


@pytest.mark.parametrize(
    "arguments", [("list",), ("info", "x"), ("preview", "x"), ("logs", "x"), ("download", "x")]
)
@pytest.mark.parametrize("reply, code", REFUSALS)
def test_a_platform_that_is_not_well_is_told_by_its_code(
    maze: Maze, arguments: tuple[str, ...], reply: dict[str, Any], code: str
) -> None:
    maze.router.get(url__regex=".*/api/cli/.*").respond(**reply)
    outcome = maze.osmosis("dataset", *arguments, "--json")
    assert (outcome.status, outcome.error["code"]) == (1, code)
    plain = maze.osmosis("dataset", *arguments, "--plain")
    assert (plain.status, plain.out) == (1, "") and "Error: " in plain.err
