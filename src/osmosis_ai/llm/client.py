"""A client for many concurrent calls of one model.

A call first waits for a slot (``llm.limiter``). It is retried only if a retry can help: after rate limits, timeouts,
lost connections and server errors. The slot is released while a call waits for its next attempt.
"""

from __future__ import annotations

import logging
import random
import re
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Collection, Mapping
from contextlib import aclosing, suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeVar

import stamina

from osmosis_ai.llm.errors import ModelCallError, call_error
from osmosis_ai.llm.limiter import Limiter, Slot, shared_limiter
from osmosis_ai.llm.litellm_backend import LiteLLMTransport
from osmosis_ai.llm.prices import Price, TokenUsage, price_of, read_usage
from osmosis_ai.llm.providers import OPENAI_COMPATIBLE, ModelEndpoint, key_variables
from osmosis_ai.llm.replies import ToolCalls, dumps, excerpt
from osmosis_ai.llm.transport import DirectTransport

# stamina logs every scheduled retry; without a handler, Python prints these records to stderr.
logging.getLogger("stamina").addHandler(logging.NullHandler())

_T = TypeVar("_T")
_Chunks = AsyncGenerator[dict[str, Any], None]

# Almost all rate limits are per minute, so six attempts must last longer than one.
_LONGEST_RATE_LIMIT_WAIT_S = 60.0
# A provider that asks for more means "come back tomorrow", so the call fails instead of waiting.
_LONGEST_WAIT_ASKED_S = 300.0
_PREFLIGHT_BODY = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 16}


@dataclass
class Completion:
    """A successful call: the reply as the provider sent it, and what it took."""

    response: dict[str, Any]
    usage: TokenUsage | None
    cost_usd: float | None
    latency_s: float
    attempts: int


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
        self._max_attempts = max_attempts
        self._corrections: dict[str, str | None] = {}
        self._transport: DirectTransport | LiteLLMTransport
        if endpoint.transport == "litellm":
            self._transport = LiteLLMTransport(endpoint, timeout_s=request_timeout_s)
        else:
            self._transport = DirectTransport(endpoint, timeout_s=request_timeout_s)
            if (known := OPENAI_COMPATIBLE.get(endpoint.provider)) is not None:
                self._corrections |= known.renames

    async def __aenter__(self) -> ModelClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        await self._transport.aclose()

    @cached_property
    def limiter(self) -> Limiter:
        """The limiter of the provider's account; must be read inside the event loop."""
        return shared_limiter(self.endpoint.limiter_key, ceiling=self._max_connections)

    @property
    def refused_parameters(self) -> set[str]:
        return {name for name, replacement in self._corrections.items() if replacement is None}

    async def complete(
        self, body: Mapping[str, Any], *, optional: Collection[str] = (), max_attempts: int | None = None
    ) -> Completion:
        """Call the model and return its whole reply; ``optional`` names parameters that the caller did not set."""
        whole = {name: value for name, value in body.items() if name not in ("stream", "stream_options")}
        request, optional = self._correct_request(whole, optional)
        try:
            return await self._complete_once(request, optional, 1)
        except ModelCallError as error:
            first_error = error
        # Only now: most calls succeed at once, and a retry context costs a tenth of a call.
        async for trial in self._trials(max_attempts or self._max_attempts):
            with trial:
                if trial.num == 1:
                    raise first_error
                return await self._complete_once(request, optional, trial.num)
        raise first_error

    async def _complete_once(
        self, request: dict[str, Any], optional: Collection[str], attempt: int
    ) -> Completion:
        async with self.limiter.slot() as slot:
            started = time.perf_counter()
            response = await self._send(request, optional, slot, self._transport.complete)
            latency_s = time.perf_counter() - started
        ToolCalls(request).complete(response)
        usage = read_usage(response.get("usage"))
        return Completion(response, usage, self.cost_of(usage), latency_s, attempt)

    async def stream(
        self, body: Mapping[str, Any], *, restarted: Callable[[], object], optional: Collection[str] = ()
    ) -> _Chunks:
        """Call the model and yield OpenAI chunks as they arrive, including the usage chunk.

        A stream that breaks starts again from the beginning, after a call of ``restarted``.
        """
        options = body.get("stream_options")
        request, optional = self._correct_request(
            {**body, "stream": True, "stream_options": {**(options or {}), "include_usage": True}},
            {*optional, "stream_options"} if options is None else optional,
        )
        async for trial in self._trials(self._max_attempts):
            with trial:
                if trial.num > 1:
                    restarted()
                async with self.limiter.slot() as slot:
                    first, rest = await self._send(request, optional, slot, self._begin_stream)
                    async with aclosing(rest):
                        calls = ToolCalls(request)
                        for chunk in first:
                            calls.complete_chunk(chunk)
                            yield chunk
                        try:
                            async for chunk in rest:
                                calls.complete_chunk(chunk)
                                yield chunk
                        except ModelCallError as error:
                            raise self._report_failure(slot, error) from None
                return

    async def _begin_stream(self, body: Mapping[str, Any]) -> tuple[list[dict[str, Any]], _Chunks]:
        """Open a stream and wait for its first chunk with a choice."""
        chunks = self._transport.stream(body)
        first: list[dict[str, Any]] = []
        async for chunk in chunks:
            first.append(chunk)
            if chunk.get("choices"):
                return first, chunks
        last = f"the stream has no choices: {excerpt(self.endpoint, dumps(first[-1]))}" if first else ""
        raise call_error(self.endpoint, "invalid_reply", last or "the stream was empty")

    async def preflight(self) -> None:
        """Send one tiny request, to fail early if no call can succeed."""
        try:
            await self.complete(_PREFLIGHT_BODY, max_attempts=2)
        except ModelCallError as error:
            busy = error.category == "rate_limit" and error.retryable
            # Some reasoning models reject a limit that is too small to finish thinking; such a reply counts as success.
            cut_short = "output limit was reached" in error.provider_message
            if not busy and not (cut_short and error.category == "bad_request"):
                raise

    def cost_of(self, usage: TokenUsage | None) -> float | None:
        """Return the cost of a call with this usage in USD, or None if unknown."""
        if usage is None:
            return None
        if usage.stated_cost_usd is None and self._price is not None:
            return self._price.cost(usage)
        return usage.stated_cost_usd

    @cached_property
    def _price(self) -> Price | None:
        return price_of(self.endpoint)

    async def _send(
        self,
        request: dict[str, Any],
        optional: Collection[str],
        slot: Slot,
        send: Callable[[Mapping[str, Any]], Awaitable[_T]],
    ) -> _T:
        """Make one attempt; if the endpoint rejects a parameter, correct the request in place.

        A correction is remembered only if the corrected request succeeds, so an error with another cause has no effect.
        """
        corrections: dict[str, str | None] = {}
        while True:
            try:
                reply = await send(request)
            except ModelCallError as error:
                name, replacement = _rejected_parameter(error, request, optional)
                if name is None:
                    raise self._report_failure(slot, error) from None
                value = request.pop(name)
                if replacement is not None:
                    request[replacement] = value
                corrections[name] = replacement
            else:
                slot.answered = True
                self._corrections |= corrections
                return reply

    def _correct_request(
        self, body: Mapping[str, Any], optional: Collection[str]
    ) -> tuple[dict[str, Any], set[str]]:
        """Return the request for this endpoint, and the names of the optional parameters in it."""
        fit = self._corrections.get
        request = {
            fit(name) or name: value
            for name, value in {**body, "model": self.endpoint.model}.items()
            if name not in optional or fit(name, name) is not None
        }
        return request, {fit(name) or name for name in optional}

    def _report_failure(self, slot: Slot, error: ModelCallError) -> ModelCallError:
        """Report a failed call to the limiter, and return its error with a hint."""
        if error.category == "rate_limit" and error.retryable:
            slot.refused = True
        if error.retryable and error.retry_after_s is not None and error.status in (429, 503):
            self.limiter.pause(min(error.retry_after_s, _LONGEST_WAIT_ASKED_S))
        known = OPENAI_COMPATIBLE.get(self.endpoint.provider)
        keys = key_variables(self.endpoint.provider)
        address = (self.endpoint.base_url or "").partition("?")[0]  # a query may contain a key
        if error.category == "auth" and keys:
            error.hint = f"check the key: export {keys[0]}=..."
        elif error.category in ("not_found", "invalid_reply"):
            if known is not None and self.endpoint.base_url != known.base_url:
                error.hint = f"check the model's name, and that `{address}` is right (most end in `/v1`)"
        elif error.category == "connection" and address:
            error.hint = f"check that a server answers at `{address}`"
        return error

    def _trials(self, max_attempts: int) -> AsyncIterator[stamina.Attempt]:
        waits = {"wait_initial": 0.5, "wait_max": 30.0, "wait_jitter": 0.5}  # seconds
        return aiter(stamina.retry_context(on=_Backoff(), attempts=max_attempts, timeout=None, **waits))


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


def _rejected_parameter(
    error: ModelCallError, request: Mapping[str, Any], optional: Collection[str]
) -> tuple[str | None, str | None]:
    """Return the parameter that an endpoint rejects, and its name there; without one it can be left out.

    Optional parameters, which we added (a seed, the usage chunk), are left out. The caller's never are.
    """
    if error.status in (400, 422):
        message, old, new = error.provider_message, "max_tokens", "max_completion_tokens"
        if old in request and new not in request and _mentions(message, new):
            return old, new
        for name in sorted(request.keys() & set(optional)):
            if name == (error.body or {}).get("param") or _mentions(message, name):
                return name, None
    return None, None


def _mentions(text: str, name: str) -> bool:
    return re.search(rf"(?<![A-Za-z0-9_]){re.escape(name)}(?![A-Za-z0-9_])", text) is not None


async def probe(endpoint: ModelEndpoint) -> ModelEndpoint:
    """Send one tiny request; return the endpoint with the model's whole path if its server knows only that."""
    whole = replace(endpoint, model=endpoint.model_path)
    try:
        async with ModelClient(endpoint, request_timeout_s=60.0) as client:
            await client.preflight()
    except ModelCallError as error:
        if error.category != "not_found" or whole == endpoint or endpoint.provider != "openai":
            raise
        with suppress(ModelCallError):
            return await probe(whole)
        raise
    return endpoint
