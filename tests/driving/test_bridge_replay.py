"""A request that a client sends again is the same call; the same request asked anew is not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest
import stamina

from osmosis_ai.driving import bridge as bridge_module
from osmosis_ai.driving import call_record
from tests.driving.bridge_world import HELLO, BridgeWorld, bridge_world, settle
from tests.standin_model import Reply, StandInModel, error_reply

STREAMED = {**HELLO, "stream": True}


@pytest.fixture(autouse=True)
def _no_waiting_between_retries() -> Iterator[None]:
    with stamina.set_testing(True, attempts=3, cap=True):
        yield


@pytest.fixture
async def world() -> AsyncIterator[BridgeWorld]:
    async with StandInModel() as model, bridge_world(model) as built:
        yield built


def number_the_answers(world: BridgeWorld) -> None:
    world.model.respond = lambda _: Reply(content=f"answer-{world.model.calls}")


async def test_a_declared_retry_of_an_answered_call_gets_the_same_answer(world: BridgeWorld) -> None:
    number_the_answers(world)
    assert await world.content(retry_count=0) == "answer-1"
    assert await world.content(retry_count=1) == "answer-1"
    assert await world.content(retry_count=2) == "answer-1"
    assert (world.model.calls, world.bridge.usage("r1").calls) == (1, 1)


def test_a_call_that_its_only_client_left_is_said_to_be_cut_off_and_one_that_was_retried_is_not() -> None:
    class Connection(asyncio.BaseTransport):
        open = True

        def is_closing(self) -> bool:
            return not self.open

    calls = call_record.RolloutCalls()
    assert (calls.usage("m").requests, calls.usage("m").cut_off_since) == (0, None)
    first, second = Connection(), Connection()
    call = calls.begin(b"digest")
    call.delivery(first)
    assert (calls.usage("m").requests, calls.usage("m").cut_off_since) == (1, None)
    first.open = False
    assert calls.usage("m").cut_off_since == call.began
    call.delivery(second).completed()
    second.open = False
    assert calls.usage("m").cut_off_since is None, "it had its answer before it left"


async def test_the_same_request_without_a_sign_of_a_retry_is_a_new_call(world: BridgeWorld) -> None:
    number_the_answers(world)
    assert await world.content(retry_count=0) == "answer-1"
    assert await world.content(retry_count=0) == "answer-2"
    assert await world.content() == "answer-3"
    assert world.bridge.usage("r1").calls == 3


async def test_the_same_request_at_the_same_time_is_sampled_each_time(world: BridgeWorld) -> None:
    number_the_answers(world)
    world.model.latency_s = 0.01
    answers = await asyncio.gather(*(world.content() for _ in range(5)))
    assert sorted(answers) == [f"answer-{number}" for number in range(1, 6)]
    assert (world.model.calls, world.bridge.usage("r1").calls) == (5, 5)


async def test_a_retry_that_differs_in_one_byte_is_a_new_call(world: BridgeWorld) -> None:
    number_the_answers(world)
    await world.content(retry_count=0)
    assert await world.content({**HELLO, "temperature": 0.1}, retry_count=1) == "answer-2"


async def test_a_call_still_under_way_is_joined(world: BridgeWorld) -> None:
    hold = asyncio.Event()
    world.model.script(Reply(content="slow", wait_for=hold))
    await world.cut_off()
    joined = asyncio.create_task(world.content())
    await settle()
    hold.set()
    assert await asyncio.wait_for(joined, 60) == "slow"
    assert (world.model.calls, world.bridge.usage("r1").calls) == (1, 1)


async def test_an_answer_that_reached_nobody_waits_for_the_client_to_come_back(world: BridgeWorld) -> None:
    hold = asyncio.Event()
    world.model.script(Reply(content="kept", wait_for=hold))
    await world.cut_off()
    hold.set()
    await asyncio.gather(*world.bridge._tasks)
    assert await world.content() == "kept"
    number_the_answers(world)
    assert await world.content() == "answer-2"
    assert world.bridge.usage("r1").calls == 2


async def test_a_stream_cut_off_in_the_middle_is_shown_again_from_its_beginning(
    world: BridgeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bridge_module, "PING_INTERVAL_S", 0.01)
    hold = asyncio.Event()
    first = {"id": "s", "choices": [{"index": 0, "delta": {"content": "a"}, "finish_reason": None}]}
    last = {"id": "s", "choices": [{"index": 0, "delta": {"content": "b"}, "finish_reason": "stop"}]}
    world.model.script(Reply(chunks=[first, hold, last, b"data: [DONE]\n\n"]))
    await world.cut_off(STREAMED, first_bytes=True)
    joined = asyncio.create_task(world.events(HELLO))
    await settle()
    hold.set()
    events = [event for event in await asyncio.wait_for(joined, 60) if event != ": ping"]
    assert ['"content":"a"' in events[0], '"content":"b"' in events[1], events[2]] == [
        True,
        True,
        "data: [DONE]",
    ]
    assert (world.model.calls, world.bridge.usage("r1").calls) == (1, 1)


async def test_a_delivered_stream_is_shown_again_to_a_declared_retry(world: BridgeWorld) -> None:
    number_the_answers(world)
    assert await world.events(retry_count=0) == await world.events(retry_count=1)
    assert world.model.calls == 1


async def test_a_failed_call_is_made_again_under_its_own_seed(world: BridgeWorld) -> None:
    world.bridge.open("r2", seed_for=lambda index: 100 + index)
    world.model.script(error_reply(400, "no"))
    status, _, _ = await world.ask(rollout_id="r2", retry_count=0)
    assert status == 400
    assert (await world.ask(rollout_id="r2", retry_count=1))[0] == 200
    assert (await world.ask({**HELLO, "top_p": 1}, rollout_id="r2"))[0] == 200
    assert [request.body["seed"] for request in world.model.requests] == [100, 100, 101]
    assert world.bridge.close("r2").calls == 2


async def test_a_retry_of_a_call_that_never_arrived_is_a_new_call(world: BridgeWorld) -> None:
    number_the_answers(world)
    assert await world.content(retry_count=2) == "answer-1"


async def test_another_rollout_s_answers_are_its_own(world: BridgeWorld) -> None:
    number_the_answers(world)
    world.bridge.open("r2")
    assert await world.content(retry_count=0) == "answer-1"
    assert await world.content(retry_count=1, rollout_id="r2") == "answer-2"
    world.bridge.close("r2")


async def test_kept_answers_stay_within_their_budget(
    world: BridgeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(call_record, "KEPT_ANSWER_BYTES", 5_000)
    world.model.respond = lambda _: Reply(content="x" * 1_000)
    for number in range(20):
        await world.content({**HELLO, "seed": number}, retry_count=0)
    calls, _ = world.bridge._rollouts["r1"]
    assert sum(call.answer.size() for call in calls._kept) <= 5_000
    assert len(calls._by_digest) == len(calls._kept) <= 4
    await world.content({**HELLO, "seed": 19}, retry_count=1)
    assert world.model.calls == 20
    assert world.bridge.usage("r1").calls == 20
