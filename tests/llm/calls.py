"""Clients of the stand-in model, and the chunks of its streams."""

from __future__ import annotations

from typing import Any

import pytest

from osmosis_ai.llm.client import ModelClient
from osmosis_ai.llm.errors import ModelCallError
from osmosis_ai.llm.providers import ModelEndpoint
from tests.standin_model import StandInModel

SECRET = "sk-very-secret-0123456789"
HELLO: dict[str, Any] = {"messages": [{"role": "user", "content": "hello there"}]}
FIRST = {"choices": [{"index": 0, "delta": {"content": "a"}, "finish_reason": None}]}
LAST = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
DONE = b"data: [DONE]\n\n"
DIED = {"object": "error", "message": "engine died", "code": 500}


def endpoint(model: StandInModel, **changes: Any) -> ModelEndpoint:
    facts: dict[str, Any] = {
        "model_path": "openai/m",
        "provider": "openai",
        "model": "m",
        "transport": "openai",
        "base_url": model.base_url,
        "api_key": SECRET,
    }
    return ModelEndpoint(**{**facts, **changes})


def client(model: StandInModel, *, transport: str = "openai", **options: Any) -> ModelClient:
    return ModelClient(endpoint(model, transport=transport), **options)


async def failure(calling: ModelClient, body: dict[str, Any] = HELLO) -> ModelCallError:
    with pytest.raises(ModelCallError) as caught:
        await calling.complete(body)
    return caught.value


async def chunks_of(
    calling: ModelClient, body: dict[str, Any] = HELLO, **options: Any
) -> list[dict[str, Any]]:
    """Return the chunks of a stream, without those of a stream that broke before."""
    chunks: list[dict[str, Any]] = []
    async for chunk in calling.stream(body, restarted=chunks.clear, **options):
        chunks.append(chunk)
    return chunks


def text_of(chunks: list[dict[str, Any]], key: str = "content") -> str:
    """Return the text that chunks have together under a key of their deltas."""
    return "".join(choice["delta"].get(key) or "" for chunk in chunks for choice in chunk["choices"])
