"""The model of an agent loop in this process: what it sends, counts and says of failures."""

from __future__ import annotations

import pytest
import stamina

from osmosis_ai.errors import NotFoundError
from osmosis_ai.evaluation.agent_loop.errors import LocalExecutionError, ProviderError
from osmosis_ai.evaluation.agent_loop.llm_client import ExternalLLMClient, open_model
from osmosis_ai.llm.client import ModelClient
from osmosis_ai.llm.errors import ModelCallError
from osmosis_ai.rollout.loop.schemas import OpenAIFunctionSchema, OpenAIFunctionToolSchema
from tests.evaluation.agent_loop.loop_agents import ADD
from tests.standin_model import Reply, StandInModel, error_reply

HELLO = [{"role": "user", "content": "hello"}]


def test_a_name_without_a_provider_is_openais() -> None:
    assert ExternalLLMClient().model == "openai/gpt-5-mini"
    assert ExternalLLMClient("my-tune").model == "openai/my-tune"
    assert ExternalLLMClient("anthropic/claude-x").model == "anthropic/claude-x"


async def test_a_call_carries_the_tools_and_every_argument_and_counts_its_tokens() -> None:
    schema = OpenAIFunctionToolSchema(
        type="function", function=OpenAIFunctionSchema(name="look", description="Look.")
    )
    async with StandInModel() as model:
        model.script(
            Reply(content="hi", usage={"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7})
        )
        async with ExternalLLMClient("org/name", api_base=model.base_url) as client:
            client.set_tools([ADD, schema])
            result = await client.chat_completions(HELLO, temperature=0.5, seed=3, stop=None, max_tokens=9)
            assert (result.content, result.finish_reason, result.token_ids) == ("hi", "stop", [])
            assert result.usage == {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7}
            metrics = client.get_metrics()
            assert (metrics.num_llm_calls, metrics.prompt_tokens, metrics.response_tokens) == (1, 5, 2)
            client.clear_tools()
            client.reset_metrics()
            await client.chat_completions(HELLO)
            await client.close()
            await client.close()
        assert client.get_metrics().num_llm_calls == 1
        first, second = (request.body for request in model.requests)
    assert first["model"] == "org/name"
    assert {name: first[name] for name in ("temperature", "seed", "max_tokens")} == {
        "temperature": 0.5,
        "seed": 3,
        "max_tokens": 9,
    }
    assert [tool["function"]["name"] for tool in first["tools"]] == ["add-up", "look"]
    assert first["tools"][0] == ADD
    assert "stop" not in first
    assert "tools" not in second


@pytest.mark.parametrize(
    "reply, lead",
    [
        (error_reply(401, "bad key"), "Authentication failed: "),
        (error_reply(404, "no such model"), "API error: "),
        (error_reply(429, "You exceeded your current quota", code="insufficient_quota"), "Budget exceeded: "),
        (error_reply(400, "maximum context length is 8 tokens"), "Context window exceeded: "),
        (error_reply(400, "temperature is too high"), "API error: "),
    ],
)
async def test_a_failed_call_says_what_kind_of_failure_it_is(reply: Reply, lead: str) -> None:
    async with StandInModel() as model, ExternalLLMClient("m", api_base=model.base_url) as client:
        model.script(reply)
        with pytest.raises(ProviderError) as caught:
            await client.chat_completions(HELLO)
    assert isinstance(caught.value, LocalExecutionError)
    assert caught.value.message.startswith(lead)
    assert client.get_metrics().num_llm_calls == 1


async def test_a_reply_of_odd_parts_is_read_or_is_an_error_in_one_line() -> None:
    def completion(message: object, usage: object) -> Reply:
        return Reply(body={"choices": [{"index": 0, "message": message}], "usage": usage})

    async with StandInModel() as model, ExternalLLMClient("m", api_base=model.base_url) as client:
        answer = {"role": "assistant", "content": "ok"}
        model.script(completion(answer, {"prompt_tokens": 1e300, "completion_tokens": 3}))
        assert (await client.chat_completions(HELLO)).usage["total_tokens"] == 0
        model.script(completion(answer, [1]))
        assert (await client.chat_completions(HELLO)).usage["total_tokens"] == 0
        model.respond = lambda _: completion("ok", None)
        with (
            stamina.set_testing(True, attempts=2, cap=True),
            pytest.raises(ProviderError, match=r'not a chat completion: .*"message":"ok"'),
        ):
            await client.chat_completions(HELLO)
    assert len(model.requests) == 4


async def test_a_missing_key_is_said_at_the_first_call() -> None:
    with pytest.raises(ProviderError, match=r"Authentication failed: .*OPENAI_API_KEY"):
        await ExternalLLMClient().chat_completions(HELLO)


async def test_clients_share_the_connections_of_one_model_and_close_none_of_it() -> None:
    async with StandInModel() as model, open_model("m", api_base=model.base_url) as shared:
        for _ in range(2):
            async with ExternalLLMClient.sharing(shared) as client:
                assert (await client.chat_completions(HELLO)).content == "ok"
        assert isinstance(shared, ModelClient)
        assert model.calls == 2


async def test_opening_a_model_can_ask_it_once_first() -> None:
    async with StandInModel(api_key="right") as model:
        with pytest.raises(ModelCallError, match="Incorrect API key"):
            async with open_model("m", api_base=model.base_url, api_key="wrong", probing=True):
                pass
        async with open_model("m", api_base=model.base_url, api_key="right", probing=True):
            assert model.calls == 2


async def test_a_model_of_ours_that_is_not_built_in_is_said_to_be_none() -> None:
    with pytest.raises(NotFoundError, match="no built-in model `osmosis/tinny`") as caught:
        async with open_model("osmosis/tinny"):
            pass
    assert caught.value.hint is None
    with pytest.raises(NotFoundError) as caught:
        async with open_model("osmosis/tiny:calm-fern-1-step-40"):
            pass
    assert "give the platform's /v1 address" in (caught.value.hint or "")
