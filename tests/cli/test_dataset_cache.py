"""The cache of platform datasets that `eval run` uses."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.api.blob_server import BlobServer
from tests.cli.maze import Maze
from tests.datasets.builders import jsonl, prompt_rows
from tests.logins import FERN
from tests.workspace.builders import MINIMAL_EVAL

ROWS = jsonl(prompt_rows(5)).encode()
READY: dict[str, Any] = {
    "id": "ds_31",
    "file_name": "multiply",
    "file_size": len(ROWS),
    "status": "uploaded",
    "file_format": "jsonl",
    "updated_at": "2026-10-02T07:00:00Z",
}
CONFIG = "configs/eval/multiply.toml"
Offer = Callable[..., None]


@pytest.fixture
def offer(maze: Maze, store: BlobServer) -> Offer:
    """Replace the platform's dataset."""
    (maze.workspace.root / CONFIG).write_text(MINIMAL_EVAL)
    maze.patch.setenv("OPENAI_API_KEY", "sk-none")

    def offer(content: bytes = ROWS, **more: Any) -> None:
        store.blobs["rows"] = content
        maze.get("/datasets/multiply").respond(json={**READY, "file_size": len(content), **more})

    offer()
    maze.router.get(url__regex="/download$").respond(json={"presigned_url": store.signed("rows")})
    return offer


def evaluate(maze: Maze, store: BlobServer) -> tuple[str, int]:
    """Begin an evaluation; return its error, which asks for a confirmation, and the number of downloads so far."""
    error = maze.osmosis("eval", "run", CONFIG, "--json").error
    return error["details"].get("prompt") or error["message"], len(store.asked("GET"))


def cached(maze: Maze) -> list[Path]:
    return sorted((maze.workspace.root.parent / "cache/datasets").glob("*/*.*l"))


CONFIRM = "Run 5 attempts with model openai/gpt-5-mini?"


def test_download_once(maze: Maze, store: BlobServer, offer: Offer) -> None:
    assert evaluate(maze, store) == (CONFIRM, 1)
    (path,) = cached(maze)
    assert path.name == f"{hashlib.sha256(ROWS).hexdigest()}.jsonl" and path.read_bytes() == ROWS
    assert evaluate(maze, store) == (CONFIRM, 1)


@pytest.mark.parametrize("damage", [b"", b"other bytes", None])
def test_damaged_cache(maze: Maze, store: BlobServer, offer: Offer, damage: bytes | None) -> None:
    evaluate(maze, store)
    (path,) = cached(maze)
    if damage is None:
        path.unlink()
    else:
        path.write_bytes(damage)
    assert evaluate(maze, store) == (CONFIRM, 2) and path.read_bytes() == ROWS
    (path.parent / "metadata.json").write_text("{")
    assert evaluate(maze, store) == (CONFIRM, 3)


def test_previous_version_is_kept(maze: Maze, store: BlobServer, offer: Offer) -> None:
    evaluate(maze, store)
    offer(ROWS + ROWS, updated_at="2026-10-03T07:00:00Z")
    evaluate(maze, store)
    assert len(cached(maze)) == 2


def test_wrong_size(maze: Maze, store: BlobServer, offer: Offer) -> None:
    offer(file_size=len(ROWS) + 1)
    assert "instead of" in evaluate(maze, store)[0]
    offer()
    assert evaluate(maze, store)[0] == CONFIRM


def test_format_in_the_name(maze: Maze, store: BlobServer, offer: Offer) -> None:
    offer(file_format=None, file_name="multiply.JSONL")
    assert evaluate(maze, store)[0] == CONFIRM
    assert cached(maze)[0].suffix == ".jsonl"
    offer(file_format="xlsx")
    assert "format: xlsx" in evaluate(maze, store)[0]


@pytest.mark.parametrize("dataset_id", ["../../evil", "a/b", "..", "x" * 300, "ünï"])
def test_dataset_id_is_not_a_path(maze: Maze, store: BlobServer, offer: Offer, dataset_id: str) -> None:
    offer(id=dataset_id)
    assert evaluate(maze, store)[0] == CONFIRM
    assert len(cached(maze)) == 1


@pytest.mark.parametrize("status, code", [(401, "AUTH_REQUIRED"), (500, "PLATFORM_ERROR")])
def test_platform_errors(maze: Maze, offer: Offer, status: int, code: str) -> None:
    maze.get("/datasets/multiply").respond(status, json={"error": "x"})
    assert maze.osmosis("eval", "run", CONFIG, "--json").error["code"] == code


def test_unknown_dataset(maze: Maze, offer: Offer) -> None:
    maze.get("/datasets/multiply").respond(404, json={"error": "there is no dataset 'multiply'"})
    error = maze.osmosis("eval", "run", CONFIG, "--json").error
    assert (error["code"], f"or on {FERN}" in error["message"]) == ("NOT_FOUND", True)
    assert "osmosis dataset upload" in error["hint"]
