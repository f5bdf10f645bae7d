"""Which endpoint a model's name gives, and what its tokens cost."""

from __future__ import annotations

import subprocess
import sys

import pytest

from osmosis_ai.errors import OsmosisError
from osmosis_ai.llm.prices import Price, TokenUsage, price_of, read_usage
from osmosis_ai.llm.providers import ModelEndpoint, resolve_model

SECRET = "sk-very-secret-0123456789"


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
    endpoint = resolve_model(name, {variable: SECRET})
    assert endpoint.transport == "openai"
    assert endpoint.base_url == base_url
    assert endpoint.api_key == SECRET
    assert f"{endpoint.provider}/{endpoint.model}" == name


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
def test_a_well_known_bare_name_finds_its_provider(name: str, provider: str, transport: str) -> None:
    env = {f"{key}_API_KEY": SECRET for key in ("OPENAI", "ANTHROPIC", "GEMINI", "XAI")}
    endpoint = resolve_model(name, env)
    assert (endpoint.provider, endpoint.transport, endpoint.model) == (provider, transport, name)


@pytest.mark.parametrize("variable", ["OPENAI_BASE_URL", "OPENAI_API_BASE"])
def test_a_server_of_ones_own_behind_openai_needs_no_key(variable: str) -> None:
    endpoint = resolve_model("openai/Qwen/Qwen3-8B", {variable: "http://localhost:30000/v1/"})
    assert endpoint.base_url == "http://localhost:30000/v1"
    assert endpoint.model == "Qwen/Qwen3-8B"
    assert endpoint.api_key is None


def test_vllm_without_an_address_says_which_variable_to_set() -> None:
    with pytest.raises(OsmosisError, match="HOSTED_VLLM_API_BASE") as caught:
        resolve_model("hosted_vllm/m", {})
    assert caught.value.hint == "export HOSTED_VLLM_API_BASE=http://localhost:8000/v1"


@pytest.mark.parametrize(
    ("name", "variable"),
    [
        ("openai/gpt-5", "OPENAI_API_KEY"),
        ("groq/x", "GROQ_API_KEY"),
        ("anthropic/claude-sonnet-4-5", "ANTHROPIC_API_KEY"),
        ("gemini/gemini-2.5-pro", "GEMINI_API_KEY"),
    ],
)
def test_a_missing_key_is_an_error_with_the_line_that_sets_it(name: str, variable: str) -> None:
    with pytest.raises(OsmosisError) as caught:
        resolve_model(name, {variable: "  "})
    assert variable in caught.value.message
    assert caught.value.hint == f"export {variable}=..."


@pytest.mark.parametrize("name", ["azure/m", "bedrock/m", "vertex_ai/m"])
def test_a_provider_with_other_credentials_than_a_key_needs_none(name: str) -> None:
    assert (resolve_model(name, {}).transport, resolve_model(name, {}).api_key) == ("litellm", None)


@pytest.mark.parametrize(
    ("name", "suggestion"),
    [
        ("openia/gpt-4o", "`openai/gpt-4o`"),
        ("antropic/claude-sonnet-4-5", "`anthropic/claude-sonnet-4-5`"),
        ("openrouer/a/b", "`openrouter/a/b`"),
        ("openai/", "`openai/<model>`"),
    ],
)
def test_a_misspelt_provider_gets_a_suggestion(name: str, suggestion: str) -> None:
    with pytest.raises(OsmosisError, match="did you mean") as caught:
        resolve_model(name, {})
    assert suggestion in caught.value.message


@pytest.mark.parametrize("name", ["Qwen/Qwen3-8B", "mymodel", "", "nobody/knows this"])
def test_a_name_without_a_known_provider_is_told_how_names_are_written(name: str) -> None:
    with pytest.raises(OsmosisError, match="provider/model") as caught:
        resolve_model(name, {})
    assert "OPENAI_BASE_URL" in (caught.value.hint or "")


def test_fireworks_short_names_get_their_account_path() -> None:
    endpoint = resolve_model("fireworks_ai/deepseek-v3", {"FIREWORKS_API_KEY": SECRET})
    assert endpoint.model == "accounts/fireworks/models/deepseek-v3"


def test_a_key_is_never_in_the_representation_nor_in_the_limiter_key() -> None:
    endpoint = resolve_model("openai/gpt-5", {"OPENAI_API_KEY": SECRET})
    assert SECRET not in repr(endpoint)
    assert SECRET not in endpoint.limiter_key


SECRET_NAMES = [
    *("key", "api-key", "apikey", "API_KEY", "Ocp-Apim-Subscription-Key", "subscription%2Dkey", "sig", "Sig"),
    *("token", "access_token", "accessToken", "client_secret", "password", "x-auth", "code"),
]
NO_SECRETS = [
    *(
        "deployment=production",
        "region=us-east-1",
        "model=gpt-4o-mini",
        "api_version=2024-10-21",
        "production",
    ),
    *("API-Version=2024-10-21-preview", "max_tokens=100000", "MAX_TOKENS=100000", "tokenizer=default"),
    *("design=simple", "encode=base64", "author=somebody", "keyspace=default", "key=short"),
]


@pytest.mark.parametrize("name", SECRET_NAMES)
def test_a_value_in_the_query_is_a_secret_by_its_name(name: str) -> None:
    env = {"OPENAI_BASE_URL": f"http://host/v1?v=1&{name}=abc%2B12&deployment=production"}
    assert resolve_model("openai/m", env).secrets == ("abc%2B12", "abc+12")


@pytest.mark.parametrize("pair", NO_SECRETS)
def test_other_values_in_the_query_are_no_secrets(pair: str) -> None:
    assert resolve_model("openai/m", {"OPENAI_BASE_URL": f"http://host/v1?{pair}"}).secrets == ()


def test_two_accounts_of_one_provider_do_not_share_a_limit() -> None:
    one, two = (resolve_model("openai/gpt-5", {"OPENAI_API_KEY": key}).limiter_key for key in ("a", "b"))
    assert one != two


@pytest.mark.parametrize("value", ["ftp://host/v1", "localhost:8000", "http://user:hunter2@host/v1"])
def test_an_unusable_address_is_refused_without_showing_it(value: str) -> None:
    with pytest.raises(OsmosisError, match="OPENAI_BASE_URL") as caught:
        resolve_model("openai/m", {"OPENAI_BASE_URL": value})
    assert "hunter2" not in f"{caught.value}{caught.value.hint}"


KEYS = {"OPENAI_API_KEY": "k", "ANTHROPIC_API_KEY": "k", "GEMINI_API_KEY": "k", "OPENROUTER_API_KEY": "k"}


def test_an_unknown_price_is_none_and_not_zero() -> None:
    assert price_of(resolve_model("openai/gpt-from-the-future", KEYS)) is None
    proxied = {**KEYS, "OPENAI_BASE_URL": "https://proxy.example/v1"}
    assert price_of(resolve_model("openai/gpt-4o", proxied)) is None


def test_another_address_under_a_providers_name_has_not_that_providers_price() -> None:
    def price_at(address: str) -> Price | None:
        return price_of(
            ModelEndpoint("anthropic/claude-sonnet-4-5", "anthropic", "claude-sonnet-4-5", "openai", address)
        )

    assert price_at("https://proxy.example/v1") is None
    assert price_at("http://127.0.0.1:8000/v1") == Price(0.0, 0.0)


@pytest.mark.parametrize(
    ("name", "env"),
    [
        ("ollama/llama3", {}),
        ("hosted_vllm/m", {"HOSTED_VLLM_API_BASE": "http://gpu-box:8000/v1"}),
        ("openai/gpt-4o", {"OPENAI_BASE_URL": "http://127.0.0.1:8000/v1"}),
    ],
)
def test_ones_own_servers_cost_nothing(name: str, env: dict[str, str]) -> None:
    price = price_of(resolve_model(name, env))
    assert price is not None
    assert price.cost(TokenUsage(1000, 1000, 2000)) == 0.0


def test_cached_tokens_are_charged_at_their_own_price() -> None:
    price = Price(prompt=10.0, completion=100.0, cached=1.0, cache_write=20.0)
    usage = TokenUsage(10, 2, 12, cached_tokens=6, cache_write_tokens=3)
    assert price.cost(usage) == 1 * 10 + 6 * 1 + 3 * 20 + 2 * 100
    assert Price(10.0, 100.0).cost(usage) == 10 * 10 + 2 * 100


def test_a_long_prompt_is_charged_at_the_price_of_its_tier() -> None:
    price = price_of(resolve_model("gemini/gemini-2.5-pro", KEYS))
    assert price is not None
    assert price.cost(TokenUsage(200_001, 0, 200_001)) > 1.9 * price.cost(TokenUsage(200_000, 0, 200_000))


def test_usage_is_read_in_the_shapes_providers_use() -> None:
    openai = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
    assert read_usage({**openai, "prompt_tokens_details": {"cached_tokens": 4}}) == TokenUsage(10, 5, 15, 4)
    deepseek = {"prompt_tokens": 1, "completion_tokens": 1, "prompt_cache_hit_tokens": 1}
    assert read_usage(deepseek) == TokenUsage(1, 1, 2, cached_tokens=1)
    stated = {"prompt_tokens": 1, "completion_tokens": 1, "cost": 0.25}
    assert read_usage(stated) == TokenUsage(1, 1, 2, stated_cost_usd=0.25)
    assert read_usage({"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 0}) == TokenUsage(
        10, 5, 15
    )
    assert read_usage({"prompt_tokens": 10, "total_tokens": 15}) == TokenUsage(10, 5, 15)
    for odd in (10**400, float("inf"), float("nan"), -1, True, "1"):
        assert read_usage({"prompt_tokens": 1, "completion_tokens": 1, "cost": odd}) == TokenUsage(1, 1, 2)
    partial: list[object] = [{"prompt_tokens": "many"}, {"prompt_tokens": 10, "total_tokens": 0}]
    for nonsense in (None, [], "x", {}, *partial, {"prompt_tokens": -1}, {"prompt_tokens": 10**300}):
        assert read_usage(nonsense) is None


@pytest.mark.integration
def test_looking_up_a_price_does_not_import_litellm() -> None:
    program = (
        "import sys; from osmosis_ai.llm.prices import price_of; "
        "from osmosis_ai.llm.providers import resolve_model; "
        "assert price_of(resolve_model('claude-sonnet-4-5', {'ANTHROPIC_API_KEY': 'k'})); "
        "assert not {'litellm', 'aiohttp', 'openai'} & sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
