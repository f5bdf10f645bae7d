"""A run of a platform whose files a store has, for commands that download it."""

from __future__ import annotations

import json
from typing import Any

import httpx

from tests.api.blob_server import BlobServer
from tests.cli.eval_replies import DETAIL
from tests.cli.maze import Maze

FILES = {
    "metrics.json": b'{"summary": {}}\n',
    "summary.jsonl": b'{"row_index": 0}\n',
    "trajectories/row_0_run_0.json": b"{}",
    "trajectories/row_1_run_0.json": b'{"steps": []}',
}


class DownloadableRun:
    """A run whose files a store has."""

    def __init__(self, maze: Maze, store: BlobServer) -> None:
        self.maze, self.store = maze, store
        self.directory = maze.workspace.evals_dir / "amber-otter-42"
        self.described(DETAIL)
        self.holds(FILES)
        self.urls = maze.post("/eval-runs/er_8/samples/download-urls")
        self.urls.mock(side_effect=self._sign)

    def described(self, detail: dict[str, Any], headers: dict[str, str] | None = None) -> None:
        described = self.maze.router.get(url__regex=r".*/api/cli/eval-runs/[^/]+$")
        described.respond(json=detail, headers=headers)

    def holds(self, files: dict[str, bytes], **sizes: Any) -> None:
        self.store.blobs.update(files)
        listed = [
            {"path": path, "size": sizes.get(path, len(content)), "token": f"t:{path}"}
            for path, content in files.items()
        ]
        self.lists(listed)

    def lists(self, listed: list[dict[str, Any]]) -> None:
        self.manifest = self.maze.get("/eval-runs/er_8/samples/manifest")
        self.manifest.respond(json={"files": listed, "totals": {"files": len(listed)}})

    def download(self, *arguments: str) -> Any:
        return self.maze.osmosis("eval", "download", "amber-otter-42", *arguments)

    def found(self) -> dict[str, bytes]:
        return {
            path.relative_to(self.directory).as_posix(): path.read_bytes()
            for path in self.directory.rglob("*")
            if path.is_file()
        }

    def _sign(self, request: httpx.Request) -> httpx.Response:
        items = json.loads(request.content)["items"]
        assert 1 <= len(items) <= 500
        assert all(item.get("token") in (None, f"t:{item['path']}") for item in items)
        signed = [{**item, "url": self.store.signed(item["path"])} for item in items]
        return httpx.Response(200, json={"items": signed, "expires_in": 900})
