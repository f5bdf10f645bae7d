"""The conversation that the bridge keeps for agents that call below `/recorded`."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from osmosis_ai.driving import bridge
from tests.driving.bridge_world import HELLO, TOKEN, BridgeWorld, bridge_world
from tests.standin_model import Reply, StandInModel, error_reply


@pytest.fixture
async def world() -> AsyncIterator[BridgeWorld]:
    async with StandInModel() as model, bridge_world(model) as built:
        yield built


async def recorded(world: BridgeWorld, token: str = TOKEN) -> Any:
    url = f"{world.url}/v1/rollouts/r1/recorded"
    async with world.session.get(url, headers={"Authorization": f"Bearer {token}"}) as reply:
        return (await reply.json())["messages"] if reply.status == 200 else reply.status


async def say(world: BridgeWorld, *said: str, **more: Any) -> int:
    body = {**HELLO, "messages": [{"role": "user", "content": each} for each in said], **more}
    url = f"{world.url}/v1/rollouts/r1/recorded/chat/completions"
    async with world.session.post(url, json=body, headers={"Authorization": f"Bearer {TOKEN}"}) as reply:
        await reply.read()
        status: int = reply.status
        return status


async def test_it_is_the_last_answered_call_with_its_answer(world: BridgeWorld) -> None:
    assert await recorded(world) is None
    world.model.script(Reply("one"), Reply("two"))
    assert (await say(world, "a"), await say(world, "a", "b")) == (200, 200)
    expected = [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]
    assert await recorded(world) == [*expected, {"role": "assistant", "content": "two"}]
    world.model.respond = lambda _: error_reply(400, "no")
    assert await say(world, "a", "b", "c") == 400
    assert await recorded(world) == [*expected, {"role": "assistant", "content": "two"}]


async def test_a_stream_is_put_together_tool_calls_included(world: BridgeWorld) -> None:
    world.model.script(Reply("say it so", reasoning="well then", tool_calls=[("f", {"a": 1}), ("g", {})]))
    assert await say(world, "a", stream=True) == 200
    _, answer = await recorded(world)
    assert (answer["role"], answer["content"], answer["reasoning_content"]) == (
        "assistant",
        "say it so",
        "well then",
    )
    assert [call["function"] for call in answer["tool_calls"]] == [
        {"name": "f", "arguments": '{"a": 1}'},
        {"name": "g", "arguments": "{}"},
    ]
    assert all(call["id"] and call["type"] == "function" for call in answer["tool_calls"])


async def test_other_calls_are_not_kept_and_others_may_not_read_it(world: BridgeWorld) -> None:
    await world.content()
    assert await recorded(world) is None
    await say(world, "a")
    assert await recorded(world, token="wrong") == 401
    world.bridge.close("r1")
    assert await recorded(world) == 404


async def test_many_long_calls_keep_one_request(world: BridgeWorld) -> None:
    for number in range(5):
        await say(world, "x" * 1000, str(number))
    calls, _ = world.bridge._find("r1")
    assert calls is not None
    kept = [call.request for call in calls._kept if call.request is not None]
    assert len(kept) == 1 and json.loads(kept[0])["messages"][1]["content"] == "4"


async def test_the_last_call_of_any_agent_is_known_as_far_as_it_came(world: BridgeWorld) -> None:
    assert world.bridge.last_call("r1") is None
    await world.content()
    hello = HELLO["messages"]
    assert said_last(world) == [*hello, {"role": "assistant", "content": "ok"}]
    more = {**HELLO, "messages": [*hello, {"role": "user", "content": "more"}]}
    world.model.script(error_reply(400, "no"))
    assert (await world.ask(more))[0] == 400
    assert said_last(world) == more["messages"]
    world.bridge.close("r1")
    assert world.bridge.last_call("r1") is None


async def test_a_stream_that_is_under_way_is_known_so_far(world: BridgeWorld) -> None:
    chunks = [{"choices": [{"index": 0, "delta": {"content": word}}]} for word in ("once ", "upon")]
    world.model.respond = lambda _: Reply(chunks=[*chunks, ConnectionError()])
    await world.ask({**HELLO, "stream": True})
    assert said_last(world) == [*HELLO["messages"], {"role": "assistant", "content": "once upon"}]


async def test_of_many_long_calls_the_last_is_kept_unless_it_is_too_long(
    world: BridgeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(5):
        await world.content({**HELLO, "messages": [{"role": "user", "content": f"{'x' * 1000}{number}"}]})
    calls, _ = world.bridge._find("r1")
    assert calls is not None
    (kept,) = [call.request for call in calls._kept if call.request is not None]
    assert json.loads(kept)["messages"][0]["content"].endswith("x4")
    monkeypatch.setattr(bridge, "MOST_KEPT_OF_ALL_BYTES", 4000)
    for rollout in ("r2", "r3", "r4"):
        world.bridge.open(rollout)
    await world.content({**HELLO, "messages": [{"role": "user", "content": "y" * 1000}]})
    assert world.bridge.last_call("r1") is None
    await world.content(rollout_id="r2")
    assert world.bridge.last_call("r2") is not None
    assert [call for call in calls._kept if call.request is not None] == []


def said_last(world: BridgeWorld) -> list[dict[str, Any]] | None:
    call = world.bridge.last_call("r1")
    return None if call is None else call.messages()
