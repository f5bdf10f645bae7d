from __future__ import annotations

from pathlib import Path

import pytest

from osmosis_ai.workspace import doctor
from osmosis_ai.workspace.gitignore import add_patterns, missing_patterns
from osmosis_ai.workspace.layout import WorkspaceDirectory
from osmosis_ai.workspace.scaffold import init_rollout
from tests.workspace.builders import git


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
