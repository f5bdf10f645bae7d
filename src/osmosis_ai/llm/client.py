"""A client for many concurrent calls of one model.

A call first waits for a slot (``llm.limiter``). It is retried only if a retry can help: after rate limits, timeouts,
lost connections and server errors. The slot is released while a call waits for its next attempt. A stream is retried
only before its first chunk, so that its output never changes after it was shown.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Collection, Mapping
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

import stamina

from osmosis_ai.llm.completion import Completion, TokenUsage, read_usage
from osmosis_ai.llm.direct import DirectTransport, ModelTransport
from osmosis_ai.llm.errors import ModelCallError
from osmosis_ai.llm.limiter import Limiter, Slot, shared_limiter
from osmosis_ai.llm.parameters import FittedRequest, ParameterFit
from osmosis_ai.llm.prices import Price, price_of
from osmosis_ai.llm.providers import LITELLM_KEYS, OPENAI_COMPATIBLE, ModelEndpoint
from osmosis_ai.llm.replies import ToolCalls, excerpt
from osmosis_ai.llm.wire_json import dumps

__all__ = ["ClientStats", "Completion", "ModelCallError", "ModelClient", "TokenUsage"]

# stamina logs every scheduled retry; without a handler, Python prints these records to stderr.
logging.getLogger("stamina").addHandler(logging.NullHandler())

_T = TypeVar("_T")
_Chunks = AsyncGenerator[dict[str, Any], None]

_FIRST_WAIT_S = 0.5
_LONGEST_WAIT_S = 30.0
# Almost all rate limits are per minute, so six attempts must last longer than one.
_LONGEST_RATE_LIMIT_WAIT_S = 60.0
# A provider that asks for more means "come back tomorrow", so the call fails instead of waiting.
_LONGEST_WAIT_ASKED_S = 300.0
_PREFLIGHT_TRIES = 2
_PREFLIGHT_BODY = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 16}


@dataclass(frozen=True)
class ClientStats:
    """The state of a client at one moment."""

    limit: int
    in_flight: int
    waiting: int
    rate_limited: int
    retries: int
    refused_parameters: tuple[str, ...]


class ModelClient:
    """A client for one model: an async context manager, bound to one event loop."""

    def __init__(
        self,
        endpoint: ModelEndpoint,
        *,
        max_connections: int = 64,
        request_timeout_s: float = 600.0,
        max_attempts: int = 6,
    ) -> None:
        self.endpoint = endpoint
        self._max_connections = max_connections
        self._request_timeout_s = request_timeout_s
        self._max_attempts = max_attempts
        self._transport = _transport_for(endpoint, timeout_s=request_timeout_s)
        self._fit = ParameterFit(endpoint.renames)
        self._retries = 0

    async def __aenter__(self) -> ModelClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        await self._transport.aclose()

    @property
    def model_path(self) -> str:
        """The model, as the user names it."""
        return self.endpoint.model_path

    async def complete(self, body: Mapping[str, Any], *, optional: Collection[str] = ()) -> Completion:
        """Call the model and return its whole reply."""
        return await self._complete(body, optional, tries=self._max_attempts)

    async def stream(
        self, body: Mapping[str, Any], *, restarted: Callable[[], object], optional: Collection[str] = ()
    ) -> _Chunks:
        """Call the model and yield OpenAI chunks as they arrive, including the usage chunk."""
        options = body.get("stream_options")
        droppable = {*optional, "stream_options"} if options is None else optional
        request = self._fit.request(
            {
                **body,
                "model": self.endpoint.model,
                "stream": True,
                "stream_options": {**(options or {}), "include_usage": True},
            },
            optional=droppable,
        )
        async for trial in self._trials(self._max_attempts):
            with trial:
                if trial.num > 1:
                    self._retries += 1
                    restarted()
                async with AsyncExitStack() as held:
                    slot = await held.enter_async_context(self._limiter.slot())
                    first, rest = await self._send(request, slot, self._begin_stream)
                    await held.enter_async_context(aclosing(rest))
                    calls = ToolCalls(request.body)
                    for chunk in first:
                        calls.complete_chunk(chunk)
                        yield chunk
                    try:
                        async for chunk in rest:
                            calls.complete_chunk(chunk)
                            yield chunk
                    except ModelCallError as error:
                        self._note_refusal(slot, error)
                        raise self._explained(error) from None
                return

    async def preflight(self) -> None:
        """Send one tiny request, to fail early if no call can succeed."""
        try:
            await self._complete(_PREFLIGHT_BODY, (), tries=_PREFLIGHT_TRIES)
        except ModelCallError as error:
            busy = error.category == "rate_limit" and error.retryable
            # Some reasoning models reject a limit that is too small to finish thinking; such a reply counts as success.
            cut_short = (
                error.category == "bad_request" and "output limit was reached" in error.provider_message
            )
            if not busy and not cut_short:
                raise

    def snapshot(self) -> ClientStats:
        """Return the current state; must be called inside the event loop."""
        limiter = self._limiter
        return ClientStats(
            limit=limiter.limit,
            in_flight=limiter.in_flight,
            waiting=limiter.waiting,
            rate_limited=limiter.refusals,
            retries=self._retries,
            refused_parameters=self._fit.refused,
        )

    def rate_limit_holds(self) -> bool:
        """Tell whether calls are waiting because of a rate limit; must be called inside the event loop."""
        limiter = self._limiter
        return limiter.refusals > 0 and limiter.waiting > 0

    def cost_of(self, usage: TokenUsage | None) -> float | None:
        """Return the cost of a call with this usage in USD, or None if unknown."""
        if usage is None:
            return None
        if usage.stated_cost_usd is not None:
            return usage.stated_cost_usd
        return self._price.cost(usage) if self._price is not None else None

    @cached_property
    def _price(self) -> Price | None:
        return price_of(self.endpoint)

    @cached_property
    def _limiter(self) -> Limiter:
        return shared_limiter(self.endpoint.limiter_key, ceiling=self._max_connections)

    async def _complete(
        self, body: Mapping[str, Any], optional: Collection[str], *, tries: int
    ) -> Completion:
        whole = {**body, "model": self.endpoint.model}
        whole.pop("stream", None)
        whole.pop("stream_options", None)
        request = self._fit.request(whole, optional=optional)
        first_error: ModelCallError | None = None
        attempts = 1
        try:
            response, latency_s = await self._complete_once(request)
        except ModelCallError as error:
            first_error = error
        if first_error is not None:
            # Only now: most calls succeed at once, and a retry context costs a tenth of a call.
            async for trial in self._trials(tries):
                attempts = trial.num
                with trial:
                    if attempts == 1:
                        raise first_error
                    self._retries += 1
                    response, latency_s = await self._complete_once(request)
        ToolCalls(request.body).complete(response)
        usage = read_usage(response.get("usage"))
        return Completion(response, usage, self.cost_of(usage), latency_s, attempts)

    async def _complete_once(self, request: FittedRequest) -> tuple[dict[str, Any], float]:
        """Return the reply to one try, and its latency in seconds."""
        async with self._limiter.slot() as slot:
            started = time.perf_counter()
            response = await self._send(request, slot, self._transport.complete)
            return response, time.perf_counter() - started

    async def _begin_stream(self, body: Mapping[str, Any]) -> tuple[list[dict[str, Any]], _Chunks]:
        """Open a stream and wait for its first chunk with a choice."""
        chunks = self._transport.stream(body)
        first: list[dict[str, Any]] = []
        async for chunk in chunks:
            first.append(chunk)
            if chunk.get("choices"):
                return first, chunks
        words = "the stream was empty"
        if first:
            words = f"the stream has no choices: {excerpt(dumps(first[-1]), *self.endpoint.secrets)}"
        raise ModelCallError("invalid_reply", words, model_path=self.model_path)

    async def _send(
        self, request: FittedRequest, slot: Slot, send: Callable[[Mapping[str, Any]], Awaitable[_T]]
    ) -> _T:
        """Make one attempt; if the endpoint rejects a parameter, correct the request."""
        while True:
            try:
                reply = await send(request.body)
            except ModelCallError as error:
                if request.correct(error):
                    continue
                self._note_refusal(slot, error)
                raise self._explained(error) from None
            slot.answered = True
            request.succeeded()
            return reply

    def _note_refusal(self, slot: Slot, error: ModelCallError) -> None:
        if error.category == "rate_limit" and error.retryable:
            slot.refused = True
        if error.retryable and error.retry_after_s is not None and error.status in (429, 503):
            self._limiter.pause(min(error.retry_after_s, _LONGEST_WAIT_ASKED_S))

    def _trials(self, tries: int) -> AsyncIterator[stamina.Attempt]:
        return aiter(
            stamina.retry_context(
                on=_Backoff(),
                attempts=tries,
                timeout=None,
                wait_initial=_FIRST_WAIT_S,
                wait_max=_LONGEST_WAIT_S,
                wait_jitter=_FIRST_WAIT_S,
            )
        )

    def _explained(self, error: ModelCallError) -> ModelCallError:
        """Return the error with a hint for the user."""
        known = OPENAI_COMPATIBLE.get(self.endpoint.provider)
        own_address = known is not None and self.endpoint.base_url != known.base_url
        if error.hint is not None:
            return error
        address = (self.endpoint.base_url or "").partition("?")[0]  # a query may contain a key
        keys = known.keys if known else LITELLM_KEYS.get(self.endpoint.provider)
        if error.category == "auth" and keys:
            error.hint = f"check the key: export {keys[0]}=..."
        elif error.category in ("not_found", "invalid_reply") and own_address:
            error.hint = f"check the model's name, and that `{address}` is right (most end in `/v1`)"
        elif error.category == "connection" and address:
            error.hint = f"check that a server answers at `{address}`"
        return error


def _transport_for(endpoint: ModelEndpoint, *, timeout_s: float) -> ModelTransport:
    if endpoint.transport == "openai":
        return DirectTransport(endpoint, timeout_s=timeout_s)
    from osmosis_ai.llm.litellm_transport import LiteLLMTransport

    return LiteLLMTransport(endpoint, timeout_s=timeout_s)


class _Backoff:
    """Decides whether a failed call is retried, and after how many seconds."""

    def __init__(self) -> None:
        self._failures = 0

    def __call__(self, error: Exception) -> bool | float:
        if not isinstance(error, ModelCallError) or not error.retryable:
            return False
        self._failures += 1
        if error.retry_after_s is not None:
            if error.retry_after_s > _LONGEST_WAIT_ASKED_S:
                return False
            # Spread calls that were given the same retry time.
            return error.retry_after_s + random.uniform(0, min(1.0, 0.1 * error.retry_after_s))
        if error.category == "rate_limit":
            return min(_LONGEST_RATE_LIMIT_WAIT_S, 2.0**self._failures) * random.uniform(0.75, 1.25)
        return True
