from __future__ import annotations

from pathlib import Path

import pytest

from osmosis_ai.errors import OsmosisError
from osmosis_ai.workspace.layout import WorkspaceDirectory, find_dataset_file, find_workspace
from tests.workspace.builders import git, make_repository


def test_any_subdirectory_or_file_leads_to_the_top_of_the_work_tree(workspace: WorkspaceDirectory) -> None:
    for start in (
        workspace.root,
        workspace.rollouts_dir / "multiply",
        workspace.rollouts_dir / "multiply/main.py",
    ):
        assert find_workspace(start) == workspace


def test_the_current_directory_is_where_the_search_starts(
    workspace: WorkspaceDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(workspace.data_dir)
    assert find_workspace() == workspace


def test_outside_a_git_work_tree_the_error_says_how_to_make_a_workspace(tmp_path: Path) -> None:
    with pytest.raises(OsmosisError) as caught:
        find_workspace(tmp_path)
    assert caught.value.code == "WORKSPACE_REQUIRED"
    assert caught.value.message.startswith("Run this command from an Osmosis workspace directory")
    assert "osmosis doctor --fix" in str(caught.value.hint)


def test_the_inside_of_a_git_directory_is_no_workspace(workspace: WorkspaceDirectory) -> None:
    with pytest.raises(OsmosisError) as caught:
        find_workspace(workspace.root / ".git")
    assert caught.value.code == "WORKSPACE_REQUIRED"


def test_without_git_installed_the_error_says_so(
    workspace: WorkspaceDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    with pytest.raises(OsmosisError, match="Git is not installed") as caught:
        find_workspace(workspace.root)
    assert caught.value.code == "WORKSPACE_REQUIRED"


def test_a_directory_that_does_not_exist_is_named(tmp_path: Path) -> None:
    with pytest.raises(OsmosisError, match=r"No such directory: .*nowhere") as caught:
        find_workspace(tmp_path / "nowhere")
    assert caught.value.code == "NOT_FOUND"


def test_all_missing_directories_are_listed_with_the_command_that_makes_them(tmp_path: Path) -> None:
    root = make_repository(tmp_path / "ws")
    (root / "rollouts").mkdir()
    (root / "data").write_text("a file is no directory")
    with pytest.raises(OsmosisError) as caught:
        find_workspace(root)
    assert caught.value.code == "VALIDATION"
    assert caught.value.message.splitlines()[1:] == [
        "  - configs/training/",
        "  - configs/eval/",
        "  - data/",
        "Run `osmosis doctor --fix` in this Git repository to create them.",
    ]
    assert find_workspace(root, require_scaffold=False) == WorkspaceDirectory(root)


def test_a_git_hook_does_not_redirect_the_search(
    workspace: WorkspaceDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = make_repository(tmp_path / "other")
    monkeypatch.setenv("GIT_DIR", str(other / ".git"))
    monkeypatch.setenv("GIT_WORK_TREE", str(other))
    assert find_workspace(workspace.root) == workspace


def test_what_commands_write_is_not_seen_by_git(workspace: WorkspaceDirectory) -> None:
    (workspace.create_state_dir() / "evals").mkdir()
    (workspace.evals_dir / "results.json").write_text("{}")
    workspace.create_state_dir()
    assert ".osmosis" not in git(workspace.root, "status", "--porcelain", "--untracked-files=all")


@pytest.mark.parametrize("extension", ["jsonl", "csv", "json", "parquet"])
def test_a_dataset_is_the_file_of_that_name(workspace: WorkspaceDirectory, extension: str) -> None:
    file = workspace.data_dir / f"rows.v2.{extension}"
    file.write_text("")
    assert find_dataset_file(workspace, "rows.v2") == file


def test_a_dataset_without_a_file_is_none(workspace: WorkspaceDirectory) -> None:
    (workspace.data_dir / "rows.txt").write_text("")
    assert find_dataset_file(workspace, "rows") is None


def test_two_files_of_one_name_are_an_error_that_names_both(workspace: WorkspaceDirectory) -> None:
    for extension in ("csv", "jsonl"):
        (workspace.data_dir / f"rows.{extension}").write_text("")
    with pytest.raises(OsmosisError, match=r"could be data/rows\.jsonl and data/rows\.csv"):
        find_dataset_file(workspace, "rows")


def test_a_name_with_its_extension_is_corrected(workspace: WorkspaceDirectory) -> None:
    (workspace.data_dir / "rows.jsonl").write_text("")
    with pytest.raises(OsmosisError, match='write dataset = "rows"'):
        find_dataset_file(workspace, "rows.jsonl")


@pytest.mark.parametrize("name", ["../secret", "a/b", "/etc/rows", "a/"])
def test_a_dataset_name_never_leaves_the_data_directory(workspace: WorkspaceDirectory, name: str) -> None:
    with pytest.raises(OsmosisError):
        find_dataset_file(workspace, name)
