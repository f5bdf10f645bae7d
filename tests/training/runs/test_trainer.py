from __future__ import annotations

import asyncio
import errno
import random
from pathlib import Path
from typing import Any

import msgspec
import pytest

from osmosis_ai.controller.outcomes import Verdict
from osmosis_ai.errors import OsmosisError
from osmosis_ai.training.learner.checkpoints import CheckpointDirectory
from osmosis_ai.training.runs.loop import (
    REFUSED_STEPS_END,
    SILENT_STEPS_END,
    SILENT_STEPS_WARNING,
    UNSCORED_STEPS_END,
    NoRewardsError,
    NothingToLearnError,
    StopReason,
)
from osmosis_ai.training.runs.metrics import read_history
from osmosis_ai.training.runs.run_directory import ValidationSamples
from tests.lazily import lazily
from tests.training.samples import series

with lazily("torch"):
    from osmosis_ai.training.learner.learner import OutOfMemoryError, StepRefusedError
    from tests.training.loop_world import LoopWorld, NumberLearner, alternating


def steps(world: LoopWorld) -> list[int]:
    return [record.step for record in read_history(world.history.path)]


def never(step: int, index: int) -> float | None:
    return None


def equal(step: int, index: int) -> float | None:
    return 0.0


def solved_after_two_steps(step: int, index: int) -> float | None:
    return float(index % 2) if step <= 2 else 1.0


def validations(world: LoopWorld) -> list[tuple[int, float]]:
    return series(list(read_history(world.history.path)), "eval/validation/reward")


def latest_of(world: LoopWorld) -> CheckpointDirectory:
    latest = world.checkpoints.latest()
    assert latest is not None
    return latest


async def undisturbed_in(tmp_path: Path, **settings: Any) -> LoopWorld:
    world = LoopWorld(tmp_path / "undisturbed", **settings)
    await world.run()
    return world


async def stop_where_it_hangs(world: LoopWorld, hang_at: int, hang_in: str = "train") -> StopReason:
    world.runner.hang_at, world.runner.hang_in = hang_at, hang_in
    running = asyncio.create_task(world.run())
    await world.runner.hanging.wait()
    world.loop.stop()
    return await running


async def test_a_run_validates_the_base_and_takes_every_step_on_policy(tmp_path):
    world = LoopWorld(tmp_path, eval_interval=2)
    ending = await world.run()
    assert (ending.because, world.loop.state.step) == ("finished", 4)
    assert steps(world) == [0, 1, 2, 3, 4]
    assert [step for step, _ in validations(world)] == [0, 2, 4]
    assert world.runner.asked == [
        "valid 0", "train 1", "train 2", "valid 2", "train 3", "train 4", "valid 4"
    ]  # fmt: skip
    assert world.runner.begun_at == {1: 0, 2: 1, 3: 2, 4: 3}
    learned = [(updates, versions) for updates, _, versions in world.learner.seen]
    assert learned == [(0, (0,)), (1, (1,)), (2, (2,)), (3, (3,))]
    assert b"groups" not in world.history.path.read_bytes(), "they follow from the number of the step"


async def test_each_validation_leaves_what_became_of_its_samples_and_a_full_disk_ends_no_run(tmp_path):
    world = LoopWorld(tmp_path, eval_interval=2)
    kept: list[ValidationSamples] = []

    def keep(samples: ValidationSamples) -> None:
        if samples.step == 2:
            raise OSError(errno.ENOSPC, "No space left on device")
        kept.append(samples)

    world.loop.keep_validation = keep
    assert (await world.run()).because == "finished"
    assert [(each.step, each.total) for each in kept] == [(0, 1), (4, 1)]
    [record] = kept[-1].records
    # The only held-out row is the first of them, and the dataset's seventh.
    assert (record.row_index, record.source_row_index, record.rollout_id) == (0, 6, "valid-000004-row-6-0")
    assert [note for note in world.told.notes if "No space left" in note and "conversations" in note]


@pytest.mark.parametrize("max_staleness", [1, 2])
async def test_with_staleness_batches_are_sampled_while_the_learner_works_and_never_too_early(
    tmp_path, max_staleness
):
    world = LoopWorld(tmp_path, max_staleness=max_staleness, max_steps=6)
    world.learner.go_on.clear()
    running = asyncio.create_task(world.run())
    await asyncio.to_thread(world.learner.learning.wait, 30)
    await world.runner.until_begun(1 + max_staleness)
    assert world.learner.seen == []
    world.learner.go_on.set()
    await running
    assert {step: step - 1 - version for step, version in world.runner.begun_at.items()} == {
        step: min(step - 1, max_staleness) for step in range(1, 7)
    }
    records = list(read_history(world.history.path))
    assert max(value for _, value in series(records, "rollout/staleness_max")) == max_staleness


async def test_a_checkpoint_follows_every_step_and_only_those_due_are_kept(tmp_path):
    world = LoopWorld(tmp_path, checkpoint_save_freq=3)
    await world.run()
    assert [checkpoint.step for checkpoint in world.checkpoints.list()] == [3, 4]
    assert all(checkpoint.kept for checkpoint in world.checkpoints.list())
    provenance = world.checkpoints.list()[0].provenance()
    assert provenance["commit"] == "4be1"
    assert provenance["metrics"]["rollout/raw_reward"] == 0.5


async def test_a_stop_while_learning_keeps_the_update_that_has_begun(tmp_path):
    world = LoopWorld(tmp_path)
    world.learner.go_on.clear()
    running = asyncio.create_task(world.run())
    await asyncio.to_thread(world.learner.learning.wait, 30)
    world.loop.stop()
    world.learner.go_on.set()
    assert (await running).because == "stopped"
    assert steps(world) == [0, 1]
    assert latest_of(world).step == 1


@pytest.mark.parametrize(("hang_in", "hang_at"), [("train", 3), ("valid", 2)])
async def test_later_sessions_continue_a_stopped_run_as_if_undisturbed(tmp_path, hang_in, hang_at):
    undisturbed = await undisturbed_in(tmp_path, eval_interval=2)
    world = LoopWorld(tmp_path / "stopped", eval_interval=2)
    ending = await stop_where_it_hangs(world, hang_at, hang_in)
    assert (ending.because, world.loop.state.step) == ("stopped", 2), "the update before a validation counts"
    assert world.runner.cancelled
    assert (latest_of(world).step, latest_of(world).kept) == (2, True)
    world.runner.hang_at = None
    for _ in range(2):  # the second session is ended right after the validation
        world.resume()
        world.told.on_step = lambda record: world.loop.stop() if record.step == 2 else None
        ending = await world.run()
        world.told.on_step = lambda record: None
    assert ending.because == "finished"
    if hang_in == "train":  # a validation that is made later has a record of its own
        assert steps(world) == steps(undisturbed)
    assert validations(world) == validations(undisturbed)
    assert world.learner.seen == undisturbed.learner.seen


@pytest.mark.parametrize(("hang_in", "hang_at"), [("valid", 0), ("train", 3), ("valid", 2), ("valid", 4)])
@pytest.mark.parametrize("max_staleness", [0, 2])
async def test_a_run_that_is_let_go_on_behind_a_stop_does_so_with_what_is_loaded(
    tmp_path, hang_in, hang_at, max_staleness
):
    undisturbed = await undisturbed_in(tmp_path, eval_interval=2)
    world = LoopWorld(tmp_path / "stopped", eval_interval=2, max_staleness=max_staleness)
    asked_at_rest = []

    def rest() -> None:
        assert world.runner.cancelled
        assert not world.loop._buffer._groups, "nothing is made meanwhile"
        asked_at_rest.append(len(world.runner.asked))
        world.runner.hang_at = None
        if len(asked_at_rest) == 1:
            world.loop.stop()  # cut off again, before anything is begun

    world.told.rests = [rest, rest]
    assert (await stop_where_it_hangs(world, hang_at, hang_in)).because == "finished"
    assert asked_at_rest[0] == asked_at_rest[1], (
        "a stop that came before anything was begun lets nothing begin"
    )
    assert validations(world) == validations(undisturbed)
    assert max_staleness or world.learner.seen == undisturbed.learner.seen


async def test_a_step_whose_checkpoint_was_not_written_is_computed_again_and_stands_once(tmp_path):
    world = LoopWorld(tmp_path, max_steps=3)
    await world.run()
    world.history.append(world.told.records[-1].__class__(4, 0, {"rollout/raw_reward": 0.9}))
    world.resume()
    assert steps(world) == [0, 1, 2, 3]


async def test_equal_rewards_are_warned_of_and_end_a_run_that_never_learned(tmp_path):
    world = LoopWorld(tmp_path, rewards=equal, max_steps=30)
    with pytest.raises(NothingToLearnError, match=f"{SILENT_STEPS_END} steps in a row"):
        await world.run()
    assert steps(world)[-1] == SILENT_STEPS_END
    warned = [record.step for record in world.told.records if record.warnings]
    assert warned == [SILENT_STEPS_WARNING]
    assert f"ends after {SILENT_STEPS_END} such steps" in world.told.notes[0]


async def test_a_reward_whose_variance_overflows_is_none(tmp_path):
    world = LoopWorld(
        tmp_path, rewards=lambda _, n: (1e301, 1.0, 0.0, 0.0)[n % 4], n_samples_per_prompt=4, max_steps=2
    )
    await world.run()
    assert steps(world)[-1] == 2
    assert world.told.records[-1].metrics["rollout/unscored"] == 2
    assert world.told.records[-1].metrics["rollout/reward_max"] == 1.0


async def test_a_run_whose_rewards_collapsed_ends_with_a_warning(tmp_path):
    def rewards(step, index):
        return float(index % 4 > 0) if step <= 6 else float(index % 4 == 3 and step % 4 == 0)

    world = LoopWorld(tmp_path, rewards=rewards, n_samples_per_prompt=4, max_steps=14)
    ending = await world.run()
    warned = [(record.step, warning) for record in world.told.records for warning in record.warnings]
    assert [step for step, warning in warned if "the training reward collapsed: 0." in warning] == [11]
    assert ending.warning is not None and ending.warning.endswith("before you deploy its last checkpoint.")
    assert "collapsed" not in ending.warning, "the run has this warning at its step"


async def test_a_task_that_is_solved_ends_the_run_with_what_was_learned(tmp_path):
    world = LoopWorld(tmp_path, rewards=solved_after_two_steps, max_steps=30)
    ending = await world.run()
    assert ending.because == "nothing_to_learn"
    assert "equal rewards (1 on average in the last of them): ended after step" in ending.message
    assert world.loop.state.step == 2 + SILENT_STEPS_END
    assert world.learner.updates == 2
    assert latest_of(world).kept


@pytest.mark.parametrize(
    ("max_steps", "last", "message"),
    [
        (30, UNSCORED_STEPS_END - 1, r"4 x agent exception.*the agent broke"),
        (1, 1, "no attempt got a reward in the only step, so nothing was learned"),
    ],
    ids=["long", "one step"],
)
async def test_a_run_without_any_reward_fails(tmp_path, max_steps, last, message):
    world = LoopWorld(tmp_path, rewards=never, held_out=0, max_steps=max_steps)
    with pytest.raises(NoRewardsError, match=message):
        await world.run()
    assert steps(world) == list(range(1, last + 1))
    assert world.told.records[0].unscored == {"agent exception": 4}


async def test_a_failing_grader_is_named_at_the_step_where_it_begins_also_after_a_resume(tmp_path):
    def rewards(step, index):
        return None if step >= 2 and index == 1 else float(index % 3)

    world = LoopWorld(tmp_path, rewards=rewards, n_samples_per_prompt=4, max_steps=6)
    made = world.runner._made

    def graded(attempt, step):
        found = made(attempt, step)
        if found.status != "failed":
            return found
        raised = {"boundary": "grader", "category": "exception", "error": "KeyError: 'answer'"}
        return msgspec.structs.replace(found, **raised)

    world.runner._made = graded  # type: ignore[method-assign]
    await stop_where_it_hangs(world, 4)
    world.runner.hang_at = None
    world.resume()
    await world.run()
    records = list(read_history(world.history.path))
    assert [record.unscored for record in records[1:4]] == [{}, *[{"grader exception": 2}] * 2]
    assert {record.step: record.warnings for record in records if record.warnings} == {
        2: [
            "the grader failed on 2 of 8 attempts (2 x grader exception). First failure: KeyError: 'answer'",
            "2 of 8 attempts (25%) have no reward (2 x grader exception). First failure: KeyError: 'answer'",
        ]
    }


def world_whose_validation(path: Any, rewards_by_validation: list[Any], **settings: Any) -> LoopWorld:
    """Learning is as usual; the held-out rows get the given rewards, validation by validation."""
    world = LoopWorld(path, **{"held_out": 12, "eval_interval": 2, **settings})
    rewards = iter(rewards_by_validation)
    made, current = world.runner._made, {}

    def validated(attempt: Any, step: int) -> Any:
        sample = made(attempt, step)
        if not attempt.name.startswith("valid"):
            return sample
        number = attempt.name.split("-")[1]
        if number not in current:
            current[number] = next(rewards)
        reward = current[number](attempt.row.source_row_index)
        verdict = (
            Verdict("success", reward=reward)
            if reward is not None
            else Verdict("failed", error_type="agent_error", boundary="agent", error="broke")
        )
        return msgspec.structs.replace(sample, **verdict._asdict())

    world.runner._made = validated  # type: ignore[method-assign]
    return world


async def test_a_validation_that_fell_below_the_start_beyond_chance_is_told_then_and_at_the_end(tmp_path):
    world = world_whose_validation(
        tmp_path, [lambda row: 0.6 + row / 100, lambda row: 0.6 + row / 90, lambda row: 0.3 + row / 80]
    )
    ending = await world.run()
    records = {record.step: record for record in read_history(world.history.path)}
    assert records[2].warnings == []
    assert "the validation reward fell 0.2" in records[4].warnings[-1]
    assert ending.because == "finished"
    assert "below its initial value" in records[4].warnings[-1] and "became worse" in str(ending.warning)
    assert [
        note for note in world.told.notes if "below its initial value" in note or note == ending.warning
    ] == [records[4].warnings[-1], ending.warning]
    assert records[4].metrics["eval/validation/reward_low"] < records[4].metrics["eval/validation/reward"]
    by_row = records[4].validation_rewards.values()
    assert sum(by_row) / len(by_row) == pytest.approx(records[4].metrics["eval/validation/reward"])
    assert records[3].validation_rewards == {}


def levels(*values: float) -> list[Any]:
    """Return the rewards of validations around these means, with noise."""

    def around(level: float, number: int) -> Any:
        return lambda row: level + random.Random(f"{number}:{row}").uniform(-0.1, 0.1)

    return [around(value, number) for number, value in enumerate(values)]


@pytest.mark.parametrize("cut_off", [None, "train", "valid"])
async def test_validations_far_below_the_best_end_the_run_also_after_a_resume(tmp_path, cut_off):
    rewards = levels(0.2, 0.6, 0.25, 0.55, 0.3, 0.25, *[0.7] * 5)
    world = world_whose_validation(tmp_path, rewards, max_steps=20, stop_after_drop=2)
    if cut_off:  # between the two validations that end it, or in the second
        await stop_where_it_hangs(world, 9 if cut_off == "train" else 10, cut_off)
        world.runner.hang_at = None
        world.resume()
    ending = await world.run()
    assert (ending.because, world.loop.state.step) == ("reward_dropped", 10)
    assert ending.message == (
        "the validation reward was significantly below its best value (step 2) in 2 consecutive validations: ended "
        "after step 10 ([advanced].stop_after_drop = 2)."
    )
    warned = {record.step for record in read_history(world.history.path) if record.warnings}
    assert warned == {4, 8, 10}, "0.55 is no significant drop"
    asked = len(world.runner.asked)
    world.resume()
    assert (await world.run()).because == "reward_dropped"
    assert len(world.runner.asked) == asked, "a later session takes no further step"


async def test_without_the_setting_a_drop_below_the_best_ends_no_run(tmp_path):
    world = world_whose_validation(tmp_path, levels(0.2, 0.6, *[0.25] * 9), max_steps=10)
    assert (await world.run()).because == "finished"
    assert not any(record.warnings for record in read_history(world.history.path))


@pytest.mark.integration
async def test_at_most_one_run_in_twenty_that_stays_flat_is_warned_of(tmp_path):
    """20 validations of 24 rows by one policy: without the adjustment 12 of 50 runs warned."""
    rng, warned = random.Random(11), 0
    for run in range(50):
        levels = [rng.random() for _ in range(30)]
        draws = [[level + rng.gauss(0, 0.2) for level in levels] for _ in range(21)]
        world = world_whose_validation(
            tmp_path / str(run),
            [draw.__getitem__ for draw in draws],
            held_out=24,
            eval_interval=1,
            max_steps=20,
        )
        await world.run()
        warned += any("below its initial value" in note for note in world.told.notes)
    assert warned <= 2


async def test_a_refused_step_leaves_the_policy_and_the_run_goes_on(tmp_path):
    world = LoopWorld(tmp_path, learner=NumberLearner(refuse=[2]))
    await world.run()
    assert world.learner.updates == 3
    assert world.told.records[2].warnings == ["the step was refused: its loss is not a finite number."]
    assert "train/loss" not in world.told.records[2].metrics
    assert world.runner.begun_at == {1: 0, 2: 1, 3: 1, 4: 2}


async def test_steps_refused_again_and_again_end_the_run(tmp_path):
    world = LoopWorld(tmp_path, learner=NumberLearner(refuse=range(2, 10)), max_steps=30)
    with pytest.raises(
        StepRefusedError, match=r"not a finite number\. The run ends after 3 refused updates in a row"
    ):
        await world.run()
    assert world.loop.state.step == REFUSED_STEPS_END  # one learned, all but the last refusal recorded
    assert latest_of(world).step == REFUSED_STEPS_END


async def test_an_engine_that_failed_ends_the_run_at_once_with_its_own_words(tmp_path):
    def failing(step, index):
        if step == 3:
            world.engine.failure = OsmosisError("the model server failed")
        return alternating(step, index)

    world = LoopWorld(tmp_path, rewards=failing)
    with pytest.raises(OsmosisError, match="the model server failed"):
        await world.run()
    assert (world.loop.state.step, steps(world)[-1]) == (2, 2)


@pytest.mark.parametrize(
    ("method", "error", "message"),
    [
        ("step", lambda: OutOfMemoryError("cuda:0 does not have enough memory."), "not have enough memory"),
        (
            "save_adapter",
            lambda: OSError(errno.ENOSPC, "No space left on device"),
            "the disk is full; the checkpoint of step 2 is intact",
        ),
    ],
)
async def test_lack_of_memory_or_disk_ends_the_run_and_a_later_session_continues(
    tmp_path, monkeypatch, method, error, message
):
    world = LoopWorld(tmp_path)
    work = getattr(world.learner, method)

    def fail_in_step_3(*arguments, **options):
        if world.learner.updates == (2 if method == "step" else 3):
            raise error()
        return work(*arguments, **options)

    monkeypatch.setattr(world.learner, method, fail_in_step_3)
    with pytest.raises(OsmosisError, match=message) as caught:
        await world.run()
    if method == "save_adapter":
        assert caught.value.hint == "free space there, then start the run again"
    assert latest_of(world).step == 2
    monkeypatch.undo()
    world.resume()
    assert steps(world) == [0, 1, 2]
    assert (await world.run()).because == "finished"
    assert steps(world) == [0, 1, 2, 3, 4]
