"""A run of a platform whose files a store has, for commands that download it."""

from __future__ import annotations

import json
from typing import Any

import httpx
import respx

from tests.api.blob_server import BlobServer
from tests.cli.eval_replies import DETAIL
from tests.cli.maze import Maze
from tests.cli.outcome import Outcome

FILES = {
    "metrics.json": b'{"summary": {}}\n',
    "summary.jsonl": b'{"row_index": 0}\n',
    "trajectories/row_0_run_0.json": b"{}",
    "trajectories/row_1_run_0.json": b'{"steps": []}',
}


def offer_files(maze: Maze, store: BlobServer, run: str, files: list[dict[str, Any]]) -> respx.Route:
    """List these files of a run, and sign URLs of the store; return the route of the URLs."""

    def sign(request: httpx.Request) -> httpx.Response:
        items = json.loads(request.content)["items"]
        assert 1 <= len(items) <= 500
        assert all(item.get("token") in (None, f"t:{item['path']}") for item in items)
        signed = [{**item, "url": store.signed(item["path"])} for item in items]
        return httpx.Response(200, json={"items": signed, "expires_in": 900})

    maze.get(f"{run}/manifest").respond(json={"files": files, "totals": {"files": len(files)}})
    return maze.post(f"{run}/download-urls").mock(side_effect=sign)


class DownloadableRun:
    """The evaluation run ``amber-otter-42``, whose files a store has."""

    def __init__(self, maze: Maze, store: BlobServer) -> None:
        self.maze, self.store = maze, store
        self.directory = maze.workspace.evals_dir / "amber-otter-42"
        self.manifest = maze.get("/eval-runs/er_8/samples/manifest")
        self.urls = maze.post("/eval-runs/er_8/samples/download-urls")
        self.described(DETAIL)
        self.holds(FILES)

    def described(self, detail: dict[str, Any], headers: dict[str, str] | None = None) -> None:
        described = self.maze.router.get(url__regex=r".*/api/cli/eval-runs/[^/]+$")
        described.respond(json=detail, headers=headers)

    def holds(self, files: dict[str, bytes]) -> None:
        self.store.blobs.update(files)
        self.lists(
            [{"path": path, "size": len(content), "token": f"t:{path}"} for path, content in files.items()]
        )

    def lists(self, files: list[dict[str, Any]]) -> None:
        offer_files(self.maze, self.store, "/eval-runs/er_8/samples", files)

    def download(self, *arguments: str) -> Outcome:
        return self.maze.osmosis("eval", "download", "amber-otter-42", *arguments)

    def found(self) -> dict[str, bytes]:
        """Return the files that were downloaded."""
        return {
            path.relative_to(self.directory).as_posix(): path.read_bytes()
            for path in self.directory.rglob("*")
            if path.is_file()
        }
