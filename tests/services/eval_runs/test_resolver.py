"""Which run a word means, on this machine and on the platform, and what is said when it means none or several."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from osmosis_ai.api.client import PlatformClient
from osmosis_ai.errors import ConflictError, NotFoundError, OsmosisError, WorkspaceRequiredError
from osmosis_ai.services.eval_runs.resolver import find_local_run, find_run_samples, resolve_run
from osmosis_ai.workspace.layout import WorkspaceDirectory
from tests.evaluation.comparison.builders import write_journalled_run
from tests.workspace.builders import make_workspace


def nobody() -> PlatformClient:
    raise AssertionError("the platform was asked for a run of this machine")


def logged_out() -> PlatformClient:
    raise OsmosisError("nobody is logged in.", code="AUTH_REQUIRED")


@pytest.fixture
def workspace(tmp_path: Path) -> WorkspaceDirectory:
    """With the runs amber-fox (the oldest), amber-owl and blue-hen (the newest)."""
    made = make_workspace(tmp_path / "workspace")
    for age, name in enumerate(("blue-hen", "amber-owl", "amber-fox")):
        directory = write_journalled_run(made.evals_dir / name, [[1.0], [0.0]])
        os.utime(directory / "manifest.json", ns=(10**18 - age, 10**18 - age))
    return made


@pytest.mark.parametrize(
    ("word", "name", "place"),
    [
        ("amber-owl", "amber-owl", "local"),
        ("blue", "blue-hen", "local"),
        ("local:blue-hen", "blue-hen", "local"),
        ("@last", "blue-hen", "local"),
        ("local:@last", "blue-hen", "local"),
    ],
)
def test_a_name_its_beginning_and_the_newest_are_found_here_without_a_login(
    workspace: WorkspaceDirectory, word: str, name: str, place: str
) -> None:
    found = resolve_run(word, client=nobody, start=workspace.data_dir)
    assert (found.place, found.name, found.directory) == (place, name, workspace.evals_dir / name)


@pytest.mark.parametrize("file", ["", "events.jsonl", "metrics.json", "results of a classic evaluation"])
def test_a_directory_and_a_file_in_it_are_found_from_anywhere(
    workspace: WorkspaceDirectory, tmp_path: Path, file: str
) -> None:
    directory = workspace.evals_dir / "blue-hen"
    (directory / "metrics.json").write_text("{}")
    given = directory / file
    if file.startswith("results"):
        given = tmp_path / "results.json"
        given.write_text(json.dumps({"summary": {"run_dir": str(directory)}, "rows": []}))
    found = resolve_run(str(given), client=nobody, start=Path("/"))
    assert (found.place, found.directory) == ("file", directory)


def test_a_beginning_of_several_runs_lists_them(workspace: WorkspaceDirectory) -> None:
    with pytest.raises(ConflictError, match="beginning of 2 runs: amber-owl, amber-fox") as caught:
        resolve_run("amber", client=nobody, start=workspace.root)
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
def test_what_neither_a_file_nor_a_run_of_a_platform_can_be_called_is_no_run(
    workspace: WorkspaceDirectory, word: str
) -> None:
    with pytest.raises(NotFoundError, match="no run can be called `") as caught:
        resolve_run(word, client=nobody, start=workspace.root)
    assert len(caught.value.message) < 100


@pytest.mark.parametrize("name", ["n" * 255, "é" * 128, "名" * 255], ids=["ascii", "latin", "wide"])
@pytest.mark.parametrize("place", ["", "platform:"])
def test_a_name_that_a_platform_allows_is_asked_of_it_and_no_file_is_looked_for(
    workspace: WorkspaceDirectory, name: str, place: str
) -> None:
    asked: list[str] = []
    client: Any = SimpleNamespace(eval_runs=SimpleNamespace(get=asked.append))
    found = resolve_run(place + name, client=lambda: client, start=workspace.root)
    assert (found.place, found.name, asked) == ("platform", name, [name])
    with pytest.raises(NotFoundError, match="there is no run `"):
        find_local_run(place + name, start=workspace.root)


def test_an_archived_run_is_found_by_its_whole_name_alone(workspace: WorkspaceDirectory) -> None:
    write_journalled_run(workspace.evals_dir / "red-cat.archive-1", [[1.0]])
    assert find_local_run("red-cat.archive-1", start=workspace.root).name == "red-cat.archive-1"
    with pytest.raises(NotFoundError):
        find_local_run("red-cat", start=workspace.root)


def test_a_typo_gets_the_nearest_names_and_the_latest(workspace: WorkspaceDirectory) -> None:
    with pytest.raises(NotFoundError, match="there is no run `amber-foxx`") as caught:
        resolve_run("amber-foxx", client=logged_out, start=workspace.root)
    hint = caught.value.hint or ""
    assert hint.startswith("did you mean amber-fox")
    assert "the latest are: blue-hen, amber-owl, amber-fox" in hint


def test_a_directory_that_is_no_run_is_said_with_the_three_nearest_names(
    workspace: WorkspaceDirectory,
) -> None:
    empty = workspace.evals_dir / "amber-ow"
    empty.mkdir()
    with pytest.raises(NotFoundError, match="there is no run in") as caught:
        resolve_run(str(empty), client=logged_out, start=workspace.root)
    assert caught.value.details["nearest"] == ["amber-owl", "amber-fox", "blue-hen"]


@pytest.mark.parametrize(
    ("content", "said"),
    [("{}", "no file of an evaluation run"), ("\x00not json", "no file of an evaluation run")],
)
def test_a_file_that_is_no_runs_is_refused(
    workspace: WorkspaceDirectory, tmp_path: Path, content: str, said: str
) -> None:
    (tmp_path / "x.json").write_text(content)
    with pytest.raises(OsmosisError, match=said):
        resolve_run(str(tmp_path / "x.json"), client=nobody, start=workspace.root)


def test_a_download_is_refused_with_the_name_that_serves(
    workspace: WorkspaceDirectory, tmp_path: Path
) -> None:
    (tmp_path / "fetched").mkdir()
    (tmp_path / "fetched" / "summary.jsonl").write_text("{}\n")
    with pytest.raises(OsmosisError, match="download of a platform's run") as caught:
        resolve_run(str(tmp_path / "fetched"), client=nobody, start=workspace.root)
    assert "platform:NAME" in (caught.value.hint or "")


def test_local_never_asks_the_platform(workspace: WorkspaceDirectory) -> None:
    with pytest.raises(NotFoundError, match="there is no run `nothing`"):
        resolve_run("local:nothing", client=nobody, start=workspace.root)


def test_a_classic_run_is_found_by_name_outside_of_a_repository(tmp_path: Path) -> None:
    with pytest.raises(WorkspaceRequiredError):
        resolve_run("amber", client=nobody, start=tmp_path)
    directory = write_journalled_run(tmp_path / ".osmosis" / "evals" / "amber", [[1.0]])
    assert resolve_run("amber", client=nobody, start=tmp_path).directory == directory


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

    def test_it_is_the_newest_that_is_finished_and_clean(
        self, workspace: WorkspaceDirectory, head: str
    ) -> None:
        self.run(workspace, "dirty", head, 0, git_dirty=True)
        self.run(workspace, "unfinished", head, 1)
        (workspace.evals_dir / "unfinished" / "events.jsonl").write_bytes(b"")
        self.run(workspace, "good", head, 2)
        self.run(workspace, "older", head, 3)
        self.run(workspace, "elsewhere", "0" * 40, 0)
        found = find_run_samples("git:HEAD", client=nobody, start=workspace.root)
        assert found.name == "good"

    def test_of_several_configs_it_is_the_one_that_is_compared_with(
        self, workspace: WorkspaceDirectory, head: str
    ) -> None:
        self.run(workspace, "other", head, 0, config="configs/eval/b.toml")
        self.run(workspace, "mine", head, 1)
        like = find_run_samples("mine", client=nobody, start=workspace.root).inputs
        assert resolve_run("git:HEAD", client=nobody, start=workspace.root, like=like).name == "mine"
        with pytest.raises(
            ConflictError, match=r"runs of 2 configs: configs/eval/a\.toml, configs/eval/b\.toml"
        ):
            resolve_run("git:HEAD", client=nobody, start=workspace.root)

    def test_an_unknown_ref_and_a_commit_without_a_run_are_said(
        self, workspace: WorkspaceDirectory, head: str
    ) -> None:
        with pytest.raises(NotFoundError, match="has no commit `no-such`"):
            resolve_run("git:no-such", client=nobody, start=workspace.root)
        with pytest.raises(NotFoundError, match="no finished run of the commit `HEAD`") as caught:
            resolve_run("git:HEAD", client=logged_out, start=workspace.root)
        assert "uncommitted changes" in (caught.value.hint or "")
        with pytest.raises(NotFoundError, match="has no commit `--output=x`"):
            resolve_run("git:--output=x", client=nobody, start=workspace.root)
