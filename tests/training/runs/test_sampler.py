from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from osmosis_ai.config.training import TrainingSettings
from osmosis_ai.controller.attempt import Attempt, RolloutRunner
from osmosis_ai.controller.callbacks import AttemptTimeouts
from osmosis_ai.controller.server_process import prepare_server
from osmosis_ai.datasets import DatasetRow
from osmosis_ai.errors import OsmosisError
from osmosis_ai.inference.chat import BuiltInChat
from osmosis_ai.inference.engine import InferenceEngine
from osmosis_ai.inference.model import Model
from osmosis_ai.redaction import Redactor
from osmosis_ai.training.engines.policy_bridge import PolicyBridge
from osmosis_ai.training.engines.policy_engine import InProcessPolicyEngine
from osmosis_ai.training.engines.recording import RecordedRollout
from osmosis_ai.training.runs.rollouts import (
    RolloutSampler,
    Sample,
    attempts_of_step,
    validate,
    validation_metrics,
)
from osmosis_ai.training.runs.spec import ValidationPlan, split_rows
from tests.evaluation.rollouts import AGENT, write_rollout, write_rows
from tests.training.policy_world import MODEL_DIR, TOKEN

pytestmark = pytest.mark.e2e


@asynccontextmanager
async def sampling(
    tmp_path: Path, *, source: str = AGENT, agent_timeout_s: float = 600.0, grader_timeout_s: float = 600.0
) -> AsyncIterator[tuple[RolloutSampler, list[str]]]:
    """A sampler on the test agent, or another; and what it notes."""
    notes: list[str] = []
    _, server = await prepare_server(
        write_rollout(tmp_path / "rollout", source),
        "main.py",
        environ=os.environ,
        variables={},
        secret_values={},
        artifact_root=tmp_path / "trials",
        log_path=tmp_path / "server.log",
        cache_dir=tmp_path / "cache",
        note=lambda _: None,
    )
    with InferenceEngine(Model.load(MODEL_DIR)) as engine:
        bridge = PolicyBridge(
            InProcessPolicyEngine(engine),
            BuiltInChat(MODEL_DIR),
            model_path="osmosis/tiny",
            settings=TrainingSettings(max_prompt_length=200, max_response_length=24),
        )
        runner = RolloutRunner(
            bridge,
            model_key=TOKEN,
            server=server,
            timeouts=AttemptTimeouts(agent_timeout_s, grader_timeout_s),
            redact=Redactor(()),
            note=notes.append,
            trajectory_root=tmp_path / "trials",
        )
        async with runner:
            yield RolloutSampler(runner, bridge), notes


def rows(*prompts: str) -> list[DatasetRow]:
    return [DatasetRow(i, [{"role": "user", "content": said}], "ok", None) for i, said in enumerate(prompts)]


async def sample_all(sampler: RolloutSampler, attempts: Sequence[Attempt]) -> list[Sample]:
    finished: dict[Attempt, Sample] = {}
    unfinished: dict[Attempt, RecordedRollout] = {}
    await sampler.sample(attempts, finished.__setitem__, unfinished.__setitem__)
    assert not unfinished
    return [finished[attempt] for attempt in attempts]


def sampled(sample: Sample) -> list[list[int]]:
    """The tokens the policy sampled, by sequence."""
    return [
        [token for token, is_sampled in zip(sequence.ids, sequence.mask, strict=True) if is_sampled]
        for sequence in sample.recorded.sequences
    ]


async def test_every_attempt_becomes_a_sample_whatever_happened_to_it(tmp_path):
    prompts = rows("What is 2 * 3?", "raise", "remove", "no reward", "nan", "number")
    async with sampling(tmp_path) as (sampler, _):
        samples = await sample_all(sampler, attempts_of_step(1, prompts, 2, seed=0))
    assert [sample.record.source_row_index for sample in samples] == [i for i in range(6) for _ in "12"]
    first_of_row = samples[::2]
    assert first_of_row[0].reward == 0.0
    assert [sample.reward for sample in first_of_row[1:]] == [None] * 5
    assert [sample.unscored_because for sample in first_of_row[1:]] == [
        "agent exception",
        "removed",
        "grader invalid_value",
        "grader invalid_value",
        "agent invalid_value",
    ]
    assert first_of_row[1].record.boundary == "agent"
    assert "the agent broke" in str(first_of_row[1].record.error)


async def test_samples_hold_the_very_tokens_and_two_attempts_on_a_row_differ(tmp_path):
    async with sampling(tmp_path) as (sampler, _):
        attempts = attempts_of_step(1, rows("What is 2 * 3?"), 4, seed=0)
        samples = await sample_all(sampler, attempts)
        again = await sample_all(sampler, attempts)
    assert [sampled(sample) for sample in samples] == [sampled(sample) for sample in again]
    assert len({tuple(sampled(sample)[0]) for sample in samples}) > 1
    for sample in samples:
        (sequence,) = sample.recorded.sequences
        assert {version for version, m in zip(sequence.versions, sequence.mask, strict=True) if m} == {0}
        assert all(logprob < 0 for logprob, m in zip(sequence.logprobs, sequence.mask, strict=True) if m)
        assert sample.record.completion_tokens == sample.recorded.sampled_tokens


async def test_a_cancelled_group_leaves_what_its_slow_attempts_had_sampled(tmp_path):
    finished: dict[Attempt, Sample] = {}
    unfinished: dict[Attempt, RecordedRollout] = {}
    async with sampling(tmp_path) as (sampler, _):
        quick, slow, hanging = attempts_of_step(1, rows("What is 2 * 3?", "slow grader", "hang"), 1, seed=0)
        group = asyncio.create_task(
            sampler.sample([quick, slow, hanging], finished.__setitem__, unfinished.__setitem__)
        )
        usages = sampler.runner.used_in_flight
        while not finished or sum(usage.calls for usage in usages()) < 1:  # noqa: ASYNC110 - another process's calls
            await asyncio.sleep(0.01)
        group.cancel()
        await asyncio.gather(group, return_exceptions=True)
        assert not list(usages())
        await sample_all(sampler, attempts_of_step(2, rows("What is 2 * 3?"), 1, seed=0))
    assert list(finished) == [quick]
    assert {each: recorded.calls for each, recorded in unfinished.items()} == {slow: 1, hanging: 0}
    assert unfinished[slow].sampled_tokens > 0


async def test_validation_makes_the_same_attempts_each_time_and_counts_what_it_could_not_score(tmp_path):
    plan = ValidationPlan(attempts=2)
    held_out = rows("What is 2 * 3?", "raise", "What is 4 * 5?")
    async with sampling(tmp_path) as (sampler, _):
        first = await validate(sampler, held_out, plan, seed=0, step=0)
        second = await validate(sampler, held_out, plan, seed=0, step=5)
    assert first.metrics.estimates.tokens == second.metrics.estimates.tokens
    assert first.rewards == second.rewards == [0.0, None, 0.0]
    counts = first.metrics.estimates.counts
    assert (counts.scored, counts.planned, counts.failed_by_boundary) == (4, 6, {"agent": 2})
    metrics = validation_metrics(first.metrics)
    assert metrics["eval/validation/reward"] == 0.0
    assert metrics["eval/validation/scored"] == 4


def test_held_out_rows_are_a_seeded_share_that_is_never_trained_on(tmp_path):
    dataset = write_rows(tmp_path / "rows.jsonl", [f"prompt {i}" for i in range(40)])
    split = split_rows(dataset, ValidationPlan(rows=4), seed=1)
    held_out = {row.source_row_index for row in split.held_out}
    assert len(held_out) == 4
    assert held_out | split.training.keys() == set(range(40))
    assert not held_out & split.training.keys()
    assert split == split_rows(dataset, ValidationPlan(rows=4), seed=1)
    assert split != split_rows(dataset, ValidationPlan(rows=4), seed=2)
    own = split_rows(dataset, ValidationPlan(path=dataset, rows=3), seed=1)
    assert (len(own.held_out), len(own.training)) == (3, 40)
    assert own.warnings == (
        "3 of the 3 validation rows are also training rows: the validation overstates the improvement.",
    )
    others = write_rows(tmp_path / "others.jsonl", [f"other {i}" for i in range(200)])
    apart = split_rows(dataset, ValidationPlan(path=others), seed=1)
    assert (len(apart.held_out), apart.warnings) == (100, ())
    assert split_rows(dataset, ValidationPlan(rows=0), seed=1).held_out == []
    with pytest.raises(OsmosisError, match="validation_rows leaves no training rows: the dataset has 40"):
        split_rows(dataset, ValidationPlan(rows=40), seed=1)
