from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from osmosis_ai.errors import OsmosisError, ResumeRefusedError
from osmosis_ai.evaluation import run_lock, run_name
from osmosis_ai.evaluation.manifest import Manifest
from osmosis_ai.evaluation.resume import OpenedRun, open_run
from osmosis_ai.evaluation.run_lock import RunLock, RunLockedError, is_running
from osmosis_ai.evaluation.spec import EvalRunOptions
from tests.evaluation.builders import inputs


def leave_run(root: Path, name: str, status: str | None, created_at: str, **changed: object) -> None:
    """Leave behind what an earlier session wrote."""
    manifest = Manifest("a" * 32, name, created_at, inputs(**changed), {})  # type: ignore[arg-type]
    manifest.write(root / name / "manifest.json")
    if status is not None:
        (root / name / "metrics.json").write_text(json.dumps({"eval_run": {"status": status}}))


def opened(root: Path, **options: object) -> OpenedRun:
    with ExitStack() as held:
        return open_run(held, root, EvalRunOptions(**options), inputs(), "multiply")  # type: ignore[arg-type]


def test_without_a_name_a_new_run_gets_one_from_config_time_and_inputs(tmp_path: Path) -> None:
    run = opened(tmp_path)
    stem, moment, digest = run.name.split("-")
    assert (stem, len(moment), len(digest)) == ("multiply", 16, 8)
    assert run.manifest is None
    assert not run.directory.path.exists()


def test_without_a_name_the_newest_unfinished_run_with_equal_inputs_is_continued(tmp_path: Path) -> None:
    leave_run(tmp_path, "old", "incomplete", "2026-01-01T00:00:00.000Z")
    leave_run(tmp_path, "killed", "running", "2026-01-02T00:00:00.000Z")
    leave_run(tmp_path, "done", "finished", "2026-01-03T00:00:00.000Z")
    leave_run(tmp_path, "other", "incomplete", "2026-01-04T00:00:00.000Z", seed=1)
    run = opened(tmp_path)
    assert (run.name, run.found) == ("killed", True)


def test_a_run_killed_before_its_first_snapshot_is_continued(tmp_path: Path) -> None:
    leave_run(tmp_path, "killed", None, "2026-01-02T00:00:00.000Z")
    assert opened(tmp_path).name == "killed"


def test_a_finished_run_is_not_continued_unless_its_failures_are_to_be_redone(tmp_path: Path) -> None:
    leave_run(tmp_path, "done", "finished", "2026-01-03T00:00:00.000Z")
    assert opened(tmp_path).manifest is None
    assert opened(tmp_path, retry_failed=True).name == "done"


def test_fresh_without_a_name_starts_a_new_run(tmp_path: Path) -> None:
    leave_run(tmp_path, "killed", "running", "2026-01-02T00:00:00.000Z")
    assert opened(tmp_path, fresh=True).manifest is None


def test_a_run_that_another_process_works_on_is_not_picked_up(tmp_path: Path) -> None:
    leave_run(tmp_path, "busy", "running", "2026-01-02T00:00:00.000Z")
    with RunLock(tmp_path, "busy"):
        assert opened(tmp_path).name != "busy"
    assert opened(tmp_path).name == "busy"


def test_two_that_begin_in_the_same_second_are_two_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_name, "stamp", lambda: "20260102T000000Z")
    with ExitStack() as one, ExitStack() as another:
        first = open_run(one, tmp_path, EvalRunOptions(), inputs(), "multiply")
        second = open_run(another, tmp_path, EvalRunOptions(), inputs(), "multiply")
        assert second.name == f"{first.name}-2" and second.manifest is None
        assert is_running(tmp_path, first.name) and is_running(tmp_path, second.name)


def test_a_new_run_is_not_begun_in_the_directory_of_one_that_ended_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_name, "stamp", lambda: "20260102T000000Z")
    lock, ended = RunLock.__enter__, list[str]()

    def be_second(wanted: RunLock) -> RunLock:
        if not ended:
            ended.append(wanted._name)
            leave_run(tmp_path, wanted._name, "finished", "2026-01-02T00:00:00.000Z")
        return lock(wanted)

    monkeypatch.setattr(RunLock, "__enter__", be_second)
    with ExitStack() as held:
        run = open_run(held, tmp_path, EvalRunOptions(), inputs(), "multiply")
        assert run.name == f"{ended[0]}-2" and not run.directory.path.exists()
        assert is_running(tmp_path, run.name) and not is_running(tmp_path, ended[0])


def test_a_named_run_is_continued_only_with_equal_inputs(tmp_path: Path) -> None:
    leave_run(tmp_path, "mine", "finished", "2026-01-02T00:00:00.000Z")
    leave_run(tmp_path, "theirs", "incomplete", "2026-01-02T00:00:00.000Z", seed=9)
    assert opened(tmp_path, name="mine").manifest is not None
    with pytest.raises(ResumeRefusedError, match="Changed: seed"):
        opened(tmp_path, name="theirs")
    shutil.copytree(tmp_path / "theirs", tmp_path / "copy")
    with pytest.raises(ResumeRefusedError, match="the run `copy` cannot be continued") as refused:
        opened(tmp_path, name="copy")
    assert refused.value.details["run_name"] == "copy"
    shutil.copytree(tmp_path / "mine", tmp_path / "again")
    assert opened(tmp_path, name="again").manifest is not None


def test_fresh_puts_the_named_run_aside_and_deletes_nothing(tmp_path: Path) -> None:
    leave_run(tmp_path, "mine", "finished", "2026-01-02T00:00:00.000Z")
    runs = [opened(tmp_path, name="mine", fresh=True)]
    leave_run(tmp_path, "mine", "finished", "2026-01-02T00:00:00.000Z")
    runs.append(opened(tmp_path, name="mine", fresh=True))
    asides = [run.put_aside for run in runs]
    assert all(aside is not None and (aside / "manifest.json").exists() for aside in asides)
    assert len(set(asides)) == 2


def test_a_directory_that_is_no_run_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.png").touch()
    with pytest.raises(OsmosisError, match="it is not a run"):
        opened(tmp_path, name="photos")


def test_what_a_kill_during_the_first_write_leaves_is_no_obstacle(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / ".manifest.json.abc.tmp").touch()
    assert opened(tmp_path, name="mine").manifest is None


@pytest.mark.parametrize("name", ["", ".locks", "-x", "a/b", "..", "é", "a" * 97, "a b"])
def test_a_name_is_one_safe_path_segment(name: str) -> None:
    with pytest.raises(OsmosisError, match="cannot be named"):
        EvalRunOptions(name=name)


HOLD = """
import sys
from pathlib import Path
from osmosis_ai.evaluation.run_lock import RunLock
with RunLock(Path(sys.argv[1]), "mine"):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.mark.integration
def test_a_second_process_is_refused_until_the_first_is_gone_even_by_a_kill(tmp_path: Path) -> None:
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == b"held\n"
    try:
        assert is_running(tmp_path, "mine")
        with pytest.raises(RunLockedError, match="already holds"), RunLock(tmp_path, "mine"):
            pass
    finally:
        holder.kill()
        holder.communicate()
    assert not is_running(tmp_path, "mine")
    with RunLock(tmp_path, "mine"):
        assert is_running(tmp_path, "mine")
    assert os.stat(tmp_path / ".locks" / "mine.lock").st_mode & 0o077 == 0


def test_who_looks_whether_a_run_is_held_is_no_run_to_another_who_looks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with RunLock(tmp_path, "mine"):
        pass
    lock, seen = fcntl.flock, list[bool]()

    def look_in_between(file: int, operation: int) -> None:
        lock(file, operation)
        if not seen:
            seen.append(True)
            seen[0] = is_running(tmp_path, "mine")

    monkeypatch.setattr(fcntl, "flock", look_in_between)
    assert not is_running(tmp_path, "mine")
    assert seen == [False]


def test_a_run_begins_however_long_somebody_takes_to_look_at_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with RunLock(tmp_path, "mine"):
        pass
    monkeypatch.setattr(run_lock, "_PATIENCE_S", 0.01)
    with (tmp_path / ".locks" / "mine.lock").open("rb") as slow, ExitStack() as run:
        fcntl.flock(slow, fcntl.LOCK_SH)
        look = run_lock.is_held

        def see_it_end(path: Path) -> bool:
            held = look(path)
            slow.close()
            return held

        monkeypatch.setattr(run_lock, "is_held", see_it_end)
        run.enter_context(RunLock(tmp_path, "mine"))
        assert slow.closed and look(tmp_path / ".locks" / "mine.lock")
