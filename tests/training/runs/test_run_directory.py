from __future__ import annotations

import fcntl
from pathlib import Path
from typing import Any

import pytest

from osmosis_ai.config.training import TrainingSettings
from osmosis_ai.datasets import file_digest
from osmosis_ai.driving.environment import RolloutEnvironment
from osmosis_ai.errors import ConflictError, OsmosisError, ResumeRefusedError
from osmosis_ai.evaluation.record import TerminalRecord
from osmosis_ai.evaluation.spec import DatasetInput
from osmosis_ai.training.runs.run_directory import TrainingDirectory
from osmosis_ai.training.runs.spec import TrainingSpec
from osmosis_ai.training.runs.validation_samples import MOST_KEPT, ValidationSamples
from tests.deep_directories import deep_directories
from tests.evaluation.rollouts import write_rollout, write_rows


def validated(rollout_id: str, row: int, reward: float) -> TerminalRecord:
    return TerminalRecord(row, 0, rollout_id, "success", 1, reward=reward)


def validation_of(step: int, rollout_ids: list[str]) -> ValidationSamples:
    records = [validated(rollout_id, row, 0.5) for row, rollout_id in enumerate(rollout_ids)]
    return ValidationSamples.of(records, step=step, pass_threshold=1.0)


NO_VENV = RolloutEnvironment(Path("python"), "running-interpreter", "none")


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


def test_a_directory_is_held_by_one_process_at_a_time(tmp_path):
    directory = TrainingDirectory(tmp_path / "run")
    with directory.held(), pytest.raises(ConflictError, match="another process"), directory.held():
        pass
    with directory.held():
        assert directory.checkpoints.is_dir() and directory.is_running()
    with (directory.path / ".lock").open("rb") as look:
        fcntl.flock(look, fcntl.LOCK_SH)
        assert not directory.is_running()


def test_a_run_goes_on_with_the_same_inputs(tmp_path):
    directory = TrainingDirectory(tmp_path / "run")
    with directory.held():
        first = directory.claim(spec(tmp_path).inputs(), {"commit_sha": "4be1"})
        assert directory.claim(spec(tmp_path).inputs(), {}) == first


@pytest.mark.parametrize("changed", [{"total_epochs": 7}, {"max_steps": 9}, {"eval_interval": 3}])
def test_how_long_and_how_often_may_change(tmp_path, changed):
    directory = TrainingDirectory(tmp_path / "run")
    with directory.held():
        directory.claim(spec(tmp_path).inputs(), {})
        directory.claim(spec(tmp_path, **changed).inputs(), {})


@pytest.mark.parametrize(
    ("changed", "named"), [({"lr": 0.5}, "lr"), ({"seed": 3}, "seed"), ({"env": {"MODE": "x"}}, "MODE")]
)
def test_what_would_bend_the_curve_is_refused_and_named(tmp_path, changed, named):
    directory = TrainingDirectory(tmp_path / "run")
    with directory.held():
        directory.claim(spec(tmp_path).inputs(), {})
        with pytest.raises(ResumeRefusedError, match=named):
            directory.claim(spec(tmp_path, **changed).inputs(), {})


def test_an_edited_rollout_is_refused(tmp_path):
    directory = TrainingDirectory(tmp_path / "run")
    with directory.held():
        directory.claim(spec(tmp_path).inputs(), {})
        (tmp_path / "agent" / "main.py").write_text("other")
        with pytest.raises(ResumeRefusedError, match="its files were edited"):
            directory.claim(spec(tmp_path).inputs(), {})


def test_no_secret_is_written(tmp_path):
    directory = TrainingDirectory(tmp_path / "run")
    with directory.held():
        directory.claim(spec(tmp_path).inputs(), {})
    assert "very-secret-value" not in directory.manifest.read_text()
    assert "very-secret-value" not in repr(spec(tmp_path))


def test_a_directory_with_steps_but_no_manifest_is_left_alone(tmp_path):
    directory = TrainingDirectory(tmp_path / "run")
    with directory.held():
        directory.metrics.write_text("{}\n")
        with pytest.raises(OsmosisError, match="no manifest"):
            directory.claim(spec(tmp_path).inputs(), {})


def test_trajectories_of_the_last_steps_stay_and_older_ones_go(tmp_path):
    directory = TrainingDirectory(tmp_path / "run")
    with directory.held():
        for name in ("train-000001-row-0-0-a", "valid-000001-row-0-0-b", "train-000003-row-0-0-c", "other"):
            (directory.trials / name).mkdir()
        directory.sweep_trials(3)
        assert sorted(path.name for path in directory.trials.iterdir()) == [
            "other", "train-000003-row-0-0-c"
        ]  # fmt: skip


def test_what_a_rollout_left_goes_with_its_step_however_deep_it_is(tmp_path):
    directory = TrainingDirectory(tmp_path / "run")
    with directory.held():
        deep = directory.trials / "train-000001-row-0-0-a"
        deep.mkdir()
        with deep_directories(deep):
            directory.sweep_trials(3)
            assert list(directory.trials.iterdir()) == []


def test_trajectories_of_the_newest_validation_stay_until_the_next_ones_are_there(tmp_path):
    directory = TrainingDirectory(tmp_path / "run")
    with directory.held():
        for step in (2, 4):
            names = [f"valid-{step:06d}-row-{row}-0" for row in range(3)]
            for name in names:
                (directory.trials / name).mkdir()
            # The third is not among the worst that the record has.
            directory.write_validation(validation_of(step, names[:2]))
            directory.sweep_trials(step + 3)
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


def test_of_a_large_validation_the_worst_are_recorded_and_how_many_there_were():
    rewards = [row / 1000 for row in range(MOST_KEPT + 10)]
    records = [validated(f"r{row}", row, reward) for row, reward in enumerate(rewards)][::-1]
    records.append(TerminalRecord(900, 0, "broken", "failed", 1, error="no"))
    found = ValidationSamples.from_bytes(ValidationSamples.of(records, step=3, pass_threshold=0.5).to_bytes())
    assert (found.step, found.total, found.pass_threshold, len(found.records)) == (3, 511, 0.5, MOST_KEPT)
    assert [record.row_index for record in found.records] == [900, *range(MOST_KEPT - 1)]
