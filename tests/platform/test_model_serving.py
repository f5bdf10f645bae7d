"""The processes behind `/v1`: started when somebody asks, shared, limited, replaced when they die."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable
from typing import Any

import pytest
from aiohttp import web

from osmosis_ai.platform import model_serving as served_module
from osmosis_ai.platform.model_serving import (
    ModelServer,
    ModelServerPool,
    ModelUnavailableError,
    ServableModel,
    TooManyRequestsError,
)
from tests.platform.model_servers import TINY, StandIn, Starts, echo


async def _asked(served: ModelServerPool, body: bytes = b"{}") -> Any:
    async with await served.post(TINY, "/chat/completions", body) as reply:
        return await reply.json()


async def test_one_server_is_started_for_all_who_ask_at_once_and_is_stopped_in_the_end() -> None:
    server = StandIn(echo)
    served = ModelServerPool(Starts(server))

    replies = await asyncio.gather(*(_asked(served, b'{"n": 1}') for _ in range(20)))
    await served.close()

    assert replies == [{"echo": {"n": 1}, "key": "Bearer inner-key"}] * 20
    assert (server.started, server.stopped) == (1, 1)
    with pytest.raises(ModelUnavailableError, match="the platform is stopping"):
        await _asked(served)


async def test_a_server_that_died_is_replaced_and_the_request_does_not_notice() -> None:
    first, second = StandIn(echo), StandIn(echo)
    served = ModelServerPool(Starts(first, second))
    await _asked(served)
    await first.die()

    replies = await asyncio.gather(*(_asked(served) for _ in range(5)))
    await served.close()

    assert len(replies) == 5
    assert (second.started, first.stopped > 0) == (1, True)


async def test_a_request_that_kills_every_server_is_given_up() -> None:
    async def die(request: web.Request) -> web.Response:
        assert request.transport is not None
        request.transport.abort()
        return web.Response()

    served = ModelServerPool(Starts(StandIn(die), StandIn(die)))

    with pytest.raises(ModelUnavailableError, match="`osmosis/tiny` ended before it answered"):
        await _asked(served)
    await served.close()


async def test_a_server_that_does_not_start_is_left_alone_for_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broken, sound = StandIn(echo, broken="no memory"), StandIn(echo)
    served = ModelServerPool(Starts(broken, sound))
    again: list[Callable[[], object]] = []
    monkeypatch.setattr(
        asyncio.get_running_loop(),
        "call_later",
        lambda _delay, call, *args: again.append(lambda: call(*args)),
    )

    for _ in range(3):
        with pytest.raises(ModelUnavailableError, match="cannot be served: no memory"):
            await _asked(served)
    assert broken.started == 1
    monkeypatch.undo()
    again[0]()
    assert (await _asked(served))["echo"] == {}
    await served.close()


async def test_a_failure_that_nobody_foresaw_is_no_more_lasting_than_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    starts = Starts(StandIn(echo))
    is_full = True

    async def start(model: ServableModel) -> ModelServer:
        if is_full:
            raise OSError(errno.ENOSPC, "No space left on device", "/tmp/osmosis-adapter-x")
        return await starts(model)

    served = ModelServerPool(start)
    again: list[Callable[[], object]] = []
    monkeypatch.setattr(
        asyncio.get_running_loop(),
        "call_later",
        lambda _delay, call, *args: again.append(lambda: call(*args)),
    )
    with pytest.raises(ModelUnavailableError, match="No space left"):
        await _asked(served)
    monkeypatch.undo()
    is_full = False
    with pytest.raises(ModelUnavailableError, match="No space left"):
        await _asked(served)
    again[0]()
    assert (await _asked(served))["echo"] == {}
    await served.close()


async def test_who_asked_first_may_go_away_while_the_server_starts() -> None:
    gate = asyncio.Event()

    class Slow(StandIn):
        async def start(self) -> None:
            await gate.wait()
            await super().start()

    server = Slow(echo)
    served = ModelServerPool(Starts(server))
    first, second = asyncio.ensure_future(_asked(served)), asyncio.ensure_future(_asked(served))
    await asyncio.wait({first}, timeout=0)
    first.cancel()
    gate.set()

    assert (await second)["echo"] == {}
    assert server.started == 1
    await served.close()


def test_places_are_limited_in_all_and_for_each_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(served_module, "MAX_REQUESTS", 3)
    monkeypatch.setattr(served_module, "MAX_REQUESTS_PER_KEY", 2)
    served = ModelServerPool(Starts())

    with served.place("a", TINY), served.place("a", TINY):
        with pytest.raises(TooManyRequestsError, match="this key has 2 requests"), served.place("a", TINY):
            pass
        with (
            served.place("b", TINY),
            pytest.raises(TooManyRequestsError, match="too many requests"),
            served.place("c", TINY),
        ):
            pass
        with served.place("c", TINY):
            pass
    with served.place("a", TINY), served.place("b", TINY):
        pass


# -- adapters ----------------------------------------------------------------------------------


def adapters(count: int) -> list[ServableModel]:
    return [ServableModel(f"osmosis/tiny:finch-step-{number}", f"lora_{number}") for number in range(count)]


async def _ask_adapter(served: ModelServerPool, model: ServableModel) -> None:
    with served.place("key", model):
        (await served.post(model, "/chat/completions", b"{}")).close()


async def test_the_adapter_asked_longest_ago_makes_room_for_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(served_module, "MAX_ADAPTERS", 2)
    first, second, third = adapters(3)
    servers = {model: StandIn(echo) for model in (first, second, third, TINY)}
    served = ModelServerPool(Starts(of=servers))
    for model in (TINY, first, second, first, third):
        await _ask_adapter(served, model)
    await asyncio.wait_for(servers[second].has_stopped.wait(), 60)
    assert {model.name: servers[model].stopped for model in (TINY, first, third)} == {
        "osmosis/tiny": 0,
        first.name: 0,
        third.name: 0,
    }
    await served.close()
    assert all(server.stopped for server in servers.values())


async def test_an_adapter_that_is_answering_is_not_ended_for_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(served_module, "MAX_ADAPTERS", 1)
    first, second = adapters(2)
    servers = {model: StandIn(echo) for model in (first, second)}
    served = ModelServerPool(Starts(of=servers))
    with served.place("key", first):
        (await served.post(first, "/chat/completions", b"{}")).close()
        with pytest.raises(ModelUnavailableError, match="as many as this platform serves at a time"):
            await _ask_adapter(served, second)
    await _ask_adapter(served, second)
    assert (servers[first].stopped, servers[second].stopped) == (1, 0)
    await served.close()


async def test_an_adapter_that_nobody_asks_for_ends_and_is_started_again_when_somebody_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(served_module, "ADAPTER_IDLE_S", 0.0)
    (model,) = adapters(1)
    servers = [StandIn(echo), StandIn(echo)]
    left = iter(servers)
    served = ModelServerPool(Starts(*left))
    await _ask_adapter(served, model)
    await asyncio.wait_for(servers[0].has_stopped.wait(), 60)
    await _ask_adapter(served, model)
    assert servers[1].started == 1
    await served.close()


async def test_an_adapter_that_is_withdrawn_ends_at_once_or_when_it_has_answered() -> None:
    idle, answering = adapters(2)
    servers = {model: StandIn(echo) for model in (idle, answering)}
    served = ModelServerPool(Starts(of=servers))
    await _ask_adapter(served, idle)
    with served.place("key", answering):
        (await served.post(answering, "/chat/completions", b"{}")).close()
        for model in (idle, answering, idle):
            served.withdraw(model.adapter_id or "")
        await asyncio.wait_for(servers[idle].has_stopped.wait(), 60)
        assert servers[answering].stopped == 0
    await asyncio.wait_for(servers[answering].has_stopped.wait(), 60)
    await served.close()


async def test_an_adapter_that_is_deployed_again_while_it_answers_goes_on() -> None:
    (model,) = adapters(1)
    server = StandIn(echo)
    served = ModelServerPool(Starts(server))
    with served.place("key", model):
        (await served.post(model, "/chat/completions", b"{}")).close()
        served.withdraw(model.adapter_id or "")
        await _ask_adapter(served, model)
    await _ask_adapter(served, model)
    assert (server.started, server.stopped) == (1, 0)
    await served.close()
