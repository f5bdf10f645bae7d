"""What runs that were taken from a platform elsewhere leave on a machine."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from osmosis_ai.platform.runs.work.taken_runs import KEPT_S, MOST_LOST, TakenRuns
from osmosis_ai.platform.runs.working_directory import WorkingDirectory

NOW = 1_000_000_000.0
JOURNAL = b'{"row": 0}\n'


@pytest.fixture
def runs(tmp_path: Path) -> TakenRuns:
    return TakenRuns(tmp_path, now=lambda: NOW)


def worked_on(runs_dir: Path, run_id: str, *, age_s: float = 0.0) -> WorkingDirectory:
    """Return the directory of a run as a worker leaves it that was killed, all of it written ``age_s`` ago."""
    directory = WorkingDirectory(runs_dir, run_id)
    evaluation = directory.evaluation("a")
    (evaluation.trajectories / "sample").mkdir(parents=True)
    (directory.source / "rollouts").mkdir(parents=True)
    for file in (directory.source_archive, directory.dataset("jsonl"), directory.log, evaluation.manifest):
        file.write_bytes(b"x")
    evaluation.events.write_bytes(JOURNAL)
    directory.note_lease("token")
    for path in [directory.path, *directory.path.rglob("*")]:
        os.utime(path, (NOW - age_s, NOW - age_s))
    return directory


def files(path: Path) -> set[str]:
    return {str(file.relative_to(path)) for file in path.rglob("*") if file.is_file()}


def test_of_a_lost_run_its_journals_stay_and_it_can_be_taken_again(runs: TakenRuns, tmp_path: Path) -> None:
    for claim in ("1", "2"):
        runs.take("run_a", claim)
        directory = worked_on(tmp_path, "run_a")
        runs.lose("run_a", claim)
    assert files(directory.output_root) == {"a/events.jsonl.diverged", "a/events.jsonl.diverged-2"}
    assert files(directory.path) - {"worker.lock"} == {
        "taken",
        "lost",
        "evaluation/a/events.jsonl.diverged",
        "evaluation/a/events.jsonl.diverged-2",
    }
    runs.take("run_a", "3")
    assert not (directory.path / "lost").exists()


def test_of_a_lost_run_without_a_journal_nothing_stays(runs: TakenRuns, tmp_path: Path) -> None:
    runs.take("run_a", "1")
    worked_on(tmp_path, "run_a").evaluation("a").events.write_bytes(b"")
    (tmp_path / "run_a/training/checkpoints").mkdir(parents=True)
    runs.lose("run_a", "1")
    assert not (tmp_path / "run_a").exists()


def test_a_run_that_this_home_has_taken_again_is_not_touched(runs: TakenRuns, tmp_path: Path) -> None:
    runs.take("run_a", "1")
    before = files(worked_on(tmp_path, "run_a").path)
    TakenRuns(tmp_path).take("run_a", "2")  # by another host, whose worker has not locked it yet
    runs.lose("run_a", "1")
    assert files(tmp_path / "run_a") == {*before, "taken"}
    successor = WorkingDirectory(tmp_path, "run_a")
    assert successor.lock()
    runs.lose("run_a", "2")
    assert files(tmp_path / "run_a") >= before, "its worker is alive"


def test_however_many_runs_are_lost_so_many_journals_stay(runs: TakenRuns, tmp_path: Path) -> None:
    for number in range(MOST_LOST + 5):
        run_id = f"run_{number:02}"
        runs.take(run_id, "1")
        worked_on(tmp_path, run_id)
        runs.lose(run_id, "1")
        os.utime(tmp_path / run_id / "lost", (NOW + number, NOW + number))
    left = sorted(path.name for path in tmp_path.iterdir() if path.is_dir())
    assert left == [f"run_{number:02}" for number in range(5, MOST_LOST + 5)]


def test_what_nobody_came_back_to_for_a_day_goes_and_the_rest_stays(runs: TakenRuns, tmp_path: Path) -> None:
    def left(run_id: str, *, age_s: float) -> WorkingDirectory:
        runs.take(run_id, "1")
        return worked_on(tmp_path, run_id, age_s=age_s)

    left("run_old", age_s=KEPT_S + 60)
    left("run_young", age_s=KEPT_S - 60)
    long_one = left("run_of_three_days", age_s=3 * KEPT_S)
    os.utime(long_one.evaluation("a").events, (NOW - 60, NOW - 60))
    at_work = left("run_at_work", age_s=3 * KEPT_S)
    assert at_work.lock()
    os.utime(at_work.path / "worker.lock", (NOW - KEPT_S - 60, NOW - KEPT_S - 60))
    worked_on(tmp_path, "run_of_the_platform", age_s=3 * KEPT_S)
    runs.sweep()
    assert {path.name for path in tmp_path.iterdir() if path.is_dir()} == {
        "run_young",
        "run_of_three_days",
        "run_at_work",
        "run_of_the_platform",
    }


def test_a_journal_of_a_lost_run_goes_after_a_day_too(runs: TakenRuns, tmp_path: Path) -> None:
    runs.take("run_a", "1")
    worked_on(tmp_path, "run_a")
    runs.lose("run_a", "1")
    for path in (tmp_path / "run_a").rglob("*"):
        os.utime(path, (NOW - KEPT_S - 1, NOW - KEPT_S - 1))
    runs.sweep()
    assert not (tmp_path / "run_a").exists()


def test_where_no_run_was_ever_taken_there_is_nothing_to_sweep(tmp_path: Path) -> None:
    TakenRuns(tmp_path / "runs").sweep()
