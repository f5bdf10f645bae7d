"""The working directories of shards on a machine."""

from __future__ import annotations

import os
import stat
import time
from pathlib import Path

from osmosis_ai.platform.worker.process import KEPT_S, WorkingDirectory, remove_old
from tests.deep_directories import deep_directories

OLD_S = KEPT_S + 60


def worked_on(runs: Path, shard_id: str, *, age_s: float) -> WorkingDirectory:
    """Return the directory that a killed worker left, with everything in it last changed ``age_s`` ago."""
    directory = WorkingDirectory(runs, shard_id)
    evaluation = directory.evaluation("a")
    evaluation.trials.mkdir(parents=True)
    directory.source.mkdir()
    directory.training.path.mkdir()
    lock = directory.path / "worker.lock"
    for file in (lock, directory.log, evaluation.events, directory.training.metrics):
        file.write_bytes(b"x")
    for path in [directory.path, *directory.path.rglob("*")]:
        os.utime(path, (time.time() - age_s,) * 2)
    return directory


def test_only_directories_without_a_worker_for_a_day_are_removed(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    remove_old(runs)
    runs.mkdir()
    worked_on(runs, "shd_old", age_s=OLD_S)
    worked_on(runs, "shd_young", age_s=KEPT_S - 60)
    worked_on(runs, "shd_touched", age_s=OLD_S).touch()
    locked = worked_on(runs, "shd_locked", age_s=OLD_S)
    assert locked.lock() and not WorkingDirectory(runs, "shd_locked").lock()
    remove_old(runs)
    assert sorted(path.name for path in runs.iterdir()) == ["shd_locked", "shd_touched", "shd_young"]


def test_hostile_and_damaged_directories_are_removed_and_links_are_not_followed(tmp_path: Path) -> None:
    runs, elsewhere = tmp_path / "runs", tmp_path / "elsewhere"
    kept = worked_on(elsewhere, "kept", age_s=OLD_S)
    before = sorted(kept.path.rglob("*"))
    hostile = worked_on(runs, "shd_1", age_s=OLD_S)
    (hostile.source / "out").symlink_to(elsewhere)
    (hostile.source / "\udcff\n..").write_bytes(b"x")
    (hostile.source / "loop").symlink_to(".")
    os.mkfifo(hostile.source / "fifo")
    (runs / "shd_link").symlink_to(kept.path)
    (runs / "a_file").write_bytes(b"x")
    (runs / "a_damaged" / "worker.lock").mkdir(parents=True)
    os.utime(runs / "a_damaged", (0, 0))
    with deep_directories(hostile.source):
        os.utime(hostile.path, (time.time() - OLD_S,) * 2)
        remove_old(runs)
        assert sorted(path.name for path in runs.iterdir()) == ["a_damaged", "a_file", "shd_link"]
    assert sorted(kept.path.rglob("*")) == before, "not even a lock was created there"


def test_it_is_private_and_says_once_why_a_worker_gave_up(tmp_path: Path) -> None:
    directory = WorkingDirectory(tmp_path / "runs", "shd_1")
    directory.create()
    assert stat.S_IMODE(directory.path.stat().st_mode) == 0o700
    directory.note_failure("the store is unavailable")
    assert [directory.take_failure() for _ in range(2)] == ["the store is unavailable", ""]
