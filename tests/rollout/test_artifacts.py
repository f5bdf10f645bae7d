from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from osmosis_ai.rollout import AgentWorkflow, AgentWorkflowContext, ExecutionRequest, LocalBackend, artifacts
from osmosis_ai.rollout.artifacts import artifact_root as configured_root
from osmosis_ai.rollout.artifacts import artifact_tree_state, copy_artifact_tree, create_artifacts_dir


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Retries do not wait; what they would have waited is returned."""
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)

    monkeypatch.setattr(artifacts.asyncio, "sleep", sleep)
    return pauses


class TestDirectory:
    def test_the_root_is_the_environments_else_the_home_directorys(
        self, artifact_root: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        assert configured_root() == artifact_root
        monkeypatch.delenv("_OSMOSIS_ROLLOUT_ARTIFACT_ROOT")
        assert configured_root() == Path.home() / ".osmosis"

    async def test_the_first_creation_leaves_a_marker_outside_of_the_artifacts(self, tmp_path: Path) -> None:
        made = await create_artifacts_dir(tmp_path / "root", "r1")

        assert made == tmp_path / "root" / "r1" / "artifacts"
        assert sorted(path.name for path in made.parent.iterdir()) == [".osmosis-health-check", "artifacts"]
        assert list(made.iterdir()) == []

    async def test_the_marker_is_never_written_again(self, tmp_path: Path) -> None:
        await create_artifacts_dir(tmp_path, "r1")
        marker = tmp_path / "r1" / ".osmosis-health-check"
        marker.write_text("seen")
        (tmp_path / "r1" / "artifacts").rmdir()

        await create_artifacts_dir(tmp_path, "r1")

        assert marker.read_text() == "seen"

    async def test_a_root_that_cannot_be_written_is_tried_three_times_and_then_done_without(
        self, tmp_path: Path, quick: list[float]
    ) -> None:
        blocked = tmp_path / "file"
        blocked.write_text("")

        assert await create_artifacts_dir(blocked, "r1") is None
        assert quick == [0.5, 1.0]

    async def test_a_rollout_goes_on_without_its_directory(
        self, tmp_path: Path, quick: list[float], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        class Looks(AgentWorkflow):
            async def run(self, ctx: AgentWorkflowContext) -> Any:
                return [{"role": "assistant", "content": str(ctx.artifacts_dir)}]

        blocked = tmp_path / "file"
        blocked.write_text("")
        monkeypatch.setenv("_OSMOSIS_ROLLOUT_ARTIFACT_ROOT", str(blocked))

        result = await LocalBackend(workflow=Looks).run_workflow(ExecutionRequest(id="r1", prompt=[]))

        assert result.sample is not None and result.sample.messages[0]["content"] == "None"


class Tree:
    """A source an agent has filled, and a trusted root to copy into."""

    def __init__(self, base: Path) -> None:
        self.source = base / "source"
        self.root = base / "root"
        self.destination = self.root / "a" / "b"
        self.secret = base / "secret"
        for directory in (self.source, self.root, self.secret):
            directory.mkdir()
        (self.secret / "key").write_text("s3cret")

    def write(self, name: str, text: str) -> None:
        path = self.source / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def copy(self, **options: Any) -> int:
        return copy_artifact_tree(self.source, self.destination, destination_root=self.root, **options)

    def copied(self) -> dict[str, str]:
        return {
            str(path.relative_to(self.destination)): path.read_text()
            for path in sorted(self.destination.rglob("*"))
            if path.is_file()
        }


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


class TestCopy:
    def test_contents_are_merged_into_what_is_there(self, tree: Tree) -> None:
        tree.write("x.txt", "x")
        tree.write("deep/y.txt", "y")
        tree.destination.mkdir(parents=True)
        (tree.destination / "old.txt").write_text("old")
        (tree.destination / "x.txt").write_text("before")

        assert tree.copy() == 2
        assert tree.copied() == {"deep/y.txt": "y", "old.txt": "old", "x.txt": "x"}

    def test_the_destination_can_be_replaced(self, tree: Tree) -> None:
        tree.write("x.txt", "x")
        (tree.destination / "deep").mkdir(parents=True)
        (tree.destination / "deep" / "old.txt").write_text("old")

        tree.copy(replace_destination=True)

        assert tree.copied() == {"x.txt": "x"}

    def test_symbolic_links_and_special_files_stay_behind(self, tree: Tree) -> None:
        tree.write("x.txt", "x")
        (tree.source / "file-link").symlink_to(tree.secret / "key")
        (tree.source / "directory-link").symlink_to(tree.secret)
        os.mkfifo(tree.source / "fifo")

        assert tree.copy() == 1
        assert tree.copied() == {"x.txt": "x"}
        assert set(artifact_tree_state(tree.source)) == {"x.txt"}

    def test_a_source_that_is_a_symbolic_link_is_refused(self, tree: Tree) -> None:
        tree.source.rmdir()
        tree.source.symlink_to(tree.secret)

        with pytest.raises(OSError):
            tree.copy()

    def test_a_symbolic_link_on_the_way_to_the_destination_is_refused(self, tree: Tree) -> None:
        tree.write("x.txt", "x")
        (tree.root / "a").symlink_to(tree.secret)

        with pytest.raises(OSError, match="symlink in artifact destination path"):
            tree.copy()
        assert [path.name for path in tree.secret.iterdir()] == ["key"]

    def test_a_symbolic_link_inside_the_destination_is_replaced_not_followed(self, tree: Tree) -> None:
        tree.write("key", "mine")
        tree.write("deep/key", "mine")
        tree.destination.mkdir(parents=True)
        (tree.destination / "key").symlink_to(tree.secret / "key")
        (tree.destination / "deep").symlink_to(tree.secret)

        tree.copy()

        assert tree.copied() == {"deep/key": "mine", "key": "mine"}
        assert (tree.secret / "key").read_text() == "s3cret"

    def test_a_file_takes_the_place_of_a_directory_and_the_reverse(self, tree: Tree) -> None:
        tree.write("a", "now a file")
        tree.write("b/c", "now a directory")
        (tree.destination / "a" / "deep").mkdir(parents=True)
        (tree.destination / "b").write_text("was a file")

        tree.copy()

        assert tree.copied() == {"a": "now a file", "b/c": "now a directory"}

    def test_files_unchanged_since_the_baseline_are_not_copied(self, tree: Tree) -> None:
        tree.write("old.txt", "old")
        tree.write("deep/changed.txt", "before")
        baseline = artifact_tree_state(tree.source)
        tree.write("deep/changed.txt", "after, and longer")
        tree.write("new.txt", "new")

        assert tree.copy(baseline=baseline) == 2
        assert tree.copied() == {"deep/changed.txt": "after, and longer", "new.txt": "new"}

    @pytest.mark.parametrize("place", ["", "..", "../elsewhere"])
    def test_a_destination_outside_of_the_root_is_refused(self, tree: Tree, place: str) -> None:
        with pytest.raises(ValueError, match="is not below"):
            copy_artifact_tree(tree.source, tree.root / place, destination_root=tree.root)
