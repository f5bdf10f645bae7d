from __future__ import annotations

import subprocess
import sys

import pytest

from osmosis_ai.llm.completion import TokenUsage, read_usage
from osmosis_ai.llm.prices import Price, price_of
from osmosis_ai.llm.providers import ModelEndpoint, resolve_model

KEYS = {"OPENAI_API_KEY": "k", "ANTHROPIC_API_KEY": "k", "GEMINI_API_KEY": "k", "OPENROUTER_API_KEY": "k"}


@pytest.mark.parametrize("name", ["gpt-4o", "openai/gpt-4o", "claude-sonnet-4-5", "gemini/gemini-2.5-pro"])
def test_a_well_known_model_has_a_price(name: str) -> None:
    price = price_of(resolve_model(name, KEYS))
    assert price is not None
    assert 0 < price.prompt < price.completion < 1e-3


def test_an_unknown_price_is_none_and_not_zero() -> None:
    assert price_of(resolve_model("openai/gpt-from-the-future", KEYS)) is None
    assert (
        price_of(resolve_model("openai/gpt-4o", {**KEYS, "OPENAI_BASE_URL": "https://proxy.example/v1"}))
        is None
    )


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


def test_the_built_in_model_costs_nothing() -> None:
    assert price_of(ModelEndpoint("osmosis/tiny", "osmosis", "tiny", "openai", "http://x/v1")) == Price(0, 0)


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
    openai = read_usage(
        {
            "prompt_tokens": 10,
            "completion_tokens": 5,
            "total_tokens": 15,
            "prompt_tokens_details": {"cached_tokens": 4},
            "completion_tokens_details": {"reasoning_tokens": 3},
        }
    )
    assert openai == TokenUsage(10, 5, 15, cached_tokens=4, reasoning_tokens=3)
    deepseek = read_usage({"prompt_tokens": 1, "completion_tokens": 1, "prompt_cache_hit_tokens": 1})
    assert deepseek == TokenUsage(1, 1, 2, cached_tokens=1)
    assert read_usage({"prompt_tokens": 1, "completion_tokens": 1, "cost": 0.25}) == TokenUsage(
        1, 1, 2, stated_cost_usd=0.25
    )
    without_total = read_usage({"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 0})
    assert without_total == TokenUsage(10, 5, 15)
    assert read_usage({"prompt_tokens": 10, "total_tokens": 15}) == TokenUsage(10, 5, 15)
    for odd in (10**400, float("inf"), float("nan"), -1, True, "1"):
        assert read_usage({"prompt_tokens": 1, "completion_tokens": 1, "cost": odd}) == TokenUsage(1, 1, 2)
    for nonsense in (
        None,
        [],
        "x",
        {},
        {"prompt_tokens": "many"},
        {"prompt_tokens": 10, "total_tokens": 0},
        {"prompt_tokens": -1},
        {"prompt_tokens": 10**300},
    ):
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
