"""The directory of a training run: what locks it, what is kept, and how another machine continues it."""

from __future__ import annotations

import errno
import fcntl
import io
import os
import shutil
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from osmosis_ai.config.training import TrainingSettings
from osmosis_ai.controller.record import TerminalRecord
from osmosis_ai.datasets import file_digest
from osmosis_ai.errors import ConflictError, OsmosisError, ResumeRefusedError
from osmosis_ai.evaluation.manifest import Manifest
from osmosis_ai.evaluation.spec import DatasetInput
from osmosis_ai.redaction import Redactor
from osmosis_ai.training.learner.checkpoints import checkpoints_in
from osmosis_ai.training.runs.metrics import MetricsHistory, StepRecord, read_history
from osmosis_ai.training.runs.run_directory import (
    DamagedArchiveError,
    TrainingDirectory,
    ValidationSamples,
    pack,
    unpack,
)
from osmosis_ai.training.runs.spec import TrainingSpec
from tests.deep_directories import deep_directories
from tests.evaluation.rollouts import write_rollout, write_rows
from tests.training.samples import write_checkpoint


def validated(rollout_id: str, row: int, reward: float) -> TerminalRecord:
    return TerminalRecord(row, 0, rollout_id, "success", 1, reward=reward)


def validation_of(step: int, rollout_ids: list[str]) -> ValidationSamples:
    records = [validated(rollout_id, row, 0.5) for row, rollout_id in enumerate(rollout_ids)]
    return ValidationSamples.of(records, step=step, pass_threshold=1.0)


def spec(tmp_path: Path, *, env: dict[str, str] | None = None, **settings: Any) -> TrainingSpec:
    rows = tmp_path / "rows.jsonl"
    if not rows.exists():
        write_rows(rows, ["a", "b"])
        write_rollout(tmp_path / "agent")
    return TrainingSpec(
        TrainingSettings(**settings),
        "osmosis/tiny",
        DatasetInput(rows, "rows", file_digest(rows), "workspace"),
        tmp_path / "agent",
        env=env or {},
        secret_values={"KEY": "very-secret-value"},
    )


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[TrainingDirectory]:
    directory = TrainingDirectory(tmp_path / "run")
    with directory.held():
        yield directory


def test_a_directory_is_held_by_one_process_at_a_time(tmp_path):
    directory = TrainingDirectory(tmp_path / "run")
    with directory.held(), pytest.raises(ConflictError, match="another process"), directory.held():
        pass
    with directory.held():
        assert directory.checkpoints.is_dir() and directory.is_running()
    with (directory.path / ".lock").open("rb") as look:
        fcntl.flock(look, fcntl.LOCK_SH)
        assert not directory.is_running()


@pytest.mark.parametrize("changed", [{"total_epochs": 7}, {"max_steps": 9}, {"eval_interval": 3}])
def test_a_run_resumes_with_equal_inputs_of_which_its_length_may_change(directory, tmp_path, changed):
    first = directory.claim(spec(tmp_path).inputs(), {"commit_sha": "4be1"})
    assert directory.claim(spec(tmp_path).inputs(), {}) == first
    directory.claim(spec(tmp_path, **changed).inputs(), {})


@pytest.mark.parametrize(
    ("changed", "named"), [({"lr": 0.5}, "lr"), ({"seed": 3}, "seed"), ({"env": {"MODE": "x"}}, "MODE")]
)
def test_what_would_bend_the_curve_is_refused_and_named(directory, tmp_path, changed, named):
    directory.claim(spec(tmp_path).inputs(), {})
    with pytest.raises(ResumeRefusedError, match=named):
        directory.claim(spec(tmp_path, **changed).inputs(), {})
    (tmp_path / "agent" / "main.py").write_text("other")
    with pytest.raises(ResumeRefusedError, match="its files were edited"):
        directory.claim(spec(tmp_path).inputs(), {})
    directory.manifest.unlink()
    directory.metrics.write_text("{}\n")
    with pytest.raises(OsmosisError, match="no manifest"):
        directory.claim(spec(tmp_path).inputs(), {})


def test_no_secret_is_written(directory, tmp_path):
    directory.claim(spec(tmp_path).inputs(), {})
    assert "very-secret-value" not in directory.manifest.read_text()
    assert "very-secret-value" not in repr(spec(tmp_path))


def test_trajectories_of_the_last_steps_stay_and_older_ones_go(directory):
    for name in ("train-000001-row-0-0-a", "valid-000001-row-0-0-b", "train-000003-row-0-0-c", "other"):
        (directory.trials / name).mkdir()
    with deep_directories(directory.trials / "train-000001-row-0-0-a"):
        directory.sweep_trials(3, 3)
    assert sorted(path.name for path in directory.trials.iterdir()) == [
        "other", "train-000003-row-0-0-c"
    ]  # fmt: skip


def test_trajectories_of_groups_go_by_their_own_steps(directory):
    names = [f"{kind}-{step:06d}-row-0-0" for kind in ("train", "valid") for step in range(1, 9)]
    for name in names:
        (directory.trials / name).mkdir()
    directory.sweep_trials(3, 8)
    left = sorted(path.name for path in directory.trials.iterdir())
    assert left == [*names[6:8], *names[9:]]


def test_trajectories_of_the_newest_validation_stay_until_the_next_ones_are_there(directory):
    for step in (2, 4):
        names = [f"valid-{step:06d}-row-{row}-0" for row in range(3)]
        for name in names:
            (directory.trials / name).mkdir()
        # The third is not among the worst that the record has.
        directory.write_validation(validation_of(step, names[:2]))
        directory.sweep_trials(step + 3, step + 3)
        assert sorted(path.name for path in directory.trials.iterdir()) == names[:2]


def test_a_validation_after_the_step_that_a_run_goes_on_from_is_forgotten(tmp_path):
    directory = TrainingDirectory(tmp_path)
    kept = validation_of(4, ["valid-000004-row-0-0"])
    directory.write_validation(kept)
    directory.forget_validation_after(4)
    assert directory.read_validation() == kept
    directory.forget_validation_after(3)
    directory.forget_validation_after(3)
    assert directory.read_validation() is None
    directory.validation.write_bytes(b"torn")
    with pytest.raises(OsmosisError, match="is damaged"):
        directory.read_validation()
    directory.forget_validation_after(9)
    assert directory.read_validation() is None


STEP = 3


@pytest.fixture
def first(tmp_path: Path) -> TrainingDirectory:
    """A run that has gone on behind its kept checkpoint."""
    directory = TrainingDirectory(tmp_path / "first" / "training")
    directory.path.mkdir(parents=True)
    Manifest("training", {"settings": {}}, {}).write(directory.manifest)
    history = MetricsHistory(directory.metrics)
    for step in range(STEP + 2):
        warnings = [f"the agent said very-secret-value in step {step}"]
        history.append(StepRecord(step, step, {"reward": step / 7}, {"none": 1}, warnings, {"row": 0.1}))
    record = TerminalRecord(0, 0, "valid-000003-row-0-0", "success", 1, reward=0.5)
    directory.write_validation(ValidationSamples.of([record], step=STEP, pass_threshold=1.0))
    write_checkpoint(directory, STEP)
    return directory


@pytest.fixture
def second(tmp_path: Path) -> TrainingDirectory:
    return TrainingDirectory(tmp_path / "second" / "training")


@pytest.fixture
def archive(first: TrainingDirectory, tmp_path: Path) -> Path:
    path = tmp_path / "checkpoint.tar"
    with path.open("wb") as file:
        pack(first, checkpoints_in(first.checkpoints)[-1], Redactor(["very-secret-value"]), file)
    return path


def contents(directory: Path) -> dict[str, bytes]:
    return {
        path.relative_to(directory).as_posix(): path.read_bytes()
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }


def test_another_machine_has_the_checkpoint_and_the_curve_up_to_it_byte_for_byte(first, second, archive):
    unpack(archive, second, STEP)
    assert contents(second.checkpoints) == contents(first.checkpoints)
    mine, its = list(read_history(second.metrics)), list(read_history(first.metrics))
    assert [replace(each, warnings=[]) for each in mine] == [
        replace(each, warnings=[]) for each in its if each.step <= STEP
    ]
    assert mine[2].warnings == ["the agent said [REDACTED] in step 2"]
    assert second.read_validation() == first.read_validation()
    assert second.manifest.read_bytes() == first.manifest.read_bytes()
    assert {path.name for path in second.path.iterdir()} == {
        "checkpoints", "manifest.json", "metrics.jsonl", "validation.jsonl"
    }  # fmt: skip


def test_a_validation_after_the_checkpoint_stays_behind(first, second, tmp_path):
    record = TerminalRecord(0, 0, "valid-000004-row-0-0", "success", 1, reward=0.5)
    first.write_validation(ValidationSamples.of([record], step=STEP + 1, pass_threshold=1.0))
    with (tmp_path / "a.tar").open("wb") as file:
        pack(first, checkpoints_in(first.checkpoints)[-1], Redactor(), file)
    unpack(tmp_path / "a.tar", second, STEP)
    assert second.read_validation() is None


def test_what_a_machine_had_of_an_earlier_turn_gives_way(second, archive):
    write_checkpoint(second, 1)
    MetricsHistory(second.metrics).append(StepRecord(1, 99, {"reward": 9.0}))
    (second.checkpoints / f"step-{STEP:08d}").mkdir()
    unpack(archive, second, STEP)
    assert [each.step for each in checkpoints_in(second.checkpoints)] == [1, STEP]
    assert (second.checkpoints / f"step-{STEP:08d}" / "learner.pt").stat().st_size == 3000
    assert [record.metrics["reward"] for record in read_history(second.metrics)][1] == 1 / 7


def test_a_full_disk_leaves_the_run_as_it_was(second, archive, monkeypatch):
    write_checkpoint(second, 1)
    before = contents(second.path)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(shutil, "copyfileobj", full)
    with pytest.raises(OSError, match="No space left"):
        unpack(archive, second, STEP)
    assert contents(second.path) == before


Change = Callable[[Path], object]


def entry(name: str, content: bytes = b"x", pax_headers: Any = None, **changes: object) -> Change:
    """Return a change that appends an entry to an archive."""

    def append(archive: Path) -> None:
        info = tarfile.TarInfo(name)
        info.size, info.pax_headers = len(content), pax_headers or {}
        for key, value in changes.items():
            setattr(info, key, value)
        with tarfile.open(archive, "a") as file:
            file.addfile(info, io.BytesIO(content))

    return append


# A file of a terabyte in a block, as GNU tar writes it.
SPARSE = {
    "GNU.sparse.major": "0",
    "GNU.sparse.minor": "1",
    "GNU.sparse.size": str(1 << 40),
    "GNU.sparse.map": f"0,512,{(1 << 40) - 1},0",
    "GNU.sparse.numblocks": "2",
}


def without(name: str) -> Change:
    def change(archive: Path) -> None:
        with tarfile.open(archive) as old, tarfile.open(archive.with_name("new"), "w") as new:
            for info in old:
                if info.name != name:
                    new.addfile(info, old.extractfile(info))
        shutil.move(archive.with_name("new"), archive)

    return change


DAMAGE: dict[str, Change] = {
    "escaped": entry("../../escaped"),
    "absolute": entry("/tmp/escaped"),
    "escaped below": entry("checkpoint/../../escaped"),
    "too deep": entry("checkpoint/a/b/c/d"),
    "hidden": entry("checkpoint/.hidden"),
    "directory": entry("checkpoint/", type=tarfile.DIRTYPE),
    "other file": entry("logs.txt"),
    "link": entry("checkpoint/link", b"", type=tarfile.SYMTYPE, linkname="/etc/passwd"),
    "hard link": entry("checkpoint/hard", b"", type=tarfile.LNKTYPE, linkname="metrics.jsonl"),
    "fifo": entry("checkpoint/fifo", b"", type=tarfile.FIFOTYPE),
    "duplicate": entry("checkpoint/keep"),
    "file as directory": entry("checkpoint/learner.pt/inside"),
    "sparse": entry("checkpoint/learner.pt", b"x" * 512, SPARSE),
    "cut": lambda archive: os.truncate(archive, 2500),
    "text": lambda archive: archive.write_text("<html>not found</html>"),
    "no manifest": without("manifest.json"),
    "no trainer state": without("checkpoint/trainer_state.json"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_or_hostile_archive_is_refused_and_leaves_nothing(second, archive, tmp_path, damage):
    DAMAGE[damage](archive)
    with pytest.raises(DamagedArchiveError, match="cannot be used") as refused:
        unpack(archive, second, STEP)
    assert "submit the run again" in str(refused.value.hint)
    assert list(second.path.rglob("*")) == [] and not (tmp_path / "escaped").exists()


def test_an_archive_of_another_step_is_refused(second, archive):
    with pytest.raises(DamagedArchiveError, match="step 3 instead of step 4"):
        unpack(archive, second, STEP + 1)
