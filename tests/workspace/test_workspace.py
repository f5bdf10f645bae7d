"""Workspace directories: search, creation, checks and Git."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from osmosis_ai.errors import OsmosisError
from osmosis_ai.workspace import doctor, rollout_templates
from osmosis_ai.workspace.config_files import load_eval_config, load_training_config
from osmosis_ai.workspace.git import (
    add_patterns,
    missing_patterns,
    read_git_state,
    run_git,
    without_credentials,
)
from osmosis_ai.workspace.layout import WorkspaceDirectory, find_dataset_file, find_workspace
from osmosis_ai.workspace.rollout_templates import init_rollout
from tests.workspace.builders import git, make_repository


def test_find_workspace_from_any_path(workspace: WorkspaceDirectory) -> None:
    for start in (".", "rollouts/multiply", "rollouts/multiply/main.py"):
        assert find_workspace(workspace.root / start) == workspace
    with pytest.raises(OsmosisError) as caught:
        find_workspace(workspace.root / ".git")
    assert caught.value.code == "WORKSPACE_REQUIRED"


def test_git_hook_variables_are_ignored(
    workspace: WorkspaceDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = make_repository(tmp_path / "other")
    monkeypatch.setenv("GIT_DIR", str(other / ".git"))
    monkeypatch.setenv("GIT_WORK_TREE", str(other))
    assert find_workspace(workspace.root) == workspace


def test_state_directory_is_ignored_by_git(workspace: WorkspaceDirectory) -> None:
    (workspace.create_state_dir() / "evals").mkdir()
    (workspace.evals_dir / "results.json").write_text("{}")
    workspace.create_state_dir()
    assert ".osmosis" not in git(workspace.root, "status", "--porcelain", "--untracked-files=all")


@pytest.mark.parametrize(
    "name, problem",
    [
        ("rows", r"could be data/rows\.jsonl and data/rows\.csv"),
        *((name, "is not the name of a dataset") for name in ("../secret", "a/b", "/etc/rows", "a/")),
    ],
)
def test_dataset_names(workspace: WorkspaceDirectory, name: str, problem: str) -> None:
    for extension in ("csv", "jsonl"):
        (workspace.data_dir / f"rows.{extension}").write_text("")
    with pytest.raises(OsmosisError, match=problem):
        find_dataset_file(workspace, name)


def test_dirty_state(workspace: WorkspaceDirectory) -> None:
    git(workspace.root, "add", "--all")
    git(workspace.root, "commit", "--quiet", "--message", "first")
    workspace.evals_dir.mkdir(parents=True)
    (workspace.evals_dir / "results.json").write_text("{}")
    state = read_git_state(workspace.root)
    assert (state.head, state.dirty) == (git(workspace.root, "rev-parse", "HEAD"), False)
    (workspace.root / "näme with space\n").write_text("")
    assert read_git_state(workspace.root).dirty


def test_state_outside_git(tmp_path: Path) -> None:
    with pytest.raises(OsmosisError, match="Git cannot read"):
        read_git_state(tmp_path)


def test_fsmonitor_is_not_run(workspace: WorkspaceDirectory, tmp_path: Path) -> None:
    trap = tmp_path / "trap.sh"
    trap.write_text(f"#!/bin/sh\ntouch {tmp_path}/sprung\n")
    trap.chmod(0o755)
    git(workspace.root, "config", "core.fsmonitor", str(trap))
    read_git_state(workspace.root)
    assert not (tmp_path / "sprung").exists()


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
def test_url_without_credentials(url: str, shown: str) -> None:
    assert without_credentials(url) == shown


@pytest.mark.parametrize(
    "before, after",
    [
        (None, b".env\n.osmosis/\n"),
        (b"", b".env\n.osmosis/\n"),
        (b"*.pyc", b"*.pyc\n.env\n.osmosis/\n"),
        (b"*.pyc\r\n.env\r\n", b"*.pyc\r\n.env\r\n.osmosis/\r\n"),
        (b"/.osmosis\n.env*\n", b"/.osmosis\n.env*\n"),
        (b"# .env\n.osmosis/\n", b"# .env\n.osmosis/\n.env\n"),
        (b".env\n!.env\n.osmosis\n", b".env\n!.env\n.osmosis\n.env\n"),
        (b"\xff\n", b"\xff\n.env\n.osmosis/\n"),
    ],
)
def test_gitignore_patterns(tmp_path: Path, before: bytes | None, after: bytes) -> None:
    file = tmp_path / ".gitignore"
    if before is not None:
        file.write_bytes(before)
        file.chmod(0o640)
    add_patterns(tmp_path, missing_patterns(tmp_path))
    assert file.read_bytes() == after
    assert missing_patterns(tmp_path) == ()
    if before is not None:
        assert file.stat().st_mode & 0o777 == 0o640


@pytest.mark.parametrize("by", ["doctor", "init"])
def test_no_key_is_staged_after_setup(workspace: WorkspaceDirectory, by: str) -> None:
    root = workspace.root
    if by == "doctor":
        assert doctor.fix(root).ignored == (".env", ".osmosis/")
        assert doctor.fix(root).ignored == ()
    else:
        assert init_rollout(workspace, "capitals").ignored == (".env", ".osmosis/")
        assert init_rollout(workspace, "rivers").ignored == ()
    (root / ".env").write_text("OPENAI_API_KEY=sk-canary\n")
    (root / ".osmosis" / "evals").mkdir(parents=True)
    (root / ".osmosis" / "evals" / "record.json").write_text("{}")
    git(root, "add", "--all")
    staged = git(root, "diff", "--cached", "--name-only").splitlines()
    assert ".gitignore" in staged
    assert not [name for name in staged if ".env" in name or ".osmosis" in name]


def test_linked_gitignore_is_not_changed(workspace: WorkspaceDirectory, tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.write_text("*.pyc\n")
    (workspace.root / ".gitignore").symlink_to(shared)
    assert doctor.fix(workspace.root).ignored == ()
    assert init_rollout(workspace, "capitals").ignored == ()
    assert shared.read_text() == "*.pyc\n"


GUIDES = ("AGENTS.md", "CLAUDE.md", "configs/AGENTS.md")
DIRECTORIES = ("rollouts", "configs/training", "configs/eval", "data")


def listing(root: Path) -> list[str]:
    return sorted(path.relative_to(root).as_posix() for path in root.rglob("*") if ".git/" not in f"{path}/")


def test_doctor_creates_missing_files(tmp_path: Path) -> None:
    root = make_repository(tmp_path)
    before = listing(root)
    assert doctor.check(root).missing == (*DIRECTORIES, *GUIDES)
    assert listing(root) == before
    report = doctor.fix(root)
    assert (report.fixed, report.missing, report.valid) == ((*DIRECTORIES, *GUIDES), (), True)
    assert all((root / name / ".gitkeep").is_file() for name in DIRECTORIES)
    assert find_workspace(root).root == root
    assert doctor.fix(root).fixed == ()


def test_doctor_overwrites_nothing(workspace: WorkspaceDirectory) -> None:
    (workspace.root / "AGENTS.md").write_text("ours")
    (workspace.data_dir / "rows.csv").write_text("ours")
    assert doctor.fix(workspace.root).fixed == ("CLAUDE.md", "configs/AGENTS.md")
    assert (workspace.root / "AGENTS.md").read_text() == "ours"
    assert not (workspace.data_dir / ".gitkeep").exists()


@pytest.mark.parametrize(
    "obstacle, make",
    [
        ("CLAUDE.md", lambda path: path.symlink_to("nowhere")),
        ("AGENTS.md", Path.mkdir),
        ("configs", Path.touch),
        ("configs", lambda path: path.symlink_to(path.parents[1])),
    ],
)
def test_doctor_conflicts(tmp_path: Path, obstacle: str, make: Callable[[Path], None]) -> None:
    root = make_repository(tmp_path / "ws")
    make(root / obstacle)
    before = listing(tmp_path)
    with pytest.raises(OsmosisError) as caught:
        doctor.fix(root)
    assert caught.value.code == "CONFLICT"
    assert caught.value.details == {"conflicts": [obstacle]}
    assert listing(tmp_path) == before


SAMPLE_FILES = {
    "rollouts/multiply/main.py",
    "rollouts/multiply/pyproject.toml",
    "rollouts/multiply/README.md",
    "configs/eval/multiply.toml",
    "configs/training/multiply.toml",
    "data/multiply.jsonl",
    "data/multiply_train.jsonl",
}


def test_sample_workspace(tmp_path: Path) -> None:
    workspace = rollout_templates.copy_sample_workspace(tmp_path / "scratch")
    assert find_workspace(workspace.root) == workspace
    assert doctor.check(workspace.root).missing == ()
    state = read_git_state(workspace.root)
    assert (state.branch, state.dirty) == ("main", False)
    assert git(workspace.root, "rev-list", "--count", "HEAD") == "1"
    tracked = set(git(workspace.root, "ls-files").splitlines())
    assert tracked == {*SAMPLE_FILES, *doctor.AGENT_GUIDES, ".gitignore"}


def test_user_git_configuration_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
    workspace = rollout_templates.copy_sample_workspace(tmp_path / "scratch")
    assert set(git(workspace.root, "ls-files").splitlines()) >= SAMPLE_FILES
    assert git(workspace.root, "log", "--format=%an <%ae> %D") == "Osmosis <osmosis@localhost> HEAD -> main"
    assert "encoding" not in git(workspace.root, "cat-file", "commit", "HEAD")
    assert config.read_bytes() == before


@pytest.mark.integration
def test_broken_user_git_configuration(tmp_path: Path, home: Path) -> None:
    (home / ".gitconfig").write_text("[user\nname = Somebody\n")
    script = (
        "import pathlib, os, sys; from osmosis_ai.workspace import rollout_templates as samples; before = dict(os.environ); "
        "samples.copy_sample_workspace(pathlib.Path(sys.argv[1])); assert dict(os.environ) == before"
    )
    subprocess.run([sys.executable, "-c", script, str(tmp_path / "scratch")], check=True)
    assert (tmp_path / "scratch" / ".git" / "HEAD").read_text() == "ref: refs/heads/main\n"


def test_sample_workspace_needs_an_empty_directory(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("")
    with pytest.raises(OsmosisError, match="is not empty"):
        rollout_templates.copy_sample_workspace(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_generated_configs(workspace: WorkspaceDirectory) -> None:
    init_rollout(workspace, "capitals")
    evaluation = load_eval_config(Path("configs/eval/capitals.toml"), workspace)
    assert (evaluation.experiment.model_path, evaluation.secrets) == ("osmosis/tiny", ())
    assert len((workspace.root / "data" / "capitals.jsonl").read_text().splitlines()) == 20
    training = load_training_config(Path("configs/training/capitals.toml"), workspace)
    assert (training.experiment.dataset, training.secrets) == ("capitals", ())


@pytest.mark.parametrize("kind", ["eval", "training"])
def test_commented_settings_of_generated_configs(workspace: WorkspaceDirectory, kind: str) -> None:
    init_rollout(workspace, "capitals")
    path = workspace.root / "configs" / kind / "capitals.toml"
    keys = [line for line in path.read_text().splitlines() if re.match(r"(# )?\w+ = .* # ", line)]
    assert {line.index(" # ", 2) for line in keys} == {40}
    lines = [
        line.removeprefix("# ") if line.startswith("# ") and ("=" in line or line.startswith("# [")) else line
        for line in path.read_text().splitlines()
        if "commit_sha" not in line
    ]
    # One of the names may only stand in one of the two.
    path.write_text("\n".join(lines))
    load = load_eval_config if kind == "eval" else load_training_config
    config = load(path, workspace)
    assert config.env == {"LOG_LEVEL": "INFO"}
    assert config.experiment.branch == "main"
    assert config.secrets == (() if kind == "eval" else ("OPENAI_API_KEY",))


def test_a_new_rollout_keeps_an_existing_dataset_of_its_name(workspace: WorkspaceDirectory) -> None:
    rows = workspace.root / "data" / "capitals.csv"
    rows.write_text("user_prompt,ground_truth\nThe capital of Peru?,Lima\n")
    written = init_rollout(workspace, "capitals", force=True)
    assert not [path for path in written.files if path.startswith("data/")]
    assert [path.name for path in rows.parent.iterdir()] == ["capitals.csv"]


@pytest.mark.parametrize(
    "name", ["", "Capitals", "1st", "-a", "a_b", "a b", "a/b", "..", "default", "añb", "a\n"]
)
def test_invalid_rollout_names(workspace: WorkspaceDirectory, name: str) -> None:
    before = sorted(workspace.root.rglob("*"))
    with pytest.raises(OsmosisError) as caught:
        init_rollout(workspace, name)
    assert caught.value.code == "VALIDATION"
    assert sorted(workspace.root.rglob("*")) == before


def test_existing_files_are_not_overwritten(workspace: WorkspaceDirectory) -> None:
    (workspace.eval_configs_dir / "capitals.toml").write_text("mine")
    (workspace.rollouts_dir / "capitals").mkdir()
    with pytest.raises(OsmosisError) as caught:
        init_rollout(workspace, "capitals")
    assert caught.value.code == "CONFLICT"
    assert caught.value.details["conflicts"] == ["rollouts/capitals", "configs/eval/capitals.toml"]
    assert (workspace.eval_configs_dir / "capitals.toml").read_text() == "mine"
    assert not (workspace.training_configs_dir / "capitals.toml").exists()


@pytest.mark.parametrize(
    "target", ["rollouts/capitals", "configs/eval/capitals.toml", "configs/training/capitals.toml"]
)
@pytest.mark.parametrize("obstacle", ["link", "broken link", "other kind"])
def test_force_replaces_no_links_or_other_kinds(
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


def test_git_timeout(workspace: WorkspaceDirectory) -> None:
    git(workspace.root, "config", "alias.hang", "!sleep 2")
    with pytest.raises(OsmosisError, match=r"`git hang` did not finish within 0.2 s"):
        run_git(["hang"], cwd=workspace.root, timeout_s=0.2)


def test_git_not_installed(
    workspace: WorkspaceDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    with pytest.raises(OsmosisError, match="Git is not installed") as caught:
        find_workspace(workspace.root)
    assert caught.value.code == "WORKSPACE_REQUIRED"
