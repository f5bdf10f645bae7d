"""Lookup of runs by name on this machine and the platform, and samples of platform runs."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.cli.conftest import Cli
from tests.cli.eval_replies import DETAIL, METRICS, OWN, RESULTS, ROW
from tests.cli.maze import Maze
from tests.decisions.builders import write_journalled_run
from tests.workspace.builders import git, make_workspace

OURS = {"X-Osmosis-Capabilities": "eval-samples"}
FINISHED = {
    **DETAIL,
    "eval_run": {**OWN, "status": "finished"},
    "results": {**RESULTS, "sampled_rows": 2},
    "dataset_sha256": "d" * 64,
    "grader_digest": "9" * 64,
}
FIRST = {
    "row": 0,
    "attempt": 0,
    "status": "success",
    "source_row_index": 7,
    "row_digest": "a" * 32,
    "reward": 1,
}


def shown(maze: Maze, word: str) -> tuple[str, str]:
    """Return where `eval show` finds a run, and its name."""
    data = maze.osmosis("eval", "show", word, "--json").data
    return data["place"], data["run"]


def refusal(maze: Maze, *words: str) -> dict[str, Any]:
    return maze.osmosis("eval", *words, "--json").error


@pytest.fixture
def runs(maze: Maze) -> Maze:
    """With the runs amber-fox (the oldest), amber-owl and blue-hen (the newest)."""
    for age, name in enumerate(("blue-hen", "amber-owl", "amber-fox")):
        directory = write_journalled_run(maze.workspace.evals_dir / name, [[1.0], [0.0]])
        os.utime(directory / "manifest.json", ns=(10**18 - age, 10**18 - age))
    maze.patch.chdir(maze.workspace.data_dir)
    return maze


@pytest.mark.parametrize(
    ("word", "name"),
    [
        ("amber-owl", "amber-owl"),
        *((word, "blue-hen") for word in ("blue", "local:blue-hen", "@last", "local:@last")),
    ],
)
def test_local_run_by_name_prefix_or_last(runs: Maze, word: str, name: str) -> None:
    assert shown(runs, word) == ("local", name)


def test_ambiguous_prefix(runs: Maze) -> None:
    error = refusal(runs, "show", "amber")
    assert "'amber' matches 2 runs: amber-owl, amber-fox" in error["message"]
    assert error["details"]["candidates"] == ["amber-owl", "amber-fox"]


NO_NAMES = (
    *("x" * 256, "é" * 256, "git:" + "a" * 10_000, "git:a\0b", "local:\0", "platform:\0", "\ud800" * 100),
    *("local:" + "é" * 128, "platform:" + "n" * 256, "é" * 128 + "/a", "a/" * 3_000),
    "platform:a/" + "é" * 128,
)


@pytest.mark.parametrize("word", NO_NAMES, ids=range(len(NO_NAMES)))
def test_invalid_run_names(runs: Maze, word: str) -> None:
    error = refusal(runs, "show", word)
    assert error["message"].startswith("Run name is invalid: '") and len(error["message"]) < 100


def test_archived_run_needs_its_full_name(runs: Maze) -> None:
    write_journalled_run(runs.workspace.evals_dir / "red-cat.archive-1", [[1.0]])
    assert shown(runs, "red-cat.archive-1") == ("local", "red-cat.archive-1")
    assert refusal(runs, "show", "local:red-cat")["code"] == "NOT_FOUND"


def test_downloaded_run_has_no_rows(runs: Maze, tmp_path: Path) -> None:
    (tmp_path / "fetched").mkdir()
    (tmp_path / "fetched" / "summary.jsonl").write_text("{}\n")
    error = refusal(runs, "compare", str(tmp_path / "fetched"), "blue-hen")
    assert "is a downloaded run, which has no dataset rows" in error["message"]
    assert "platform:NAME" in error["hint"]


@pytest.mark.parametrize("file", ["", "events.jsonl", "metrics.json", "results of a classic evaluation"])
def test_run_by_path(runs: Maze, tmp_path: Path, file: str) -> None:
    runs.patch.chdir("/")
    directory = runs.workspace.evals_dir / "blue-hen"
    (directory / "metrics.json").write_text("{}")
    given = directory / file
    if file.startswith("results"):
        given = tmp_path / "results.json"
        given.write_text(json.dumps({"summary": {"run_dir": str(directory)}, "rows": []}))
    assert shown(runs, str(given)) == ("file", "blue-hen")


def test_classic_run_outside_a_repository(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    gate = ("eval", "gate", "amber", "--min", "reward=0", "--json")
    assert cli(*gate).error["code"] == "WORKSPACE_REQUIRED"
    write_journalled_run(tmp_path / ".osmosis/evals/amber", [[1.0]] * 9)
    assert cli(*gate).resource["run"]["name"] == "amber"


# `git:REF`: the newest finished run of a commit and config, made without uncommitted changes


@pytest.fixture
def head(runs: Maze) -> str:
    git(runs.workspace.root, "commit", "-q", "--allow-empty", "-m", "x")
    return git(runs.workspace.root, "rev-parse", "HEAD")


def write_commit_run(runs: Maze, name: str, head: str, age: int, **provenance: object) -> None:
    known = {"git_head": head, "git_dirty": False, "config": "configs/eval/a.toml", "dataset_name": "rows"}
    directory = write_journalled_run(
        runs.workspace.evals_dir / name, [[1.0]], provenance={**known, **provenance}
    )
    os.utime(directory / "manifest.json", ns=(2 * 10**18 - age, 2 * 10**18 - age))


def test_newest_finished_clean_run_of_a_commit(runs: Maze, head: str) -> None:
    write_commit_run(runs, "dirty", head, 0, git_dirty=True)
    write_commit_run(runs, "unfinished", head, 1)
    (runs.workspace.evals_dir / "unfinished" / "events.jsonl").write_bytes(b"")
    write_commit_run(runs, "good", head, 2)
    write_commit_run(runs, "older", head, 3)
    write_commit_run(runs, "elsewhere", "0" * 40, 0)
    assert shown(runs, "git:HEAD") == ("local", "good")


def test_commit_run_of_the_compared_config(runs: Maze, head: str) -> None:
    write_commit_run(runs, "other", head, 0, config="configs/eval/b.toml")
    write_commit_run(runs, "mine", head, 1)
    error = refusal(runs, "compare", "mine", "git:HEAD")
    assert "the run mine is compared with itself" in error["message"]
    error = refusal(runs, "show", "git:HEAD")
    assert "runs of 2 configs: configs/eval/a.toml, configs/eval/b.toml" in error["message"]


def test_unknown_ref_and_commit_without_run(runs: Maze, head: str, home: Path) -> None:
    for word in ("no-such", "--output=x"):
        error = refusal(runs, "show", f"git:{word}")
        assert f"Commit '{word}' not found in the repository" in error["message"]
    (home / ".config/osmosis/credentials.json").unlink()
    error = refusal(runs, "show", "git:HEAD")
    assert "No finished run of commit 'HEAD'" in error["message"] and "uncommitted changes" in error["hint"]


def test_upload_with_changes_does_not_count(runs: Maze, head: str) -> None:
    offer(runs, [FIRST])
    finished = {**ROW, "status": "finished", "commit_sha": head}
    changed = {**finished, "name": "changed", "imported": {"local_run_id": "0f" * 16, "git_dirty": True}}
    gate = ("eval", "gate", "platform:git:HEAD", "--min", "reward=0", "--json")
    runs.get("/eval-runs").respond(json={"eval_runs": [changed, finished]}, headers=OURS)
    assert runs.osmosis(*gate).resource["run"]["name"] == "amber-otter-42"
    runs.get("/eval-runs").respond(json={"eval_runs": [changed]}, headers=OURS)
    assert "uncommitted changes" in runs.osmosis(*gate).error["hint"]


def test_platform_run_by_name_prefix_or_last(maze: Maze) -> None:
    offer(maze, [FIRST])
    for word in ("amber", "b", "zebra", "amber-ottr"):
        maze.get(f"/eval-runs/{word}").respond(404, json={"error": "there is none"}, headers=OURS)
    rows = [{**OWN, "name": name} for name in ("amber-otter-42", "b-1", "b-2")]
    maze.get("/eval-runs").respond(json={"eval_runs": rows}, headers=OURS)

    def gate(word: str) -> tuple[str, ...]:
        return ("eval", "gate", word, "--min", "reward=0", "--json")

    for word in ("platform:amber-otter-42", "amber", "platform:@last", "amber-otter-42"):
        run = maze.osmosis(*gate(word)).resource["run"]
        assert (run["source"], run["name"]) == ("platform", "amber-otter-42")
    assert "'b' matches 2 runs: b-1, b-2" in maze.osmosis(*gate("b")).error["message"]
    error = maze.osmosis(*gate("zebra")).error
    assert "neither on this machine nor on the platform" in error["message"]
    assert maze.osmosis(*gate("amber-ottr")).error["hint"] == "did you mean amber-otter-42?"


# Samples of platform runs


def offer(maze: Maze, samples: Any, detail: dict[str, Any] = FINISHED, **more: Any) -> None:
    """Let the platform have the run ``amber-otter-42`` with these samples."""
    maze.get("/eval-runs/amber-otter-42").respond(json=detail, headers=OURS)
    maze.get("/eval-runs/er_8/metrics").respond(json=METRICS, headers=OURS)
    maze.get("/eval-runs/er_8/samples").respond(json={"samples": samples, **more}, headers=OURS)


COMPARE = ("compare", "fern", "platform:amber-otter-42")


@pytest.fixture
def fern(maze: Maze) -> Maze:
    """With a run of the same rows on this machine."""
    write_journalled_run(
        maze.workspace.evals_dir / "fern", [[1.0, 1.0], [0.5, 1.0]], digests=["a" * 32, "b" * 32]
    )
    return maze


def test_samples_of_all_pages(fern: Maze) -> None:
    offer(fern, [])
    second = {"row": 1, "attempt": 0, "status": "failed", "source_row_index": 3, "row_digest": "b" * 32}
    copy = {**second, "attempt": 1, "status": "success", "reward": 0.25, "cost_usd": 0.5, "tokens": 9}
    pages = {None: {"samples": [FIRST], "next_cursor": "0-0"}, "0-0": {"samples": [second, copy]}}

    def page(request: httpx.Request) -> httpx.Response:
        assert request.url.params["limit"] == "5000"
        return httpx.Response(200, json=pages[request.url.params.get("cursor")], headers=OURS)

    fern.get("/eval-runs/er_8/samples").mock(side_effect=page)
    resource = fern.osmosis("eval", *COMPARE, "--json").resource
    [compared] = resource["candidates"]
    known = {"status": "finished", "rows": 2, "planned": 4, "tried": 3, "scored": 2, "tokens": 9}
    assert {**compared["run"], **known, "cost_usd": 0.5, "notes": []} == compared["run"]
    inputs = {
        "model": "osmosis/tiny",
        "dataset_name": "maze-walks",
        "dataset_sha256": "d" * 64,
        "commit": DETAIL["commit_sha"],
        "n": 2,
        "seed": 7,
        "grader_digest": "9" * 64,
    }
    assert {**compared["run"]["inputs"], **inputs} == compared["run"]["inputs"]
    assert compared["rows_matched"] == {"common": 2, "only_baseline": 0, "only_candidate": 0, "changed": 0}
    assert compared["metrics"][0]["difference"]["value"] == -0.25


def test_imported_run(fern: Maze) -> None:
    origin = {"local_run_id": "0f" * 16, "sdk_version": "0.3.11", "git_head": "1a2b3c4", "git_dirty": True}
    bare = {name: value for name, value in FIRST.items() if name != "row_digest"}
    offer(fern, [bare], {**FINISHED, "eval_run": {**OWN, "status": "finished", "imported": origin}})
    [compared] = fern.osmosis("eval", *COMPARE, "--unpaired", "--json").resource["candidates"]
    assert compared["run"]["inputs"]["dirty"] is True
    said = "executed elsewhere, with 0.3.11 at 1a2b3c4 and uncommitted changes"
    assert any(said in note for note in compared["notes"])
    assert "the run was imported without row digests" in compared["run"]["notes"][0]
    # What was uploaded is the run that it was uploaded from.
    manifest = json.loads((fern.workspace.evals_dir / "fern/manifest.json").read_text())
    origin["local_run_id"] = manifest["local_run_id"]
    offer(fern, [bare], {**FINISHED, "eval_run": {**OWN, "status": "finished", "imported": origin}})
    assert "are the same run" in refusal(fern, *COMPARE)["message"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        *(
            (change, "which the run amber-otter-42 does not have")
            for change in ({"row": 2}, {"attempt": 2}, {"row": 10**12}, {"status": "invented", "row": 5})
        ),
        *(
            (change, "is invalid")
            for change in ({"source_row_index": 10**30}, {"tokens": 10**400}, {"tokens": -5}, {"row": -1})
        ),
        ({"source_row_index": None, "row_digest": None}, "does not identify the rows of amber-otter-42"),
    ],
)
def test_impossible_samples(fern: Maze, changes: dict[str, Any], message: str) -> None:
    offer(fern, [{**FIRST, **changes}, {**FIRST, "row": 1}])
    assert message in refusal(fern, *COMPARE)["message"]


def test_page_cursors_of_samples(fern: Maze) -> None:
    offer(fern, [FIRST], next_cursor="0-0")
    assert fern.osmosis("eval", *COMPARE, "--json").status == 0
    offer(fern, [FIRST], next_cursor="x" * 10**6)
    assert "is invalid" in refusal(fern, *COMPARE)["message"]


@pytest.mark.parametrize("answer", [{"samples": [FIRST], "next_cursor": "{}"}, {"samples": [FIRST] * 5}])
def test_more_attempts_than_the_run_has(fern: Maze, answer: dict[str, Any]) -> None:
    """Its pages are circular, or each has a new cursor."""
    offer(fern, [])
    asked: list[str | None] = []

    def page(request: httpx.Request) -> httpx.Response:
        asked.append(request.url.params.get("cursor"))
        body = json.dumps(answer).replace("{}", f"page-{len(asked)}")
        return httpx.Response(200, text=body, headers=OURS)

    fern.get("/eval-runs/er_8/samples").mock(side_effect=page)
    assert "reports more attempts than the run amber-otter-42 has" in refusal(fern, *COMPARE)["message"]
    assert len(asked) <= 5


def test_pending_run(fern: Maze) -> None:
    offer(fern, [], {**FINISHED, "eval_run": {**OWN, "status": "pending"}, "results": None})
    assert "has no rows yet (it is pending" in refusal(fern, *COMPARE)["message"]


def test_dataset_must_be_unchanged(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    workspace = make_workspace(tmp_path / "workspace")
    monkeypatch.chdir(workspace.root)
    file = workspace.data_dir / "rows.jsonl"
    rows = [{"user_prompt": str(level), "ground_truth": "1", "level": level} for level in (1, 2)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    dataset = {"sha256": hashlib.sha256(file.read_bytes()).hexdigest(), "selected_source_rows": "0-1"}
    write_journalled_run(
        workspace.evals_dir / "amber",
        [[1.0], [0.0]],
        inputs={"dataset": dataset},
        provenance={"dataset_name": "rows"},
    )
    gate = ("eval", "gate", "amber", "--min", "reward=0.1", "--slice", "level", "--json")
    warnings = cli(*gate).resource["warnings"]
    assert [text.partition(":")[0] for text in warnings] == ["slice level = 1", "slice level = 2"]
    file.write_text(file.read_text() + "\n")
    assert "rows.jsonl` has changed since the run amber used it" in cli(*gate).error["message"]
    file.unlink()
    missing = "Dataset 'rows' of the run 'amber' is neither in data/ nor on a platform"
    assert missing in cli(*gate).error["message"]
