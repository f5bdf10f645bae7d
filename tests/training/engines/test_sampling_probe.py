"""Whatever samples from another distribution than the one that is learned is found out before the first step."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from osmosis_ai.config.training import TrainingSettings
from osmosis_ai.datasets import DatasetRow
from osmosis_ai.inference.chat_format import BuiltInChat
from osmosis_ai.inference.engine import InferenceEngine
from osmosis_ai.inference.model import Model
from osmosis_ai.training.engines.policy_engine import InProcessPolicyEngine, PolicyEngine
from osmosis_ai.training.engines.sampling_probe import (
    TOKENS,
    DistributionMismatchError,
    Probe,
    probe,
    probe_prompts,
)
from osmosis_ai.training.engines.vllm_engine import VllmEngine
from tests.lazily import lazily
from tests.training.policy_world import END, MODEL_DIR, question
from tests.training.standin_vllm import KEY, ServingStandIn, StandInVllm, standing_in
from tests.training.truncating_model import QWEN25, TruncatingModel

with lazily("torch"):
    from osmosis_ai.training.learner.learner import Learner
    from tests.training.learner_builders import tiny_learner

CHAT = BuiltInChat(MODEL_DIR)
ROWS = [DatasetRow(i, question(11 + i, 34), "374", None) for i in range(32)]


@pytest.fixture(scope="module")
def learner() -> Learner:
    return tiny_learner()


async def probed(engine: PolicyEngine, learner: Learner, **settings: Any) -> Probe:
    prompts = probe_prompts(ROWS, CHAT, longest=400)
    return await probe(engine, learner, prompts, TrainingSettings(max_response_length=64, **settings))


async def probed_model(model: Any, learner: Learner, **settings: Any) -> Probe:
    with InferenceEngine(model) as engine:
        return await probed(InProcessPolicyEngine(engine), learner, **settings)


async def test_an_engine_that_draws_what_is_learned_passes(learner: Learner) -> None:
    found = await probed_model(Model.load(MODEL_DIR), learner)
    assert found.tokens >= TOKENS
    assert found.mean_abs_gap < 1e-4
    found.require_agreement(float32=True)
    found.require_agreement(float32=False)


@pytest.mark.parametrize(
    ("engine", "words"),
    [
        ({"top_p": 0.95}, "leaves out unlikely tokens"),
        ({"top_k": 20}, "leaves out unlikely tokens"),
        ({"repetition_penalty": 1.05}, "a penalty"),
    ],
)
async def test_an_engine_that_truncates_or_penalises_is_refused(
    learner: Learner, engine: dict[str, Any], words: str
) -> None:
    found = await probed_model(TruncatingModel(Model.load(MODEL_DIR), **engine), learner)
    with pytest.raises(DistributionMismatchError, match=words) as refused:
        found.require_agreement(float32=True)
    assert "--generation-config vllm" in str(refused.value.hint)


async def test_an_engine_that_reports_the_probabilities_from_before_it_truncated_is_refused(
    learner: Learner,
) -> None:
    found = await probed_model(Model.load(MODEL_DIR), learner, rollout_top_p=0.8)
    assert found.mean_abs_gap < 1e-4, "the log-probabilities alone say nothing"
    with pytest.raises(DistributionMismatchError, match="not those it drew with"):
        found.require_agreement(float32=True)
    # Of a truncation that the run itself asks for, its settings warn.
    found.require_agreement(float32=True, truncated=True)


def test_rounding_that_leans_to_one_side_is_no_truncation() -> None:
    fair = {"tokens": 600, "surprise": 0.01, "surprise_stderr": 0.03}
    Probe(mean_abs_gap=2e-6, mean_gap=1e-6, gap_stderr=1e-8, **fair).require_agreement(float32=True)
    Probe(mean_abs_gap=1e-2, mean_gap=9e-4, gap_stderr=1e-4, **fair).require_agreement(float32=False)
    with pytest.raises(DistributionMismatchError):
        Probe(mean_abs_gap=1e-2, mean_gap=9e-3, gap_stderr=1e-3, **fair).require_agreement(float32=False)


def connect(server: StandInVllm, adapters: Path) -> VllmEngine:
    return VllmEngine(
        server.url, end_token_ids=frozenset({END}), adapters_dir=adapters, model="base", api_key=KEY
    )


async def test_what_a_model_would_have_a_server_fill_in_changes_nothing(
    learner: Learner, tmp_path: Path
) -> None:
    async with (
        standing_in(ServingStandIn, generation_config=QWEN25) as server,
        connect(server, tmp_path) as engine,
    ):
        found = await probed(engine, learner)
    found.require_agreement(float32=True)
    asked = server.requests[-1]
    assert (asked["top_p"], asked["top_k"], asked["min_p"]) == (1.0, 0, 0.0)
    assert (asked["repetition_penalty"], asked["presence_penalty"], asked["frequency_penalty"]) == (1, 0, 0)


async def test_a_server_that_does_not_do_as_it_is_told_is_refused(learner: Learner, tmp_path: Path) -> None:
    async with (
        standing_in(ServingStandIn, forced={"top_k": 20}) as server,
        connect(server, tmp_path) as engine,
    ):
        found = await probed(engine, learner)
    with pytest.raises(DistributionMismatchError, match="top_k"):
        found.require_agreement(float32=True)


def test_prompts_that_are_too_long_or_make_no_conversation_are_left_out() -> None:
    rows: Sequence[DatasetRow] = [
        DatasetRow(0, question() * 100, None, None),
        DatasetRow(1, [], None, {"only": "metadata"}),
    ]
    [prompt] = probe_prompts(rows, CHAT, longest=60)
    assert 0 < len(prompt) <= 60
