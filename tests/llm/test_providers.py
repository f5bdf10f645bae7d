"""The endpoint of a model name, and the price of its tokens."""

from __future__ import annotations

import math
from typing import Any

import pytest

from osmosis_ai.errors import OsmosisError
from osmosis_ai.llm.prices import FREE, Price, TokenUsage, price_of, read_usage
from osmosis_ai.llm.providers import ModelEndpoint, resolve_model
from tests.llm.calls import SECRET


@pytest.mark.parametrize(
    ("name", "variable", "base_url"),
    [
        ("openai/gpt-5-mini", "OPENAI_API_KEY", "https://api.openai.com/v1"),
        ("openrouter/qwen/qwen3-8b", "OPENROUTER_API_KEY", "https://openrouter.ai/api/v1"),
        ("groq/llama-3.1-8b-instant", "GROQ_API_KEY", "https://api.groq.com/openai/v1"),
        ("deepseek/deepseek-chat", "DEEPSEEK_API_KEY", "https://api.deepseek.com/v1"),
        ("together_ai/Qwen/Qwen3-8B", "TOGETHER_API_KEY", "https://api.together.xyz/v1"),
        ("mistral/mistral-large-latest", "MISTRAL_API_KEY", "https://api.mistral.ai/v1"),
        ("xai/grok-4", "XAI_API_KEY", "https://api.x.ai/v1"),
        ("cerebras/llama3.1-8b", "CEREBRAS_API_KEY", "https://api.cerebras.ai/v1"),
        ("perplexity/sonar", "PERPLEXITY_API_KEY", "https://api.perplexity.ai"),
    ],
)
def test_an_openai_compatible_provider_is_called_directly(name: str, variable: str, base_url: str) -> None:
    found = resolve_model(name, {variable: SECRET})
    assert (found.transport, found.base_url, found.api_key) == ("openai", base_url, SECRET)
    assert f"{found.provider}/{found.model}" == name


@pytest.mark.parametrize(
    ("name", "provider", "transport"),
    [
        ("gpt-5-mini", "openai", "openai"),
        ("o4-mini", "openai", "openai"),
        ("claude-sonnet-4-5", "anthropic", "litellm"),
        ("gemini-2.5-pro", "gemini", "litellm"),
        ("grok-4", "xai", "openai"),
    ],
)
def test_a_well_known_name_without_a_provider(name: str, provider: str, transport: str) -> None:
    env = {f"{key}_API_KEY": SECRET for key in ("OPENAI", "ANTHROPIC", "GEMINI", "XAI")}
    found = resolve_model(name, env)
    assert (found.provider, found.transport, found.model) == (provider, transport, name)


@pytest.mark.parametrize("variable", ["OPENAI_BASE_URL", "OPENAI_API_BASE"])
def test_a_server_of_the_user_needs_no_key(variable: str) -> None:
    found = resolve_model("openai/Qwen/Qwen3-8B", {variable: "http://localhost:30000/v1/"})
    assert (found.base_url, found.model) == ("http://localhost:30000/v1", "Qwen/Qwen3-8B")
    assert found.api_key is None


@pytest.mark.parametrize(
    ("name", "variable", "value"),
    [
        ("openai/gpt-5", "OPENAI_API_KEY", "..."),
        ("groq/x", "GROQ_API_KEY", "..."),
        ("anthropic/claude-sonnet-4-5", "ANTHROPIC_API_KEY", "..."),
        ("gemini/gemini-2.5-pro", "GEMINI_API_KEY", "..."),
        ("hosted_vllm/m", "HOSTED_VLLM_API_BASE", "http://localhost:8000/v1"),
    ],
)
def test_missing_variable(name: str, variable: str, value: str) -> None:
    with pytest.raises(OsmosisError) as caught:
        resolve_model(name, {variable: "  "})
    assert variable in caught.value.message
    assert caught.value.hint == f"export {variable}={value}"


@pytest.mark.parametrize("name", ["azure/m", "bedrock/m", "vertex_ai/m"])
def test_a_provider_with_other_credentials_needs_no_key(name: str) -> None:
    assert (resolve_model(name, {}).transport, resolve_model(name, {}).api_key) == ("litellm", None)


@pytest.mark.parametrize(
    ("name", "suggestion"),
    [
        ("openia/gpt-4o", "'openai/gpt-4o'"),
        ("antropic/claude-sonnet-4-5", "'anthropic/claude-sonnet-4-5'"),
        ("openrouer/a/b", "'openrouter/a/b'"),
        ("openai/", "'openai/<model>'"),
    ],
)
def test_a_misspelled_provider_gets_a_suggestion(name: str, suggestion: str) -> None:
    with pytest.raises(OsmosisError, match="did you mean") as caught:
        resolve_model(name, {})
    assert suggestion in caught.value.message


@pytest.mark.parametrize("name", ["Qwen/Qwen3-8B", "mymodel", "", "nobody/knows this"])
def test_an_unknown_name_is_an_error_with_the_format_of_names(name: str) -> None:
    with pytest.raises(OsmosisError, match="provider/model") as caught:
        resolve_model(name, {})
    assert "OPENAI_BASE_URL" in (caught.value.hint or "")


def test_an_adapter_without_its_base_is_an_error_with_its_full_name() -> None:
    with pytest.raises(OsmosisError, match="'BASE:NAME', such as 'osmosis/tiny:keen-owl-2-step-40'"):
        resolve_model("keen-owl-2-step-40", {})


def test_fireworks_short_names_get_their_account_path() -> None:
    endpoint = resolve_model("fireworks_ai/deepseek-v3", {"FIREWORKS_API_KEY": SECRET})
    assert endpoint.model == "accounts/fireworks/models/deepseek-v3"


@pytest.mark.parametrize(
    "name",
    [
        *("key", "api-key", "apikey", "API_KEY", "Ocp-Apim-Subscription-Key", "subscription%2Dkey", "sig"),
        *("Sig", "token", "access_token", "accessToken", "client_secret", "password", "x-auth", "code"),
    ],
)
def test_a_value_in_the_query_is_a_secret_by_its_name(name: str) -> None:
    env = {"OPENAI_BASE_URL": f"http://host/v1?v=1&{name}=abc%2B12&deployment=production"}
    assert resolve_model("openai/m", env).secrets == ("abc%2B12", "abc+12")


@pytest.mark.parametrize(
    "pair",
    [
        *("deployment=production", "region=us-east-1", "model=gpt-4o-mini", "api_version=2024-10-21"),
        *("production", "API-Version=2024-10-21-preview", "max_tokens=100000", "MAX_TOKENS=100000"),
        *("tokenizer=default", "design=simple", "encode=base64", "author=somebody", "keyspace=default"),
        "key=short",
    ],
)
def test_other_values_in_the_query_are_not_secrets(pair: str) -> None:
    assert resolve_model("openai/m", {"OPENAI_BASE_URL": f"http://host/v1?{pair}"}).secrets == ()


def test_limiter_key() -> None:
    one, two = (resolve_model("openai/gpt-5", {"OPENAI_API_KEY": key}) for key in (SECRET, "b"))
    assert one.limiter_key != two.limiter_key
    assert SECRET not in f"{one!r} {one.limiter_key}"


@pytest.mark.parametrize(
    "value",
    [
        *("ftp://host/v1", "localhost:8000", "http://[host/v1", "http://host:99999/v1", "http://host:0/v1"),
        "http://user:hunter2@host/v1",
    ],
)
def test_an_unusable_address_is_refused_without_showing_it(value: str) -> None:
    with pytest.raises(OsmosisError, match="OPENAI_BASE_URL") as caught:
        resolve_model("openai/m", {"OPENAI_BASE_URL": value})
    assert "hunter2" not in f"{caught.value}{caught.value.hint}"


KEYS = {"OPENAI_API_KEY": "k", "ANTHROPIC_API_KEY": "k", "GEMINI_API_KEY": "k", "OPENROUTER_API_KEY": "k"}


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("https://proxy.example/v1", None),
        ("http://127.proxy.example/v1", None),
        ("http://127.0.0.1:8000/v1", FREE),
    ],
)
def test_a_model_of_litellm_at_another_address(address: str, expected: Price | None) -> None:
    name = "claude-sonnet-4-5"
    assert price_of(ModelEndpoint(f"anthropic/{name}", "anthropic", name, "openai", address)) == expected


@pytest.mark.parametrize(
    ("name", "env", "expected"),
    [
        ("ollama/llama3", {}, Price(0.0, 0.0)),
        ("hosted_vllm/m", {"HOSTED_VLLM_API_BASE": "http://gpu-box:8000/v1"}, FREE),
        ("openai/gpt-4o", {"OPENAI_BASE_URL": "http://127.0.0.1:8000/v1"}, FREE),
        ("openai/gpt-4o", {"OPENAI_BASE_URL": "https://proxy.example/v1"}, None),
        ("openai/gpt-from-the-future", {}, None),
    ],
)
def test_price(name: str, env: dict[str, str], expected: Price | None) -> None:
    assert price_of(resolve_model(name, {**KEYS, **env})) == expected


def test_cached_tokens_are_charged_at_their_own_price() -> None:
    price = Price(prompt=10.0, completion=100.0, cached=1.0, cache_write=20.0)
    usage = TokenUsage(10, 2, 12, cached_tokens=6, cache_write_tokens=3)
    assert price.cost(usage) == 1 * 10 + 6 * 1 + 3 * 20 + 2 * 100
    assert Price(10.0, 100.0).cost(usage) == 10 * 10 + 2 * 100


def test_a_long_prompt_is_charged_at_the_price_of_its_tier() -> None:
    price = price_of(resolve_model("gemini/gemini-2.5-pro", KEYS))
    assert price.cost(TokenUsage(200_001, 0, 200_001)) > 1.9 * price.cost(TokenUsage(200_000, 0, 200_000))


ONE: dict[str, Any] = {"prompt_tokens": 1, "completion_tokens": 1}
FIVE: dict[str, Any] = {"prompt_tokens": 10, "completion_tokens": 5}


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        ({**FIVE, "prompt_tokens_details": {"cached_tokens": 4}}, TokenUsage(10, 5, 15, 4)),
        ({**ONE, "prompt_cache_hit_tokens": 1}, TokenUsage(1, 1, 2, cached_tokens=1)),  # DeepSeek
        ({**ONE, "cost": 0.25}, TokenUsage(1, 1, 2, stated_cost_usd=0.25)),
        ({**FIVE, "total_tokens": 0}, TokenUsage(10, 5, 15)),
        ({"prompt_tokens": 10, "total_tokens": 15}, TokenUsage(10, 5, 15)),
        *(
            ({**ONE, "cost": odd}, TokenUsage(1, 1, 2))
            for odd in (10**400, math.inf, math.nan, -1, True, "1")
        ),
        *((nothing, None) for nothing in (None, [], "x", {}, {"prompt_tokens": "many"})),
        ({"prompt_tokens": 10, "total_tokens": 0}, None),
        ({"prompt_tokens": -1}, None),
        ({"prompt_tokens": 10**300}, None),
    ],
)
def test_usage_in_the_formats_of_providers(usage: object, expected: TokenUsage | None) -> None:
    assert read_usage(usage) == expected
