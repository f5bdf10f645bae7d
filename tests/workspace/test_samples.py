from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from osmosis_ai.errors import OsmosisError
from osmosis_ai.workspace import doctor, samples
from osmosis_ai.workspace.config_files import entrypoint_path, load_eval_config, load_training_config
from osmosis_ai.workspace.git import read_git_state
from osmosis_ai.workspace.layout import find_dataset_file, find_workspace
from tests.workspace.builders import git, make_repository

SAMPLE_FILES = {
    "rollouts/multiply/main.py",
    "rollouts/multiply/pyproject.toml",
    "rollouts/multiply/README.md",
    "configs/eval/multiply.toml",
    "configs/training/multiply.toml",
    "data/multiply.jsonl",
    "data/multiply_train.jsonl",
}


def test_the_copy_is_a_complete_workspace_with_one_commit(tmp_path: Path) -> None:
    workspace = samples.copy_sample_workspace(tmp_path / "scratch")
    assert find_workspace(workspace.root) == workspace
    assert doctor.check(workspace.root).missing == ()
    state = read_git_state(workspace.root)
    assert (state.branch, state.dirty) == ("main", False)
    assert git(workspace.root, "rev-list", "--count", "HEAD") == "1"
    tracked = set(git(workspace.root, "ls-files").splitlines())
    assert tracked == {*SAMPLE_FILES, *doctor.AGENT_GUIDES, ".gitignore"}


def test_the_configs_of_the_copy_are_right(tmp_path: Path) -> None:
    workspace = samples.copy_sample_workspace(tmp_path)
    evaluation = load_eval_config(Path("configs/eval/multiply.toml"), workspace)
    training = load_training_config(Path("configs/training/multiply.toml"), workspace)
    assert (evaluation.evaluation.limit, evaluation.evaluation.n, evaluation.evaluation.pass_threshold) == (
        100,
        4,
        1.0,
    )
    assert evaluation.evaluation.batch_size == 32
    settings = training.settings
    assert settings.rollout_batch_size * settings.n_samples_per_prompt == 128
    for config in (evaluation, training):
        assert config.experiment.model_path == "osmosis/tiny"
        assert config.secrets == ()
        assert find_dataset_file(workspace, config.experiment.dataset) is not None
        assert entrypoint_path(workspace, config.experiment).is_file()


def test_no_git_configuration_of_the_user_is_needed_used_or_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    (home / ".config" / "git").mkdir(parents=True)
    (home / ".config" / "git" / "ignore").write_text("*.jsonl\n*.toml\n")
    (home / ".config" / "git" / "attributes").write_text("*.jsonl filter=absent\n")
    config = home / ".gitconfig"
    config.write_text(
        "[user]\n\tname = Somebody\n\temail = somebody@example.org\n"
        "[commit]\n\tgpgSign = true\n[gpg]\n\tprogram = /bin/false\n"
        f"[init]\n\tdefaultBranch = trunk\n\ttemplateDir = {home}/template\n"
        '[filter "absent"]\n\tclean = /bin/false\n\trequired = true\n'
        "[core]\n\tautocrlf = true\n\thooksPath = hooks\n"
        "[i18n]\n\tcommitEncoding = ISO-8859-1\n"
    )
    before = config.read_bytes()
    for name in ("GIT_CONFIG_GLOBAL", "XDG_CONFIG_HOME", "GIT_AUTHOR_NAME", "GIT_COMMITTER_NAME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("GIT_CONFIG_COUNT", "1")
    monkeypatch.setenv("GIT_CONFIG_KEY_0", "commit.gpgSign")
    monkeypatch.setenv("GIT_CONFIG_VALUE_0", "true")
    workspace = samples.copy_sample_workspace(tmp_path / "scratch")
    assert set(git(workspace.root, "ls-files").splitlines()) >= SAMPLE_FILES
    assert git(workspace.root, "log", "--format=%an <%ae> %D") == "Osmosis <osmosis@localhost> HEAD -> main"
    assert "encoding" not in git(workspace.root, "cat-file", "commit", "HEAD")
    assert config.read_bytes() == before


@pytest.mark.integration
def test_a_broken_git_configuration_of_the_user_keeps_nobody_from_the_samples(
    tmp_path: Path, home: Path
) -> None:
    (home / ".gitconfig").write_text("[user\nname = Somebody\n")
    script = (
        "import pathlib, os, sys; from osmosis_ai.workspace import samples; before = dict(os.environ); "
        "samples.copy_sample_workspace(pathlib.Path(sys.argv[1])); assert dict(os.environ) == before"
    )
    subprocess.run([sys.executable, "-c", script, str(tmp_path / "scratch")], check=True)
    assert (tmp_path / "scratch" / ".git" / "HEAD").read_text() == "ref: refs/heads/main\n"


def test_a_copy_inside_another_repository_stays_its_own(tmp_path: Path) -> None:
    outer = make_repository(tmp_path)
    workspace = samples.copy_sample_workspace(outer / "scratch")
    assert find_workspace(workspace.root).root == outer / "scratch"


def test_a_directory_with_something_in_it_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("")
    with pytest.raises(OsmosisError, match="is not empty"):
        samples.copy_sample_workspace(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]
