"""The endpoint selected by `--model`, `--base-url` and `--api-key`."""

from __future__ import annotations

from typing import Any

import pytest

from osmosis_ai.errors import OsmosisError
from osmosis_ai.evaluation.agent_loop.llm_client import choose_endpoint, probe
from osmosis_ai.llm.errors import ModelCallError
from tests.standin_model import Reply, StandInModel, error_reply

HERE = "http://127.0.0.1:8000/v1"


def test_endpoint_of_base_url() -> None:
    endpoint = choose_endpoint("org/name", {}, base_url=f"{HERE}/chat/completions/")
    assert (endpoint.model, endpoint.base_url, endpoint.transport) == ("org/name", HERE, "openai")
    assert endpoint.api_key
    assert choose_endpoint("openai/org/name", {}, base_url=HERE).model == "org/name"

    endpoint = choose_endpoint(
        "osmosis/tiny:calm-fern-1-step-40", {}, base_url=HERE, api_key="of-the-platform"
    )
    assert (endpoint.model, endpoint.base_url) == ("osmosis/tiny:calm-fern-1-step-40", HERE)
    assert (endpoint.transport, endpoint.api_key) == ("openai", "of-the-platform")

    gateway = "https://gateway.example/v1/0123456789abcdef0123456789abcdef/sk-team/openai"
    assert choose_endpoint("m", {}, base_url=gateway).base_url == gateway


def test_api_key_option_overrides_environment() -> None:
    env = {"OPENAI_API_KEY": "from-env"}
    assert choose_endpoint("m", env, base_url=HERE).api_key == "from-env"
    assert choose_endpoint("m", env, base_url=HERE, api_key="given").api_key == "given"
    assert choose_endpoint("anthropic/claude-x", {}, api_key="given").api_key == "given"


def test_provider_of_bare_model_name() -> None:
    assert choose_endpoint("my-tune", {"OPENAI_API_KEY": "k"}).model_path == "openai/my-tune"
    assert choose_endpoint("claude-sonnet-4-5", {"ANTHROPIC_API_KEY": "k"}).provider == "anthropic"
    with pytest.raises(OsmosisError, match="OPENAI_API_KEY"):
        choose_endpoint("gpt-5-mini", {})


async def test_model_name_with_protocol_prefix_is_probed() -> None:
    def only(body: dict[str, Any]) -> Reply:
        known = body["model"] == "openai/gpt-oss"
        return Reply() if known else error_reply(404, f"no model {body['model']}")

    async with StandInModel(only) as model:
        found = await probe(choose_endpoint("openai/gpt-oss", {}, base_url=model.base_url))
        assert found.model == "openai/gpt-oss"
        with pytest.raises(ModelCallError, match="no model other"):
            await probe(choose_endpoint("openai/other", {}, base_url=model.base_url))
