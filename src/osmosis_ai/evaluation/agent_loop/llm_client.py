"""The model of an agent loop in this process: any model that ``osmosis_ai.llm`` can call."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from osmosis_ai.errors import OsmosisError
from osmosis_ai.evaluation.agent_loop.inputs import DEFAULT_MODEL, ProviderError
from osmosis_ai.evaluation.sources import open_policy
from osmosis_ai.inference.catalog import BUILT_IN_PREFIX, built_in_model
from osmosis_ai.llm.client import ModelClient, probe
from osmosis_ai.llm.errors import Category, ModelCallError
from osmosis_ai.llm.providers import ModelEndpoint, choose_endpoint
from osmosis_ai.llm.replies import FinishReason
from osmosis_ai.rollout.core.base import CompletionsResult
from osmosis_ai.rollout.core.schemas import RolloutMetrics
from osmosis_ai.rollout.tools import tool_payload

_KINDS: Mapping[Category, str] = {
    "rate_limit": "Rate limit exceeded",
    "auth": "Authentication failed",
    "timeout": "Request timed out",
    "context_length": "Context window exceeded",
}


class ExternalLLMClient:
    """Calls a model for one rollout at a time, with its tools and token counts. An async context manager."""

    def __init__(
        self,
        model: str = DEFAULT_MODEL,
        api_key: str | None = None,
        api_base: str | None = None,
        *,
        client: ModelClient | None = None,
    ) -> None:
        self.model = model if "/" in model else f"openai/{model}"
        self._name, self._api_key, self._api_base = model, api_key, api_base
        self._client = client
        self._loop = asyncio.get_running_loop() if client is not None else None
        self._tools: list[dict[str, Any]] = []
        self.reset_metrics()

    async def __aenter__(self) -> ExternalLLMClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def set_tools(self, tools: Sequence[Any]) -> None:
        """Offer these tools, schemas or dicts, with every further call."""
        self._tools = [tool_payload(tool) for tool in tools]

    def clear_tools(self) -> None:
        self._tools = []

    def reset_metrics(self) -> None:
        self._metrics = RolloutMetrics()
        self.finish_reasons: Counter[str] = Counter()

    def get_metrics(self) -> RolloutMetrics:
        """Return the calls, tokens and latency since the last reset."""
        return self._metrics.model_copy()

    async def chat_completions(self, messages: list[dict[str, Any]], **kwargs: Any) -> CompletionsResult:
        """Return the model's reply; further arguments are those of OpenAI's protocol.

        Raises:
            ProviderError: the call failed.
        """
        body: dict[str, Any] = {"messages": messages}
        if self._tools:
            body["tools"] = self._tools
        body |= {name: value for name, value in kwargs.items() if value is not None}
        client = self._open()
        self._metrics.num_llm_calls += 1
        try:
            completion = await client.complete(body)
        except ModelCallError as error:
            no_credit = error.status == 402 or (error.category == "rate_limit" and not error.retryable)
            kind = "Budget exceeded" if no_credit else _KINDS.get(error.category, "API error")
            raise ProviderError(
                f"{kind}: {error.message}", code=error.code, details=error.details, hint=error.hint
            ) from error
        self._metrics.llm_latency_ms += completion.latency_s * 1000.0
        counts = ("prompt_tokens", "completion_tokens", "total_tokens")
        usage = {name: getattr(completion.usage, name, 0) for name in counts}
        self._metrics.prompt_tokens += usage["prompt_tokens"]
        self._metrics.response_tokens += usage["completion_tokens"]
        finish = FinishReason()
        finish.read(completion.response)
        if finish.value is not None:
            self.finish_reasons[finish.value] += 1
        choice = completion.response["choices"][0]
        return CompletionsResult(
            message={name: value for name, value in choice["message"].items() if value is not None},
            usage=usage,
            finish_reason=choice.get("finish_reason") or "stop",
        )

    async def close(self) -> None:
        """Close the connections; may be called again."""
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()

    def _open(self) -> ModelClient:
        """Return the model's client; each event loop needs its own, since connections belong to one."""
        loop = asyncio.get_running_loop()
        if self._client is not None:
            if self._loop is loop:
                return self._client
            endpoint = self._client.endpoint
        else:
            try:
                endpoint = choose_endpoint(
                    self._name, os.environ, base_url=self._api_base, api_key=self._api_key
                )
            except OsmosisError as error:
                kind = _KINDS["auth"] if "missing_variable" in error.details else "Unexpected error"
                raise ProviderError(f"{kind}: {error.message}", hint=error.hint) from None
        self._client, self._loop = ModelClient(endpoint), loop
        return self._client


def choose_model(
    name: str, *, base_url: str | None = None, api_key: str | None = None
) -> ModelEndpoint | None:
    """Return the endpoint of `--model`, `--base-url` and `--api-key`; None for a built-in model, which has a server."""
    if base_url is None and name.strip().startswith(BUILT_IN_PREFIX):
        built_in_model(name.strip())
        return None
    return choose_endpoint(name, os.environ, base_url=base_url, api_key=api_key)


@asynccontextmanager
async def open_endpoint(
    name: str,
    env: Mapping[str, str],
    lost: Callable[[Exception], None],
    *,
    base_url: str | None = None,
    api_key: str | None = None,
    probing: bool = False,
) -> AsyncIterator[ModelEndpoint]:
    """Open the endpoint of a chosen model; a built-in one is started, and ``lost`` is called if it dies."""
    endpoint = choose_model(name, base_url=base_url, api_key=api_key)
    if endpoint is not None:
        yield await probe(endpoint) if probing else endpoint
    else:
        async with open_policy(name.strip(), env, lost) as started:
            yield started
