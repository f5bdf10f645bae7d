"""What can be said without a platform is said before anybody is asked to log in."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.cli.conftest import Cli

LOGIN = "Error: Not logged in."


@pytest.fixture
def configs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The configs of a workspace directory that has a platform's repository, and nobody who is logged in."""
    for name in ("configs/eval", "configs/training", "configs/benchmark", "data", "rollouts"):
        (tmp_path / name).mkdir(parents=True)
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    origin = "https://github.com/fern/maze.git"
    subprocess.run(["git", "-C", str(tmp_path), "remote", "add", "origin", origin], check=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "configs"


@pytest.mark.parametrize(
    ("command", "folder"), [("eval", "eval"), ("train", "training"), ("benchmark", "benchmark")]
)
def test_a_config_that_is_missing_is_noticed_before_a_login_is_asked_for(
    cli: Cli, configs: Path, command: str, folder: str
) -> None:
    (configs / folder / "first.toml").touch()
    missing = cli(command, "submit", "nope.toml")
    assert missing.status == 1
    assert missing.err == f"Error: Config file not found: nope.toml\nhint: configs/{folder}/ has first.toml\n"
    assert cli(command, "submit", f"configs/{folder}/first.toml").err.startswith(LOGIN)


def test_a_file_that_is_missing_is_noticed_before_a_login_is_asked_for(cli: Cli, configs: Path) -> None:
    missing = cli("dataset", "upload", "nope.jsonl")
    assert missing.status == 1
    assert "nope.jsonl" in missing.err and LOGIN not in missing.err
    Path("data/rows.jsonl").write_text('{"ground_truth": "4", "user_prompt": "2 + 2"}\n')
    assert cli("dataset", "upload", "data/rows.jsonl").err.startswith(LOGIN)
