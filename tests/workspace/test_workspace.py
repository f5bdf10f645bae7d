"""The directory of a workspace: how it is found, made, checked, and kept clean in Git."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from osmosis_ai.config.issues import InvalidConfigError
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


def test_any_subdirectory_or_file_leads_to_the_top_of_the_work_tree(workspace: WorkspaceDirectory) -> None:
    for start in (".", "rollouts/multiply", "rollouts/multiply/main.py"):
        assert find_workspace(workspace.root / start) == workspace
    with pytest.raises(OsmosisError) as caught:
        find_workspace(workspace.root / ".git")
    assert caught.value.code == "WORKSPACE_REQUIRED"


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


@pytest.mark.parametrize(
    "name, problem",
    [
        ("rows", r"could be data/rows\.jsonl and data/rows\.csv"),
        *((name, "is not the name of a dataset") for name in ("../secret", "a/b", "/etc/rows", "a/")),
    ],
)
def test_a_dataset_name_is_that_of_one_file_in_the_data_directory(
    workspace: WorkspaceDirectory, name: str, problem: str
) -> None:
    for extension in ("csv", "jsonl"):
        (workspace.data_dir / f"rows.{extension}").write_text("")
    with pytest.raises(OsmosisError, match=problem):
        find_dataset_file(workspace, name)


def test_an_untracked_file_makes_a_tree_dirty_and_the_outputs_of_runs_do_not(
    workspace: WorkspaceDirectory,
) -> None:
    git(workspace.root, "add", "--all")
    git(workspace.root, "commit", "--quiet", "--message", "first")
    workspace.evals_dir.mkdir(parents=True)
    (workspace.evals_dir / "results.json").write_text("{}")
    state = read_git_state(workspace.root)
    assert (state.head, state.dirty) == (git(workspace.root, "rev-parse", "HEAD"), False)
    (workspace.root / "näme with space\n").write_text("")
    assert read_git_state(workspace.root).dirty


def test_a_directory_outside_of_git_has_no_state(tmp_path: Path) -> None:
    with pytest.raises(OsmosisError, match="Git cannot read"):
        read_git_state(tmp_path)


def test_reading_a_tree_runs_no_program_that_its_configuration_names(
    workspace: WorkspaceDirectory, tmp_path: Path
) -> None:
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
def test_a_shown_url_carries_no_credentials(url: str, shown: str) -> None:
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
def test_what_is_not_ignored_is_added_once_in_the_files_own_endings(
    tmp_path: Path, before: bytes | None, after: bytes
) -> None:
    file = tmp_path / ".gitignore"
    if before is not None:
        file.write_bytes(before)
        file.chmod(0o640)
    add_patterns(tmp_path, missing_patterns(tmp_path))
    assert file.read_bytes() == after
    assert missing_patterns(tmp_path) == ()
    if before is not None:
        assert file.stat().st_mode & 0o777 == 0o640


@pytest.mark.parametrize("mend", ["doctor", "init"])
def test_after_the_documented_first_steps_git_offers_no_key_for_a_commit(
    workspace: WorkspaceDirectory, mend: str
) -> None:
    root = workspace.root
    if mend == "doctor":
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


def test_a_link_in_place_of_the_file_is_left_alone(workspace: WorkspaceDirectory, tmp_path: Path) -> None:
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


def test_fixing_creates_what_is_missing_so_that_git_keeps_it(tmp_path: Path) -> None:
    root = make_repository(tmp_path)
    before = listing(root)
    assert doctor.check(root).missing == (*DIRECTORIES, *GUIDES)
    assert listing(root) == before
    report = doctor.fix(root)
    assert (report.fixed, report.missing, report.valid) == ((*DIRECTORIES, *GUIDES), (), True)
    assert all((root / name / ".gitkeep").is_file() for name in DIRECTORIES)
    assert find_workspace(root).root == root
    assert doctor.fix(root).fixed == ()


def test_fixing_overwrites_nothing(workspace: WorkspaceDirectory) -> None:
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
def test_what_stands_in_the_way_is_named_before_anything_is_written(
    tmp_path: Path, obstacle: str, make: Callable[[Path], None]
) -> None:
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


def test_the_copy_is_a_complete_workspace_with_one_commit(tmp_path: Path) -> None:
    workspace = rollout_templates.copy_sample_workspace(tmp_path / "scratch")
    assert find_workspace(workspace.root) == workspace
    assert doctor.check(workspace.root).missing == ()
    state = read_git_state(workspace.root)
    assert (state.branch, state.dirty) == ("main", False)
    assert git(workspace.root, "rev-list", "--count", "HEAD") == "1"
    tracked = set(git(workspace.root, "ls-files").splitlines())
    assert tracked == {*SAMPLE_FILES, *doctor.AGENT_GUIDES, ".gitignore"}


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
    workspace = rollout_templates.copy_sample_workspace(tmp_path / "scratch")
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
        "import pathlib, os, sys; from osmosis_ai.workspace import rollout_templates as samples; before = dict(os.environ); "
        "samples.copy_sample_workspace(pathlib.Path(sys.argv[1])); assert dict(os.environ) == before"
    )
    subprocess.run([sys.executable, "-c", script, str(tmp_path / "scratch")], check=True)
    assert (tmp_path / "scratch" / ".git" / "HEAD").read_text() == "ref: refs/heads/main\n"


def test_a_directory_with_something_in_it_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("")
    with pytest.raises(OsmosisError, match="is not empty"):
        rollout_templates.copy_sample_workspace(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def edited(workspace: WorkspaceDirectory, kind: str) -> Path:
    path = workspace.root / "configs" / kind / "capitals.toml"
    path.write_text(
        path.read_text().replace("<your-dataset-name>", "capitals").replace("<your-model>", "osmosis/tiny")
    )
    return path


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


def test_a_command_that_hangs_is_ended_and_named(workspace: WorkspaceDirectory) -> None:
    git(workspace.root, "config", "alias.hang", "!sleep 2")
    with pytest.raises(OsmosisError, match=r"`git hang` did not finish within 0.2 s"):
        run_git(["hang"], cwd=workspace.root, timeout_s=0.2)


def test_without_git_installed_the_error_says_so(
    workspace: WorkspaceDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    with pytest.raises(OsmosisError, match="Git is not installed") as caught:
        find_workspace(workspace.root)
    assert caught.value.code == "WORKSPACE_REQUIRED"
