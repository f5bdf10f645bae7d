"""Model client of a hosted agent loop. All arguments of ``ctx.chat`` are sent to the rollout's endpoint.

Only the agent's tools are added. A call whose connection broke is retried and answered from the record of the first.
A call that the endpoint refuses is not retried.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from osmosis_ai.llm.replies import ToolCalls, is_completion, reported_failure
from osmosis_ai.llm.transport import connection_failure, join_url
from osmosis_ai.llm.wire_json import dumps, loads

from .agent import CompletionsResult
from .exceptions import (
    OsmosisRolloutError,
    OsmosisServerError,
    OsmosisTimeoutError,
    OsmosisTransportError,
    OsmosisValidationError,
)
from .schemas import RolloutMetrics
from .tool_schemas import tool_payload, tool_payloads

if TYPE_CHECKING:
    from ..context import RolloutContext

RETRIES = 2
"""Number of retries after a broken connection."""

RETRY_HEADER = "x-stainless-retry-count"
"""Number of earlier attempts at a call. The bridge answers a retry from the record of the previous attempt."""

_MESSAGE_CHARS = 2000


class BridgeLLMClient:
    """Calls the model of one rollout.

    Args:
        rollout: The rollout. All rollouts of a process share connections.
        tools: Sent with every call that names no tools.
    """

    def __init__(self, rollout: RolloutContext, tools: Sequence[Any] = ()) -> None:
        self._rollout = rollout
        self._tools = tool_payloads(tools)
        self._metrics = RolloutMetrics()

    async def chat_completions(self, messages: list[dict[str, Any]], **kwargs: Any) -> CompletionsResult:
        """Return the model's reply.

        Args:
            messages: The conversation, oldest message first.
            kwargs: Further request fields, passed on unchanged. None values are omitted.

        Raises:
            OsmosisTransportError: The endpoint is unreachable.
            OsmosisTimeoutError: It did not answer in time.
            OsmosisValidationError: It refused the request (4xx).
            OsmosisServerError: It failed (5xx), or its answer is invalid.
        """
        body: dict[str, Any] = {"model": "default", "messages": messages}
        if self._tools:
            body["tools"] = self._tools
        body |= {name: _plain(value) for name, value in kwargs.items() if value is not None}
        if not body.get("tools"):
            # Most endpoints reject an empty list.
            body.pop("tools", None)
        if body.get("stream"):
            raise OsmosisValidationError("`stream` is not for `ctx.chat`, which returns whole replies", 400)
        started = time.monotonic()
        try:
            result = read_completion(await self._post(body), body)
        finally:
            self._metrics.llm_latency_ms += (time.monotonic() - started) * 1000
            self._metrics.num_llm_calls += 1
        self._metrics.prompt_tokens += _count(result.usage, "prompt_tokens")
        self._metrics.response_tokens += _count(result.usage, "completion_tokens")
        return result

    def get_metrics(self) -> RolloutMetrics:
        """Return the metrics of the calls so far."""
        return self._metrics.model_copy()

    async def _post(self, body: Mapping[str, Any]) -> Any:
        import aiohttp

        from ..model_client import CALL_TIMEOUT_S

        content = dumps(body)
        for attempt in range(RETRIES + 1):
            try:
                return _content(*await self._send(content, attempt))
            except asyncio.TimeoutError as error:
                raise OsmosisTimeoutError(f"the model did not answer within {CALL_TIMEOUT_S:g}s") from error
            except (aiohttp.ClientError, OSError) as error:
                if attempt == RETRIES:
                    words = f"the model could not be reached: {connection_failure(error)}"
                    raise OsmosisTransportError(words) from error
        raise AssertionError("unreachable")

    async def _send(self, content: bytes, attempt: int) -> tuple[int, bytes]:
        """Send a call and return status and body. Redirects are not followed."""
        import aiohttp

        from ..model_client import CALL_TIMEOUT_S, CONNECT_TIMEOUT_S, post_shared

        headers = {RETRY_HEADER: str(attempt)} if attempt else {}
        if self._rollout.api_key:
            headers["Authorization"] = f"Bearer {self._rollout.api_key}"
        url = join_url(self._rollout.chat_completions_url, "/chat/completions")
        timeout = aiohttp.ClientTimeout(sock_connect=CONNECT_TIMEOUT_S, sock_read=CALL_TIMEOUT_S)
        return await post_shared(url, content, headers, timeout=timeout)


def read_completion(body: Any, request: Mapping[str, Any]) -> CompletionsResult:
    """Parse a response of ``/chat/completions``. Missing token data stays empty.

    Raises:
        OsmosisServerError: The response reports a failure or is not a completion.
    """
    if reported_failure(body) is not None:
        raise OsmosisServerError(f"the model provider reported a failure: {body!r:.200}", 200)
    if not is_completion(body, "message"):
        raise OsmosisServerError(f"the model's answer has no message: {body!r:.200}", 200)
    ToolCalls(request).complete(body)
    choice = body["choices"][0]
    message = choice["message"]
    usage = body.get("usage")
    return CompletionsResult(
        message={name: value for name, value in message.items() if value is not None},
        token_ids=_listed(choice, body, "token_ids"),
        logprobs=_logprobs(choice, body),
        usage=dict(usage) if isinstance(usage, Mapping) else {},
        finish_reason=str(choice.get("finish_reason") or "stop"),
    )


def _plain(value: Any) -> Any:
    """Convert an argument to JSON types, including schemas and lists of them."""
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return tool_payload(value) if hasattr(value, "model_dump") else value


def _content(status: int, body: bytes) -> Any:
    if status != 200:
        raise _refusal(status, _reason(body))
    try:
        return loads(body)
    except ValueError as error:
        raise OsmosisServerError(f"the model's answer is no JSON: {_text(body)[:200]!r}", 200) from error


def _refusal(status: int, reason: str) -> OsmosisRolloutError:
    words = f"the model answered HTTP {status}: {reason}"
    return OsmosisServerError(words, status) if status >= 500 else OsmosisValidationError(words, status)


def _reason(body: bytes) -> str:
    """Return the error message of an OpenAI-compatible endpoint, or else the body."""
    try:
        error = loads(body).get("error")
        message = error.get("message") if isinstance(error, Mapping) else None
    except (ValueError, AttributeError):
        message = None
    return (message if isinstance(message, str) else _text(body))[:_MESSAGE_CHARS]


def _text(body: bytes) -> str:
    return body.decode("utf-8", "replace")


def _listed(choice: Mapping[str, Any], body: Mapping[str, Any], name: str) -> list[Any]:
    """Return a list that endpoints put either in the choice or at the top level."""
    found = choice.get(name, body.get(name))
    return found if isinstance(found, list) else []


def _logprobs(choice: Mapping[str, Any], body: Mapping[str, Any]) -> list[float]:
    """Return log-probabilities from a plain list or from OpenAI's format."""
    found = choice.get("logprobs", body.get("logprobs"))
    if isinstance(found, Mapping):
        content = found.get("content")
        found = [token.get("logprob") for token in content] if isinstance(content, list) else []
    return found if isinstance(found, list) else []


def _count(usage: Mapping[str, Any], name: str) -> int:
    value = usage.get(name)
    return value if type(value) is int and value > 0 else 0
