"""Conversations and artifacts of attempts, copied into the run's directory."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import os
import stat
from pathlib import Path

import pytest

from osmosis_ai.evaluation import attempt_copies
from osmosis_ai.evaluation.attempt_copies import (
    LARGEST_TRAJECTORY_BYTES,
    AttemptCopies,
    copy_artifacts,
    trajectory_identity,
)
from osmosis_ai.evaluation.attempt_files import _files_below
from osmosis_ai.evaluation.journal import Journal
from osmosis_ai.evaluation.results import AttemptTable
from osmosis_ai.evaluation.run_directory import RunDirectory
from osmosis_ai.evaluation.run_log import RunLog
from osmosis_ai.redaction import Redactor
from osmosis_ai.rollout import ExecutionResult, RolloutSample, RolloutStatus
from osmosis_ai.rollout.artifacts import PENDING_TRAJECTORY_FILE
from osmosis_ai.rollout.trajectory.archive import RolloutArchive
from osmosis_ai.rollout.trajectory.report import TrajectoryReport
from tests.deep_directories import deep_directories
from tests.evaluation.builders import record


class World:
    """A run directory with one row and two attempts, or more."""

    def __init__(self, root: Path, attempts: int = 2) -> None:
        self.directory = RunDirectory(root / "run")
        self.directory.create()
        self.table = AttemptTable(1, attempts)
        self.log = RunLog(self.directory.log, Redactor())

    def projector(self) -> AttemptCopies:
        return AttemptCopies(self.directory, self.table, self.log, Redactor(["s3cret-value"]))

    def settle(self, run: int, rollout_id: str) -> None:
        result = record(0, run, rollout_id=rollout_id)

        async def append() -> int:
            journal = Journal(self.directory.events)
            try:
                return await journal.append(result)
            finally:
                await journal.close()

        self.table.set_result(result, asyncio.run(append()))

    def write_trajectory(self, rollout_id: str, **changed: object) -> Path:
        path = self.directory.trial(rollout_id) / "trajectory.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"session_id": rollout_id, "steps": [rollout_id], **changed}))
        return path

    def write_artifact(self, rollout_id: str, name: str, text: str = "x") -> Path:
        path = self.directory.trial(rollout_id) / "artifacts" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def trajectory(self, run: int) -> Path:
        return self.directory.trajectories / f"row_0_run_{run}.json"


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_a_trajectory_is_copied_when_the_server_gets_round_to_writing_it(world: World) -> None:
    projector = world.projector()
    projector.start()
    projector.submit(0, 1, "r1", expects_trajectory=True)
    source = world.write_trajectory("r1")
    projector.stop(patience_s=300)

    assert projector.has_trajectory(0, 1)
    assert world.trajectory(1).read_bytes() == source.read_bytes()
    assert world.trajectory(1).stat().st_ino != source.stat().st_ino
    assert world.trajectory(1).stat().st_nlink == 1


def test_a_copy_has_no_secrets_of_the_run(world: World) -> None:
    world.settle(0, "r0")
    source = world.write_trajectory("r0", told="the key is s3cret-value")
    world.projector().copy_missing()
    assert json.loads(world.trajectory(0).read_text())["told"] == "the key is [REDACTED]"
    assert "s3cret-value" in source.read_text()


@pytest.mark.parametrize("levels", [300, 900])
def test_what_is_nested_too_deeply_to_be_looked_through_is_not_copied(world: World, levels: int) -> None:
    world.settle(0, "r0")
    deep: object = "s3cret-value"
    for _ in range(levels):
        deep = [deep]
    world.write_trajectory("r0", told=deep)
    world.projector().copy_missing()
    copy = world.trajectory(0)
    assert not copy.exists() or "s3cret-value" not in copy.read_text()


def test_a_conversation_that_a_killed_server_never_named_is_copied_at_the_end(world: World) -> None:
    world.settle(0, "r0")
    pending = world.write_trajectory("r0").rename(world.directory.trial("r0") / PENDING_TRAJECTORY_FILE)
    content = pending.read_bytes()
    projector = world.projector()
    projector.start()
    projector.submit(0, 0, "r0", expects_trajectory=True)
    projector.stop(patience_s=0.2)
    assert not world.trajectory(0).exists()  # a server that lives may still change it

    projector.copy_missing()
    assert world.trajectory(0).read_bytes() == content
    assert (world.directory.trial("r0") / "trajectory.json").read_bytes() == content


def test_what_a_killed_session_did_not_copy_is_copied_before_the_run_goes_on(world: World) -> None:
    world.settle(0, "r0")
    world.settle(1, "r1")
    named = world.write_trajectory("r0").read_bytes()
    world.write_trajectory("r1").rename(world.directory.trial("r1") / PENDING_TRAJECTORY_FILE)
    world.projector().copy_left()
    assert world.trajectory(0).read_bytes() == named
    assert json.loads(world.trajectory(1).read_text())["session_id"] == "r1"


def test_what_was_not_copied_during_the_run_is_copied_at_its_end(world: World) -> None:
    world.settle(0, "r0")
    world.settle(1, "r1")
    world.write_trajectory("r0")
    world.write_artifact("r1", "notes/a.txt")
    projector = world.projector()
    projector.copy_missing()
    assert projector.has_trajectory(0, 0)
    assert not projector.has_trajectory(0, 1)
    assert (world.directory.artifacts / "row_0_run_1/notes/a.txt").read_text() == "x"


def test_an_unfinished_copy_of_a_killed_session_is_cleared_away(world: World) -> None:
    (world.directory.trajectories / ".row_0_run_0.json.tmp").write_text("half")
    (world.directory.artifacts / ".row_0_run_0.tmp").mkdir()
    world.projector()
    assert list(world.directory.trajectories.iterdir()) == []
    assert list(world.directory.artifacts.iterdir()) == []


def test_a_retried_items_copies_are_those_of_its_latest_record(world: World) -> None:
    world.settle(0, "old")
    world.write_trajectory("old")
    world.write_artifact("old", "old.txt")
    world.projector().copy_missing()

    projector = world.projector()
    projector.forget(0, 0)
    world.settle(0, "new")
    assert not projector.has_trajectory(0, 0)
    world.write_trajectory("new")
    world.write_artifact("new", "new.txt")
    projector.copy_missing()

    assert json.loads(world.trajectory(0).read_text())["session_id"] == "new"
    assert [p.name for p in (world.directory.artifacts / "row_0_run_0").iterdir()] == ["new.txt"]


def test_a_trajectory_of_another_rollout_is_not_copied(world: World) -> None:
    world.settle(0, "r0")
    world.write_trajectory("r0", session_id="somebody else")
    projector = world.projector()
    projector.copy_missing()
    assert not projector.has_trajectory(0, 0)
    assert "somebody else" in world.directory.log.read_text()


def test_links_and_special_files_are_never_followed(world: World, tmp_path: Path) -> None:
    secret = tmp_path / "secret.txt"
    secret.write_text("private")
    source = world.write_artifact("r0", "kept.txt").parent
    (source / "link.txt").symlink_to(secret)
    (source / "linked").symlink_to(tmp_path)
    os.mkfifo(source / "pipe")
    with contextlib.suppress(PermissionError):  # of all but root
        os.mknod(source / "zero", 0o666 | stat.S_IFCHR, os.makedev(1, 5))
    (source / "manifest.json").write_text("the server's own")
    (source / "deep").mkdir()
    (source / "deep" / "manifest.json").write_text("an artifact")

    assert copy_artifacts(source, world.directory.artifacts, "row_0_run_0")

    target = world.directory.artifacts / "row_0_run_0"
    copied = sorted(path.relative_to(target).as_posix() for path in target.rglob("*") if path.is_file())
    assert copied == ["deep/manifest.json", "kept.txt"]


def test_an_artifact_that_grows_while_it_is_copied_is_copied_as_far_as_it_was_there(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = world.write_artifact("r0", "grows.txt", "x" * 100)
    opened = 0

    def grow(*arguments: object, **named: object) -> io.BufferedReader:
        class Growing(io.BufferedReader):
            def read(self, size: int | None = -1, /) -> bytes:
                nonlocal opened
                opened += 1
                assert opened < 10, "what is added without end is copied without end"
                with path.open("ab") as writer:
                    writer.write(b"y" * (1 << 20))
                return super().read(size)

        return Growing(io.FileIO(path))

    monkeypatch.setattr("osmosis_ai.evaluation.attempt_copies.open_regular", grow)
    assert copy_artifacts(path.parent, world.directory.artifacts, "row_0_run_0")
    copy = world.directory.artifacts / "row_0_run_0" / "grows.txt"
    assert copy.read_text() == "x" * 100


def test_a_linked_artifacts_directory_or_trajectory_is_not_copied(world: World, tmp_path: Path) -> None:
    world.settle(0, "r0")
    trial = world.directory.trial("r0")
    trial.mkdir()
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "a.txt").write_text("private")
    (trial / "artifacts").symlink_to(tmp_path / "outside")
    (tmp_path / "t.json").write_text(json.dumps({"session_id": "r0"}))
    (trial / "trajectory.json").symlink_to(tmp_path / "t.json")
    projector = world.projector()
    projector.copy_missing()
    assert not projector.has_trajectory(0, 0)
    assert list(world.directory.artifacts.iterdir()) == []


def test_a_link_in_the_place_of_a_rollouts_directory_leads_to_no_other_runs_files(
    world: World, tmp_path: Path
) -> None:
    world.settle(0, "r0")
    neighbour = tmp_path / "neighbour"
    (neighbour / "artifacts").mkdir(parents=True)
    (neighbour / "artifacts" / "a.txt").write_text("private")
    (neighbour / "trajectory.json").write_text(json.dumps({"session_id": "r0"}))
    world.directory.trial("r0").symlink_to(neighbour)
    projector = world.projector()
    projector.copy_missing()
    assert not projector.has_trajectory(0, 0)
    assert list(world.directory.artifacts.iterdir()) == []


KEY = "s3cret-value"


def said(logged_world: World) -> list[str]:
    return [line for line in logged_world.directory.log.read_text().splitlines() if "artifacts" in line]


@pytest.fixture
def logged_world(tmp_path: Path) -> World:
    logged_world = World(tmp_path)
    logged_world.log = RunLog(logged_world.directory.log, Redactor([KEY]))
    return logged_world


def copies(logged_world: World, *attempts: int) -> AttemptCopies:
    for attempt in attempts:
        logged_world.settle(attempt, f"r{attempt}")
    projector = logged_world.projector()
    projector.copy_missing()
    return projector


def test_what_is_no_file_or_has_a_name_that_can_not_travel_is_said_once_with_why(
    logged_world: World, tmp_path: Path
) -> None:
    outside = tmp_path / "outside"
    outside.write_text("private")
    folder = logged_world.write_artifact("r0", "kept.txt").parent
    (folder / "link").symlink_to(outside)
    (folder / "folder").symlink_to(tmp_path)
    (folder / f"to-{KEY}").symlink_to(outside)
    os.mkfifo(folder / "pipe")
    logged_world.write_artifact("r0", "a\x1b[31mb.txt")
    projector = copies(logged_world, 0)
    projector.copy_missing()
    (line,) = said(logged_world)
    assert "WARNING" in line and "row 0, attempt 0: left out of its artifacts: " in line
    for named in (
        "link (a symbolic link)",
        "folder (a symbolic link)",
        "to-[REDACTED] (a symbolic link)",
        "pipe (a pipe)",
        "a\\x1b[31mb.txt (its name has characters that are not allowed)",
    ):
        assert named in line, line
    assert "private" not in line and "\x1b" not in line and "kept.txt" not in line and "more" not in line
    copied = logged_world.directory.artifacts / "row_0_run_0"
    assert [path.name for path in copied.iterdir()] == ["kept.txt"]


def test_a_link_in_the_place_of_the_artifacts_is_said(logged_world: World, tmp_path: Path) -> None:
    logged_world.directory.trial("r0").mkdir(parents=True)
    (logged_world.directory.trial("r0") / "artifacts").symlink_to(tmp_path)
    copies(logged_world, 0)
    (line,) = said(logged_world)
    assert "artifacts (a symbolic link)" in line


def test_a_rollout_that_makes_directories_deeper_than_any_path_is_loses_them_and_nothing_else(
    logged_world: World,
) -> None:
    folder = logged_world.write_artifact("r0", "kept.txt").parent
    with deep_directories(folder):
        copies(logged_world, 0)
        (line,) = said(logged_world)
        assert "its path is longer than" in line and "more" not in line
        assert [path.name for path in (logged_world.directory.artifacts / "row_0_run_0").iterdir()] == [
            "kept.txt"
        ]
        assert [each.path for each in _files_below(folder, own=True)] == ["kept.txt"]


def test_a_server_that_was_only_slow_names_its_conversation_itself(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attempt_copies, "NAMED_WITHIN_S", 0.0)
    messages = [{"role": "user", "content": "2 x 3?"}, {"role": "assistant", "content": "6"}]
    sample = RolloutSample(messages=messages, reward=1.0)
    result = ExecutionResult(status=RolloutStatus.SUCCESS, sample=sample)
    archive = RolloutArchive("r0", label=None, metadata=None, extra_fields=None, root=world.directory.trials)
    archive.keep(result, None)
    projector = world.projector()
    projector.start()
    projector.submit(0, 0, "r0", expects_trajectory=True)
    projector.stop(patience_s=300)
    assert projector.has_trajectory(0, 0)
    archive.publish(result, TrajectoryReport(model_name="policy"), None)
    named = world.directory.trial("r0") / "trajectory.json"
    assert json.loads(named.read_text())["agent"]["model_name"] == "policy"
    assert not (named.parent / PENDING_TRAJECTORY_FILE).exists()
    assert "model_name" not in json.loads(world.trajectory(0).read_text())["agent"]
    projector.copy_missing()
    assert world.trajectory(0).read_bytes() == named.read_bytes(), "the fuller one is what stays"


def test_a_trajectory_too_large_to_be_read_is_said_and_left(world: World) -> None:
    world.settle(0, "r0")
    os.truncate(world.write_trajectory("r0"), LARGEST_TRAJECTORY_BYTES + 1)
    world.projector().copy_missing()
    assert not world.trajectory(0).exists()
    assert "more than 256 MiB" in world.directory.log.read_text()


@pytest.mark.parametrize(
    ("document", "identity"),
    [
        ({"extra": {"osmosis": {"rollout_id": "a"}}, "session_id": "b"}, "a"),
        ({"session_id": "b", "trajectory_id": "c/1"}, "b"),
        ({"trajectory_id": "c/1"}, "c"),
        ({"trajectory_id": "c"}, None),
        ({"extra": None}, None),
        ([], None),
    ],
)
def test_a_trajectory_says_whose_it_is_in_one_of_three_places(document: object, identity: str | None) -> None:
    assert trajectory_identity(document) == identity
