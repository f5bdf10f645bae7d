"""Which of an attempt's artifacts are left out is said in the run's log: once a sample, and briefly of very many."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from osmosis_ai.evaluation.attempt_files import _files_below
from osmosis_ai.evaluation.run_log import RunLog
from osmosis_ai.evaluation.trajectory_export import Projector
from osmosis_ai.redaction import Redactor
from tests.deep_directories import deep_directories
from tests.evaluation.test_trajectory_export import World

KEY = "s3cret-value"


def said(world: World) -> list[str]:
    return [line for line in world.directory.log.read_text().splitlines() if "artifacts" in line]


@pytest.fixture
def world(tmp_path: Path) -> World:
    world = World(tmp_path)
    world.log = RunLog(world.directory.log, Redactor([KEY]))
    return world


def copies(world: World, *attempts: int) -> Projector:
    for attempt in attempts:
        world.settle(attempt, f"r{attempt}")
    projector = world.projector()
    projector.copy_missing()
    return projector


def test_what_is_no_file_or_has_a_name_that_can_not_travel_is_said_once_with_why(
    world: World, tmp_path: Path
) -> None:
    outside = tmp_path / "outside"
    outside.write_text("private")
    folder = world.write_artifact("r0", "kept.txt").parent
    (folder / "link").symlink_to(outside)
    (folder / "folder").symlink_to(tmp_path)
    (folder / f"to-{KEY}").symlink_to(outside)
    os.mkfifo(folder / "pipe")
    world.write_artifact("r0", "a\x1b[31mb.txt")
    projector = copies(world, 0)
    projector.copy_missing()
    (line,) = said(world)
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
    copied = world.directory.artifacts / "row_0_run_0"
    assert [path.name for path in copied.iterdir()] == ["kept.txt"]


def test_a_link_in_the_place_of_the_artifacts_is_said(world: World, tmp_path: Path) -> None:
    world.directory.trial("r0").mkdir(parents=True)
    (world.directory.trial("r0") / "artifacts").symlink_to(tmp_path)
    copies(world, 0)
    (line,) = said(world)
    assert "artifacts (a symbolic link)" in line


def test_of_very_many_in_a_sample_a_few_are_named_and_the_rest_counted(world: World) -> None:
    folder = world.write_artifact("r0", "kept.txt").parent
    for number in range(1000):
        (folder / f"link-{number}").symlink_to("nowhere")
    copies(world, 0)
    (line,) = said(world)
    assert line.count("a symbolic link") == 5 and "and 995 more" in line


def test_a_rollout_that_makes_directories_deeper_than_any_path_is_loses_them_and_nothing_else(
    world: World,
) -> None:
    folder = world.write_artifact("r0", "kept.txt").parent
    with deep_directories(folder):
        copies(world, 0)
        (line,) = said(world)
        assert "its path is longer than" in line and "more" not in line
        assert [path.name for path in (world.directory.artifacts / "row_0_run_0").iterdir()] == ["kept.txt"]
        assert [each.path for each in _files_below(folder, own=True)] == ["kept.txt"]


def test_of_very_many_samples_twenty_have_a_line_and_the_rest_are_counted_at_the_end(tmp_path: Path) -> None:
    world = World(tmp_path, attempts=50)
    for number in range(50):
        folder = world.write_artifact(f"r{number}", "kept.txt").parent
        (folder / "link").symlink_to("nowhere")
    copies(world, *range(50))
    lines = said(world)
    assert sum("left out of its artifacts" in line for line in lines) == 20
    assert len(lines) == 21 and "artifacts of 30 more samples were left out, too" in lines[-1]


def test_a_run_whose_artifacts_are_all_files_says_nothing_of_them(world: World) -> None:
    world.write_artifact("r0", "kept.txt")
    copies(world, 0)
    assert said(world) == []
