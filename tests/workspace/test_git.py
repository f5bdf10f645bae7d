from __future__ import annotations

from pathlib import Path

import pytest

from osmosis_ai.errors import OsmosisError
from osmosis_ai.workspace.git import GitState, read_git_state, read_origin, run_git, without_credentials
from osmosis_ai.workspace.layout import WorkspaceDirectory
from tests.workspace.builders import git, make_repository


def test_a_repository_without_a_commit_has_a_branch_and_no_head(tmp_path: Path) -> None:
    root = make_repository(tmp_path)
    assert read_git_state(root) == GitState(
        head=None, branch="main", dirty=False, has_upstream=False, ahead=0
    )


def test_a_committed_tree_is_clean_and_an_untracked_file_makes_it_dirty(
    workspace: WorkspaceDirectory,
) -> None:
    git(workspace.root, "add", "--all")
    git(workspace.root, "commit", "--quiet", "--message", "first")
    state = read_git_state(workspace.root)
    assert state.head == git(workspace.root, "rev-parse", "HEAD")
    assert not state.dirty
    (workspace.root / "näme with space\n").write_text("")
    assert read_git_state(workspace.root).dirty


def test_run_outputs_do_not_make_a_tree_dirty(workspace: WorkspaceDirectory) -> None:
    git(workspace.root, "add", "--all")
    git(workspace.root, "commit", "--quiet", "--message", "first")
    workspace.evals_dir.mkdir(parents=True)
    (workspace.evals_dir / "results.json").write_text("{}")
    assert not read_git_state(workspace.root).dirty


def test_a_detached_head_has_no_branch(workspace: WorkspaceDirectory) -> None:
    git(workspace.root, "commit", "--quiet", "--allow-empty", "--message", "first")
    git(workspace.root, "checkout", "--quiet", "--detach")
    assert read_git_state(workspace.root).branch is None


def test_commits_that_are_not_pushed_are_counted(workspace: WorkspaceDirectory, tmp_path: Path) -> None:
    remote = make_repository(tmp_path / "remote")
    git(remote, "config", "receive.denyCurrentBranch", "ignore")
    git(workspace.root, "remote", "add", "origin", str(remote))
    git(workspace.root, "commit", "--quiet", "--allow-empty", "--message", "first")
    assert not read_git_state(workspace.root).has_upstream
    git(workspace.root, "push", "--quiet", "--set-upstream", "origin", "main")
    git(workspace.root, "commit", "--quiet", "--allow-empty", "--message", "second")
    state = read_git_state(workspace.root)
    assert (state.has_upstream, state.ahead) == (True, 1)


def test_reading_a_tree_runs_no_program_that_its_configuration_names(
    workspace: WorkspaceDirectory, tmp_path: Path
) -> None:
    trap = tmp_path / "trap.sh"
    trap.write_text(f"#!/bin/sh\ntouch {tmp_path}/sprung\n")
    trap.chmod(0o755)
    git(workspace.root, "config", "core.fsmonitor", str(trap))
    read_git_state(workspace.root)
    assert not (tmp_path / "sprung").exists()


def test_a_directory_outside_of_git_has_no_state(tmp_path: Path) -> None:
    with pytest.raises(OsmosisError, match="Git cannot read"):
        read_git_state(tmp_path)


def test_origin_is_read_as_it_is_and_may_be_absent(workspace: WorkspaceDirectory) -> None:
    assert read_origin(workspace.root) is None
    git(workspace.root, "remote", "add", "origin", "git@example.org:team/agents.git")
    assert read_origin(workspace.root) == "git@example.org:team/agents.git"


@pytest.mark.parametrize(
    "url, shown",
    [
        ("https://ada:token@example.org/team/agents.git", "https://example.org/team/agents.git"),
        ("https://token@example.org:8443/agents", "https://example.org:8443/agents"),
        ("ssh://git:secret@example.org/agents", "ssh://git@example.org/agents"),
        ("git@example.org:team/agents.git", "git@example.org:team/agents.git"),
        ("/srv/git/agents", "/srv/git/agents"),
        ("https://[broken", "(not a URL)"),
    ],
)
def test_a_shown_url_carries_no_credentials(url: str, shown: str) -> None:
    assert without_credentials(url) == shown


def test_a_command_that_hangs_is_ended_and_named(workspace: WorkspaceDirectory) -> None:
    git(workspace.root, "config", "alias.hang", "!sleep 2")
    with pytest.raises(OsmosisError, match=r"`git hang` did not finish within 0.2 s"):
        run_git(["hang"], cwd=workspace.root, timeout_s=0.2)
