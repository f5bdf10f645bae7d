from __future__ import annotations

from typing import Any

import pytest

from osmosis_ai.errors import OsmosisError
from osmosis_ai.rubric.judge_model import DEFAULT_API_KEY_ENV, resolve_judge
from osmosis_ai.rubric.types import (
    JudgeArgumentError,
    JudgeValueError,
    MissingAPIKeyError,
    ProviderRequestError,
)

CANARY = "sk-canary-7f3a9b2c"


@pytest.mark.parametrize(
    ("provider", "model", "timeout_s"),
    [
        ("xai", "grok-4-fast", 60),
        ("xai", "grok-3", 45),
        ("openai", "gpt-5-mini", 45),
        ("openai", "GPT-5", 45),
        ("openai", "gpt-4o", 30),
        ("gemini", "gemini-2.5-pro", 45),
        ("cerebras", "llama-4", 60),
        ("openrouter", "openai/gpt-5", 60),
        ("anthropic", "claude-sonnet-4-5", 30),
    ],
)
def test_every_documented_provider_has_its_key_and_its_timeout(
    provider: str, model: str, timeout_s: float
) -> None:
    env = {DEFAULT_API_KEY_ENV[provider]: f"  {CANARY} "}
    judge = resolve_judge({"provider": f" {provider.upper()} ", "model": f" {model} "}, env=env)
    assert (judge.provider, judge.model, judge.name) == (provider, model, f"{provider}/{model}")
    assert judge.api_key == CANARY
    assert judge.timeout_s == timeout_s
    assert resolve_judge(f"{provider}/{model}", env=env) == judge, "the LiteLLM name says the same"


@pytest.mark.parametrize(
    ("info", "transport", "base"),
    [
        ({"provider": "openai", "model": "gpt-4o"}, "openai", "https://api.openai.com/v1"),
        ({"provider": "xai", "model": "grok-4"}, "openai", "https://api.x.ai/v1"),
        ({"provider": "anthropic", "model": "claude-sonnet-4-5"}, "litellm", None),
        ({"provider": "google", "model": "gemini-2.5-pro"}, "litellm", None),
        (
            {
                "provider": "anthropic",
                "model": "claude",
                "api_base": "http://localhost:8000/v1/chat/completions",
            },
            "openai",
            "http://localhost:8000/v1",
        ),
    ],
)
def test_openai_compatible_endpoints_are_called_directly(
    info: dict[str, Any], transport: str, base: str | None
) -> None:
    endpoint = resolve_judge({**info, "api_key": CANARY}, env={}).endpoint
    assert (endpoint.transport, endpoint.base_url) == (transport, base)


def test_a_key_in_model_info_wins_over_every_variable() -> None:
    info = {"provider": "openai", "model": "gpt-4o", "api_key": f" {CANARY} ", "api_key_env": "NOT_SET"}
    assert resolve_judge(info, env={"OPENAI_API_KEY": "other"}).api_key == CANARY
    named = {"provider": "openai", "model": "gpt-4o", "api_key": " ", "api_key_env": " MINE "}
    assert resolve_judge(named, env={"OPENAI_API_KEY": "other", "MINE": CANARY}).api_key == CANARY


def test_arguments_win_over_model_info() -> None:
    info = {"provider": "openai", "model": "m", "api_key": "a", "api_base": "http://one/v1", "timeout": 7}
    judge = resolve_judge(info, env={}, api_base="http://two/v1/", api_key="b", timeout_s=0)
    assert (judge.api_base, judge.api_key, judge.timeout_s) == ("http://two/v1", "b", 0)
    assert resolve_judge(info, env={}).timeout_s == 7


@pytest.mark.parametrize(
    ("info", "variable"),
    [
        ({"provider": "openai"}, "OPENAI_API_KEY"),
        ({"provider": "google"}, "GEMINI_API_KEY"),
        ({"provider": "bedrock"}, "AWS_ACCESS_KEY_ID"),
        ({"provider": "vertex_ai"}, "GOOGLE_APPLICATION_CREDENTIALS"),
        ({"provider": "groq"}, "GROQ_API_KEY"),
        ({"provider": "openai", "api_key_env": "TEAM_KEY"}, "TEAM_KEY"),
    ],
)
def test_a_missing_key_is_an_error_with_the_export_line(info: dict[str, Any], variable: str) -> None:
    with pytest.raises(MissingAPIKeyError) as caught:
        resolve_judge({**info, "model": "m"}, env={variable: "  "})
    message = str(caught.value)
    assert f"Environment variable '{variable}' is not set." in message
    assert f'export {variable}="..."' in message
    assert isinstance(caught.value, RuntimeError)
    assert "\n" not in message


def test_an_unknown_provider_without_a_key_is_shown_every_known_variable() -> None:
    with pytest.raises(MissingAPIKeyError) as caught:
        resolve_judge({"provider": "opnai", "model": "gpt-4o"}, env={})
    first, *exports = str(caught.value).splitlines()
    assert first.startswith("there is no known provider 'opnai'; did you mean `openai`?")
    assert {line.strip() for line in exports} == {
        f'export {name}="..."' for name in DEFAULT_API_KEY_ENV.values()
    }


def test_an_unknown_provider_with_a_key_is_refused_before_any_call() -> None:
    with pytest.raises(ProviderRequestError, match=r"no known provider 'nobody'.*set `api_base`"):
        resolve_judge({"provider": "nobody", "model": "m", "api_key": CANARY}, env={})
    with pytest.raises(OsmosisError, match="`nobody/m` names no known provider"):
        resolve_judge("nobody/m", env={})


def test_a_server_of_ones_own_needs_neither_a_known_provider_nor_a_key() -> None:
    judge = resolve_judge({"provider": "mine", "model": "m", "api_base": "http://localhost:8000/v1"}, env={})
    assert judge.api_key is None
    named = resolve_judge("Qwen/Qwen3-8B", env={}, api_base="http://localhost:8000/v1")
    assert (named.provider, named.model) == ("openai", "Qwen/Qwen3-8B")
    assert (
        resolve_judge("hosted_vllm/q", env={"HOSTED_VLLM_API_BASE": "http://h:1/v1"}).api_base
        == "http://h:1/v1"
    )
    with pytest.raises(OsmosisError, match="needs the address of its server: set `api_base`"):
        resolve_judge("hosted_vllm/q", env={})


def test_the_addresses_of_litellm_variables_count() -> None:
    judge = resolve_judge("openai/m", env={"OPENAI_BASE_URL": "http://127.0.0.1:1/v1"})
    assert judge.api_base == "http://127.0.0.1:1/v1"
    assert judge.api_key is None


def test_cloud_credentials_are_not_sent_as_a_key() -> None:
    info = {"provider": "bedrock", "model": "claude"}
    assert resolve_judge(info, env={"AWS_ACCESS_KEY_ID": CANARY}).api_key is None
    assert resolve_judge(info, env={"AWS_PROFILE": "team"}).api_key is None
    assert (
        resolve_judge({**info, "api_key_env": "AWS_ACCESS_KEY_ID"}, env={"AWS_ACCESS_KEY_ID": "x"}).api_key
        is None
    )


@pytest.mark.parametrize(
    ("info", "error", "words"),
    [
        ({}, JudgeArgumentError, "`model_info` needs `provider`"),
        ({"provider": " ", "model": "m"}, JudgeArgumentError, "`model_info` needs `provider`"),
        ({"provider": "openai"}, JudgeArgumentError, "`model_info` needs `model`"),
        ({"provider": "openai", "model": 5}, JudgeArgumentError, "`model_info` needs `model`"),
        ({"provider": "openai", "model": "m", "api_key": 5}, JudgeArgumentError, "`api_key` .* not int"),
        ({"provider": "openai", "model": "m", "api_base": "host:80"}, JudgeArgumentError, "http"),
        ({"provider": "openai", "model": "m", "api_base": "http://u:p@h/v1"}, JudgeArgumentError, "password"),
        ({"provider": "openai", "model": "m", "timeout": "soon"}, JudgeArgumentError, "`timeout`"),
        ({"provider": "openai", "model": "m", "timeout": -1}, JudgeValueError, "`timeout`"),
        ({"provider": "openai", "model": "m", "timeout": float("inf")}, JudgeValueError, "`timeout`"),
    ],
)
def test_what_is_wrong_with_model_info_is_named(
    info: dict[str, Any], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words) as caught:
        resolve_judge(info, env={"OPENAI_API_KEY": CANARY})
    assert CANARY not in str(caught.value)
    assert isinstance(caught.value, TypeError | ValueError)


def test_the_key_is_not_in_the_judges_representation() -> None:
    judge = resolve_judge({"provider": "openai", "model": "gpt-4o", "api_key": CANARY}, env={})
    assert CANARY not in f"{judge!r} {judge} {judge.endpoint!r}"


def test_what_no_environment_variable_can_be_called_is_refused_as_a_name_of_one() -> None:
    with pytest.raises(JudgeArgumentError, match="the name of no environment variable"):
        resolve_judge({"provider": "openai", "model": "m", "api_key_env": "WE IRD-KEY"}, env={})
    with pytest.raises(MissingAPIKeyError) as refused:
        resolve_judge({"provider": "we ird-x", "model": "m"}, env={"WE IRD-X_API_KEY": CANARY})
    assert "WE IRD" not in str(refused.value)
