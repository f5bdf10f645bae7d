"""The model proxy: the wire, retries, and the recorded conversation."""

from __future__ import annotations

import asyncio
import json
import logging
import os
from collections.abc import AsyncIterator, Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
import stamina

from osmosis_ai.controller import model_proxy
from osmosis_ai.controller.attempt import Attempt, attempt_seeds, save_trajectory
from osmosis_ai.controller.model_proxy import LastCall, LiteLLMBridge
from osmosis_ai.datasets import DatasetRow
from osmosis_ai.rollout.model_client import close_shared_connections, open_http
from tests.controller.attempts import ended
from tests.controller.proxy_world import HELLO, SECRET, TOKEN, ProxyWorld, proxy_world, settle
from tests.lazily import lazily
from tests.standin_model import Reply, StandInModel, error_reply

with lazily():
    import httpx
    import openai

TOOL = {
    "type": "function",
    "function": {"name": "multiply", "parameters": {"type": "object", "properties": {}}},
}


@pytest.fixture(autouse=True)
def _no_waiting_between_retries() -> Iterator[None]:
    with stamina.set_testing(True, attempts=3, cap=True):
        yield


@pytest.fixture
async def world() -> AsyncIterator[ProxyWorld]:
    async with StandInModel() as model, proxy_world(model) as built:
        yield built


@pytest.fixture(params=["openai", "litellm"])
async def either(request: pytest.FixtureRequest) -> AsyncIterator[ProxyWorld]:
    async with StandInModel() as model, proxy_world(model, transport=request.param) as built:
        yield built


# Access


@pytest.mark.parametrize("token", [None, "", "wrong", TOKEN + "x", "Ünïcode"])
async def test_wrong_tokens(world: ProxyWorld, token: str | None) -> None:
    status, headers, answer = await world.ask(token=token)
    assert (status, answer["error"]["code"]) == (401, "invalid_api_key")
    assert headers["x-should-retry"] == "false"
    assert world.model.calls == 0


async def test_a_rollout_that_is_not_open(world: ProxyWorld) -> None:
    assert (await world.ask(rollout_id="r2"))[0] == 404
    world.proxy.close("r1")
    assert (await world.ask())[0] == 404
    assert world.model.calls == 0


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'"text"', b"null", b"[" * 200_000])
async def test_malformed_bodies(world: ProxyWorld, body: bytes) -> None:
    status, _, answer = await world.ask(body)
    assert (status, answer["error"]["type"]) == (400, "invalid_request_error")


# What passes, both ways


async def test_weakness_12_tools_and_other_fields_survive_both_ways(either: ProxyWorld) -> None:
    either.model.script(
        Reply(
            content="two words",
            reasoning="let me see",
            tool_calls=[("multiply", {"a": 6})],
            logprobs=[-0.25, -0.5],
        )
    )
    fields = {
        "tools": [TOOL],
        "tool_choice": "required",
        "parallel_tool_calls": True,
        "response_format": {"type": "json_object"},
        "logprobs": True,
        "top_logprobs": 1,
        "stop": ["x"],
        "seed": 3,
        "n": 1,
        "presence_penalty": 0.5,
        "frequency_penalty": 0.25,
        "max_completion_tokens": 9,
        "top_k": 4,
    }
    status, _, answer = await either.ask({**HELLO, **fields})
    assert status == 200
    sent = either.model.requests[0].body
    assert {name: sent.get(name) for name in fields} == fields
    assert (sent["model"], answer["model"]) == ("m", "osmosis-rollout")
    choice = answer["choices"][0]
    assert (choice["finish_reason"], choice["message"]["content"]) == ("tool_calls", "two words")
    assert choice["message"]["reasoning_content"] == "let me see"
    assert choice["message"]["tool_calls"][0]["function"] == {"name": "multiply", "arguments": '{"a": 6}'}
    assert [entry["logprob"] for entry in choice["logprobs"]["content"]] == [-0.25, -0.5]
    assert answer["usage"]["total_tokens"] == 4


async def test_seeds_of_calls(world: ProxyWorld) -> None:
    world.proxy.open("r2", seed_for=lambda index: 1000 + index)
    for body in (HELLO, {**HELLO, "seed": 5}, {**HELLO, "seed": None}, {**HELLO, "stream": True}):
        async with world.post(body, rollout_id="r2") as response:
            await response.read()
    assert [request.body["seed"] for request in world.model.requests] == [1000, 5, 1002, 1003]
    world.proxy.close("r2")


async def test_openai_client(world: ProxyWorld) -> None:
    base_url = world.rollout_url("r1").removesuffix("/chat/completions")
    world.model.script(Reply(content="one two"), Reply(content="one two"))
    async with openai.AsyncOpenAI(base_url=base_url, api_key=TOKEN) as agent:
        whole = await agent.chat.completions.create(model="x", messages=HELLO["messages"])
        assert whole.choices[0].message.content == "one two"
        stream = await agent.chat.completions.create(
            model="x", messages=HELLO["messages"], stream=True, stream_options={"include_usage": True}
        )
        chunks = [chunk async for chunk in stream]
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == "one two"
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 2


@pytest.mark.parametrize("stream", [False, True])
async def test_only_own_clients_keep_connections(world: ProxyWorld, stream: bool) -> None:
    base_url, body = world.rollout_url("r1").removesuffix("/chat/completions"), {**HELLO, "stream": stream}
    key = {"Authorization": f"Bearer {TOKEN}"}
    async with httpx.AsyncClient(base_url=base_url, headers=key) as other, open_http(base_url, TOKEN) as own:
        closed, kept = [await client.post("/chat/completions", json=body) for client in (other, own)]
    await close_shared_connections()
    assert (closed.status_code, closed.headers.get("Connection")) == (200, "close")
    assert (kept.status_code, kept.headers.get("Connection")) == (200, None)


# Streams


def data_of(events: list[str]) -> list[dict[str, Any]]:
    return [json.loads(line[6:]) for line in events if line.startswith("data: {")]


async def test_a_stream(either: ProxyWorld) -> None:
    either.model.script(Reply(content="one two", reasoning="hm", tool_calls=[("multiply", {"a": 6})]))
    events = await either.events({**HELLO, "tools": [TOOL], "stream_options": {"include_usage": True}})
    assert events[-1] == "data: [DONE]"
    chunks = data_of(events)
    assert {chunk["model"] for chunk in chunks} == {"osmosis-rollout"}
    assert [bool(chunk.get("usage")) for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
    assert chunks[-1]["choices"] == []
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks[:-1]]
    assert "".join(delta.get("content") or "" for delta in deltas) == "one two"
    assert "".join(delta.get("reasoning_content") or "" for delta in deltas) == "hm"
    assert len(deltas) >= 5


async def test_a_repeated_stream_is_invisible(world: ProxyWorld) -> None:
    first = {"choices": [{"index": 0, "delta": {"content": "a"}, "finish_reason": None}]}
    world.model.script(Reply(chunks=[first]), Reply(content="whole"))
    chunks = data_of(await world.events())
    assert "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks) == "whole"
    await settle()
    usage = world.proxy.usage("r1")
    assert (usage.calls, usage.completion_tokens, world.model.calls) == (1, 1, 2)


# Failures


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("trouble", "status", "kind"),
    [
        (error_reply(400, "own words", code="odd"), 400, "invalid_request_error"),
        (error_reply(401, "own words"), 401, "authentication_error"),
        (error_reply(403, "own words"), 403, "authentication_error"),
        (error_reply(404, "own words"), 404, "not_found_error"),
        (error_reply(422, "own words"), 422, "invalid_request_error"),
        (error_reply(429, "own words"), 429, "rate_limit_error"),
        (error_reply(500, "own words"), 502, "api_error"),
        (error_reply(503, "own words"), 502, "api_error"),
    ],
)
async def test_failures_of_the_provider(
    world: ProxyWorld, trouble: Reply, status: int, kind: str, stream: bool
) -> None:
    world.model.respond = lambda _: trouble
    got, headers, answer = await world.ask({**HELLO, "stream": stream})
    assert (got, answer["error"]["type"]) == (status, kind)
    assert "own words" in answer["error"]["message"]
    assert headers["x-should-retry"] == "false"  # the proxy has retried, so OpenAI's client does not
    assert world.model.calls == (3 if status in (429, 502) else 1)
    usage = world.proxy.usage("r1")
    assert usage.calls == 0
    assert usage.last_error is not None
    assert usage.last_error.provider_message == "own words"


async def test_a_failure_after_a_heartbeat(world: ProxyWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_proxy, "PING_INTERVAL_S", 0.01)
    hold = asyncio.Event()
    first = {"choices": [{"index": 0, "delta": {"content": "a"}, "finish_reason": None}]}
    failure = {"error": {"message": "own words", "code": 500}}
    world.model.respond = lambda _: Reply(chunks=[first, hold, failure])
    async with world.post({**HELLO, "stream": True}) as response:
        assert await asyncio.wait_for(response.content.readline(), 60) == b": ping\n"
        hold.set()
        events = [line for line in (await response.text()).splitlines() if line and line != ": ping"]
    assert events[0] == "event: error"
    assert "own words" in json.loads(events[1].removeprefix("data: "))["error"]["message"]
    assert events[2] == "data: [DONE]"
    assert world.model.calls == 3


async def test_answers_and_logs_do_not_show_the_key(
    world: ProxyWorld, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    shown = ""
    for status in (400, 401, 429, 500):
        world.model.respond = lambda _, status=status: error_reply(status, f"the key {SECRET} is wrong")
        shown += str(await world.ask())
    assert "is wrong" in shown
    assert SECRET not in shown
    assert SECRET not in caplog.text


async def test_closing_a_rollout_ends_its_calls(world: ProxyWorld) -> None:
    world.model.script(Reply(wait_for=asyncio.Event()))
    asking = asyncio.create_task(world.ask())
    await world.model.arrived.wait()
    usage = world.proxy.close("r1")
    status, _, answer = await asyncio.wait_for(asking, 60)
    assert (status, answer["error"]["code"], usage.calls) == (404, "rollout_not_found", 0)


# What is recorded


async def test_usage_and_report_of_a_rollout(either: ProxyWorld) -> None:
    usage = {
        "prompt_tokens": 10,
        "completion_tokens": 2,
        "total_tokens": 12,
        "prompt_tokens_details": {"cached_tokens": 4},
    }
    either.model.script(
        Reply(content="a b", usage=usage, logprobs=[-0.25, -0.5], extra={"prompt_token_ids": [1, 2]}),
        Reply(content="c d", usage=usage, logprobs=[-1.0, -2.0]),
    )
    before = datetime.now(timezone.utc)
    await either.ask({**HELLO, "logprobs": True})
    await either.events({**HELLO, "logprobs": True})
    total = either.proxy.close("r1")
    assert (total.calls, total.prompt_tokens, total.completion_tokens, total.total_tokens) == (2, 20, 4, 24)
    assert (total.cost_usd, total.last_error) == (0.0, None)
    assert len(total.model_latency_s) == 2
    assert total.report is not None
    assert total.report["model_name"] == "openai/m"
    [sample] = total.report["samples"].values()
    first, second = sample["llm_call_metrics"]
    assert (first["prompt_tokens"], first["cached_tokens"], first["cost_usd"]) == (10, 4, 0.0)
    assert (first["logprobs"], second["logprobs"]) == ([-0.25, -0.5], [-1.0, -2.0])
    assert first["prompt_token_ids"] == [1, 2]
    began = [datetime.fromisoformat(call["extra"]["started_at"]) for call in (first, second)]
    ms = timedelta(milliseconds=1)  # as which they are written
    assert before - ms <= began[0] <= began[1] + ms <= datetime.now(timezone.utc) + ms
    assert json.loads(json.dumps(total.report)) == total.report


async def test_token_ids_are_recorded(world: ProxyWorld) -> None:
    def chunk(text: str, ids: list[int], finish: str | None = None) -> dict[str, Any]:
        return {
            "choices": [{"index": 0, "delta": {"content": text}, "token_ids": ids, "finish_reason": finish}]
        }

    world.model.script(
        Reply(extra={"prompt_token_ids": [1]}, choice_extra={"token_ids": [2, 3]}),
        Reply(chunks=[{**chunk("a", [5]), "prompt_token_ids": [4]}, chunk("b", [6, 7], "stop")]),
    )
    await world.ask()
    await world.events()
    report = world.proxy.close("r1").report
    assert report is not None
    [sample] = report["samples"].values()
    ids = [(call["prompt_token_ids"], call["completion_token_ids"]) for call in sample["llm_call_metrics"]]
    assert ids == [([1], [2, 3]), ([4], [5, 6, 7])]


async def test_an_unknown_cost_is_not_zero(world: ProxyWorld) -> None:
    await world.ask()
    world.model.script(Reply(usage=False))
    await world.ask({**HELLO, "seed": 1})
    total = world.proxy.close("r1")
    assert (total.calls, total.total_tokens, total.cost_usd) == (2, 3, None)


# LiteLLMBridge


async def test_litellm_bridge() -> None:
    async with StandInModel() as model:
        bridge = LiteLLMBridge(model="openai/m", api_key=SECRET, api_base=model.base_url)
        await bridge.preflight_check()
        answer = await bridge.complete(HELLO, rollout_id="a")
        assert (answer["choices"][0]["message"]["content"], answer["model"]) == ("ok", "osmosis-rollout")
        assert model.requests[0].headers["Authorization"] == f"Bearer {SECRET}"
        await bridge.complete(HELLO, rollout_id="a")
        await bridge.complete(HELLO, rollout_id="b")
        assert (bridge.collect_tokens("a"), bridge.collect_tokens("a")) == (6, None)
        bridge.discard("b")
        assert bridge.collect_tokens("b") is None
        await bridge.aclose()
    with pytest.raises(RuntimeError, match="Invalid LiteLLM model format"):
        LiteLLMBridge(model="nonsense")


STREAMED = {**HELLO, "stream": True}


def number_the_answers(world: ProxyWorld) -> None:
    world.model.respond = lambda _: Reply(content=f"answer-{world.model.calls}")


async def test_a_declared_retry_gets_the_same_answer(world: ProxyWorld) -> None:
    number_the_answers(world)
    assert await world.content(retry_count=0) == "answer-1"
    assert await world.content(retry_count=1) == "answer-1"
    assert await world.content(retry_count=2) == "answer-1"
    assert (world.model.calls, world.proxy.usage("r1").calls) == (1, 1)


async def test_equal_concurrent_requests_are_all_sampled(world: ProxyWorld) -> None:
    number_the_answers(world)
    world.model.latency_s = 0.01
    answers = await asyncio.gather(*(world.content() for _ in range(5)))
    assert sorted(answers) == [f"answer-{number}" for number in range(1, 6)]
    assert (world.model.calls, world.proxy.usage("r1").calls) == (5, 5)


async def test_a_running_call_is_joined(world: ProxyWorld) -> None:
    hold = asyncio.Event()
    world.model.script(Reply(content="slow", wait_for=hold))
    await world.cut_off()
    joined = asyncio.create_task(world.content())
    await settle()
    hold.set()
    assert await asyncio.wait_for(joined, 60) == "slow"
    assert (world.model.calls, world.proxy.usage("r1").calls) == (1, 1)


async def test_a_retry_joins_a_running_stream(world: ProxyWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_proxy, "PING_INTERVAL_S", 0.01)
    hold = asyncio.Event()
    first = {"id": "s", "choices": [{"index": 0, "delta": {"content": "a"}, "finish_reason": None}]}
    last = {"id": "s", "choices": [{"index": 0, "delta": {"content": "b"}, "finish_reason": "stop"}]}
    world.model.script(Reply(chunks=[first, hold, last, b"data: [DONE]\n\n"]))
    await world.cut_off(STREAMED, first_bytes=True)
    joined = asyncio.create_task(world.events(HELLO))
    await settle()
    hold.set()
    events = [event for event in await asyncio.wait_for(joined, 60) if event != ": ping"]
    assert '"content":"a"' in events[0] and '"content":"b"' in events[1]
    assert events[2:] == ["data: [DONE]"]
    assert (world.model.calls, world.proxy.usage("r1").calls) == (1, 1)


async def test_a_failed_call_keeps_its_seed(world: ProxyWorld) -> None:
    world.proxy.open("r2", seed_for=lambda index: 100 + index)
    world.model.script(error_reply(400, "no"))
    status, _, _ = await world.ask(rollout_id="r2", retry_count=0)
    assert status == 400
    assert (await world.ask(rollout_id="r2", retry_count=1))[0] == 200
    assert (await world.ask({**HELLO, "top_p": 1}, rollout_id="r2"))[0] == 200
    assert [request.body["seed"] for request in world.model.requests] == [100, 100, 101]
    assert world.proxy.close("r2").calls == 2


async def test_another_rollout_has_its_own_answers(world: ProxyWorld) -> None:
    number_the_answers(world)
    world.proxy.open("r2")
    assert await world.content(retry_count=0) == "answer-1"
    assert await world.content(retry_count=1, rollout_id="r2") == "answer-2"
    world.proxy.close("r2")


async def test_the_limit_of_kept_answers(world: ProxyWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_proxy, "KEPT_ANSWER_BYTES", 5_000)
    world.model.respond = lambda _: Reply(content="x" * 1_000)
    for number in range(20):
        await world.content({**HELLO, "seed": number}, retry_count=0)
    await world.content({**HELLO, "seed": 19}, retry_count=1)
    assert (world.model.calls, world.proxy.usage("r1").calls) == (20, 20)
    for number in range(16):
        await world.content({**HELLO, "seed": number}, retry_count=1)
    assert world.model.calls == 36


async def recorded(world: ProxyWorld, token: str = TOKEN) -> Any:
    url = f"{world.url}/v1/rollouts/r1/recorded"
    async with world.session.get(url, headers={"Authorization": f"Bearer {token}"}) as reply:
        return (await reply.json())["messages"] if reply.status == 200 else reply.status


async def say(world: ProxyWorld, *said: str, **more: Any) -> int:
    body = {**HELLO, "messages": [{"role": "user", "content": each} for each in said], **more}
    url = f"{world.url}/v1/rollouts/r1/recorded/chat/completions"
    async with world.session.post(url, json=body, headers={"Authorization": f"Bearer {TOKEN}"}) as reply:
        await reply.read()
        status: int = reply.status
        return status


async def test_the_recorded_conversation_is_the_last_answered_call(world: ProxyWorld) -> None:
    assert await recorded(world) is None
    world.model.script(Reply("one"), Reply("two"))
    assert (await say(world, "a"), await say(world, "a", "b")) == (200, 200)
    expected = [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]
    assert await recorded(world) == [*expected, {"role": "assistant", "content": "two"}]
    world.model.respond = lambda _: error_reply(400, "no")
    assert await say(world, "a", "b", "c") == 400
    assert await recorded(world) == [*expected, {"role": "assistant", "content": "two"}]


async def test_the_recorded_conversation_is_private(world: ProxyWorld) -> None:
    await world.content()
    assert await recorded(world) is None, "only calls to the recorded path count"
    await say(world, "a")
    assert await recorded(world, token="wrong") == 401
    world.proxy.close("r1")
    assert await recorded(world) == 404


async def test_the_recorded_conversation_of_a_stream(world: ProxyWorld) -> None:
    world.model.script(Reply("say it so", reasoning="well then", tool_calls=[("f", {"a": 1}), ("g", {})]))
    assert await say(world, "a", stream=True) == 200
    _, answer = await recorded(world)
    assert (answer["role"], answer["content"]) == ("assistant", "say it so")
    assert answer["reasoning_content"] == "well then"
    assert [call["function"] for call in answer["tool_calls"]] == [
        {"name": "f", "arguments": '{"a": 1}'},
        {"name": "g", "arguments": "{}"},
    ]
    assert all(call["id"] and call["type"] == "function" for call in answer["tool_calls"])


async def test_last_call_of_an_agent(world: ProxyWorld) -> None:
    assert world.proxy.usage("r1").last_call is None
    await world.content()
    hello = HELLO["messages"]
    assert said_last(world) == [*hello, {"role": "assistant", "content": "ok"}]
    more = {**HELLO, "messages": [*hello, {"role": "user", "content": "more"}]}
    world.model.script(error_reply(400, "no"))
    assert (await world.ask(more))[0] == 400
    assert said_last(world) == more["messages"]
    world.proxy.close("r1")
    assert world.proxy.usage("r1").last_call is None


def said_last(world: ProxyWorld) -> list[dict[str, Any]] | None:
    call = world.proxy.usage("r1").last_call
    return None if call is None else call.messages()


REQUEST = {"messages": [{"role": "user", "content": "hello"}]}
ANSWER = {"choices": [{"index": 0, "message": {"role": "assistant", "content": "hi \u00e9"}}]}
CALL = LastCall(json.dumps(REQUEST).encode(), json.dumps(ANSWER).encode())


ROW = DatasetRow(7, [{"role": "user", "content": "hello"}], "hi", {"a": 1})


def keep(root: Path, call: LastCall = CALL) -> None:
    attempt = Attempt(ROW, 3, 1, attempt_seeds(0, 3, 1))
    save_trajectory(root, ended(attempt, "r1", last_call=call))


@pytest.mark.parametrize("name", ["trajectory.json", ".trajectory.json.pending"])
def test_a_trajectory_of_the_server_is_kept(tmp_path: Path, name: str) -> None:
    (tmp_path / "r1").mkdir()
    (tmp_path / "r1" / name).write_text("its own")
    keep(tmp_path)
    assert [path.read_text() for path in (tmp_path / "r1").iterdir()] == ["its own"]


def test_links_of_the_agent_are_not_followed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    elsewhere, root = tmp_path / "elsewhere", tmp_path / "trials"
    elsewhere.mkdir()
    root.mkdir()
    (root / "r1").symlink_to(elsewhere)
    keep(root)
    assert list(elsewhere.iterdir()) == []
    assert "cannot save the conversation of rollout r1" in caplog.text

    os.unlink(root / "r1")
    (root / "r1").mkdir()
    (root / "r1" / ".trajectory.json.called").symlink_to(elsewhere / "new")
    keep(root)
    assert list(elsewhere.iterdir()) == [] and not (root / "r1" / "trajectory.json").exists()


@pytest.mark.parametrize(
    "request_", [{}, {"messages": None}, {"messages": ["text"]}, {"messages": [{"content": [[]] * 3}]}]
)
def test_trajectories_of_malformed_requests(tmp_path: Path, request_: dict[str, object]) -> None:
    keep(tmp_path, LastCall(json.dumps(request_).encode(), b""))
    keep(tmp_path, LastCall(b'{"messages": ' + b"[" * 5000, b""))


async def test_the_limit_of_a_request(world: ProxyWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    long = {"messages": [{"role": "user", "content": "x" * 3_000_000}]}
    assert (await world.ask(long))[0] == 200
    monkeypatch.setattr(model_proxy, "MAX_REQUEST_BYTES", 1_000_000)
    assert (await world.ask(long))[0] == 413


async def test_usage_is_sent_in_its_own_chunk(world: ProxyWorld) -> None:
    usage = {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7}
    last = {"id": "x", "choices": [{"index": 0, "delta": {"content": "a"}, "finish_reason": "stop"}]}
    world.model.script(Reply(chunks=[{**last, "usage": usage}, b"data: [DONE]\n\n"]))
    chunks = data_of(await world.events({**HELLO, "stream_options": {"include_usage": True}}))
    assert ["usage" in chunk for chunk in chunks] == [False, True]
    assert chunks[1]["usage"] == usage
