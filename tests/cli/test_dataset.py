"""`osmosis dataset list`, `info`, `preview`, `logs`, `upload` and `download`: a store over real sockets, a platform by hand."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.api.blob_server import SIGNATURE, BlobServer, cut, cut_after, serve, status
from tests.cli.maze import Maze, replies, sent
from tests.datasets.builders import jsonl, prompt_rows
from tests.logins import REFUSALS

TAKEN = {"error": "this workspace already has a dataset called 'sums'", "existing_dataset_id": "ds_31"}


@pytest.fixture
def store() -> Iterator[BlobServer]:
    with serve() as store:
        yield store


@pytest.fixture
def maze(maze: Maze) -> Maze:
    (maze.workspace.root / "sums.jsonl").write_text(jsonl(prompt_rows(40)))
    return maze


@pytest.fixture
def content(maze: Maze) -> bytes:
    return (maze.workspace.root / "sums.jsonl").read_bytes()


def dataset(**more: Any) -> dict[str, Any]:
    return {"id": "ds_7", "file_name": "sums", "status": "processing", **more}


def announce(maze: Maze, store: BlobServer, size: int, *, parts: int | None = None) -> None:
    """Answer an upload that goes well."""
    if parts is None:
        upload: dict[str, Any] = {"presigned_url": store.signed("up"), "upload_headers": {"x-kind": "rows"}}
    else:
        part_size = -(-size // parts)
        upload = {
            "method": "multipart",
            "part_size": part_size,
            "total_parts": parts,
            "expires_in": 3600,
            "upload_id": "u1",
            "presigned_urls": [
                {"part_number": number, "presigned_url": store.signed(f"part{number}")}
                for number in range(1, parts + 1)
            ],
        }
    maze.post("/datasets").respond(json=dataset(status="pending", upload=upload))
    maze.post("/datasets/ds_7/complete").respond(json=dataset(file_size=size, file_format="jsonl"))
    maze.post("/datasets/ds_7/abort").respond(204)


def test_a_file_name_that_is_not_utf8_is_refused(maze: Maze) -> None:
    name = os.fsdecode(b"caf\xe9.jsonl")
    (maze.workspace.root / "sums.jsonl").rename(maze.workspace.root / name)
    outcome = maze.osmosis("dataset", "upload", name, "--yes")
    assert outcome.status == 1
    assert outcome.err.endswith("is not valid UTF-8.\nhint: rename the file\n")


def test_a_file_is_announced_sent_completed_and_told_of(
    maze: Maze, store: BlobServer, content: bytes
) -> None:
    announce(maze, store, len(content))
    outcome = maze.osmosis("dataset", "upload", "sums.jsonl", "--yes", "--json")
    assert (outcome.status, outcome.err) == (0, "")
    assert sent(maze.post("/datasets")) == {
        "file_name": "sums",
        "file_size": len(content),
        "extension": "jsonl",
    }
    assert store.blobs["up"] == content
    assert store.seen[0].headers["x-kind"] == "rows"
    assert "authorization" not in store.seen[0].headers
    assert sent(maze.post("/datasets/ds_7/complete")) == {"file_extension": "jsonl"}
    assert outcome.json["resource"]["id"] == "ds_7" and "upload" not in outcome.json["resource"]


def test_it_asks_first_and_tells_scripts_what_about(maze: Maze, store: BlobServer, content: bytes) -> None:
    announce(maze, store, len(content))
    details = maze.osmosis("dataset", "upload", "sums.jsonl", "--json").error["details"]
    assert details["prompt"] == "Proceed with upload?"
    assert details["summary"] == {"File": "sums.jsonl", "Dataset": "sums", "Rows": "40", "Size": "2.3 KB"}
    replacing = maze.osmosis("dataset", "upload", "sums.jsonl", "--overwrite", "--json").error["details"]
    assert "replace" in replacing["prompt"] and "everyone" in replacing["warnings"][0]
    assert not maze.post("/datasets").called


def test_a_bad_file_is_refused_before_the_platform_hears_of_it(maze: Maze, store: BlobServer) -> None:
    (maze.workspace.root / "few.csv").write_text("user_prompt,ground_truth\na,1\n")
    error = maze.osmosis("dataset", "upload", "few.csv", "--yes", "--json").error
    assert error["message"].startswith("File validation failed:\n  - ")
    assert (
        "File not found: " in maze.osmosis("dataset", "upload", "no.csv", "--yes", "--json").error["message"]
    )
    assert not maze.router.calls


def test_a_name_that_is_taken_needs_overwrite(maze: Maze, store: BlobServer, content: bytes) -> None:
    announce(maze, store, len(content))
    maze.post("/datasets").respond(409, json=TAKEN)
    error = maze.osmosis("dataset", "upload", "sums.jsonl", "--yes", "--json").error
    assert (error["code"], error["message"]) == ("CONFLICT", TAKEN["error"])
    assert error["details"]["existing_dataset_id"] == "ds_31"
    people = maze.osmosis("dataset", "upload", "sums.jsonl", "--yes", "--plain")
    assert "`--overwrite`" in people.err
    assert not store.seen


def test_overwrite_announces_again_with_the_id_that_is_replaced(
    maze: Maze, store: BlobServer, content: bytes
) -> None:
    announce(maze, store, len(content))
    create = maze.post("/datasets")
    create.side_effect = [
        httpx.Response(409, json=TAKEN),
        httpx.Response(200, json=dataset(id="ds_31", upload={"presigned_url": store.signed("up")})),
    ]
    # Until the new bytes are checked the dataset keeps the size of the old ones.
    maze.post("/datasets/ds_31/complete").respond(json=dataset(id="ds_31", file_size=3, file_format="jsonl"))
    outcome = maze.osmosis("dataset", "upload", "sums.jsonl", "--overwrite", "--yes", "--json")
    assert outcome.status == 0, outcome.err
    assert sent(create)["overwrite_dataset_id"] == "ds_31"
    assert store.blobs["up"] == content


def test_a_conflict_of_another_kind_is_not_overwritten(maze: Maze, store: BlobServer) -> None:
    create = maze.post("/datasets").respond(409, json={"error": "the workspace is frozen"})
    outcome = maze.osmosis("dataset", "upload", "sums.jsonl", "--overwrite", "--yes", "--json")
    assert (outcome.error["code"], create.call_count) == ("CONFLICT", 1)


def test_an_upload_that_fails_is_aborted(maze: Maze, store: BlobServer, content: bytes) -> None:
    announce(maze, store, len(content))
    store.answers[:] = [status(403)]
    error = maze.osmosis("dataset", "upload", "sums.jsonl", "--yes", "--json").error
    assert error["code"] == "PLATFORM_ERROR" and SIGNATURE not in json.dumps(error)
    assert maze.post("/datasets/ds_7/abort").call_count == 1
    maze.post("/datasets/ds_7/abort").respond(500)
    store.answers[:] = [status(403)]
    outcome = maze.osmosis("dataset", "upload", "sums.jsonl", "--yes", "--json")
    assert json.loads(outcome.err.splitlines()[0])["warning"]["code"] == "ABORT_FAILED"


def press_ctrl_c(_request: httpx.Request) -> httpx.Response:
    raise KeyboardInterrupt


def test_ctrl_c_aborts_the_upload(maze: Maze, store: BlobServer, content: bytes) -> None:
    announce(maze, store, len(content))
    maze.post("/datasets/ds_7/complete").mock(side_effect=press_ctrl_c)
    assert maze.osmosis("dataset", "upload", "sums.jsonl", "--yes", "--json").status == 130
    assert maze.post("/datasets/ds_7/abort").call_count == 1


def test_an_upload_in_parts_that_was_cut_off_goes_on_where_it_was(
    maze: Maze, store: BlobServer, content: bytes
) -> None:
    announce(maze, store, len(content), parts=4)
    store.answers[:] = [None, None, *[cut] * 5]
    broken = maze.osmosis("dataset", "upload", "sums.jsonl", "--yes", "--plain")
    assert broken.status == 1 and "run the same command again to go on" in broken.err
    assert not maze.post("/datasets/ds_7/abort").called

    maze.get("/datasets/ds_7").respond(json=dataset(status="uploading"))
    again = maze.osmosis("dataset", "upload", "sums.jsonl", "--yes", "--json")
    assert again.status == 0, again.err
    assert maze.post("/datasets").call_count == 1
    assert store.asked("PUT")[-2:] == ["part3", "part4"]
    assert b"".join(store.blobs[f"part{number}"] for number in range(1, 5)) == content
    parts = sent(maze.post("/datasets/ds_7/complete"))["parts"]
    assert [part["PartNumber"] for part in parts] == [1, 2, 3, 4] and all(part["ETag"] for part in parts)


def test_an_upload_the_platform_no_longer_knows_starts_again(
    maze: Maze, store: BlobServer, content: bytes
) -> None:
    announce(maze, store, len(content), parts=4)
    store.answers[:] = [None, *[cut] * 5]
    maze.osmosis("dataset", "upload", "sums.jsonl", "--yes", "--json")
    for gone in (
        httpx.Response(404, json={"error": "no"}),
        httpx.Response(200, json=dataset(status="cancelled")),
    ):
        maze.get("/datasets/ds_7").mock(return_value=gone)
        assert maze.osmosis("dataset", "upload", "sums.jsonl", "--yes", "--json").status == 0
    assert maze.post("/datasets").call_count == 3


def test_the_platform_is_told_what_is_meant_and_what_it_has_is_not_sent_again(
    maze: Maze, store: BlobServer, content: bytes
) -> None:
    announce(maze, store, len(content), parts=4)
    reply = json.loads(maze.post("/datasets").return_value.content)
    reply["upload"]["received_parts"] = [{"PartNumber": 1, "ETag": "e1"}, {"PartNumber": 3, "ETag": "e3"}]
    maze.post("/datasets").respond(json=reply)
    assert maze.osmosis("dataset", "upload", "sums.jsonl", "--yes", "--json").status == 0
    assert store.asked("PUT") == ["part2", "part4"]
    parts = sent(maze.post("/datasets/ds_7/complete"))["parts"]
    assert [part["ETag"] for part in parts][::2] == ["e1", "e3"]
    request = maze.post("/datasets").calls[0].request
    client_id, digest = request.headers["x-osmosis-upload"].split("; sha256=")
    assert len(client_id) == 32 and digest == hashlib.sha256(content).hexdigest()
    assert set(json.loads(request.content)) == {"file_name", "file_size", "extension"}


def test_an_upload_that_was_complete_when_its_command_was_killed_is_not_begun_again(
    maze: Maze, store: BlobServer, content: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    announce(maze, store, len(content), parts=4)
    # What a kill leaves: everything was done, and nothing was forgotten.
    with monkeypatch.context() as killed:
        killed.setattr("osmosis_ai.api.transfer.Upload.forget", lambda _: None)
        assert maze.osmosis("dataset", "upload", "sums.jsonl", "--yes", "--json").status == 0
    maze.get("/datasets/ds_7").respond(json=dataset(file_size=len(content)))
    assert maze.osmosis("dataset", "upload", "sums.jsonl", "--yes", "--json").status == 0
    assert maze.post("/datasets").call_count == 1
    assert store.asked("PUT") == ["part1", "part2", "part3", "part4"]
    assert maze.post("/datasets/ds_7/complete").call_count == 2


def test_other_bytes_do_not_go_on_with_it(maze: Maze, store: BlobServer, content: bytes) -> None:
    announce(maze, store, len(content), parts=4)
    store.answers[:] = [None, *[cut] * 5]
    maze.osmosis("dataset", "upload", "sums.jsonl", "--yes", "--json")
    (maze.workspace.root / "sums.jsonl").write_bytes(content.replace(b"What", b"when", 1))
    assert maze.osmosis("dataset", "upload", "sums.jsonl", "--yes", "--json").status == 0
    assert maze.post("/datasets").call_count == 2


@pytest.mark.parametrize("wait", [(), ("--wait",), ("--wait", "--overwrite")])
def test_a_platform_that_stores_other_bytes_than_it_was_sent_gets_one_warning(
    maze: Maze, store: BlobServer, content: bytes, wait: tuple[str, ...]
) -> None:
    announce(maze, store, len(content))
    stored = dataset(status="uploaded", file_size=12, file_format="jsonl")
    maze.post("/datasets/ds_7/complete").respond(json=stored)
    maze.get("/datasets/ds_7").respond(json=stored)
    maze.get("/datasets/sums/logs").respond(json={"logs": []})
    outcome = maze.osmosis("dataset", "upload", "sums.jsonl", "--yes", "--json", *wait)
    assert (outcome.status, outcome.json["status"]) == (0, "success")
    assert outcome.err.count(f"12 bytes stored ({len(content)} bytes sent)") == 1


def test_wait_follows_the_check_to_its_end(maze: Maze, store: BlobServer, content: bytes) -> None:
    announce(maze, store, len(content))
    ready = dataset(status="uploaded", file_size=len(content), file_format="jsonl", row_count=40)
    maze.get("/datasets/ds_7").side_effect = replies(dataset(), dataset(), ready)
    line = {"timestamp": "2026-10-02T07:00:00Z", "step": "check", "message": "40 rows"}
    old = {**line, "timestamp": "2026-10-01T07:00:00Z", "level": "error", "message": "of last time"}
    maze.get("/datasets/sums/logs").side_effect = replies(
        {"logs": [old]},
        {"logs": [old]},
        {"logs": [old, line]},
        {"logs": [old, line, {**line, "message": "all well"}]},
    )
    outcome = maze.osmosis("dataset", "upload", "sums.jsonl", "--yes", "--wait", "--plain")
    assert outcome.status == 0, outcome.err
    assert "check: 40 rows\ncheck: all well\n" in outcome.err and "of last time" not in outcome.err
    assert "Status: uploaded" in outcome.out


@pytest.mark.parametrize(
    "refused",
    [{"status": "error"}, {"status": "uploaded", "upload_error": "row 3 has no prompt", "file_size": 3}],
)
def test_wait_ends_with_the_reasons_when_the_platform_refuses(
    maze: Maze, store: BlobServer, content: bytes, refused: dict[str, Any]
) -> None:
    announce(maze, store, len(content))
    maze.get("/datasets/ds_7").respond(json=dataset(**refused))
    refusal = {"level": "error", "message": "row 3 has no prompt"}
    maze.get("/datasets/sums/logs").side_effect = [
        httpx.Response(404, json={"error": "there is no dataset 'sums'"}),
        *replies({"logs": [refusal]}),
    ]
    error = maze.osmosis("dataset", "upload", "sums.jsonl", "--yes", "--wait", "--json").error
    assert (error["code"], error["details"]["errors"]) == ("VALIDATION", ["row 3 has no prompt"])
    assert error["message"].endswith("\n  - row 3 has no prompt")


# Download


def offer(maze: Maze, store: BlobServer, content: bytes, **more: Any) -> None:
    """Answer a download that goes well."""
    store.blobs["ds_7"] = content
    ready = {"status": "uploaded", "file_size": len(content), "file_format": "jsonl"}
    maze.get("/datasets/sums").respond(json=dataset(**{**ready, **more}))
    maze.get("/datasets/ds_7/download").respond(json={"presigned_url": store.signed("ds_7")})


def test_a_dataset_is_downloaded_whole_under_the_name_the_store_gives(
    maze: Maze, store: BlobServer, content: bytes
) -> None:
    offer(maze, store, content)
    envelope = maze.osmosis("dataset", "download", "sums", "-o", "fetched/", "--json").json
    # As `Content-Disposition` says.
    path = maze.workspace.root / "fetched" / "maze walks.csv"
    assert path.read_bytes() == content
    assert envelope["operation"] == "dataset.download"
    assert Path(envelope["resource"]["output_path"]).resolve() == path
    assert [found.name for found in path.parent.iterdir()] == ["maze walks.csv"]


def test_a_file_named_by_the_user_is_that_file_and_is_not_replaced_unasked(
    maze: Maze, store: BlobServer, content: bytes
) -> None:
    offer(maze, store, content)
    assert maze.osmosis("dataset", "download", "sums", "-o", "mine.bin", "--json").status == 0
    error = maze.osmosis("dataset", "download", "sums", "-o", "mine.bin", "--plain")
    assert error.status == 1 and "--overwrite" in error.err
    offer(maze, store, b"other bytes")
    assert maze.osmosis("dataset", "download", "sums", "-o", "mine.bin", "--overwrite", "--json").status == 0
    assert (maze.workspace.root / "mine.bin").read_bytes() == b"other bytes"


def test_a_download_of_the_wrong_size_leaves_nothing(maze: Maze, store: BlobServer, content: bytes) -> None:
    offer(maze, store, content, file_size=len(content) + 1)
    error = maze.osmosis("dataset", "download", "sums", "-o", "got/", "--json").error
    assert "instead of" in error["message"] and SIGNATURE not in json.dumps(error)
    assert list((maze.workspace.root / "got").iterdir()) == []


def test_a_cut_download_is_tried_again(maze: Maze, store: BlobServer, content: bytes) -> None:
    offer(maze, store, content)
    store.answers[:] = [cut_after(100)]
    assert maze.osmosis("dataset", "download", "sums", "-o", "got.jsonl", "--json").status == 0
    assert (maze.workspace.root / "got.jsonl").read_bytes() == content


@pytest.mark.parametrize(
    "word, said",
    [("processing", "still being processed"), ("error", "cannot be used"), (None, "cannot be used")],
)
def test_only_a_dataset_that_is_ready_is_downloaded(
    maze: Maze, store: BlobServer, word: str | None, said: str
) -> None:
    offer(maze, store, b"x", status=word)
    error = maze.osmosis("dataset", "download", "sums", "--json").error
    assert (error["code"], said in error["message"]) == ("VALIDATION", True)


@pytest.mark.parametrize("name", ["../../evil", "/etc/passwd", "a\\..\\b", "", ".."])
def test_a_platform_does_not_choose_the_directory(
    maze: Maze, store: BlobServer, content: bytes, name: str
) -> None:
    offer(maze, store, content)
    maze.get("/datasets/ds_7/download").respond(json={"presignedUrl": store.signed("ds_7"), "fileName": name})
    envelope = maze.osmosis("dataset", "download", "sums", "-o", "safe/", "--json").json
    assert Path(envelope["resource"]["output_path"]).parent.resolve() == maze.workspace.root / "safe"


def test_bytes_do_not_travel_in_the_clear(maze: Maze, store: BlobServer) -> None:
    offer(maze, store, b"x")
    maze.get("/datasets/ds_7/download").respond(json={"presigned_url": "http://store.example/x?sig=canary"})
    error = maze.osmosis("dataset", "download", "sums", "-o", "got/", "--json").error
    assert "neither HTTPS" in error["message"] and "canary" not in json.dumps(error)


def test_all_pages_are_fetched_with_all_and_a_list_without_end_is_noticed(maze: Maze) -> None:
    pages = maze.get("/datasets")
    pages.side_effect = replies(
        {"datasets": [{"id": "ds_31"}] * 50, "next_offset": 50},
        {"datasets": [{"id": "ds_1"}], "next_offset": None},
    )
    found = maze.osmosis("dataset", "list", "--all", "--json").json
    assert (len(found["items"]), found["total_count"]) == (51, 51)
    assert (found["has_more"], found["next_offset"]) == (False, None)
    assert [call.request.url.params["offset"] for call in pages.calls] == ["0", "50"]
    pages.side_effect = None
    pages.respond(json={"datasets": [{"id": "ds_1"}], "next_offset": 0})
    assert "does not end" in maze.osmosis("dataset", "list", "--all", "--json").error["message"]


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
