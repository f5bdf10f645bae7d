from __future__ import annotations

import json
from pathlib import Path

import pytest

from osmosis_ai.cli.main import main
from tests.workspace.builders import make_workspace


@pytest.fixture(autouse=True)
def workspace_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    root = make_workspace(tmp_path / "ws").root
    monkeypatch.chdir(root)
    return root


def test_a_new_rollout_is_announced_with_what_to_do_next(
    workspace_root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["rollout", "init", "capitals", "--plain"]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert shown[0] == "Initialized rollout 'capitals'."
    assert shown[-1] == "Evaluate on this machine: osmosis eval run configs/eval/capitals.toml"
    assert (workspace_root / "rollouts/capitals/main.py").is_file()
    assert "  .gitignore now ignores .env and .osmosis/" in shown
    assert (workspace_root / ".gitignore").read_text() == ".env\n.osmosis/\n"


def test_in_json_it_is_one_operation(workspace_root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--json", "rollout", "init", "capitals"]) == 0
    envelope = json.loads(capsys.readouterr().out)
    assert envelope["operation"] == "rollout.init"
    assert set(envelope["resource"]) == {
        *("name", "workspace_directory", "rollout_dir", "configs", "files", "gitignore")
    }


def test_what_exists_is_a_conflict_until_forced(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rollout", "init", "capitals"]) == 0
    assert main(["rollout", "init", "capitals", "--json"]) == 1
    error = json.loads(capsys.readouterr().err)["error"]
    assert error["code"] == "CONFLICT"
    assert len(error["details"]["conflicts"]) == 3
    assert main(["rollout", "init", "capitals", "-f"]) == 0


def test_an_existing_name_prints_its_paths_and_diff_adds_the_differences(
    workspace_root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["rollout", "init", "capitals"]) == 0
    (workspace_root / "rollouts/capitals/main.py").write_text("mine = 1\n" * 200)
    capsys.readouterr()
    assert main(["rollout", "init", "capitals", "--plain"]) == 1
    short = capsys.readouterr().err
    assert short.count("\n") < 7 and "mine" not in short and "--diff" in short
    assert main(["rollout", "init", "capitals", "--plain", "--diff"]) == 1
    shown = capsys.readouterr().err
    assert "\n-mine = 1" in shown and "--diff" not in shown


def test_a_bad_name_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rollout", "init", "My_Agent"]) == 1
    assert "lower-case letters, digits and hyphens" in capsys.readouterr().err


def test_a_missing_name_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rollout", "init"]) == 2
