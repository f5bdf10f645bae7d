"""`osmosis benchmark runs download`: the files that the wire knows of benchmark runs, and no others."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.api.blob_server import BlobServer, serve
from tests.cli.benchmark_replies import RUN
from tests.cli.maze import Maze

FILES = {
    "summary.csv": b"agent,pass_at_1\n",
    "results.csv": b"task,passed\n",
    "artifacts/res_1/logs/agent.txt": b"hello\n",
    "logs.txt": b"line\n",
}


@pytest.fixture
def store() -> Iterator[BlobServer]:
    with serve() as store:
        store.blobs.update(FILES)
        yield store


def offer(maze: Maze, store: BlobServer, *paths: str, status: str = "running") -> None:
    def sign(request: httpx.Request) -> httpx.Response:
        items = json.loads(request.content)["items"]
        return httpx.Response(
            200, json={"items": [{**item, "url": store.signed(item["path"])} for item in items]}
        )

    listed = [{"path": path, "size": len(FILES.get(path, b""))} for path in paths]
    maze.get("/benchmark-runs/amber-otter-42").respond(json={"benchmark_run": {**RUN, "status": status}})
    maze.get("/benchmark-runs/br_8/outputs/manifest").respond(json={"files": listed, "totals": {"files": 2}})
    maze.post("/benchmark-runs/br_8/outputs/download-urls").mock(side_effect=sign)


def download(maze: Maze, *arguments: str) -> Any:
    return maze.osmosis("benchmark", "runs", "download", "amber-otter-42", *arguments)


def test_summary_and_results_are_the_default(maze: Maze, store: BlobServer) -> None:
    offer(maze, store, "summary.csv", "results.csv")
    outcome = download(maze, "--json")
    assert (outcome.status, outcome.err) == (0, "")
    types = maze.get("/benchmark-runs/br_8/outputs/manifest").calls.last.request.url.params
    assert dict(types) == {"types": "summary,results"}
    directory = maze.workspace.root / ".osmosis" / "benchmarks" / "amber-otter-42"
    total = len(FILES["summary.csv"]) + len(FILES["results.csv"])
    assert (outcome.json["operation"], outcome.json["status"]) == ("benchmark.download", "success")
    assert outcome.json["resource"] == {
        "benchmark_run": {"id": "br_8", "name": "amber-otter-42"},
        "status": "running",
        "selected_types": ["summary", "results"],
        "files_downloaded": 2,
        "files_skipped": 0,
        "files_failed": [],
        "bytes_downloaded": total,
        "total_files": 2,
        "total_bytes": total,
        "breakdown": {
            "summary": {"files": 1, "bytes": len(FILES["summary.csv"])},
            "results": {"files": 1, "bytes": len(FILES["results.csv"])},
        },
        "manifest_totals": {"files": 2},
        "output_path": str(directory),
        **maze.resource,
    }
    assert (directory / "results.csv").read_bytes() == FILES["results.csv"]
    assert "2 were there already" in download(maze, "--plain").out


def test_what_is_no_file_of_a_benchmark_run_is_not_written(maze: Maze, store: BlobServer) -> None:
    bad = ("metrics.json", "artifacts/loose.txt", "artifacts/res_1/../../../x", "/etc/x", "summary.csv")
    offer(maze, store, *FILES, *bad, status="finished")
    outcome = download(maze, "--type", "all", "--json")
    assert (outcome.status, outcome.json["status"]) == (1, "partial")
    assert {failed["path"] for failed in outcome.json["resource"]["files_failed"]} == set(bad)
    assert outcome.json["resource"]["files_downloaded"] == len(FILES)


@pytest.mark.parametrize("status", ["pending", "queued"])
def test_a_run_that_has_not_begun_has_nothing_to_download(maze: Maze, store: BlobServer, status: str) -> None:
    offer(maze, store, status=status)
    error = download(maze, "--json").error
    assert (error["code"], error["hint"]) == (
        "CONFLICT",
        "follow it with: osmosis benchmark runs logs --follow amber-otter-42",
    )


@pytest.mark.parametrize("types", ["metrics", "summary,all", ""])
def test_types_of_other_runs_are_refused_before_any_call(maze: Maze, types: str) -> None:
    error = download(maze, "--type", types, "--json").error
    assert error["code"] == "VALIDATION" and not maze.router.calls


def test_a_manifest_that_is_gone_is_told_as_such(maze: Maze, store: BlobServer) -> None:
    offer(maze, store)
    maze.get("/benchmark-runs/br_8/outputs/manifest").respond(404, json={"error": "x"})
    assert "the run was deleted, or the platform is too old" in download(maze, "--json").error["message"]
