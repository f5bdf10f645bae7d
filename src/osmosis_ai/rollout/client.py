"""Model clients of agent loops: of a served agent (OsmosisLLMClient) and of a hosted one (BridgeLLMClient).

Broken connections are retried with a header by which the endpoint recognizes the retry. Redirects are never followed,
so the key reaches no other address.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeVar

import httpx

from osmosis_ai.llm.errors import beginning, message_in, redact
from osmosis_ai.llm.replies import ToolCalls, dumps, is_completion, loads, reported_failure
from osmosis_ai.llm.transport import join_url

from .config import RolloutClientSettings, get_settings
from .core.base import CompletionsResult as CompletionsResult
from .core.exceptions import (
    OsmosisServerError,
    OsmosisTimeoutError,
    OsmosisTransportError,
    OsmosisValidationError,
)
from .core.schemas import MessageDict, RolloutMetrics, RolloutResponse, RolloutStatus
from .tools import tool_payload, tool_payloads

if TYPE_CHECKING:
    import ssl

    from .context import RolloutContext

_T = TypeVar("_T")

CHAT_COMPLETIONS_PATH = "/v1/chat/completions"
COMPLETED_PATH = "/v1/rollout/completed"
CONNECT_TIMEOUT_S = 10.0
MAX_REPLY_BYTES = 64 * 1024 * 1024
BRIDGE_RETRIES = 2
# Number of earlier attempts at a call. The endpoint answers a retry from the record of the first attempt.
RETRY_HEADER = "x-stainless-retry-count"
_EXCERPT_CHARACTERS = 200
_MESSAGE_CHARACTERS = 2000


class OsmosisLLMClient:
    """Controller client of one rollout. Server errors, timeouts and broken connections are retried; 4xx are not.

    Args:
        server_url: The controller's address; paths are appended to it.
        rollout_id: Sent with every call.
        api_key: The controller's bearer token.
        timeout_seconds: Total time limit of a call.
        max_retries: Retries of a chat call.
        complete_rollout_retries: Retries of the final report.
        settings: Defaults of the last three (default: the settings in use).
    """

    def __init__(
        self,
        server_url: str,
        rollout_id: str,
        api_key: str | None = None,
        timeout_seconds: float | None = None,
        max_retries: int | None = None,
        complete_rollout_retries: int | None = None,
        settings: RolloutClientSettings | None = None,
    ) -> None:
        self._settings = settings = settings or get_settings().client
        self.server_url = server_url.rstrip("/")
        self.rollout_id = rollout_id
        self.api_key = api_key
        self.timeout_seconds = settings.timeout_seconds if timeout_seconds is None else timeout_seconds
        self.max_retries = settings.max_retries if max_retries is None else max_retries
        self.complete_rollout_retries = (
            settings.complete_rollout_retries
            if complete_rollout_retries is None
            else complete_rollout_retries
        )
        self.connect_timeout_s = CONNECT_TIMEOUT_S
        self._client: httpx.AsyncClient | None = None
        self._shares_connections = False
        self._metrics = RolloutMetrics()

    async def chat_completions(
        self,
        messages: list[MessageDict],
        temperature: float = 1.0,
        top_p: float = 1.0,
        max_tokens: int = 512,
        stop: list[str] | str | None = None,
        logprobs: bool = True,
        **kwargs: Any,
    ) -> CompletionsResult:
        """Return the model's reply.

        Args:
            messages: The whole conversation.
            temperature: Sampling temperature.
            top_p: Nucleus sampling threshold.
            max_tokens: Maximum number of generated tokens.
            stop: Stop sequences.
            logprobs: Whether to request log-probabilities.
            kwargs: Other model parameters (``seed``, ``tools``, …), sent unchanged. None values are omitted.

        Raises:
            OsmosisValidationError: The controller refused the call.
            OsmosisServerError: It failed, or its reply is invalid.
            OsmosisTimeoutError: It did not answer in time.
            OsmosisTransportError: It is unreachable.
        """
        body: dict[str, Any] = {
            "model": "default",
            "messages": messages,
            "rollout_id": self.rollout_id,
            "temperature": temperature,
            "top_p": top_p,
            "max_tokens": max_tokens,
            "stop": [stop] if isinstance(stop, str) else stop,
            "logprobs": logprobs,
            **kwargs,
        }
        body = {name: value for name, value in body.items() if value is not None}
        body["rollout_id"] = self.rollout_id
        if body.get("tools"):
            body["tools"] = tool_payloads(body["tools"])
        started = time.monotonic()
        result = await self._post(
            CHAT_COMPLETIONS_PATH,
            body,
            retries=self.max_retries,
            read=lambda content: read_completion(content, body, self.api_key),
        )
        _count(self._metrics, started, result)
        return result

    async def complete_rollout(
        self,
        status: str,
        final_messages: list[MessageDict],
        finish_reason: str = "stop",
        error_message: str | None = None,
        metrics: RolloutMetrics | None = None,
        reward: float | None = None,
    ) -> None:
        """Report the end of the rollout. Any 2xx reply accepts it.

        Args:
            status: ``COMPLETED`` or ``ERROR``.
            final_messages: The whole conversation.
            finish_reason: The reason why the rollout ended.
            error_message: The error, if any.
            metrics: Metrics of the rollout (default: this client's).
            reward: The agent's own reward, a finite number.

        Raises ValueError for an invalid status or reward, and otherwise like :meth:`chat_completions`.
        """
        if reward is not None and not math.isfinite(reward):
            raise ValueError(f"a reward is a finite number, not {reward}")
        report = RolloutResponse(
            rollout_id=self.rollout_id,
            status=RolloutStatus(status),
            final_messages=final_messages,
            finish_reason=finish_reason,
            error_message=error_message,
            metrics=metrics or self.get_metrics(),
            reward=reward,
        )
        body = report.model_dump(mode="json", exclude_none=True)
        await self._post(COMPLETED_PATH, body, retries=self.complete_rollout_retries, read=lambda _: None)

    def get_metrics(self) -> RolloutMetrics:
        """Return the metrics of the calls so far."""
        return self._metrics.model_copy()

    async def close(self) -> None:
        """Close the connections. A later call opens new ones."""
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()

    async def __aenter__(self) -> OsmosisLLMClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def share_connections(self) -> None:
        """Use connections shared by this event loop's rollouts, which halves the cost of a call."""
        self._shares_connections = True

    async def _post(
        self, path: str, body: dict[str, Any], *, retries: int, read: Callable[[bytes], _T]
    ) -> _T:
        """Return the parsed first successful reply of ``retries + 1`` attempts, or raise the last error."""
        attempt = 0
        while True:
            try:
                return read(await self._post_once(path, body, attempt))
            except (OsmosisServerError, OsmosisTimeoutError, OsmosisTransportError):
                if attempt >= retries:
                    raise
            delay_s = self._settings.retry_base_delay * 2.0**attempt
            await asyncio.sleep(min(delay_s, self._settings.retry_max_delay))
            attempt += 1

    async def _post_once(self, path: str, body: dict[str, Any], attempt: int) -> bytes:
        address = f"{self.server_url}{path}"
        url, headers = join_url(self.server_url, path), _headers(self.api_key, attempt)
        with _http_errors(address, self.timeout_seconds):
            if self._shares_connections:
                from .model_client import post_shared

                status, content = await post_shared(
                    url,
                    dumps(body),
                    headers,
                    connect_timeout_s=self.connect_timeout_s,
                    total_timeout_s=self.timeout_seconds,
                    most_bytes=MAX_REPLY_BYTES,
                )
            else:
                # httpx only limits the time between two packets; a slow controller could block forever.
                reply = await asyncio.wait_for(
                    self._open().post(url, json=body, headers=headers), self.timeout_seconds
                )
                status, content = reply.status_code, reply.content
        if 200 <= status < 300:
            return content
        raise _status_error(f"{address} answered {status}: {_excerpt(content, self.api_key)}", status)

    def _open(self) -> httpx.AsyncClient:
        if self._client is None:
            self._client = httpx.AsyncClient(
                timeout=httpx.Timeout(self.timeout_seconds, connect=self.connect_timeout_s),
                limits=httpx.Limits(
                    max_connections=self._settings.max_connections,
                    max_keepalive_connections=self._settings.max_keepalive_connections,
                ),
                verify=_trusted_certificates(),
                event_hooks={"response": [_read_within_bounds]},
            )
        return self._client


class BridgeLLMClient:
    """Model client of one hosted rollout. Passes all arguments on to the rollout's endpoint."""

    def __init__(self, rollout: RolloutContext, tools: Sequence[Any] = ()) -> None:
        self._rollout = rollout
        self._tools = tools
        self._metrics = RolloutMetrics()

    async def chat_completions(self, messages: list[dict[str, Any]], **kwargs: Any) -> CompletionsResult:
        """Return the model's reply. None arguments are omitted. Raises like OsmosisLLMClient."""
        body: dict[str, Any] = {"model": "default", "messages": messages, "tools": self._tools}
        body |= {name: value for name, value in kwargs.items() if value is not None}
        body["tools"] = [tool_payload(tool) for tool in body["tools"]]
        if not body["tools"]:
            # Most endpoints reject an empty list.
            del body["tools"]
        if body.get("stream"):
            raise OsmosisValidationError(
                "`ctx.chat` returns whole replies and does not support `stream`", 400
            )
        started = time.monotonic()
        result = None
        try:
            result = read_completion(await self._post(dumps(body)), body, self._rollout.api_key)
        finally:
            _count(self._metrics, started, result)
        # Providers reject null fields that they have sent themselves.
        message = {name: value for name, value in result.message.items() if value is not None}
        return replace(result, message=message)

    def get_metrics(self) -> RolloutMetrics:
        """Return the metrics of the calls so far."""
        return self._metrics.model_copy()

    async def _post(self, content: bytes) -> bytes:
        from .model_client import CALL_TIMEOUT_S, post_shared

        url = join_url(self._rollout.chat_completions_url, "/chat/completions")
        attempt = 0
        while True:
            headers = _headers(self._rollout.api_key, attempt)
            try:
                with _http_errors("the model", CALL_TIMEOUT_S):
                    status, reply = await post_shared(url, content, headers, read_timeout_s=CALL_TIMEOUT_S)
                break
            except OsmosisTransportError:
                if attempt == BRIDGE_RETRIES:
                    raise
            attempt += 1
        if status == 200:
            return reply
        payload: Any = reply
        with suppress(ValueError):
            payload = loads(reply)
        reason = redact(message_in(payload), self._rollout.api_key)[:_MESSAGE_CHARACTERS]
        raise _status_error(f"the model answered HTTP {status}: {reason}", status)


@contextmanager
def _http_errors(server: str, timeout_s: float) -> Iterator[None]:
    """Convert the errors of a call to ``server`` to the public ones."""
    try:
        yield
    except (httpx.TimeoutException, asyncio.TimeoutError) as error:
        raise OsmosisTimeoutError(f"{server} did not answer within {timeout_s:g} s") from error
    except httpx.DecodingError as error:
        raise OsmosisServerError(f"the reply of {server} cannot be decoded: {error}", 200) from error
    except httpx.RequestError as error:
        reason = str(error) or type(error).__name__
        raise OsmosisTransportError(f"{server} cannot be reached: {reason}") from error


def read_completion(
    content: bytes, request: Mapping[str, Any], secret: str | None = None
) -> CompletionsResult:
    """Parse a reply to the call ``request``. ``secret`` is redacted in errors.

    Token data may be in the choice or at the top level, and may be missing.
    """
    try:
        body = loads(content)
        if reported_failure(body) is not None:
            raise OsmosisServerError(f"the model reported a failure: {_excerpt(content, secret)}", 200)
        if not is_completion(body, "message"):
            raise TypeError("no message")
        ToolCalls(request).complete(body)
        choice = body["choices"][0]
        logprobs = choice.get("logprobs") or body.get("logprobs") or []
        if isinstance(logprobs, Mapping):
            logprobs = [token["logprob"] for token in logprobs.get("content") or []]
        return CompletionsResult(
            message=dict(choice["message"]),
            token_ids=list(choice.get("token_ids") or body.get("token_ids") or []),
            logprobs=list(logprobs),
            usage=dict(body.get("usage") or {}),
            finish_reason=str(choice.get("finish_reason") or "stop"),
        )
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        reason = f"{type(error).__name__}: {error}"
        raise OsmosisServerError(
            f"the model returned an invalid completion ({reason}): {_excerpt(content, secret)}", 200
        ) from error


def _status_error(message: str, status: int) -> OsmosisServerError | OsmosisValidationError:
    return (OsmosisServerError if status >= 500 else OsmosisValidationError)(message, status)


def _headers(api_key: str | None, attempt: int) -> dict[str, str]:
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    return {**headers, RETRY_HEADER: str(attempt)} if attempt else headers


def _count(metrics: RolloutMetrics, started: float, result: CompletionsResult | None) -> None:
    metrics.llm_latency_ms += (time.monotonic() - started) * 1000.0
    metrics.num_llm_calls += 1
    usage = result.usage if result is not None else {}
    prompt_tokens, response_tokens = usage.get("prompt_tokens"), usage.get("completion_tokens")
    metrics.prompt_tokens += prompt_tokens if isinstance(prompt_tokens, int) else 0
    metrics.response_tokens += response_tokens if isinstance(response_tokens, int) else 0


def _excerpt(content: bytes, secret: str | None) -> str:
    text = beginning(content, secret)
    return text if len(text) <= _EXCERPT_CHARACTERS else f"{text[:_EXCERPT_CHARACTERS]}…"


async def _read_within_bounds(reply: httpx.Response) -> None:
    """Read and decompress a reply, aborting if it is too large: a few compressed bytes can be gigabytes."""
    content = bytearray()
    async for piece in reply.aiter_bytes():
        content += piece
        if len(content) > MAX_REPLY_BYTES:
            raise httpx.RemoteProtocolError(f"the reply is larger than {MAX_REPLY_BYTES} bytes")
    # This is what `aread` does, with a size limit.
    reply._content = bytes(content)


@lru_cache(maxsize=1)
def _trusted_certificates() -> ssl.SSLContext:
    """Return the trusted certificates. Loading them takes longer than a call, so clients share them."""
    return httpx.create_ssl_context()
