"""The history of a training run: its order of rows, its metrics step by step, and their sources."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from osmosis_ai.config.training import TrainingSettings
from osmosis_ai.controller.outcomes import Verdict
from osmosis_ai.datasets import DatasetRow, row_digest
from osmosis_ai.training.engines.recording import RecordedRollout
from osmosis_ai.training.learner.step import StepMetrics
from osmosis_ai.training.objective.advantages import group_advantages
from osmosis_ai.training.objective.sequences import TokenSequence
from osmosis_ai.training.runs.curves import ValidationHeadline
from osmosis_ai.training.runs.metrics import (
    TITLES,
    HistoryError,
    MetricsHistory,
    StepRecord,
    learning_metrics,
    read_history,
)
from osmosis_ai.training.runs.rollouts import (
    RolloutBatch,
    Sample,
    attempts_of_step,
    learner_batch,
    rewards_by_row,
    rollout_metrics,
    with_truncation_rule,
)
from osmosis_ai.training.runs.spec import DataOrder
from tests.full_disk import files_of_at_most
from tests.training.samples import dataset_row, failed, recorded, sample, scored, series


def record(step: int, **metrics: float) -> StepRecord:
    return StepRecord(step, 1_700_000_000_000 + step, metrics or {"rollout/raw_reward": step / 10})


def history(path: Path, *steps: int) -> MetricsHistory:
    written = MetricsHistory(path / "metrics.jsonl")
    for step in steps:
        written.append(record(step))
    return written


def test_a_history_is_empty_or_read_back_as_it_was_recorded(tmp_path):
    whole = StepRecord(1, 5, {"train/loss": -0.5}, {"callback_timeout": 2}, ["look at this"], {"a" * 32: 0.5})
    written = MetricsHistory(tmp_path / "metrics.jsonl")
    assert list(read_history(written.path)) == written.rewind(3) == []
    written.append(whole)
    assert list(read_history(written.path)) == [whole]


def test_of_copies_of_a_held_out_row_the_mean_counts_and_of_a_row_without_a_reward_nothing():
    rows = [dataset_row(0), dataset_row(1), DatasetRow(2, [], "7", None), DatasetRow(3, [], "8", None)]
    found = rewards_by_row(rows, [0.0, 1.0, 0.25, None])
    assert found == {row_digest(rows[0]): 0.5, row_digest(rows[2]): 0.25}


def test_a_cpu_has_no_gpu_memory():
    assert "speed/gpu_memory_gib" not in learning_metrics(StepMetrics(1, learned=True), 2.0)
    found = learning_metrics(StepMetrics(1, learned=True, gpu_memory_gib=3.5), 2.0)
    assert found["speed/gpu_memory_gib"] == 3.5 and set(found) <= set(TITLES)


def test_a_torn_last_line_is_passed_over_by_readers_and_dropped_by_a_rewind(tmp_path):
    written = history(tmp_path, 0, 1)
    with written.path.open("ab") as torn:
        torn.write(record(2).to_line()[:-5])
    assert [found.step for found in read_history(written.path)] == [0, 1]
    written.rewind(1)
    written.append(record(2))
    assert [found.step for found in read_history(written.path)] == [0, 1, 2]


def test_a_rewind_drops_the_steps_behind_the_checkpoint_so_that_recomputed_ones_replace_them(tmp_path):
    written = history(tmp_path, 0, 1, 2, 3)
    assert [dropped.step for dropped in written.rewind(1)] == [2, 3]
    for step in (3, 1, 2):
        written.append(record(step))
    assert [dropped.step for dropped in written.rewind(1)] == [2, 3], "whatever the order of the records"
    written.append(record(2, **{"rollout/raw_reward": 0.5}))
    again = written.rewind(1)
    assert [dropped.step for dropped in again] == [2, 3], "step 3 was not repeated before the second crash"
    assert again[0].metrics == {"rollout/raw_reward": 0.5}
    written.rewind(0)
    written.append(record(1))
    written.append(record(2, **{"rollout/raw_reward": 0.9}))
    assert series(list(read_history(written.path)), "rollout/raw_reward") == [(0, 0.0), (1, 0.1), (2, 0.9)]


@pytest.mark.parametrize(
    "line",
    [
        "{}",
        '{"step": -1, "timestamp_ms": 1, "metrics": {}}',
        '{"step": 9007199254740992, "timestamp_ms": 1, "metrics": {}}',
        '{"step": 1, "timestamp_ms": 1, "metrics": {"train/loss": "<b>"}}',
        '{"step": 1, "timestamp_ms": 1, "metrics": {"train/loss": 1e308}}',
        '{"step": 1, "timestamp_ms": 1, "metrics": {}, "warnings": 5}',
        '{"step": 1, "timestamp_ms": 1, "metrics": {}, "groups": [-1]}',
    ],
)
def test_a_damaged_line_is_named(tmp_path, line):
    written = history(tmp_path, 0)
    with written.path.open("a") as damaged:
        damaged.write(f"{line}\n")
    with pytest.raises(HistoryError, match="damaged at line 2"):
        list(read_history(written.path))


def test_a_full_disk_is_one_sentence_and_leaves_the_history_as_it_was(tmp_path):
    written = history(tmp_path, 0)
    before = written.path.read_bytes()
    with files_of_at_most(len(before) + 10), pytest.raises(HistoryError, match="the disk is full"):
        written.append(record(1))
    assert written.path.read_bytes() == before


def test_every_epoch_visits_every_row_once_in_an_order_of_its_own():
    order = DataOrder(tuple(range(10)), batch_size=4, epochs=2, seed=3)
    assert order.total_steps == 6
    steps = [list(order.batch(step)) for step in range(1, 7)]
    assert [len(step) for step in steps] == [4, 4, 2, 4, 4, 2]
    first, second = [row for step in steps[:3] for row in step], [row for step in steps[3:] for row in step]
    assert sorted(first) == sorted(second) == list(range(10))
    assert first != second
    again, other = (DataOrder(tuple(range(10)), batch_size=4, epochs=2, seed=seed) for seed in (3, 4))
    assert again.batch(5) == order.batch(5) != other.batch(5)
    for epochs, total in ((5, 7), (1, 3)):
        assert DataOrder(tuple(range(10)), 4, epochs, 0, max_steps=7).total_steps == total


def test_attempts_of_two_steps_on_a_row_draw_different_seeds():
    first, again, later = (attempts_of_step(step, [dataset_row(5)], 2, seed=1) for step in (1, 1, 2))
    seeds = [[attempt.seed_for(0) for attempt in attempts] for attempts in (first, again, later)]
    assert seeds[0] == seeds[1]
    assert len({*seeds[0], *seeds[2]}) == 4


def test_a_lesson_leaves_out_what_has_no_advantage_and_keeps_every_fork():
    forked = scored(1.0, sequences=2)
    batch = RolloutBatch(
        1,
        [
            [forked, scored(0.0), failed("agent_timeout")],
            [scored(1.0), scored(1.0), scored(1.0)],  # they agree: nothing to learn
        ],
        sampling_s=2.0,
    )
    learnable = learner_batch(batch, normalise=False)
    assert learnable.advantages == [0.5, 0.5, -0.5]
    assert [sequence.rollout_id for sequence in learnable.sequences[:2]] == [
        forked.recorded.sequences[0].rollout_id
    ] * 2
    assert learnable.statistics.groups_zero_variance == 1


def test_rollout_metrics_say_what_was_sampled_and_what_is_missing():
    batch = RolloutBatch(
        4,
        [[scored(1.0, versions=(3,)), scored(0.0, versions=(2,)), failed("callback_timeout")]],
        sampling_s=2.0,
    )
    statistics = group_advantages([[sample.reward for sample in batch.samples]]).statistics
    metrics = rollout_metrics(batch, statistics, version=3)
    expected = {
        "rollout/raw_reward": 0.5,
        "rollout/reward_std": 0.5,
        "rollout/samples": 3,
        "rollout/unscored": 1,
        "rollout/response_lengths": 2,
        "rollout/total_lengths": 5,
        "rollout/truncated_ratio": 0,
        "rollout/staleness": 0.5,
        "rollout/staleness_max": 1,
        "speed/sampling_tokens_per_s": 2.0,
    }
    assert {key: metrics[key] for key in expected} == expected
    assert batch.unscored() == {"agent timeout": 1}


def test_a_steps_reward_has_the_interval_of_its_prompts_not_of_their_attempts():
    batch = RolloutBatch(
        1,
        [
            [scored(1.0), scored(1.0), failed("agent_timeout")],
            [scored(0.0), scored(0.0), scored(float("nan"))],
            [scored(1.0), scored(0.0), scored(0.5)],
        ]
        * 4,
        sampling_s=1.0,
    )
    metrics = rollout_metrics(batch, learner_batch(batch, normalise=False).statistics, version=1)
    # Means of prompts 1, 0 and 0.5, four times each: 0.5 +- t(0.975, 11) * sd / sqrt(12), whatever their attempts.
    half = 2.200985 * (2 / 11) ** 0.5 / 12**0.5
    assert metrics["rollout/reward_low"] == pytest.approx(0.5 - half)
    assert metrics["rollout/reward_high"] == pytest.approx(0.5 + half)


def test_the_interval_of_a_reward_ends_at_the_rewards_observed():
    batch = RolloutBatch(1, [[scored(0.9)], [scored(0.0)], [scored(0.5)]], sampling_s=1.0)
    metrics = rollout_metrics(batch, learner_batch(batch, normalise=False).statistics, version=1)
    assert (metrics["rollout/reward_low"], metrics["rollout/reward_high"]) == (0.0, 0.9)


def late(grader_reward: float | None = None, source: Any = "agent") -> Sample:
    verdict = Verdict("failed", error_type="timeout", boundary=source, error="did not finish")
    return replace(sample(verdict), grader_reward=grader_reward)


TRUNCATED = sample(Verdict("success", reward=0.5), replace(recorded(), truncated=True))


@pytest.mark.parametrize(
    ("unfinished", "settings", "reward", "why"),
    [
        (TRUNCATED, {"on_truncation": "grade"}, 0.5, None),
        (TRUNCATED, {"on_truncation": "zero"}, 0.0, None),
        (TRUNCATED, {"on_truncation": "exclude"}, None, "agent truncated"),
        (late(1.0), {"on_timeout": "exclude"}, None, "agent timeout"),
        (late(), {"on_timeout": "zero"}, 0.0, None),
        (late(), {"on_timeout": "grade"}, None, "agent timeout"),
        (late(0.7), {"on_timeout": "grade"}, 0.7, None),
    ],
)
def test_an_unfinished_rollout_counts_as_the_settings_say(unfinished, settings, reward, why):
    found = with_truncation_rule(unfinished, TrainingSettings(**settings))
    assert (found.reward, found.unscored_because) == (reward, why)
    assert found.recorded.truncated == unfinished.recorded.truncated


def test_a_rollout_that_was_not_cut_off_or_was_removed_or_met_a_slow_grader_is_left_as_it_is():
    strict = TrainingSettings(on_truncation="zero", on_timeout="zero")
    removed = sample(Verdict("skipped"), replace(recorded(), truncated=True))
    for kept in (scored(1.0), failed("agent_error"), removed, late(source="grader")):
        assert with_truncation_rule(kept, strict) is kept


REWARD, LOW, HIGH = (f"eval/validation/{name}" for name in ("reward", "reward_low", "reward_high"))
SCORED, PLANNED = "eval/validation/scored", "eval/validation/samples"


def test_numbers_of_an_older_validation_do_not_stand_in_for_what_the_newest_lacks():
    found = ValidationHeadline.of(
        {
            REWARD: [(0, 0.5)],
            LOW: [(0, 0.3)],
            HIGH: [(0, 0.7)],
            SCORED: [(0, 4), (5, 0)],
            PLANNED: [(0, 4), (5, 4)],
        }
    )
    assert found is not None
    assert (found.reward, found.low, found.high) == (None, None, None)
    assert found.words == "validation: none scored after step 5; scored 0 of 4 planned"
    assert found.warnings


def test_a_step_of_failed_or_silent_rollouts_has_no_reward_or_length_instead_of_zeros():
    broken = RolloutBatch(1, [[failed("workflow_failed"), failed("workflow_failed")]], sampling_s=1.0)
    metrics = rollout_metrics(broken, learner_batch(broken, normalise=True).statistics, version=0)
    assert "rollout/raw_reward" not in metrics and "rollout/response_lengths" not in metrics
    assert metrics["rollout/zero_variance_fraction"] == 1.0
    # One rollout never called the model.
    silent = sample(Verdict("success", reward=0.0), RecordedRollout([]))
    batch = RolloutBatch(1, [[silent, scored(1.0)]], sampling_s=1.0)
    learnable = learner_batch(batch, normalise=True)
    assert [type(sequence) for sequence in learnable.sequences] == [TokenSequence]
    assert rollout_metrics(batch, learnable.statistics, version=0)["rollout/response_lengths"] == 2
