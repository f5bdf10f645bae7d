from __future__ import annotations

import ast
from pathlib import Path

import pytest

from osmosis_ai.errors import OsmosisError
from osmosis_ai.workspace.config_files import InvalidConfigError, load_eval_config, load_training_config
from osmosis_ai.workspace.layout import WorkspaceDirectory
from osmosis_ai.workspace.placement import PlacedRollout
from osmosis_ai.workspace.scaffold import init_rollout

FILES = (
    "configs/eval/capitals.toml",
    "configs/training/capitals.toml",
    "rollouts/capitals/README.md",
    "rollouts/capitals/main.py",
    "rollouts/capitals/pyproject.toml",
)


def edited(workspace: WorkspaceDirectory, kind: str) -> Path:
    path = workspace.root / "configs" / kind / "capitals.toml"
    path.write_text(
        path.read_text().replace("<your-dataset-name>", "capitals").replace("<your-model>", "osmosis/tiny")
    )
    return path


def test_a_rollout_with_its_two_configs_is_written(workspace: WorkspaceDirectory) -> None:
    assert init_rollout(workspace, "capitals") == PlacedRollout(
        "capitals",
        ("rollouts/capitals", "configs/eval/capitals.toml", "configs/training/capitals.toml"),
        FILES,
        (".env", ".osmosis/"),
    )
    for name in FILES:
        content = (workspace.root / name).read_text()
        assert "capitals" in content
        assert "{{" not in content
        assert (workspace.root / name).stat().st_mode & 0o777 == 0o644
    ast.parse((workspace.root / "rollouts/capitals/main.py").read_text())
    pyproject = (workspace.root / "rollouts/capitals/pyproject.toml").read_text()
    assert 'requires-python = ">=3.10"' in pyproject
    assert '"osmosis-ai[server]>=0.3.0rc1,<0.4"' in pyproject


def test_the_configs_are_right_once_their_placeholders_are_filled_in(workspace: WorkspaceDirectory) -> None:
    init_rollout(workspace, "capitals")
    with pytest.raises(InvalidConfigError) as caught:
        load_eval_config(Path("configs/eval/capitals.toml"), workspace)
    assert [issue.key for issue in caught.value.issues] == ["experiment.dataset"]
    evaluation = load_eval_config(edited(workspace, "eval"), workspace)
    assert evaluation.secrets == ("OPENAI_API_KEY",)
    assert list(evaluation.payload()) == ["experiment_config", "secrets"]
    assert load_training_config(edited(workspace, "training"), workspace).secrets == ()


@pytest.mark.parametrize("kind", ["eval", "training"])
def test_what_is_commented_out_is_right_too(workspace: WorkspaceDirectory, kind: str) -> None:
    init_rollout(workspace, "capitals")
    path = edited(workspace, kind)
    lines = [
        line.removeprefix("# ") if line.startswith("# ") and ("=" in line or line.startswith("# [")) else line
        for line in path.read_text().splitlines()
        if "commit_sha" not in line and "Qwen" not in line
    ]
    # One of the names may only stand in one of the two.
    path.write_text("\n".join(lines))
    load = load_eval_config if kind == "eval" else load_training_config
    config = load(path, workspace)
    assert config.env == {"LOG_LEVEL": "INFO"}
    assert config.experiment.branch == "main"
    assert config.secrets == ("OPENAI_API_KEY",)


@pytest.mark.parametrize(
    "name", ["", "Capitals", "1st", "-a", "a_b", "a b", "a/b", "..", "default", "añb", "a\n"]
)
def test_names_that_are_not_allowed(workspace: WorkspaceDirectory, name: str) -> None:
    before = sorted(workspace.root.rglob("*"))
    with pytest.raises(OsmosisError) as caught:
        init_rollout(workspace, name)
    assert caught.value.code == "VALIDATION"
    assert sorted(workspace.root.rglob("*")) == before


def test_everything_that_exists_is_listed_and_nothing_is_touched(workspace: WorkspaceDirectory) -> None:
    (workspace.eval_configs_dir / "capitals.toml").write_text("mine")
    (workspace.rollouts_dir / "capitals").mkdir()
    with pytest.raises(OsmosisError) as caught:
        init_rollout(workspace, "capitals")
    assert caught.value.code == "CONFLICT"
    assert caught.value.details["conflicts"] == ["rollouts/capitals", "configs/eval/capitals.toml"]
    assert (workspace.eval_configs_dir / "capitals.toml").read_text() == "mine"
    assert not (workspace.training_configs_dir / "capitals.toml").exists()


def test_force_replaces_a_directory_and_configs(workspace: WorkspaceDirectory) -> None:
    init_rollout(workspace, "capitals")
    (workspace.rollouts_dir / "capitals" / "old.py").write_text("")
    (workspace.eval_configs_dir / "capitals.toml").write_text("mine")
    init_rollout(workspace, "capitals", force=True)
    assert not (workspace.rollouts_dir / "capitals" / "old.py").exists()
    assert "[experiment]" in (workspace.eval_configs_dir / "capitals.toml").read_text()


@pytest.mark.parametrize(
    "target", ["rollouts/capitals", "configs/eval/capitals.toml", "configs/training/capitals.toml"]
)
@pytest.mark.parametrize("obstacle", ["link", "broken link", "other kind"])
def test_force_replaces_no_link_and_nothing_of_another_kind(
    workspace: WorkspaceDirectory, tmp_path: Path, target: str, obstacle: str
) -> None:
    init_rollout(workspace, "capitals")
    precious = workspace.rollouts_dir / "capitals" / "precious.py"
    path = workspace.root / target
    if target.startswith("rollouts"):
        path.rename(tmp_path / "moved")
        precious = tmp_path / "moved" / "main.py"
    else:
        precious.write_text("")
        path.unlink()
    if obstacle == "other kind":
        path.write_text("") if target.startswith("rollouts") else path.mkdir()
    else:
        path.symlink_to(tmp_path / ("moved" if obstacle == "link" else "nowhere"))
    with pytest.raises(OsmosisError) as caught:
        init_rollout(workspace, "capitals", force=True)
    assert caught.value.code == "CONFLICT"
    assert caught.value.details == {"conflicts": [target]}
    assert precious.exists()
