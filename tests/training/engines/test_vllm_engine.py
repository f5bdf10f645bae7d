"""The policy on vLLM, against a stand-in that speaks the fields vLLM documents."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import stamina

from osmosis_ai.config.training import TrainingSettings
from osmosis_ai.errors import NetworkError, OsmosisError
from osmosis_ai.inference.engine import EngineStoppedError, Generation, SampledToken
from osmosis_ai.inference.model import Model
from osmosis_ai.inference.openai_api import TokenFeed
from osmosis_ai.training.engines.adapter_upload import ADAPTER_FILES
from osmosis_ai.training.engines.vllm_engine import VllmEngine, VllmServer
from tests.training.policy_world import END, MODEL_DIR
from tests.training.standin_vllm import connect, sample, standing_in


@pytest.fixture(autouse=True)
def _no_waiting_between_retries() -> Iterator[None]:
    with stamina.set_testing(True, attempts=3, cap=True):
        yield


@dataclass
class PublishablePolicy:
    def merged_state(self) -> dict[str, Any]:
        raise AssertionError("vLLM takes adapters, not weights")

    def low_rank_state(self) -> dict[str, Any]:
        raise AssertionError("vLLM takes adapters, not weights")

    def save_adapter(self, directory: Path, *, for_vllm: bool) -> None:
        directory.mkdir(parents=True)
        for name in ADAPTER_FILES:
            (directory / name).write_text("{}")


async def generated(engine: VllmEngine, *generations: Generation) -> list[list[SampledToken]]:
    feed = TokenFeed(engine, generations, every_token=False)
    tokens: list[list[SampledToken]] = [[] for _ in generations]
    unfinished = len(generations)
    while unfinished:
        for index, emission in await asyncio.wait_for(feed.read(), 300):
            tokens[index].append(emission.token)
            unfinished -= emission.finish_reason is not None
    return tokens


def wanted(seed: int = 0, **changes: Any) -> Generation:
    return Generation((5, 6, 7), 8, seed, frozenset({END}), **changes)


async def test_ids_go_in_and_come_out_with_their_log_probabilities(tmp_path: Path) -> None:
    async with standing_in() as server, connect(server, tmp_path) as engine:
        assert engine.model.config.max_positions == 512
        [first], [second] = (
            await generated(engine, wanted(1, temperature=0.7)),
            await generated(engine, wanted(2**64 - 1, top_logprobs=2)),
        )
        asked = server.requests[-2]
        assert asked["prompt"] == [5, 6, 7]
        assert (asked["temperature"], asked["seed"], asked["return_token_ids"]) == (0.7, 1, True)
        assert server.requests[-1]["seed"] < 2**63
        assert [t.id for t in first] == [t.id for t in sample(Model.load(MODEL_DIR), asked)]
        assert all(len(token.top) == 2 for token in second)


async def test_every_version_has_a_name_of_its_own_and_the_old_one_is_unloaded(tmp_path: Path) -> None:
    async with standing_in() as server, connect(server, tmp_path) as engine:
        for version in (1, 2):
            await engine.publish(PublishablePolicy(), version)
            [tokens] = await generated(engine, wanted())
            assert {token.version for token in tokens} == {version}
            assert server.requests[-1]["model"] == f"r-v{version}"
        assert (list(server.loaded), server.unloaded) == (["r-v2"], ["r-v1"])
        assert [path.name for path in tmp_path.iterdir()] == ["r-v2"]
    assert server.unloaded == ["r-v1", "r-v2"]


@pytest.mark.parametrize("experts", [True, False])
def test_the_option_for_experts_is_given_only_for_models_that_have_them(
    experts: bool, tmp_path: Path
) -> None:
    settings = TrainingSettings(policy_engine="vllm", vllm_command="vllm")
    named = {"model": "m", "served_as": "m", "dtype": "bfloat16", "environ": {}}
    server = VllmServer(settings, experts=experts, gpus=None, log_path=tmp_path / "log", **named)
    assert ("--enable-mixed-moe-lora-format" in server.spec.command) == experts


@pytest.mark.parametrize(
    ("gpus", "visible", "shares"), [(None, None, False), ([], None, True), (["1", "2"], "1,2", False)]
)
def test_a_server_gets_the_gpus_that_the_learner_does_not_use(
    gpus: list[str] | None, visible: str | None, shares: bool, tmp_path: Path
) -> None:
    settings = TrainingSettings(vllm_command="vllm")
    named = {"model": "m", "served_as": "m", "dtype": "bfloat16", "environ": {}, "experts": False}
    server = VllmServer(settings, gpus=gpus, log_path=tmp_path / "log", **named)
    assert server.spec.env.get("CUDA_VISIBLE_DEVICES") == visible
    assert ("--gpu-memory-utilization" in server.spec.command) == shares


async def test_a_call_under_way_keeps_its_version_until_it_ends(tmp_path: Path) -> None:
    async with standing_in() as server, connect(server, tmp_path) as engine:
        await engine.publish(PublishablePolicy(), 1)
        server.arrived.clear()
        server.hold = asyncio.Event()
        slow = asyncio.create_task(generated(engine, wanted()))
        await asyncio.wait_for(server.arrived.wait(), 300)
        await engine.publish(PublishablePolicy(), 2)
        assert server.unloaded == []
        server.hold.set()
        [tokens] = await slow
        assert {token.version for token in tokens} == {1}
        await asyncio.gather(*engine._tasks)
        assert server.unloaded == ["r-v1"]


async def test_a_request_that_fails_for_a_moment_is_made_again(tmp_path: Path) -> None:
    async with standing_in() as server, connect(server, tmp_path) as engine:
        server.fail = [503, 500]
        [tokens] = await generated(engine, wanted(3))
        assert [t.id for t in tokens] == [t.id for t in sample(Model.load(MODEL_DIR), server.requests[-1])]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"token_ids": None}, "one id for each token"),
        ({"logprobs": {"token_logprobs": [-1.0] * 50}}, "one id for each token"),
        ({"token_ids": [5], "logprobs": {"token_logprobs": [None]}}, "one id for each token"),
        ({"token_ids": [5], "logprobs": {"token_logprobs": [math.nan]}}, "not valid"),
        ({"prompt_token_ids": [1, 2]}, "a different prompt"),
    ],
)
async def test_a_reply_that_could_be_learned_wrongly_from_is_an_error(
    tmp_path: Path, change: dict[str, Any], words: str
) -> None:
    async with standing_in() as server, connect(server, tmp_path) as engine:
        server.change = change
        with pytest.raises(EngineStoppedError, match=words):
            await generated(engine, wanted())


async def test_a_server_that_takes_no_adapters_keeps_its_version(tmp_path: Path) -> None:
    async with standing_in(takes_adapters=False) as server, connect(server, tmp_path) as engine:
        with pytest.raises(OsmosisError, match="refused") as refused:
            await engine.publish(PublishablePolicy(), 1)
        assert "VLLM_ALLOW_RUNTIME_LORA_UPDATING=1" in str(refused.value.hint)
        assert list(tmp_path.iterdir()) == []
        [tokens] = await generated(engine, wanted())
        assert {token.version for token in tokens} == {0}


async def test_top_p_is_refused(tmp_path: Path) -> None:
    async with standing_in() as server, connect(server, tmp_path) as engine:
        with pytest.raises(OsmosisError, match="after `top_p`"):
            engine.submit([wanted(top_p=0.9)], listener=None)  # type: ignore[arg-type]


async def test_a_server_that_forgot_its_adapter_is_given_it_again(tmp_path: Path) -> None:
    async with standing_in() as server, connect(server, tmp_path) as engine:
        await engine.publish(PublishablePolicy(), 1)
        server.loaded.clear()  # as after a restart
        replies = await asyncio.gather(*(generated(engine, wanted(seed)) for seed in range(3)))
        assert {token.version for [tokens] in replies for token in tokens} == {1}
        assert list(server.loaded) == ["r-v1"]
        assert engine.failure is None


async def test_a_server_without_the_model_is_refused(tmp_path: Path) -> None:
    async with standing_in() as server:
        with pytest.raises(OsmosisError, match=r"\(available: `base`\)"):
            async with connect(server, tmp_path, model="other"):
                raise AssertionError


async def test_a_server_that_is_not_there_is_named(tmp_path: Path) -> None:
    async with standing_in() as server:
        pass
    with pytest.raises(NetworkError, match="cannot be reached"):
        async with connect(server, tmp_path):
            raise AssertionError
