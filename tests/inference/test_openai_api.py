from __future__ import annotations

import asyncio
from typing import Any

import pytest

from osmosis_ai.inference.engine import InferenceEngine
from osmosis_ai.inference.model import Model
from osmosis_ai.inference.openai_api import ChatCompletions, ChatStream
from osmosis_ai.inference.protocol import OpenAIError
from osmosis_ai.inference.template import ChatTemplate
from osmosis_ai.inference.tokenizer import Tokenizer
from tests.inference.conftest import END, HERMES, body, multiply_tool, question
from tests.inference.test_model import log_softmax, teacher_forced

pytestmark = pytest.mark.integration

Json = dict[str, Any]


async def complete(api: ChatCompletions, **changes: Any) -> Json:
    result = await api.create(body(**changes))
    assert isinstance(result, dict)
    return result


async def chunks(api: ChatCompletions, **changes: Any) -> list[Json]:
    result = await api.create(body(stream=True, **changes))
    assert isinstance(result, ChatStream)
    return [chunk async for chunk in result]


async def seed_that(api: ChatCompletions, *, calls: bool) -> int:
    """A seed with which the first answer is a tool call, or is not."""
    for seed in range(50):
        if bool((await complete(api, seed=seed))["choices"][0]["message"].get("tool_calls")) is calls:
            return seed
    raise AssertionError("the model always does the same")


def joined(stream: list[Json], index: int = 0) -> Json:
    """The message that a client puts together from the deltas of one choice."""
    content, calls, finish = "", [], None
    for choice in (choice for chunk in stream for choice in chunk["choices"] if choice["index"] == index):
        content += choice["delta"].get("content") or ""
        calls += choice["delta"].get("tool_calls", [])
        finish = choice["finish_reason"] or finish
    return {"content": content, "tool_calls": calls, "finish_reason": finish}


async def test_a_completion_has_the_shape_clients_expect(api: ChatCompletions) -> None:
    completion = await complete(api, seed=await seed_that(api, calls=False))
    assert completion["object"] == "chat.completion"
    assert completion["model"] == "osmosis/tiny"
    assert completion["id"].startswith("chatcmpl-")
    assert completion["system_fingerprint"] == f"fp_{api.engine.model.fingerprint[:12]}"
    (choice,) = completion["choices"]
    assert choice["message"]["content"].startswith("####")
    assert (choice["index"], choice["finish_reason"], choice["logprobs"]) == (0, "stop", None)
    usage = completion["usage"]
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    assert "prompt_token_ids" not in completion and "token_ids" not in choice


async def test_a_tool_round_trip_ends_in_the_product(api: ChatCompletions) -> None:
    first = await complete(api, seed=await seed_that(api, calls=True))
    message = first["choices"][0]["message"]
    assert first["choices"][0]["finish_reason"] == "tool_calls"
    assert message["content"] is None
    (call,) = message["tool_calls"]
    assert call["function"] == {"name": "multiply", "arguments": '{"a": 12, "b": 34}'}
    answer = {"role": "tool", "tool_call_id": call["id"], "content": "408"}
    second = await complete(api, messages=[*question(), message, answer], temperature=0)
    assert second["choices"][0]["message"]["content"] == "#### 408"


async def test_a_seed_decides_the_reply_alone_or_among_many(api: ChatCompletions) -> None:
    requests = [
        {"messages": question(11 + n, 90 - n), "seed": n, "temperature": 1.2, "return_token_ids": True}
        for n in range(32)
    ]
    alone = [await complete(api, **request) for request in requests]
    together = await asyncio.gather(*(complete(api, **request) for request in requests))
    ids = [[choice["token_ids"] for choice in completion["choices"]] for completion in alone]
    assert ids == [[choice["token_ids"] for choice in completion["choices"]] for completion in together]


async def test_without_a_seed_replies_differ(api: ChatCompletions) -> None:
    replies = await asyncio.gather(*(complete(api, temperature=2.0, return_token_ids=True) for _ in range(8)))
    assert len({tuple(reply["choices"][0]["token_ids"]) for reply in replies}) > 1


async def test_choices_differ_and_the_first_is_the_single_one(api: ChatCompletions) -> None:
    many = await complete(api, seed=3, n=6, temperature=1.5, return_token_ids=True)
    single = await complete(api, seed=3, temperature=1.5, return_token_ids=True)
    ids = [tuple(choice["token_ids"]) for choice in many["choices"]]
    assert [choice["index"] for choice in many["choices"]] == list(range(6))
    assert ids[0] == tuple(single["choices"][0]["token_ids"])
    assert len(set(ids)) > 1
    assert many["usage"]["completion_tokens"] == sum(map(len, ids))


@pytest.mark.parametrize("settings", [{}, {"temperature": 0.7, "top_p": 0.9}, {"temperature": 0}])
async def test_log_probabilities_are_those_of_a_pass_over_the_whole_sequence(
    api: ChatCompletions, model: Model, settings: Json
) -> None:
    seed = await seed_that(api, calls=True)
    completion = await complete(
        api, seed=seed, logprobs=True, top_logprobs=3, return_token_ids=True, **settings
    )
    prompt, (choice,) = completion["prompt_token_ids"], completion["choices"]
    sampled = choice["token_ids"]
    assert len(prompt) == completion["usage"]["prompt_tokens"]
    assert len(sampled) == completion["usage"]["completion_tokens"] == len(choice["logprobs"]["content"])
    assert sampled[-1] == END and choice["logprobs"]["content"][-1]["token"] == "<|im_end|>"
    distributions = log_softmax(
        teacher_forced(model, prompt + sampled) / (settings.get("temperature", 1.0) or 1.0)
    )
    for place, (token, entry) in enumerate(zip(sampled, choice["logprobs"]["content"], strict=True)):
        expected = distributions[len(prompt) - 1 + place]
        assert entry["logprob"] == pytest.approx(expected[token], abs=1e-9)
        best = sorted(expected, reverse=True)[:3]
        assert [top["logprob"] for top in entry["top_logprobs"]] == pytest.approx(best, abs=1e-9)
        assert entry["bytes"] == list(entry["token"].encode())


async def test_zero_alternatives_and_alternatives_are_told_apart(api: ChatCompletions) -> None:
    completion = await complete(api, seed=1, logprobs=True)
    assert completion["choices"][0]["logprobs"]["content"][0]["top_logprobs"] == []


@pytest.mark.parametrize("calls", [True, False])
async def test_a_stream_adds_up_to_the_whole_reply(api: ChatCompletions, calls: bool) -> None:
    seed = await seed_that(api, calls=calls)
    options = {"seed": seed, "logprobs": True, "return_token_ids": True}
    whole, stream = await complete(api, **options), await chunks(api, **options)
    message = whole["choices"][0]["message"]
    put_together = joined(stream)
    assert put_together["content"] == (message["content"] or "")
    assert put_together["finish_reason"] == whole["choices"][0]["finish_reason"]
    functions = [call["function"] for call in put_together["tool_calls"]]
    assert functions == [call["function"] for call in message.get("tool_calls", [])]
    assert [call["index"] for call in put_together["tool_calls"]] == list(range(len(functions)))
    details = [choice for chunk in stream for choice in chunk["choices"]]
    assert [i for d in details for i in d["token_ids"]] == whole["choices"][0]["token_ids"]
    logprobs = [entry["logprob"] for d in details for entry in d["logprobs"]["content"]]
    expected = [entry["logprob"] for entry in whole["choices"][0]["logprobs"]["content"]]
    assert logprobs == pytest.approx(expected, abs=1e-9)
    assert stream[0]["prompt_token_ids"] == whole["prompt_token_ids"]


async def test_a_stream_is_framed_as_openai_frames_it(api: ChatCompletions) -> None:
    seed = await seed_that(api, calls=False)
    stream = await chunks(api, seed=seed, n=2, stream_options={"include_usage": True})
    assert {chunk["object"] for chunk in stream} == {"chat.completion.chunk"}
    assert len({chunk["id"] for chunk in stream}) == 1
    assert stream[0]["choices"][0]["delta"] == {"role": "assistant", "content": "", "refusal": None}
    assert [chunk["usage"] for chunk in stream[:-1]] == [None] * (len(stream) - 1)
    assert stream[-1]["choices"] == []
    whole = await complete(api, seed=seed, n=2)
    assert stream[-1]["usage"] == whole["usage"]
    for index, choice in enumerate(whole["choices"]):
        own = [c for chunk in stream for c in chunk["choices"] if c["index"] == index]
        assert own[-1]["delta"] == {} and own[-1]["finish_reason"] == choice["finish_reason"]
        assert all(c["finish_reason"] is None for c in own[:-1])


async def test_without_include_usage_a_stream_has_no_usage(api: ChatCompletions) -> None:
    assert all("usage" not in chunk for chunk in await chunks(api, seed=1))


async def test_stop_strings_end_the_text_and_the_count(api: ChatCompletions) -> None:
    seed = await seed_that(api, calls=False)
    whole = await complete(api, seed=seed)
    text = whole["choices"][0]["message"]["content"]
    cut = await complete(api, seed=seed, stop=[text[5:7]])
    assert cut["choices"][0]["message"]["content"] == text[:5]
    assert cut["choices"][0]["finish_reason"] == "stop"
    assert cut["usage"]["completion_tokens"] < whole["usage"]["completion_tokens"]
    assert joined(await chunks(api, seed=seed, stop=text[5:7]))["content"] == text[:5]


async def test_max_tokens_cuts_and_says_so(api: ChatCompletions) -> None:
    for name in ("max_tokens", "max_completion_tokens"):
        cut = await complete(api, seed=1, **{name: 2})
        assert (cut["choices"][0]["finish_reason"], cut["usage"]["completion_tokens"]) == ("length", 2)


async def test_tool_choice_none_and_parallel_tool_calls_false_are_honoured(api: ChatCompletions) -> None:
    plain = await complete(api, tool_choice="none", seed=1)
    assert plain["usage"]["prompt_tokens"] == (await complete(api, tools=None))["usage"]["prompt_tokens"]
    assert "tool_calls" not in plain["choices"][0]["message"]
    one = await complete(api, seed=await seed_that(api, calls=True), parallel_tool_calls=False)
    assert len(one["choices"][0]["message"]["tool_calls"]) == 1
    assert one["choices"][0]["finish_reason"] == "tool_calls"


@pytest.mark.parametrize("length", [2040, 1_000_000])
async def test_a_prompt_that_leaves_no_room_is_a_context_length_error(
    api: ChatCompletions, length: int
) -> None:
    with pytest.raises(OpenAIError) as refused:
        await complete(api, messages=[{"role": "user", "content": "7" * length}])
    error = refused.value.body()["error"]
    assert (refused.value.status, error["code"], error["param"]) == (
        400,
        "context_length_exceeded",
        "messages",
    )
    assert "2048" in error["message"]


async def test_the_context_may_be_filled_and_generation_ends_there(
    tireless_model: Model, tokenizer: Tokenizer, template: ChatTemplate
) -> None:
    with InferenceEngine(tireless_model) as engine:
        api = ChatCompletions(engine, tokenizer, template, ["osmosis/tiny"], HERMES)
        long = [{"role": "user", "content": "7" * 2000}]
        completion = await complete(api, messages=long, tools=None, max_tokens=5000)
    assert completion["usage"]["total_tokens"] == 2048
    assert completion["choices"][0]["finish_reason"] == "length"


async def test_an_unknown_model_is_refused_and_its_short_name_is_known(api: ChatCompletions) -> None:
    with pytest.raises(
        OpenAIError, match="'gpt-9' does not exist; this server has 'osmosis/tiny'"
    ) as refused:
        await api.create(body(model="gpt-9"))
    assert (refused.value.status, refused.value.body()["error"]["code"]) == (404, "model_not_found")
    assert (await complete(api, model="tiny"))["model"] == "osmosis/tiny"


async def test_a_busy_engine_is_a_rate_limit_with_the_time_to_wait(
    model: Model, tokenizer: Tokenizer, template: ChatTemplate, prompts: list[tuple[int, ...]]
) -> None:
    idle = InferenceEngine(model, max_waiting=2)  # not started: what is queued stays
    api = ChatCompletions(idle, tokenizer, template, ["osmosis/tiny"], HERMES)
    first = await api.create(body(stream=True, n=2))
    assert isinstance(first, ChatStream)
    with pytest.raises(OpenAIError) as refused:
        await api.create(body())
    assert (refused.value.status, refused.value.headers()) == (429, {"Retry-After": "1"})
    await first.aclose()  # never read, and its places are free again
    assert idle.stats().waiting == 0


async def test_closing_a_stream_stops_the_generation(
    tireless_model: Model, tokenizer: Tokenizer, template: ChatTemplate
) -> None:
    with InferenceEngine(tireless_model, max_batch=8) as engine:
        api = ChatCompletions(engine, tokenizer, template, ["osmosis/tiny"], HERMES)
        stream = await api.create(body(stream=True, n=16, max_tokens=1900))
        assert isinstance(stream, ChatStream)
        async for chunk in stream:
            if chunk["choices"][0]["delta"].get("content"):
                break
        await stream.aclose()
        small = await complete(api, max_tokens=1)  # goes through: nobody holds the batch
        assert small["choices"][0]["finish_reason"] == "length"
        assert engine.stats().finished == 1


async def test_cancelling_a_request_stops_the_generation(
    tireless_model: Model, tokenizer: Tokenizer, template: ChatTemplate
) -> None:
    with InferenceEngine(tireless_model, max_batch=8) as engine:
        api = ChatCompletions(engine, tokenizer, template, ["osmosis/tiny"], HERMES)
        request = asyncio.ensure_future(api.create(body(n=16, max_tokens=1900)))
        while not engine.stats().running:
            assert not request.done()
            await asyncio.sleep(0)
        request.cancel()
        with pytest.raises(asyncio.CancelledError):
            await request
        await complete(api, max_tokens=1)
        assert engine.stats().finished == 1


async def test_tools_of_any_name_and_shape_are_offered_to_the_model(api: ChatCompletions) -> None:
    bare = {"type": "function", "function": {"name": "now", "description": "The time.", "strict": True}}
    completion = await complete(api, tools=[bare, multiply_tool()])
    assert completion["usage"]["prompt_tokens"] > (await complete(api))["usage"]["prompt_tokens"]
