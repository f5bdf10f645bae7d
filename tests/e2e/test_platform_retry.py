"""A run whose grader broke is retried, read as one evaluation with its retry, submitted again, and deleted."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from osmosis_ai.services.demo import prepare_scratch
from tests.e2e.platform_checkout import World, said

pytestmark = pytest.mark.e2e

# Rows with an odd answer cannot be graded before somebody opens the book.
BROKEN = """\
    async def grade(self, ctx: GraderContext) -> None:
        if int(ctx.label) % 2 and not os.path.exists(os.environ["BOOK"]):
            raise RuntimeError("the answer book is closed")
"""


@pytest.fixture(scope="module")
def book(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("book") / "open"


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, book: Path) -> Iterator[World]:
    scratch = prepare_scratch(tmp_path_factory.mktemp("retry") / "demo")
    main = scratch.workspace / "rollouts" / "multiply" / "main.py"
    head, graded, rest = main.read_text().partition(
        "    async def grade(self, ctx: GraderContext) -> None:\n"
    )
    assert graded
    main.write_text(head + BROKEN + rest)
    scratch.push()
    # The book lies where no sandbox has anything.
    world = World(scratch, OSMOSIS_ISOLATION="off")
    try:
        world.git("commit", "-qam", "grade by the book")
        world.git("push", "-q")
        world.json("platform", "connect", str(scratch.origin), "--identity", "fern/agents")
        assert world.osmosis("dataset", "upload", "data/multiply.jsonl", "--wait", "--yes").status == 0
        yield world
    finally:
        world.close()


def test_a_run_with_failing_rows_is_retried_and_merged(world: World, book: Path) -> None:
    config = world.root / world.write_config("broken", env=f'BOOK = "{book}"')
    config.write_text(config.read_text().replace("limit = 2\nn = 1", "limit = 6\nn = 2"))
    run = world.json("eval", "submit", str(config), "--watch", "--yes").resource
    headline = run["headline"]
    assert (run["status"], headline["scored"], headline["failed_by_boundary"]) == (
        "finished",
        8,
        {"grader": 4},
    )

    book.touch()
    # Whatever has become of the branch, a retry is of the run's own commit.
    world.git("commit", "-q", "--allow-empty", "-m", "later")
    world.git("push", "-q")
    retry = world.json("eval", "retry", run["name"], "--watch", "--yes").resource
    assert (retry["status"], retry["samples"], retry["planned"]) == ("finished", 4, 12)
    assert retry["commit_sha"] == run["commit_sha"]
    assert (retry["headline"]["scored"], retry["headline"]["planned"]) == (4, 4)

    either = [world.json("eval", "info", name).resource for name in (run["name"], retry["name"])]
    assert either[0]["merged"] == either[1]["merged"]
    merged = either[0]["merged"]
    assert [(each["name"], each["samples"]) for each in merged["runs"]] == [
        (run["name"], 8),
        (retry["name"], 4),
    ]
    told = merged["headline"]
    assert (told["scored"], told["planned"], told["failed"]) == (12, 12, 0)
    assert told["low"] <= told["pass_rate"] <= told["high"]
    assert merged["estimates"]["pass_rate"]["clusters"] == 6
    assert any("4 of 12 samples are of retries" in warning for warning in told["warnings"])
    seen = world.osmosis("--plain", "eval", "info", run["name"]).out
    assert (
        f"Together: 8 of {run['name']}, 4 of {retry['name']}" in seen and "Scored: 12 of 12 planned" in seen
    )
    refused = world.json("eval", "retry", retry["name"], "--yes")
    assert "has nothing to retry" in said(refused)

    # What was made again has the names that it has in the original.
    failed = {(2, 0), (2, 1), (1, 0), (1, 1), (4, 0), (4, 1)}
    world.json("eval", "download", retry["name"], "--yes", "--output", str(world.root / "again"))
    lines = [
        json.loads(line)
        for line in next((world.root / "again").rglob("summary.jsonl")).read_text().splitlines()
    ]
    assert {(line["row_index"], line["run_index"]) for line in lines} <= failed and len(lines) == 4

    again = world.json("eval", "resubmit", retry["name"], "--watch", "--yes").resource
    assert (again["headline"]["scored"], again["headline"]["planned"]) == (12, 12)
    assert {each["what"]: each["changed"] for each in again["changes"]} == {
        "commit": True,
        "dataset": False,
        "model": False,
        "platform version": False,
    }

    for name in (run["name"], retry["name"], again["name"]):
        assert world.json("eval", "delete", name, "--yes").status == 0
        assert world.json("eval", "delete", name, "--yes").error["code"] == "NOT_FOUND"
    assert not list((world.platform.home / "blobs" / "objects" / "runs").glob("*"))
    assert world.json("dataset", "delete", "multiply", "--yes").status == 0
    assert not list((world.platform.home / "blobs" / "objects" / "datasets").rglob("*.*"))
