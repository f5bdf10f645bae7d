"""How a served agent loop talks to its controller: it asks for completions, and reports the rollout's end.

Every call has a deadline. What may succeed a little later (5xx, time-outs, broken connections) is tried again, with
waits that double up to a limit; what was refused (4xx) is not, and redirects are not followed: the key stays with
the address it is meant for.
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
    """One rollout's client of its controller.

    Args:
        server_url: the controller's address; paths are appended to it.
        rollout_id: the rollout's id, which is sent along.
        api_key: the bearer token for the controller.
        timeout_seconds: a call's whole time (default: the settings').
        max_retries: how often a chat call is tried again (default: the settings').
        complete_rollout_retries: how often the report of the end is tried again (default: the settings').
        settings: of the client (default: those in use).
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
            messages: the whole conversation.
            temperature: how it samples.
            top_p: likewise.
            max_tokens: the most it may say.
            stop: where it stops.
            logprobs: whether log-probabilities are wanted.
            kwargs: anything else that the model takes (``seed``, ``tools``, …), sent as it is; None is left out.

        Raises:
            OsmosisValidationError: when the controller refuses the call.
            OsmosisServerError: when it fails, or its reply cannot be read.
            OsmosisTimeoutError: when it does not answer in time.
            OsmosisTransportError: when it cannot be reached.
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
        """Report the rollout's end; any 2xx reply accepts it.

        Args:
            status: ``COMPLETED`` or ``ERROR``.
            final_messages: the whole conversation.
            finish_reason: why it ended.
            error_message: what went wrong.
            metrics: what it cost (default: this client's own).
            reward: the agent's own judgement.

        Raises:
            ValueError: for another status, or a reward that is no finite number.
            OsmosisRolloutError: as for :meth:`chat_completions`.
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
        """Return what the calls so far have cost."""
        return self._metrics.model_copy()

    async def close(self) -> None:
        """Close the connections; a later call opens new ones."""
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
        """Send over connections that this event loop's rollouts share; a call costs half of what it does otherwise."""
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
        """Return what ``read`` makes of the first good reply of ``retries + 1`` attempts; raise the last error."""
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
        # httpx counts the time between two packets; a controller that drips would keep us for ever.
        reply = await asyncio.wait_for(client.post(url, json=body, headers=headers), self.timeout_seconds)
        return _Reply(reply.status_code, reply.content)

    async def _post_shared(self, url: str, body: dict[str, Any], headers: dict[str, str]) -> _Reply:
        """Post as :meth:`_post_alone` does; the errors are httpx's here, too."""
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
    """What the controller answered, unpacked."""

    status: int
    content: bytes


async def _read_within_bounds(reply: httpx.Response) -> None:
    """Read a reply, unpacked, and break off when it gets too large: a few packed bytes can be gigabytes."""
    content = bytearray()
    async for piece in reply.aiter_bytes():
        content += piece
        if len(content) > MAX_REPLY_BYTES:
            raise httpx.RemoteProtocolError(f"the reply is larger than {MAX_REPLY_BYTES} bytes")
    # What `aread` would do, which has no bound.
    reply._content = bytes(content)


def _given(value: Any, default: Any) -> Any:
    return default if value is None else value


@lru_cache(maxsize=1)
def _trusted() -> ssl.SSLContext:
    """Return the certificates that are trusted; every client needs them, and reading them takes longer than a call."""
    return httpx.create_ssl_context()


def _read_completion(reply: _Reply, request: Mapping[str, Any], secret: str | None) -> CompletionsResult:
    """Read OpenAI's reply.

    Raises:
        OsmosisServerError: when it reports a failure, or is something else.
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
