from __future__ import annotations

import json
from pathlib import Path

import pytest

from osmosis_ai.cli.main import main
from tests.workspace.builders import git, make_repository, make_workspace


def test_a_complete_workspace_is_confirmed_path_by_path(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    workspace = make_workspace(tmp_path)
    monkeypatch.chdir(workspace.data_dir)
    assert main(["doctor", "--plain"]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert shown[0] == "Workspace doctor completed."
    assert "rollouts\tok" in shown
    assert "AGENTS.md\tmissing (optional)" in shown
    assert ".gitignore\tdoes not ignore .env, .osmosis/" in shown
    assert shown[-2:] == [
        "Write the missing guides for coding agents: osmosis doctor --fix",
        "Keep keys and results out of the repository: osmosis doctor --fix",
    ]


def test_an_env_file_in_the_repository_is_named_with_the_command_that_takes_it_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = make_workspace(tmp_path).root
    for directory in (root, root / "rollouts" / "multiply"):
        (directory / ".env").write_text("OPENAI_API_KEY=sk-canary\n")
    git(root, "add", "--force", "--all")
    assert main(["doctor", str(root), "--plain"]) == 0
    captured = capsys.readouterr()
    shown = captured.out.splitlines()
    assert ".env\tin the repository, keys and all" in shown
    assert (
        "Take .env rollouts/multiply/.env out of the repository: git rm --cached -- .env rollouts/multiply/.env"
        in shown
    )
    assert "canary" not in captured.out + captured.err
    assert main(["doctor", str(root), "--json"]) == 0
    resource = json.loads(capsys.readouterr().out)["resource"]
    assert resource["tracked_env_files"] == [".env", "rollouts/multiply/.env"]
    assert resource["valid"] is True


def test_missing_directories_exit_with_one_and_the_way_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = make_repository(tmp_path)
    assert main(["doctor", str(root)]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "  - configs/eval/" in captured.err
    assert "osmosis doctor --fix" in captured.err


def test_in_json_the_failure_carries_the_whole_resource(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = make_repository(tmp_path)
    assert main(["doctor", str(root), "--json"]) == 1
    envelope = json.loads(capsys.readouterr().err)
    assert envelope["command"] == "doctor"
    assert envelope["error"]["code"] == "VALIDATION"
    assert set(envelope["error"]["details"]) == {
        "workspace_directory",
        "git",
        "workspace",
        "required_paths",
        "missing",
        "valid",
        "fixed",
        "gitignore",
        "tracked_env_files",
        "sandbox",
    }


def test_fixing_and_fixing_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = make_repository(tmp_path)
    assert main(["doctor", str(root), "--fix", "--json"]) == 0
    envelope = json.loads(capsys.readouterr().out)
    assert (envelope["operation"], envelope["status"]) == ("doctor", "success")
    assert envelope["message"] == "Workspace doctor completed."
    assert len(envelope["resource"]["fixed"]) == 7
    assert main(["doctor", str(root), "--fix", "--plain"]) == 0
    assert "created" not in capsys.readouterr().out


def test_outside_of_git_the_error_says_what_to_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", str(tmp_path), "--json"]) == 1
    assert json.loads(capsys.readouterr().err)["error"]["code"] == "WORKSPACE_REQUIRED"
    assert main(["doctor", str(tmp_path)]) == 1
    assert "git init" in capsys.readouterr().err


def test_there_is_nothing_to_confirm(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", str(tmp_path), "--yes"]) == 2
