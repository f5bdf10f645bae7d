from __future__ import annotations

from pathlib import Path

import pytest

from osmosis_ai.errors import OsmosisError
from osmosis_ai.workspace import doctor
from osmosis_ai.workspace.layout import WorkspaceDirectory, find_workspace
from tests.workspace.builders import make_repository

GUIDES = ("AGENTS.md", "CLAUDE.md", "configs/AGENTS.md")
DIRECTORIES = ("rollouts", "configs/training", "configs/eval", "data")
REPOSITORY = Path(__file__).parents[2]


def listing(root: Path) -> list[str]:
    return sorted(path.relative_to(root).as_posix() for path in root.rglob("*") if ".git/" not in f"{path}/")


def test_missing_guides_are_noted_and_the_workspace_is_valid(workspace: WorkspaceDirectory) -> None:
    report = doctor.check(workspace.data_dir)
    assert (report.root, report.missing, report.valid) == (workspace.root, GUIDES, True)


def test_missing_directories_make_a_workspace_invalid(tmp_path: Path) -> None:
    report = doctor.check(make_repository(tmp_path))
    assert report.missing == (*DIRECTORIES, *GUIDES)
    assert report.missing_directories == DIRECTORIES
    assert not report.valid


def test_checking_changes_nothing(tmp_path: Path) -> None:
    root = make_repository(tmp_path)
    before = listing(root)
    doctor.check(root)
    assert listing(root) == before


def test_fixing_creates_what_is_missing_so_that_git_keeps_it(tmp_path: Path) -> None:
    root = make_repository(tmp_path)
    report = doctor.fix(root)
    assert (report.fixed, report.missing, report.valid) == ((*DIRECTORIES, *GUIDES), (), True)
    assert all((root / name / ".gitkeep").is_file() for name in DIRECTORIES)
    assert find_workspace(root).root == root
    assert doctor.fix(root).fixed == ()


def test_the_guides_of_this_repositorys_workspace_are_those_that_the_doctor_writes() -> None:
    for name in set(GUIDES) - {"AGENTS.md"}:  # which is about the code of Osmosis here
        assert (REPOSITORY / name).read_text() == doctor.guide_text(name)


def test_fixing_overwrites_nothing(workspace: WorkspaceDirectory) -> None:
    (workspace.root / "AGENTS.md").write_text("ours")
    (workspace.data_dir / "rows.csv").write_text("ours")
    assert doctor.fix(workspace.root).fixed == ("CLAUDE.md", "configs/AGENTS.md")
    assert (workspace.root / "AGENTS.md").read_text() == "ours"
    assert not (workspace.data_dir / ".gitkeep").exists()


def test_links_to_what_is_there_are_fine(workspace: WorkspaceDirectory, tmp_path: Path) -> None:
    workspace.data_dir.rmdir()
    (tmp_path / "large-disk").mkdir()
    workspace.data_dir.symlink_to(tmp_path / "large-disk")
    (workspace.root / "AGENTS.md").write_text("ours")
    (workspace.root / "CLAUDE.md").symlink_to("AGENTS.md")
    assert doctor.check(workspace.root).missing == ("configs/AGENTS.md",)


def break_link(root: Path) -> str:
    (root / "CLAUDE.md").symlink_to("nowhere")
    return "CLAUDE.md"


def make_directory_of_a_guide(root: Path) -> str:
    (root / "AGENTS.md").mkdir()
    return "AGENTS.md"


def make_file_of_a_directory(root: Path) -> str:
    (root / "configs").write_text("")
    return "configs"


def link_a_parent_away(root: Path) -> str:
    (root.parent / "away").mkdir()
    (root / "configs").symlink_to(root.parent / "away")
    return "configs"


@pytest.mark.parametrize(
    "obstruct", [break_link, make_directory_of_a_guide, make_file_of_a_directory, link_a_parent_away]
)
def test_what_stands_in_the_way_is_named_before_anything_is_written(tmp_path: Path, obstruct) -> None:  # type: ignore[no-untyped-def]
    root = make_repository(tmp_path / "ws")
    obstacle = obstruct(root)
    before = listing(tmp_path)
    with pytest.raises(OsmosisError) as caught:
        doctor.fix(root)
    assert caught.value.code == "CONFLICT"
    assert caught.value.details == {"conflicts": [obstacle]}
    assert listing(tmp_path) == before
