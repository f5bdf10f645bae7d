"""`osmosis dataset`, except `import` and `validate`."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.api.blob_server import SIGNATURE, BlobServer, cut, status
from tests.cli.maze import Maze, replies, sent
from tests.cli.outcome import Outcome
from tests.datasets.builders import jsonl, prompt_rows

TAKEN = {"error": "this workspace already has a dataset called 'sums'", "existing_dataset_id": "ds_31"}


UPLOAD = ("dataset", "upload", "sums.jsonl")


@pytest.fixture
def content(maze: Maze, store: BlobServer) -> bytes:
    """A dataset on this machine, on a platform that accepts its upload."""
    path = maze.workspace.root / "sums.jsonl"
    path.write_text(jsonl(prompt_rows(40)))
    announce(maze, store, path.stat().st_size)
    return path.read_bytes()


def upload(maze: Maze, *options: str) -> Outcome:
    return maze.osmosis(*UPLOAD, "--yes", "--json", *options)


def dataset(**more: Any) -> dict[str, Any]:
    return {"id": "ds_7", "file_name": "sums", "status": "processing", **more}


def announce(maze: Maze, store: BlobServer, size: int, *, parts: int = 0, received: Any = ()) -> None:
    """Accept an upload, in so many parts."""
    target: dict[str, Any] = {"presigned_url": store.signed("up"), "upload_headers": {"x-kind": "rows"}}
    if parts:
        numbers = range(1, parts + 1)
        target = {
            "method": "multipart",
            "part_size": -(-size // parts),
            "total_parts": parts,
            "expires_in": 3600,
            "upload_id": "u1",
            "presigned_urls": [
                {"part_number": number, "presigned_url": store.signed(f"part{number}")} for number in numbers
            ],
            "received_parts": list(received),
        }
    maze.post("/datasets").respond(json=dataset(status="pending", upload=target))
    maze.post("/datasets/ds_7/complete").respond(json=dataset(file_size=size, file_format="jsonl"))
    maze.post("/datasets/ds_7/abort").respond(204)


def test_upload_file_name_not_utf8(maze: Maze, content: bytes) -> None:
    name = os.fsdecode(b"caf\xe9.jsonl")
    (maze.workspace.root / "sums.jsonl").rename(maze.workspace.root / name)
    outcome = maze.osmosis("dataset", "upload", name, "--yes")
    assert outcome.status == 1
    assert outcome.err.endswith("is not valid UTF-8.\nhint: rename the file\n")


def test_upload(maze: Maze, store: BlobServer, content: bytes) -> None:
    outcome = upload(maze)
    assert (outcome.status, outcome.err) == (0, "")
    announced = sent(maze.post("/datasets"))
    assert announced == {"file_name": "sums", "file_size": len(content), "extension": "jsonl"}
    assert store.blobs["up"] == content
    assert store.seen[0].headers["x-kind"] == "rows"
    assert "authorization" not in store.seen[0].headers
    assert sent(maze.post("/datasets/ds_7/complete")) == {"file_extension": "jsonl"}
    assert outcome.resource["id"] == "ds_7" and "upload" not in outcome.resource


def test_upload_asks_first(maze: Maze, content: bytes) -> None:
    details = maze.osmosis(*UPLOAD, "--json").error["details"]
    assert details["prompt"] == "Proceed with upload?"
    assert details["summary"] == {"File": "sums.jsonl", "Dataset": "sums", "Rows": "40", "Size": "2.3 KB"}
    replacing = maze.osmosis(*UPLOAD, "--overwrite", "--json").error["details"]
    assert "replace" in replacing["prompt"] and "everyone" in replacing["warnings"][0]
    assert not maze.post("/datasets").called


@pytest.mark.parametrize(
    ("file", "message"), [("few.csv", "File validation failed:\n  - "), ("no.csv", "File not found: ")]
)
def test_upload_invalid_file(maze: Maze, file: str, message: str) -> None:
    (maze.workspace.root / "few.csv").write_text("user_prompt,ground_truth\na,1\n")
    error = maze.osmosis("dataset", "upload", file, "--yes", "--json").error
    assert error["message"].startswith(message)
    assert not maze.router.calls


def test_upload_conflict(maze: Maze, store: BlobServer, content: bytes) -> None:
    create = maze.post("/datasets").respond(409, json=TAKEN)
    error = upload(maze).error
    assert (error["code"], error["message"]) == ("CONFLICT", TAKEN["error"])
    assert error["details"]["existing_dataset_id"] == "ds_31"
    assert "`--overwrite`" in maze.osmosis(*UPLOAD, "--yes", "--plain").err

    create.respond(409, json={"error": "the workspace is frozen"})
    assert (upload(maze, "--overwrite").error["code"], create.call_count) == ("CONFLICT", 3)
    assert not store.seen


def test_upload_overwrite(maze: Maze, store: BlobServer, content: bytes) -> None:
    """The dataset is announced again with the ID of the one that is replaced."""
    create = maze.post("/datasets")
    create.side_effect = [
        httpx.Response(409, json=TAKEN),
        httpx.Response(200, json=dataset(id="ds_31", upload={"presigned_url": store.signed("up")})),
    ]
    # Until the new bytes are checked the dataset keeps the size of the old ones.
    maze.post("/datasets/ds_31/complete").respond(json=dataset(id="ds_31", file_size=3, file_format="jsonl"))
    outcome = upload(maze, "--overwrite")
    assert outcome.status == 0, outcome.err
    assert sent(create)["overwrite_dataset_id"] == "ds_31"
    assert store.blobs["up"] == content


def press_ctrl_c(_request: httpx.Request) -> httpx.Response:
    raise KeyboardInterrupt


def test_failed_upload_is_aborted(maze: Maze, store: BlobServer, content: bytes) -> None:
    abort = maze.post("/datasets/ds_7/abort")
    store.answers[:] = [status(403)]
    error = upload(maze).error
    assert error["code"] == "PLATFORM_ERROR" and SIGNATURE not in json.dumps(error)
    assert abort.call_count == 1
    maze.post("/datasets/ds_7/complete").mock(side_effect=press_ctrl_c)
    assert upload(maze).status == 130
    assert abort.call_count == 2
    abort.respond(500)
    store.answers[:] = [status(403)]
    assert json.loads(upload(maze).err.splitlines()[0])["warning"]["code"] == "ABORT_FAILED"


def test_multipart_upload_resumes(maze: Maze, store: BlobServer, content: bytes) -> None:
    announce(maze, store, len(content), parts=4)
    store.answers[:] = [None, None, *[cut] * 5]
    broken = maze.osmosis(*UPLOAD, "--yes", "--plain")
    assert broken.status == 1 and "run the same command again to continue" in broken.err
    assert not maze.post("/datasets/ds_7/abort").called

    maze.get("/datasets/ds_7").respond(json=dataset(status="uploading"))
    again = upload(maze)
    assert again.status == 0, again.err
    assert maze.post("/datasets").call_count == 1
    assert store.asked("PUT")[-2:] == ["part3", "part4"]
    assert b"".join(store.blobs[f"part{number}"] for number in range(1, 5)) == content
    parts = sent(maze.post("/datasets/ds_7/complete"))["parts"]
    assert [part["PartNumber"] for part in parts] == [1, 2, 3, 4] and all(part["ETag"] for part in parts)


def test_multipart_upload_restarts(maze: Maze, store: BlobServer, content: bytes) -> None:
    """The platform no longer knows the upload, or the file has changed."""
    announce(maze, store, len(content), parts=4)
    store.answers[:] = [None, *[cut] * 5]
    upload(maze)
    for gone in (
        httpx.Response(404, json={"error": "no"}),
        httpx.Response(200, json=dataset(status="cancelled")),
    ):
        maze.get("/datasets/ds_7").mock(return_value=gone)
        assert upload(maze).status == 0
    assert maze.post("/datasets").call_count == 3

    store.answers[:] = [None, *[cut] * 5]
    upload(maze)
    (maze.workspace.root / "sums.jsonl").write_bytes(content.replace(b"What", b"when", 1))
    assert upload(maze).status == 0
    assert maze.post("/datasets").call_count == 5


def test_multipart_upload_skips_received_parts(maze: Maze, store: BlobServer, content: bytes) -> None:
    received = [{"PartNumber": 1, "ETag": "e1"}, {"PartNumber": 3, "ETag": "e3"}]
    announce(maze, store, len(content), parts=4, received=received)
    assert upload(maze).status == 0
    assert store.asked("PUT") == ["part2", "part4"]
    parts = sent(maze.post("/datasets/ds_7/complete"))["parts"]
    assert [part["ETag"] for part in parts][::2] == ["e1", "e3"]
    request = maze.post("/datasets").calls[0].request
    client_id, digest = request.headers["x-osmosis-upload"].split("; sha256=")
    assert len(client_id) == 32 and digest == hashlib.sha256(content).hexdigest()
    assert set(json.loads(request.content)) == {"file_name", "file_size", "extension"}


def test_killed_after_completion_is_not_repeated(
    maze: Maze, store: BlobServer, content: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    announce(maze, store, len(content), parts=4)
    # A kill leaves the upload complete, and the note of it in place.
    with monkeypatch.context() as killed:
        killed.setattr("osmosis_ai.api.upload_records.UnfinishedUpload.forget", lambda _: None)
        assert upload(maze).status == 0
    maze.get("/datasets/ds_7").respond(json=dataset(file_size=len(content)))
    assert upload(maze).status == 0
    assert maze.post("/datasets").call_count == 1
    assert store.asked("PUT") == ["part1", "part2", "part3", "part4"]
    assert maze.post("/datasets/ds_7/complete").call_count == 2


@pytest.mark.parametrize("wait", [(), ("--wait",), ("--wait", "--overwrite")])
def test_stored_size_mismatch_is_a_warning(maze: Maze, content: bytes, wait: tuple[str, ...]) -> None:
    stored = dataset(status="uploaded", file_size=12, file_format="jsonl")
    maze.post("/datasets/ds_7/complete").respond(json=stored)
    maze.get("/datasets/ds_7").respond(json=stored)
    maze.get("/datasets/sums/logs").respond(json={"logs": []})
    outcome = upload(maze, *wait)
    assert (outcome.status, outcome.json["status"]) == (0, "success")
    assert outcome.err.count(f"12 bytes stored ({len(content)} bytes sent)") == 1


def test_upload_wait(maze: Maze, content: bytes) -> None:
    ready = dataset(status="uploaded", file_size=len(content), file_format="jsonl", row_count=40)
    maze.get("/datasets/ds_7").side_effect = replies(dataset(), dataset(), ready)
    line = {"timestamp": "2026-10-02T07:00:00Z", "step": "check", "message": "40 rows"}
    old = {**line, "timestamp": "2026-10-01T07:00:00Z", "level": "error", "message": "of last time"}
    pages = ([old], [old], [old, line], [old, line, {**line, "message": "all well"}])
    maze.get("/datasets/sums/logs").side_effect = replies(*({"logs": page} for page in pages))
    outcome = maze.osmosis(*UPLOAD, "--yes", "--wait", "--plain")
    assert outcome.status == 0, outcome.err
    assert "check: 40 rows\ncheck: all well\n" in outcome.err and "of last time" not in outcome.err
    assert "Status: uploaded" in outcome.out


@pytest.mark.parametrize(
    "refused",
    [{"status": "error"}, {"status": "uploaded", "upload_error": "row 3 has no prompt", "file_size": 3}],
    ids=["error", "uploaded"],
)
def test_upload_wait_refused(maze: Maze, content: bytes, refused: dict[str, Any]) -> None:
    maze.get("/datasets/ds_7").respond(json=dataset(**refused))
    maze.get("/datasets/sums/logs").side_effect = [
        httpx.Response(404, json={"error": "there is no dataset 'sums'"}),
        *replies({"logs": [{"level": "error", "message": "row 3 has no prompt"}]}),
    ]
    error = upload(maze, "--wait").error
    assert (error["code"], error["details"]["errors"]) == ("VALIDATION", ["row 3 has no prompt"])
    assert error["message"].endswith("\n  - row 3 has no prompt")


def offer(maze: Maze, store: BlobServer, content: bytes, **more: Any) -> None:
    """Let the platform have a dataset that is ready."""
    store.blobs["ds_7"] = content
    ready = {"status": "uploaded", "file_size": len(content), "file_format": "jsonl"}
    maze.get("/datasets/sums").respond(json=dataset(**{**ready, **more}))
    maze.get("/datasets/ds_7/download").respond(json={"presigned_url": store.signed("ds_7")})


def download(maze: Maze, *options: str) -> Outcome:
    return maze.osmosis("dataset", "download", "sums", "--json", *options)


def test_download_to_a_directory(maze: Maze, store: BlobServer) -> None:
    offer(maze, store, b"rows")
    outcome = download(maze, "-o", "fetched/")
    # The store names the file in `Content-Disposition`.
    path = maze.workspace.root / "fetched" / "maze walks.csv"
    assert path.read_bytes() == b"rows"
    assert outcome.json["operation"] == "dataset.download"
    assert Path(outcome.resource["output_path"]).resolve() == path
    assert [found.name for found in path.parent.iterdir()] == ["maze walks.csv"]


def test_download_to_a_file(maze: Maze, store: BlobServer) -> None:
    offer(maze, store, b"rows")
    assert download(maze, "-o", "mine.bin").status == 0
    exists = maze.osmosis("dataset", "download", "sums", "-o", "mine.bin", "--plain")
    assert exists.status == 1 and "--overwrite" in exists.err
    offer(maze, store, b"other bytes")
    assert download(maze, "-o", "mine.bin", "--overwrite").status == 0
    assert (maze.workspace.root / "mine.bin").read_bytes() == b"other bytes"


@pytest.mark.parametrize(
    "word, message",
    [("processing", "still being processed"), ("error", "cannot be used"), (None, "cannot be used")],
)
def test_download_needs_a_ready_dataset(
    maze: Maze, store: BlobServer, word: str | None, message: str
) -> None:
    offer(maze, store, b"x", status=word)
    error = download(maze).error
    assert (error["code"], message in error["message"]) == ("VALIDATION", True)


@pytest.mark.parametrize("name", ["../../evil", "/etc/passwd", "a\\..\\b", "", ".."])
def test_download_file_name_cannot_escape(maze: Maze, store: BlobServer, name: str) -> None:
    offer(maze, store, b"rows")
    maze.get("/datasets/ds_7/download").respond(json={"presignedUrl": store.signed("ds_7"), "fileName": name})
    path = Path(download(maze, "-o", "safe/").resource["output_path"])
    assert path.parent.resolve() == maze.workspace.root / "safe"


def test_download_needs_https(maze: Maze, store: BlobServer) -> None:
    offer(maze, store, b"x")
    maze.get("/datasets/ds_7/download").respond(json={"presigned_url": "http://store.example/x?sig=canary"})
    error = download(maze, "-o", "got/").error
    assert "URL is not HTTPS" in error["message"] and "canary" not in json.dumps(error)


def test_list_all_pages(maze: Maze) -> None:
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


def test_preview_missing(maze: Maze) -> None:
    maze.get("/datasets/x").respond(json={"id": "ds_1", "status": "processing"})
    outcome = maze.osmosis("dataset", "preview", "x", "--json")
    assert outcome.status == 0
    data = outcome.data
    assert (data["available"], data["rows"], data["returned_rows"]) == (False, [], 0)
    assert "still working" in data["message"]
    assert "still working" in maze.osmosis("dataset", "preview", "x", "--plain").out
