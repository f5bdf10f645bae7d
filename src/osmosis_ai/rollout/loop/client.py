"""HTTP client of a served agent loop for its controller.

Every call has a deadline. Server errors (5xx), timeouts and broken connections are retried with exponential backoff.
Refused calls (4xx) are not retried. Redirects are not followed, so the key reaches no other address.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

import httpx

from osmosis_ai.llm.errors import beginning
from osmosis_ai.llm.replies import ToolCalls, is_completion, reported_failure
from osmosis_ai.llm.transport import join_url
from osmosis_ai.llm.wire_json import dumps, loads

from .agent import CompletionsResult
from .bridge_client import RETRY_HEADER
from .exceptions import (
    OsmosisRolloutError,
    OsmosisServerError,
    OsmosisTimeoutError,
    OsmosisTransportError,
    OsmosisValidationError,
)
from .schemas import MessageDict, RolloutMetrics, RolloutResponse, RolloutStatus
from .settings import RolloutClientSettings, get_settings
from .tool_schemas import tool_payloads

if TYPE_CHECKING:
    import ssl

__all__ = ["CompletionsResult", "OsmosisLLMClient"]

_T = TypeVar("_T")

CHAT_COMPLETIONS_PATH = "/v1/chat/completions"
COMPLETED_PATH = "/v1/rollout/completed"
CONNECT_TIMEOUT_S = 10.0
MAX_REPLY_BYTES = 64 * 1024 * 1024
_EXCERPT_CHARACTERS = 200


class OsmosisLLMClient:
    """Controller client of one rollout.

    Args:
        server_url: The controller's address; paths are appended to it.
        rollout_id: Sent with every call.
        api_key: The controller's bearer token.
        timeout_seconds: Total time limit of a call (default: from the settings).
        max_retries: Retries of a chat call (default: from the settings).
        complete_rollout_retries: Retries of the final report (default: from the settings).
        settings: Client settings (default: those in use).
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
        self.server_url = server_url.rstrip("/")
        self.rollout_id = rollout_id
        self.api_key = api_key
        self._settings = settings or get_settings().client
        self.timeout_seconds = _given(timeout_seconds, self._settings.timeout_seconds)
        self.max_retries = _given(max_retries, self._settings.max_retries)
        self.complete_rollout_retries = _given(
            complete_rollout_retries, self._settings.complete_rollout_retries
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
        if body.get("tools"):
            body["tools"] = tool_payloads(body["tools"])
        started = time.monotonic()
        body = {
            **{key: value for key, value in body.items() if value is not None},
            "rollout_id": self.rollout_id,
        }
        result = await self._post(
            CHAT_COMPLETIONS_PATH,
            body,
            retries=self.max_retries,
            read=lambda reply: _read_completion(reply, body, self.api_key),
        )
        self._count(result, (time.monotonic() - started) * 1000.0)
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
            finish_reason: Why the rollout ended.
            error_message: The error, if any.
            metrics: Metrics of the rollout (default: this client's).
            reward: The agent's own reward.

        Raises:
            ValueError: Invalid status, or a reward that is not a finite number.
            OsmosisRolloutError: As for :meth:`chat_completions`.
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

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    def share_connections(self) -> None:
        """Use connections shared by this event loop's rollouts, which halves the cost of a call."""
        self._shares_connections = True

    async def _get_client(self) -> httpx.AsyncClient:
        if self._client is None:
            self._client = httpx.AsyncClient(
                timeout=httpx.Timeout(self.timeout_seconds, connect=self.connect_timeout_s),
                limits=httpx.Limits(
                    max_connections=self._settings.max_connections,
                    max_keepalive_connections=self._settings.max_keepalive_connections,
                ),
                verify=_trusted(),
                event_hooks={"response": [_read_within_bounds]},
            )
        return self._client

    async def _post(
        self, path: str, body: dict[str, Any], *, retries: int, read: Callable[[_Reply], _T]
    ) -> _T:
        """Return the parsed first successful reply of ``retries + 1`` attempts, or raise the last error."""
        attempt = 0
        while True:
            try:
                return read(await self._post_once(path, body, attempt))
            except (OsmosisServerError, OsmosisTimeoutError, OsmosisTransportError):
                if attempt >= retries:
                    raise
            await asyncio.sleep(self._wait_s(attempt))
            attempt += 1

    def _wait_s(self, attempt: int) -> float:
        wait_s: float = min(self._settings.retry_base_delay * 2.0**attempt, self._settings.retry_max_delay)
        return wait_s

    async def _post_once(self, path: str, body: dict[str, Any], attempt: int) -> _Reply:
        headers = {"Authorization": f"Bearer {self.api_key}"} if self.api_key else {}
        if attempt:
            headers[RETRY_HEADER] = str(attempt)
        post = self._post_shared if self._shares_connections else self._post_alone
        try:
            reply = await post(join_url(self.server_url, path), body, headers)
        except (httpx.TimeoutException, asyncio.TimeoutError) as error:
            raise OsmosisTimeoutError(
                f"{self.server_url}{path} did not answer within {self.timeout_seconds:g} s"
            ) from error
        except httpx.DecodingError as error:
            raise OsmosisServerError(
                f"{self.server_url}{path} answered with what cannot be decoded: {error}", 200
            ) from error
        except httpx.RequestError as error:
            told = str(error) or type(error).__name__
            raise OsmosisTransportError(f"{self.server_url}{path} cannot be reached: {told}") from error
        refusal = self._refusal(reply, path)
        if refusal is not None:
            raise refusal
        return reply

    async def _post_alone(self, url: str, body: dict[str, Any], headers: dict[str, str]) -> _Reply:
        client = await self._get_client()
        # httpx only limits the time between two packets; a slow controller could block forever.
        reply = await asyncio.wait_for(client.post(url, json=body, headers=headers), self.timeout_seconds)
        return _Reply(reply.status_code, reply.content)

    async def _post_shared(self, url: str, body: dict[str, Any], headers: dict[str, str]) -> _Reply:
        """Post like :meth:`_post_alone`, raising httpx errors as well."""
        import aiohttp

        from osmosis_ai.llm.transport import connection_failure

        from ..model_client import post_shared

        timeout = aiohttp.ClientTimeout(self.timeout_seconds, connect=self.connect_timeout_s)
        try:
            status, content = await post_shared(
                url, dumps(body), headers, timeout=timeout, most_bytes=MAX_REPLY_BYTES
            )
        except aiohttp.ClientPayloadError as error:
            if isinstance(error.__cause__, aiohttp.http_exceptions.ContentEncodingError):
                raise httpx.DecodingError(error.__cause__.message) from error
            raise httpx.ReadError(str(error)) from error
        except (aiohttp.ClientError, OSError) as error:
            if isinstance(error, asyncio.TimeoutError):
                raise
            raise httpx.ConnectError(connection_failure(error)) from error
        return _Reply(status, content)

    def _refusal(self, reply: _Reply, path: str) -> OsmosisRolloutError | None:
        status = reply.status
        if 200 <= status < 300:
            return None
        told = f"{self.server_url}{path} answered {status}: {_excerpt(reply, self.api_key)}"
        return OsmosisServerError(told, status) if status >= 500 else OsmosisValidationError(told, status)

    def _count(self, result: CompletionsResult, latency_ms: float) -> None:
        self._metrics.llm_latency_ms += latency_ms
        self._metrics.num_llm_calls += 1
        self._metrics.prompt_tokens += _tokens(result.usage, "prompt_tokens")
        self._metrics.response_tokens += _tokens(result.usage, "completion_tokens")


@dataclass(frozen=True)
class _Reply:
    """A decompressed reply of the controller."""

    status: int
    content: bytes


async def _read_within_bounds(reply: httpx.Response) -> None:
    """Read and decompress a reply, aborting if it is too large: a few compressed bytes can be gigabytes."""
    content = bytearray()
    async for piece in reply.aiter_bytes():
        content += piece
        if len(content) > MAX_REPLY_BYTES:
            raise httpx.RemoteProtocolError(f"the reply is larger than {MAX_REPLY_BYTES} bytes")
    # This is what `aread` does, with a size limit.
    reply._content = bytes(content)


def _given(value: Any, default: Any) -> Any:
    return default if value is None else value


@lru_cache(maxsize=1)
def _trusted() -> ssl.SSLContext:
    """Return the trusted certificates. Loading them takes longer than a call, so clients share them."""
    return httpx.create_ssl_context()


def _read_completion(reply: _Reply, request: Mapping[str, Any], secret: str | None) -> CompletionsResult:
    """Parse an OpenAI completion.

    Raises:
        OsmosisServerError: The reply reports a failure or is not a completion.
    """
    try:
        body = loads(reply.content)
        if reported_failure(body) is not None:
            raise OsmosisServerError(
                f"the controller reported a failure with status {reply.status}: {_excerpt(reply, secret)}",
                reply.status,
            )
        if not is_completion(body, "message"):
            raise TypeError("no message")
        ToolCalls(request).complete(body)
        choice = body["choices"][0]
        return CompletionsResult(
            message=dict(choice["message"]),
            token_ids=list(body.get("token_ids") or []),
            logprobs=list(body.get("logprobs") or []),
            usage=dict(body.get("usage") or {}),
            finish_reason=choice.get("finish_reason") or "stop",
        )
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        what = f"{type(error).__name__}: {error}"
        raise OsmosisServerError(
            f"the controller returned an invalid completion with status {reply.status} ({what}): {_excerpt(reply, secret)}",
            reply.status,
        ) from error


def _tokens(usage: Mapping[str, Any], name: str) -> int:
    count = usage.get(name)
    return count if isinstance(count, int) else 0


def _excerpt(reply: _Reply, secret: str | None) -> str:
    text = beginning(reply.content, secret)
    return text if len(text) <= _EXCERPT_CHARACTERS else f"{text[:_EXCERPT_CHARACTERS]}…"
