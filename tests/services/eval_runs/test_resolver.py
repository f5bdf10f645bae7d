"""Lookup of runs by name on this machine and the platform, and samples of platform runs."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import respx

from osmosis_ai.api.client import PlatformClient
from osmosis_ai.api.http_errors import PlatformError
from osmosis_ai.datasets import file_digest
from osmosis_ai.errors import ConflictError, NotFoundError, OsmosisError, WorkspaceRequiredError
from osmosis_ai.services.eval_runs.resolver import find_local_run, resolve_run
from osmosis_ai.services.eval_runs.samples import find_run_samples, read_platform_samples
from osmosis_ai.workspace.layout import WorkspaceDirectory
from tests.cli.eval_replies import DETAIL, METRICS, OWN, RESULTS, ROW
from tests.decisions.builders import write_journalled_run
from tests.workspace.builders import make_workspace


def nobody() -> PlatformClient:
    raise AssertionError("the platform was asked for a run of this machine")


def logged_out() -> PlatformClient:
    raise OsmosisError("nobody is logged in.", code="AUTH_REQUIRED")


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> WorkspaceDirectory:
    """With the runs amber-fox (the oldest), amber-owl and blue-hen (the newest)."""
    made = make_workspace(tmp_path / "workspace")
    for age, name in enumerate(("blue-hen", "amber-owl", "amber-fox")):
        directory = write_journalled_run(made.evals_dir / name, [[1.0], [0.0]])
        os.utime(directory / "manifest.json", ns=(10**18 - age, 10**18 - age))
    monkeypatch.chdir(made.data_dir)
    return made


@pytest.mark.parametrize(
    ("word", "name"),
    [
        ("amber-owl", "amber-owl"),
        *((word, "blue-hen") for word in ("blue", "local:blue-hen", "@last", "local:@last")),
    ],
)
def test_local_run_by_name_prefix_or_last(workspace: WorkspaceDirectory, word: str, name: str) -> None:
    found = resolve_run(word, client=nobody)
    assert (found.place, found.name, found.directory) == ("local", name, workspace.evals_dir / name)


def test_ambiguous_prefix(workspace: WorkspaceDirectory) -> None:
    with pytest.raises(ConflictError, match="'amber' matches 2 runs: amber-owl, amber-fox") as caught:
        resolve_run("amber", client=nobody)
    assert caught.value.details["candidates"] == ["amber-owl", "amber-fox"]


NO_NAMES = (
    *("x" * 256, "é" * 256, "git:" + "a" * 10_000, "git:a\0b", "local:\0", "platform:\0", "\ud800" * 100),
    *(
        "local:" + "é" * 128,
        "platform:" + "n" * 256,
        "é" * 128 + "/a",
        "a/" * 3_000,
        "platform:a/" + "é" * 128,
    ),
)


@pytest.mark.parametrize("word", NO_NAMES, ids=range(len(NO_NAMES)))
def test_invalid_run_names(workspace: WorkspaceDirectory, word: str) -> None:
    with pytest.raises(NotFoundError, match="Run name is invalid: '") as caught:
        resolve_run(word, client=nobody)
    assert len(caught.value.message) < 100


def test_archived_run_needs_its_full_name(workspace: WorkspaceDirectory) -> None:
    write_journalled_run(workspace.evals_dir / "red-cat.archive-1", [[1.0]])
    assert find_local_run("red-cat.archive-1").name == "red-cat.archive-1"
    with pytest.raises(NotFoundError):
        find_local_run("red-cat")


def test_downloaded_run_is_refused(workspace: WorkspaceDirectory, tmp_path: Path) -> None:
    (tmp_path / "fetched").mkdir()
    (tmp_path / "fetched" / "summary.jsonl").write_text("{}\n")
    with pytest.raises(OsmosisError, match="is a downloaded run, which has no dataset rows") as caught:
        resolve_run(str(tmp_path / "fetched"), client=nobody)
    assert "platform:NAME" in (caught.value.hint or "")


class TestOfACommit:
    """`git:REF`: the newest finished run of a commit and config, made without uncommitted changes."""

    @pytest.fixture
    def head(self, workspace: WorkspaceDirectory) -> str:
        git = ["git", "-C", str(workspace.root), "-c", "user.name=Mara", "-c", "user.email=m@fern.example"]
        subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "x"], check=True)
        done = subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True)
        return done.stdout.strip()

    def run(
        self, workspace: WorkspaceDirectory, name: str, head: str, age: int, **provenance: object
    ) -> None:
        directory = write_journalled_run(
            workspace.evals_dir / name,
            [[1.0]],
            provenance={
                "git_head": head,
                "git_dirty": False,
                "config": "configs/eval/a.toml",
                "dataset_name": "rows",
                **provenance,
            },
        )
        os.utime(directory / "manifest.json", ns=(2 * 10**18 - age, 2 * 10**18 - age))

    def test_newest_finished_clean_run(self, workspace: WorkspaceDirectory, head: str) -> None:
        self.run(workspace, "dirty", head, 0, git_dirty=True)
        self.run(workspace, "unfinished", head, 1)
        (workspace.evals_dir / "unfinished" / "events.jsonl").write_bytes(b"")
        self.run(workspace, "good", head, 2)
        self.run(workspace, "older", head, 3)
        self.run(workspace, "elsewhere", "0" * 40, 0)
        found = find_run_samples("git:HEAD", client=nobody)
        assert found.name == "good"

    def test_run_of_the_compared_config(self, workspace: WorkspaceDirectory, head: str) -> None:
        self.run(workspace, "other", head, 0, config="configs/eval/b.toml")
        self.run(workspace, "mine", head, 1)
        like = find_run_samples("mine", client=nobody).inputs
        assert resolve_run("git:HEAD", client=nobody, like=like).name == "mine"
        with pytest.raises(
            ConflictError, match=r"runs of 2 configs: configs/eval/a\.toml, configs/eval/b\.toml"
        ):
            resolve_run("git:HEAD", client=nobody)

    def test_unknown_ref_and_commit_without_run(self, workspace: WorkspaceDirectory, head: str) -> None:
        with pytest.raises(NotFoundError, match="Commit 'no-such' not found in the repository"):
            resolve_run("git:no-such", client=nobody)
        with pytest.raises(NotFoundError, match="No finished run of commit 'HEAD'") as caught:
            resolve_run("git:HEAD", client=logged_out)
        assert "uncommitted changes" in (caught.value.hint or "")
        with pytest.raises(NotFoundError, match="Commit '--output=x' not found"):
            resolve_run("git:--output=x", client=nobody)

    def test_upload_with_changes_does_not_count(
        self, head: str, ours: Replies, client: PlatformClient
    ) -> None:
        finished = {**ROW, "status": "finished", "commit_sha": head}
        changed = {**finished, "name": "changed", "imported": {"local_run_id": "0f" * 16, "git_dirty": True}}
        ours.get("/eval-runs", {"eval_runs": [changed, finished]})
        assert resolve_run("platform:git:HEAD", client=lambda: client).name == "amber-otter-42"
        ours.get("/eval-runs", {"eval_runs": [changed]})
        with pytest.raises(NotFoundError) as caught:
            resolve_run("platform:git:HEAD", client=lambda: client)
        assert "uncommitted changes" in (caught.value.hint or "")


BASE = "https://platform.osmosis.ai"
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


@pytest.fixture
def client() -> Iterator[PlatformClient]:
    with PlatformClient(BASE, "osm_u_7Qd", "fern/maze") as client:
        yield client


class Replies:
    """Replies of a platform that has the samples of runs."""

    def __init__(self, router: respx.MockRouter) -> None:
        self._router = router

    def get(self, path: str, reply: Any, *, status: int = 200, **params: Any) -> None:
        self._router.get(f"{BASE}/api/cli{path}", params=params).respond(status, json=reply, headers=OURS)

    def run(self, detail: dict[str, Any] = FINISHED) -> None:
        self.get("/eval-runs/amber-otter-42", detail)
        self.get("/eval-runs/er_8/metrics", METRICS)


@pytest.fixture
def ours() -> Iterator[Replies]:
    with respx.mock(assert_all_called=False) as router:
        yield Replies(router)


def test_samples_of_all_pages(ours: Replies, client: PlatformClient) -> None:
    ours.run()
    second = {"row": 1, "attempt": 0, "status": "failed", "source_row_index": 3, "row_digest": "b" * 32}
    copy = {**second, "attempt": 1, "status": "success", "reward": 0.25, "cost_usd": 0.5, "tokens": 9}
    ours.get("/eval-runs/er_8/samples", {"samples": [second, copy]}, limit=5000, cursor="0-0")
    ours.get("/eval-runs/er_8/samples", {"samples": [FIRST], "next_cursor": "0-0"}, limit=5000)
    run = read_platform_samples(client, "amber-otter-42")
    assert (run.name, run.run_id, run.place, run.status) == ("amber-otter-42", "er_8", "platform", "finished")
    assert (run.keyed_by, run.row_keys) == ("row_digest", ("a" * 32, "b" * 32))
    assert run.source_rows.tolist() == [7, 3]
    assert run.samples["row"].tolist() == [0, 1, 1]
    np.testing.assert_array_equal(run.samples["reward"], [1.0, np.nan, 0.25])
    np.testing.assert_array_equal(run.samples["cost_usd"], [np.nan, np.nan, 0.5])
    inputs = run.inputs
    assert (inputs.model, inputs.dataset_name, inputs.dataset_sha256) == (
        "osmosis/tiny",
        "maze-walks",
        "d" * 64,
    )
    assert (inputs.commit, inputs.n, inputs.seed, inputs.grader_digest) == (
        DETAIL["commit_sha"],
        2,
        7,
        "9" * 64,
    )
    assert (run.unfinished, run.imported, run.summary, run.notes) == (None, None, None, ())


def test_imported_run(ours: Replies, client: PlatformClient) -> None:
    origin = {"local_run_id": "0f" * 16, "sdk_version": "0.3.11", "git_head": "1a2b3c4", "git_dirty": True}
    ours.run({**FINISHED, "eval_run": {**OWN, "status": "finished", "imported": origin}})
    bare = {name: value for name, value in FIRST.items() if name != "row_digest"}
    ours.get("/eval-runs/er_8/samples", {"samples": [bare]})
    run = read_platform_samples(client, "amber-otter-42")
    assert run.imported == "executed elsewhere, with 0.3.11 at 1a2b3c4 and uncommitted changes"
    assert (run.keyed_by, run.row_keys) == ("dataset-and-index", (f"{'d' * 64}:7",))
    assert "imported runs have no row digests" in run.notes[0]
    assert run.inputs.dirty is True
    # What was uploaded is the run that it was uploaded from.
    assert run.run_id == "0f" * 16


@pytest.mark.parametrize(
    "change", [{"row": 2}, {"attempt": 2}, {"row": 10**12}, {"status": "invented", "row": 5}]
)
def test_attempt_outside_the_run(ours: Replies, client: PlatformClient, change: dict[str, Any]) -> None:
    ours.run()
    ours.get("/eval-runs/er_8/samples", {"samples": [{**FIRST, **change}]})
    with pytest.raises(OsmosisError, match="which the run amber-otter-42 does not have"):
        read_platform_samples(client, "amber-otter-42")


def test_repeated_page_cursor(ours: Replies, client: PlatformClient) -> None:
    ours.run()
    ours.get("/eval-runs/er_8/samples", {"samples": [FIRST], "next_cursor": "0-0"})
    assert read_platform_samples(client, "amber-otter-42").samples.size == 1


@pytest.mark.parametrize("answer", [{"samples": [FIRST], "next_cursor": "{}"}, {"samples": [FIRST] * 5}])
def test_more_attempts_than_the_run_has(client: PlatformClient, answer: dict[str, Any]) -> None:
    """Its pages are circular, or each has a new cursor."""
    asked: list[str | None] = []

    def page(request: httpx.Request) -> httpx.Response:
        asked.append(request.url.params.get("cursor"))
        body = json.dumps(answer).replace("{}", f"page-{len(asked)}")
        return httpx.Response(200, text=body, headers=OURS)

    with respx.mock(assert_all_called=False) as router:
        Replies(router).run()
        router.get(f"{BASE}/api/cli/eval-runs/er_8/samples").mock(side_effect=page)
        with pytest.raises(OsmosisError, match="reports more attempts than the run amber-otter-42 has"):
            read_platform_samples(client, "amber-otter-42")
    assert len(asked) <= 5


@pytest.mark.parametrize(
    "change, cursor",
    [
        *(({name: number}, "0-0") for name, number in (("source_row_index", 10**30), ("tokens", 10**400))),
        *(({name: number}, "0-0") for name, number in (("tokens", -5), ("row", -1))),
        ({}, "x" * 10**6),
    ],
)
def test_invalid_numbers_and_cursors_of_samples(
    ours: Replies, client: PlatformClient, change: dict[str, Any], cursor: str
) -> None:
    ours.run()
    ours.get("/eval-runs/er_8/samples", {"samples": [{**FIRST, **change}], "next_cursor": cursor})
    with pytest.raises(PlatformError, match="is invalid"):
        read_platform_samples(client, "amber-otter-42")


@pytest.mark.parametrize("other", [[], [{**FIRST, "row": 1}]])
def test_rows_without_identity(ours: Replies, client: PlatformClient, other: list[dict[str, Any]]) -> None:
    ours.run()
    unknown = {"row": 0, "attempt": 0, "status": "success", "reward": 1}
    ours.get("/eval-runs/er_8/samples", {"samples": [unknown, *other]})
    with pytest.raises(OsmosisError, match="does not identify the rows of amber-otter-42"):
        read_platform_samples(client, "amber-otter-42")


def test_platform_run_by_name_prefix_or_last(
    ours: Replies, client: PlatformClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(make_workspace(tmp_path / "workspace").root)
    ours.run()
    ours.get("/eval-runs/amber", {"error": "there is no run 'amber'"}, status=404)
    ours.get("/eval-runs/b", {"error": "there is no run 'b'"}, status=404)
    ours.get(
        "/eval-runs", {"eval_runs": [{**OWN, "name": name} for name in ("amber-otter-42", "b-1", "b-2")]}
    )

    def found(word: str) -> tuple[str, str]:
        run = resolve_run(word, client=lambda: client)
        return run.place, run.name

    assert found("platform:amber-otter-42") == found("amber") == found("platform:@last")
    assert found("amber-otter-42") == ("platform", "amber-otter-42")
    with pytest.raises(ConflictError, match="'b' matches 2 runs: b-1, b-2"):
        found("b")
    ours.get("/eval-runs/zebra", {"error": "there is no run 'zebra'"}, status=404)
    with pytest.raises(NotFoundError, match="neither on this machine nor on the platform"):
        found("zebra")
    ours.get("/eval-runs/amber-ottr", {"error": "there is none"}, status=404)
    with pytest.raises(NotFoundError) as caught:
        found("amber-ottr")
    assert (caught.value.hint or "") == "did you mean amber-otter-42?"


def test_dataset_must_be_unchanged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    workspace = make_workspace(tmp_path / "workspace")
    monkeypatch.chdir(workspace.root)
    file = workspace.data_dir / "rows.jsonl"
    file.write_text(
        "".join(
            json.dumps({"user_prompt": str(row), "ground_truth": "1", "level": row}) + "\n" for row in (1, 2)
        )
    )
    dataset = {"sha256": file_digest(file), "selected_source_rows": "0-1"}
    directory = workspace.evals_dir / "amber"
    write_journalled_run(
        directory, [[1.0], [0.0]], inputs={"dataset": dataset}, provenance={"dataset_name": "rows"}
    )

    run = find_run_samples("amber", client=logged_out)
    assert run.slice_values("level") == ["1", "2"]
    file.write_text(file.read_text() + "\n")
    with pytest.raises(ConflictError, match=r"rows\.jsonl` has changed since the run amber used it"):
        run.slice_values("level")
    file.unlink()
    with pytest.raises(
        NotFoundError, match="Dataset 'rows' of the run 'amber' is neither in data/ nor on a platform"
    ):
        run.slice_values("level")


def test_pending_run(ours: Replies, client: PlatformClient) -> None:
    ours.run({**FINISHED, "eval_run": {**OWN, "status": "pending"}, "results": None})
    with pytest.raises(ConflictError, match=r"has no rows yet \(it is pending"):
        read_platform_samples(client, "amber-otter-42")


@pytest.mark.parametrize("file", ["", "events.jsonl", "metrics.json", "results of a classic evaluation"])
def test_run_by_path(
    workspace: WorkspaceDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str
) -> None:
    monkeypatch.chdir("/")
    directory = workspace.evals_dir / "blue-hen"
    (directory / "metrics.json").write_text("{}")
    given = directory / file
    if file.startswith("results"):
        given = tmp_path / "results.json"
        given.write_text(json.dumps({"summary": {"run_dir": str(directory)}, "rows": []}))
    found = resolve_run(str(given), client=nobody)
    assert (found.place, found.directory) == ("file", directory)


def test_classic_run_outside_a_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(WorkspaceRequiredError):
        resolve_run("amber", client=nobody)
    directory = write_journalled_run(tmp_path / ".osmosis" / "evals" / "amber", [[1.0]])
    assert resolve_run("amber", client=nobody).directory == directory
