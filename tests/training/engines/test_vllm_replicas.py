"""Several vLLM servers that share the rollouts, one of which dies."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import stamina

from osmosis_ai.errors import NetworkError, OsmosisError
from osmosis_ai.inference.engine import EngineStoppedError, SampledToken
from osmosis_ai.inference.model import Model
from osmosis_ai.training.engines import vllm_engine
from osmosis_ai.training.engines.vllm_engine import VllmEngine
from tests.training.engines.test_vllm_engine import PublishablePolicy, generated, wanted
from tests.training.policy_world import END, MODEL_DIR
from tests.training.standin_vllm import StandInVllm, connect, sample, standing_in


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(vllm_engine, "PROBE_INTERVAL_S", 0.1)
    with stamina.set_testing(True, attempts=2, cap=True):
        yield


@pytest.fixture
async def four() -> AsyncIterator[list[Any]]:
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(standing_in()) for _ in range(4)]


class Rollout:
    """What identifies the calls of a rollout."""


async def turns(engine: VllmEngine, seed: int, count: int) -> list[list[SampledToken]]:
    """Run a rollout whose calls follow each other."""
    rollout, drawn = Rollout(), []
    for turn in range(count):
        drawn += await generated(engine, wanted(100 * seed + turn, rollout=rollout))
    return drawn


async def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)


def seeds_of(server: StandInVllm) -> list[int]:
    return [request["seed"] for request in server.requests]


async def test_rollouts_are_spread_evenly_and_stay_on_their_server(four: list[Any], tmp_path: Path) -> None:
    async with connect(four, tmp_path) as engine:
        await asyncio.gather(*(turns(engine, seed, 3) for seed in range(16)))
    served = [{seed // 100 for seed in seeds_of(server)} for server in four]
    assert [len(seeds) for seeds in served] == [4, 4, 4, 4]
    assert len(set.union(*served)) == 16


async def test_the_rollouts_of_a_killed_server_continue_with_the_same_tokens(
    four: list[Any], tmp_path: Path
) -> None:
    notes: list[str] = []
    async with connect(four, tmp_path, note=notes.append) as engine:
        await engine.publish(PublishablePolicy(), 1)
        four[1].hold = asyncio.Event()
        four[1].arrived.clear()
        running = [asyncio.create_task(turns(engine, seed, 3)) for seed in range(16)]
        await asyncio.wait_for(four[1].arrived.wait(), 60)
        await four[1].kill()
        drawn = await asyncio.gather(*running)
        model = Model.load(MODEL_DIR)
        asked = {request["seed"]: request for server in four for request in server.requests}
        for seed, rollout in enumerate(drawn):
            for turn, tokens in enumerate(rollout):
                expected = sample(model, asked[100 * seed + turn])
                assert [(t.id, t.logprob) for t in tokens] == [(t.id, t.logprob) for t in expected]
                assert {token.version for token in tokens} == {1}
        answered = sorted(seed for server in (four[0], *four[2:]) for seed in seeds_of(server))
        assert answered == sorted(100 * seed + turn for seed in range(16) for turn in range(3))
        assert engine.failure is None
    [note] = notes
    assert note.startswith(f"vLLM at {four[1].url} cannot be reached: ")
    assert note.endswith(". 3 of 4 vLLM servers are available.")


async def test_a_server_that_comes_back_gets_the_newest_adapter(four: list[Any], tmp_path: Path) -> None:
    notes: list[str] = []
    async with connect(four, tmp_path, note=notes.append) as engine:
        await engine.publish(PublishablePolicy(), 1)
        await four[2].kill()
        await engine.publish(PublishablePolicy(), 2)
        assert [list(server.loaded) for server in (four[0], four[1], four[3])] == [["r-v2"]] * 3
        async with standing_in(port=urlsplit(four[2].url).port or 0) as again:
            await until(lambda: len(notes) == 2)
            assert list(again.loaded) == ["r-v2"]
            assert notes[1] == f"vLLM at {again.url} answers again. 4 of 4 vLLM servers are available."
            drawn = await asyncio.gather(*(turns(engine, seed, 1) for seed in range(8)))
            assert {token.version for [tokens] in drawn for token in tokens} == {2}
            assert len(again.requests) == 2


async def test_a_request_that_every_server_fails_does_not_end_the_run(
    four: list[Any], tmp_path: Path
) -> None:
    notes: list[str] = []
    async with connect(four, tmp_path, note=notes.append) as engine:
        for server in four:
            server.fail = [500] * 2  # one request and its retry
        with pytest.raises(EngineStoppedError, match="HTTP 500"):
            await generated(engine, wanted())
        assert engine.failure is None
        await until(
            lambda: notes[1:] == [f"vLLM at {four[0].url} answers again. 4 of 4 vLLM servers are available."]
        )
        for server in four:
            server.fail.clear()
        assert all(await asyncio.gather(*(turns(engine, seed, 1) for seed in range(8))))


async def test_the_run_continues_without_a_server_that_refuses_an_adapter(
    four: list[Any], tmp_path: Path
) -> None:
    notes: list[str] = []
    async with connect(four, tmp_path, note=notes.append) as engine:
        four[1].takes_adapters = False
        await engine.publish(PublishablePolicy(), 1)
        drawn = await asyncio.gather(*(turns(engine, seed, 1) for seed in range(6)))
        assert {token.version for [tokens] in drawn for token in tokens} == {1}
        assert (len(four[1].requests), len(notes)) == (0, 1)
        assert "refused the request (HTTP 404)" in notes[0] and "3 of 4 vLLM servers" in notes[0]
        for server in four:
            server.takes_adapters = False
        with pytest.raises(OsmosisError, match=r"All 4 vLLM servers are unavailable\..*refused the request"):
            await engine.publish(PublishablePolicy(), 2)


async def test_a_server_that_hangs_is_left(
    four: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vllm_engine, "ANSWER_TIMEOUT_S", 0.3)
    async with connect(four, tmp_path) as engine:
        four[0].silent = True
        drawn = await asyncio.wait_for(asyncio.gather(*(turns(engine, seed, 2) for seed in range(8))), 60)
    assert [len(tokens) for tokens in drawn] == [2] * 8
    assert len(four[0].requests) == 2, "no call was sent again to the server that hangs"


async def test_a_server_that_hangs_does_not_delay_the_end(
    four: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vllm_engine, "ANSWER_TIMEOUT_S", 0.3)
    engine = await connect(four, tmp_path).__aenter__()
    await engine.publish(PublishablePolicy(), 1)
    four[0].silent = True
    await asyncio.wait_for(engine.__aexit__(), 60)
    assert [server.unloaded for server in four] == [[], *[["r-v1"]] * 3]


async def test_the_run_fails_when_no_server_is_left(four: list[Any], tmp_path: Path) -> None:
    async with connect(four, tmp_path) as engine:
        await asyncio.gather(*(server.kill() for server in four))
        with pytest.raises(
            EngineStoppedError, match=r"All 4 vLLM servers are unavailable\. vLLM at http://127"
        ):
            await generated(engine, wanted())
        assert isinstance(engine.failure, NetworkError)


async def test_a_run_starts_without_a_server_that_is_not_there(four: list[Any], tmp_path: Path) -> None:
    notes: list[str] = []
    await four[3].kill()
    async with connect(four, tmp_path, note=notes.append) as engine:
        await asyncio.gather(*(turns(engine, seed, 1) for seed in range(6)))
    assert [len(server.requests) for server in four] == [2, 2, 2, 0]
    assert len(notes) == 1


@dataclass
class Simulated(StandInVllm):
    """Takes 0.4 s for a completion and computes 4 at a time."""

    busy_s: float = 0.0
    finished: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        self._slots = asyncio.Semaphore(4)

    async def sampled(self, body: dict[str, Any]) -> list[SampledToken]:
        async with self._slots:
            started = time.monotonic()
            await asyncio.sleep(0.4)
            self.busy_s += time.monotonic() - started
            self.finished += 1
        return [SampledToken(END, -0.5)]


async def test_the_remaining_servers_are_busy(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        servers = [await stack.enter_async_context(standing_in(Simulated)) for _ in range(4)]
        engine = await stack.enter_async_context(connect(servers, tmp_path))
        running = [asyncio.create_task(turns(engine, seed, 4)) for seed in range(48)]
        await until(lambda: servers[0].finished >= 8)
        await servers[0].kill()
        killed, before = time.monotonic(), [server.busy_s for server in servers]
        await until(lambda: all(server.finished >= 48 for server in servers[1:]))
        capacity_s = 4 * (time.monotonic() - killed)
        shares = [(each.busy_s - was) / capacity_s for each, was in zip(servers, before, strict=True)]
        drawn = await asyncio.gather(*running)
    assert min(shares[1:]) > 0.9
    assert [len(tokens) for tokens in drawn] == [4] * 48
