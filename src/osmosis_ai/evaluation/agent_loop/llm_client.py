"""The model of an agent loop that runs in this process: any model that ``osmosis_ai.llm`` can call.

One client serves one rollout at a time: it holds the rollout's tools and counts its tokens. Any number of
clients share the connections, the rate limit and the prices of one :class:`~osmosis_ai.llm.client.ModelClient`.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any, NoReturn

from osmosis_ai.evaluation.agent_loop.errors import ProviderError
from osmosis_ai.evaluation.agent_loop.runner import DEFAULT_MODEL

if TYPE_CHECKING:
    from osmosis_ai.llm.client import ModelClient
    from osmosis_ai.llm.errors import Category, ModelCallError
    from osmosis_ai.rollout.loop.agent import CompletionsResult
    from osmosis_ai.rollout.loop.schemas import RolloutMetrics

_LEADS: Mapping[Category, str] = {
    "rate_limit": "Rate limit exceeded",
    "auth": "Authentication failed",
    "timeout": "Request timed out",
    "context_length": "Context window exceeded",
    "connection": "API error",
    "server": "API error",
    "not_found": "API error",
    "bad_request": "API error",
    "invalid_reply": "API error",
}
_UNEXPECTED = "Unexpected error"
# Of OpenAI's protocol, and never an agent's to set: who is asked is said once, and replies come whole.
_NOT_THE_AGENTS = frozenset({"model", "stream", "stream_options"})


class ExternalLLMClient:
    """Calls a model for an agent loop; an async context manager."""

    def __init__(
        self, model: str = DEFAULT_MODEL, api_key: str | None = None, api_base: str | None = None
    ) -> None:
        self.model = model if "/" in model else f"openai/{model}"
        self._named = model
        self._api_key = api_key
        self._api_base = api_base
        self._shared: ModelClient | None = None
        self._client: ModelClient | None = None
        self._opened: AsyncExitStack | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._opening = asyncio.Lock()
        self._tools: list[dict[str, Any]] | None = None
        self.reset_metrics()

    @classmethod
    def sharing(cls, client: ModelClient) -> ExternalLLMClient:
        """Return a client that calls through ``client``, which stays open when this one is closed."""
        found = cls(client.model_path)
        found._shared = client
        return found

    async def __aenter__(self) -> ExternalLLMClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def set_tools(self, tools: Sequence[Any]) -> None:
        """Offer these tools, schemas or dicts, with every call from now on."""
        from osmosis_ai.rollout.loop.tool_schemas import tool_payload

        self._tools = [tool_payload(tool) for tool in tools] or None

    def clear_tools(self) -> None:
        """Offer no tools any more."""
        self._tools = None

    def reset_metrics(self) -> None:
        """Count from zero."""
        self._calls = 0
        self._prompt_tokens = 0
        self._completion_tokens = 0
        self._latency_ms = 0.0
        self.finish_reasons: dict[str, int] = {}

    def get_metrics(self) -> RolloutMetrics:
        """Return what the calls since the last reset came to."""
        from osmosis_ai.rollout.loop.schemas import RolloutMetrics

        return RolloutMetrics(
            llm_latency_ms=self._latency_ms,
            num_llm_calls=self._calls,
            prompt_tokens=self._prompt_tokens,
            response_tokens=self._completion_tokens,
        )

    async def chat_completions(self, messages: list[dict[str, Any]], **kwargs: Any) -> CompletionsResult:
        """Return the model's reply; further arguments travel as OpenAI's protocol names them."""
        from osmosis_ai.llm.errors import ModelCallError
        from osmosis_ai.llm.finish_reasons import FinishReason

        body: dict[str, Any] = {"messages": messages}
        if self._tools:
            body["tools"] = self._tools
        body |= {
            name: value for name, value in kwargs.items() if value is not None and name not in _NOT_THE_AGENTS
        }
        client = await self._open()
        started = time.perf_counter()
        try:
            completion = await client.complete(body)
        except ModelCallError as error:
            _raise_provider_error(error)
        finally:
            self._latency_ms += (time.perf_counter() - started) * 1000.0
            self._calls += 1
        if completion.usage is not None:
            self._prompt_tokens += completion.usage.prompt_tokens
            self._completion_tokens += completion.usage.completion_tokens
        finish = FinishReason()
        finish.read(completion.response)
        if finish.value is not None:
            self.finish_reasons[finish.value] = self.finish_reasons.get(finish.value, 0) + 1
        return _result_of(completion.response)

    async def close(self) -> None:
        """Close the connections; a second time does nothing."""
        opened, self._opened = self._opened, None
        if opened is not None:
            self._client = None
            await opened.aclose()

    async def _open(self) -> ModelClient:
        """Return the model client, opened with the first call in this event loop."""
        from osmosis_ai.errors import OsmosisError

        if self._shared is not None:
            return self._shared
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            # Connections belong to one event loop; those of another are of no use here.
            self._loop, self._opening, self._client = loop, asyncio.Lock(), None
        async with self._opening:
            if self._client is not None:
                return self._client
            opened = AsyncExitStack()
            try:
                self._client = await opened.enter_async_context(
                    open_model(self._named, api_key=self._api_key, api_base=self._api_base)
                )
            except OsmosisError as error:
                lead = _LEADS["auth"] if "missing_variable" in error.details else _UNEXPECTED
                raise ProviderError(f"{lead}: {error.message}", hint=error.hint) from None
            self._opened = opened
            return self._client


@asynccontextmanager
async def open_model(
    named: str,
    *,
    api_key: str | None = None,
    api_base: str | None = None,
    probing: bool = False,
    calls_at_once: int = 64,
) -> AsyncIterator[ModelClient]:
    """Open the client of a model, and with it the server of a model of ours."""
    from osmosis_ai.evaluation.policy import open_policy
    from osmosis_ai.inference.catalog import BUILT_IN_PREFIX, built_in_model
    from osmosis_ai.llm.chosen_endpoint import choose_endpoint, probe
    from osmosis_ai.llm.client import ModelClient

    async with AsyncExitStack() as opened:
        if api_base is None and named.startswith(BUILT_IN_PREFIX):
            built_in_model(named)
            # A server that ends too early is told of by the calls that fail.
            endpoint = await opened.enter_async_context(open_policy(named, os.environ, lambda _: None))
        else:
            endpoint = choose_endpoint(named, os.environ, base_url=api_base, api_key=api_key)
            endpoint = await probe(endpoint) if probing else endpoint
        yield await opened.enter_async_context(ModelClient(endpoint, max_connections=calls_at_once))


def _raise_provider_error(error: ModelCallError) -> NoReturn:
    lead = "Budget exceeded" if _out_of_credit(error) else _LEADS.get(error.category, _UNEXPECTED)
    raise ProviderError(
        f"{lead}: {error.message}", code=error.code, details=error.details, hint=error.hint
    ) from error


def _out_of_credit(error: ModelCallError) -> bool:
    return error.status == 402 or (error.category == "rate_limit" and not error.retryable)


def _result_of(response: Mapping[str, Any]) -> CompletionsResult:
    from osmosis_ai.llm.completion import read_usage
    from osmosis_ai.rollout.loop.agent import CompletionsResult

    choice = response["choices"][0]
    message = choice["message"]
    usage = read_usage(response.get("usage"))
    names = ("prompt_tokens", "completion_tokens", "total_tokens")
    counts = {name: getattr(usage, name) if usage is not None else 0 for name in names}
    return CompletionsResult(
        message={name: value for name, value in message.items() if value is not None},
        token_ids=[],
        logprobs=[],
        usage=counts,
        finish_reason=choice.get("finish_reason") or "stop",
    )
