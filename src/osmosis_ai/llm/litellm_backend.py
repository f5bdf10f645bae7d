"""Calls of providers that do not speak OpenAI's protocol, through LiteLLM.

LiteLLM only translates: retries, limits and prices are ours. Callers can set sampling parameters, but never a request's
destination or key, so LiteLLM's own options are not passed on.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
import warnings
from collections.abc import AsyncGenerator, Mapping
from contextlib import suppress
from typing import Any

from osmosis_ai.errors import with_causes
from osmosis_ai.llm.errors import CONTEXT_LENGTH, Category, ModelCallError, call_error, message_in, redact
from osmosis_ai.llm.providers import ModelEndpoint
from osmosis_ai.llm.replies import check_reply
from osmosis_ai.retry_after import retry_after_s

logger = logging.getLogger(__name__)

# LiteLLM lists these among OpenAI's parameters, but they determine where a request goes.
_ROUTING = (
    *("api_base", "api_key", "api_version", "base_url", "client", "default_headers", "deployment_id"),
    *("extra_body", "extra_headers", "headers", "max_retries", "organization", "request_timeout", "timeout"),
)
_ROUTING_PREFIXES = ("aws_", "azure_", "litellm_", "s3_", "vertex_", "watsonx_")
# The classes of LiteLLM's exceptions, of which the most specific counts; any other is "server".
_CATEGORIES: dict[str, Category] = {
    "ContextWindowExceededError": "context_length",
    "AuthenticationError": "auth",
    "PermissionDeniedError": "auth",
    "PaymentRequiredError": "auth",
    "BudgetExceededError": "auth",
    "NotFoundError": "not_found",
    "RateLimitError": "rate_limit",
    "APITimeoutError": "timeout",
    "UnprocessableEntityError": "bad_request",
    "BadRequestError": "bad_request",
    "APIResponseValidationError": "invalid_reply",
    "APIConnectionError": "connection",
}
# LiteLLM's prefix of a provider's message, such as "litellm.NotFoundError: NotFoundError: AnthropicException - ".
_WRAPPING = re.compile(r"^(?:(?:litellm\.)?\w+(?:Error|Exception|Timeout): )*(?:\w+(?:Exception|Error) - )?")
# LiteLLM's messages about a reply with HTTP 200 that it cannot read.
_NOT_A_COMPLETION = re.compile(
    r"Invalid response object .*'response_object': (?P<reply>.*?), 'model_response_object'"
    r"|Empty or invalid response|provider returned (?:a response with no )?'choices'|Expecting value: line"
    r"|object has no attribute",
    re.DOTALL,
)
_open_transports = 0


class LiteLLMTransport:
    """Calls a provider like :class:`DirectTransport`; LiteLLM is imported in a thread at the first call."""

    def __init__(self, endpoint: ModelEndpoint, *, timeout_s: float) -> None:
        self._endpoint = endpoint
        self._timeout_s = timeout_s
        self._litellm: Any = None
        self._loading = asyncio.Lock()
        self._passed_on: dict[str, bool] = {}

    async def complete(self, body: Mapping[str, Any]) -> dict[str, Any]:
        reply = await self._call(body)
        try:
            payload: dict[str, Any] = reply.model_dump(mode="json", exclude_none=True)
        except (ValueError, OverflowError) as error:  # too deep, or a number too large
            raise call_error(self._endpoint, "invalid_reply", str(error)) from None
        check_reply(self._endpoint, payload, "message")
        for choice in payload["choices"]:
            choice["message"].setdefault("content", None)
        return payload

    async def stream(self, body: Mapping[str, Any]) -> AsyncGenerator[dict[str, Any], None]:
        chunks = await self._call(body)

        def has_finished() -> bool:
            # LiteLLM ends a broken stream with a "stop" of its own.
            flags = ("received_finish_reason", "intermittent_finish_reason", "received_any_finish_reason")
            return any(getattr(chunks, flag, True) for flag in flags)

        try:
            async for chunk in chunks:
                payload: dict[str, Any] = chunk.model_dump(mode="json", exclude_none=True)
                check_reply(self._endpoint, payload, "delta")
                for choice in payload.get("choices", ()):
                    if choice.setdefault("finish_reason", None) and not has_finished():
                        words = "the stream ended in the middle of the reply"
                        raise call_error(self._endpoint, "connection", words)
                # LiteLLM estimates tokens that the provider did not count with its own tokenizer.
                received = getattr(chunks, "chunks", None)
                if received is not None and not any(getattr(part, "usage", None) for part in received):
                    payload.pop("usage", None)
                yield payload
        except Exception as error:  # providers' own exceptions may be of any class
            raise self._convert_error(error) from None
        finally:
            await chunks.aclose()

    async def aclose(self) -> None:
        """Close LiteLLM's connections if no other client in this process uses them."""
        global _open_transports
        litellm, self._litellm = self._litellm, None
        _open_transports -= litellm is not None
        if litellm is not None and _open_transports == 0:
            await litellm.close_litellm_async_clients()
            # Otherwise LiteLLM would reuse closed connections.
            litellm.in_memory_llm_clients_cache.flush_cache()

    async def _call(self, body: Mapping[str, Any]) -> Any:
        global _open_transports
        async with self._loading:
            if self._litellm is None:
                self._litellm = await asyncio.to_thread(import_litellm)
                _open_transports += 1
        endpoint = self._endpoint
        own = {"model": endpoint.model, "api_base": endpoint.base_url, "api_key": endpoint.api_key}
        try:
            return await self._litellm.acompletion(
                **{name: value for name, value in body.items() if self._passes(name) and name not in own},
                **{name: value for name, value in own.items() if value},
                custom_llm_provider=endpoint.provider,
                timeout=self._timeout_s,
                max_retries=0,
                drop_params=True,
            )
        except Exception as error:  # providers' own exceptions may be of any class
            raise self._convert_error(error) from None

    def _passes(self, name: str) -> bool:
        """Return whether a field of the request is passed on; log once per field if not."""
        if (passes := self._passed_on.get(name)) is not None:
            return passes
        litellm, endpoint = self._litellm, self._endpoint
        is_openai = name in litellm.OPENAI_CHAT_COMPLETION_PARAMS
        passes = self._passed_on[name] = name == "model" or (
            name not in _ROUTING
            and not name.startswith(_ROUTING_PREFIXES)
            and (is_openai or name not in litellm.types.utils.all_litellm_params)
        )
        if not passes:
            logger.warning("`%s` is not passed on to %s", name, endpoint.model_path)
        elif is_openai and name not in ("stream", "stream_options", "seed"):
            supported = litellm.get_supported_openai_params(
                model=endpoint.model, custom_llm_provider=endpoint.provider
            )
            if supported is not None and name not in supported:
                logger.warning("%s does not take `%s`; it is left out", endpoint.model_path, name)
        return passes

    def _convert_error(self, error: Exception) -> ModelCallError:
        """Convert LiteLLM's exception to ours."""
        if isinstance(error, ModelCallError):
            return error
        names = [cls.__name__ for cls in type(error).__mro__]
        category: Category = next((_CATEGORIES[name] for name in names if name in _CATEGORIES), "server")
        status = getattr(error, "status_code", None)
        words = _WRAPPING.sub("", str(getattr(error, "message", None) or error), count=1).strip()
        with suppress(ValueError, RecursionError):
            words = message_in(json.loads(words))
        retryable: bool | None = None
        most = 2_000
        if names[0] == "APIConnectionError" and not _is_network_trouble(error):
            # LiteLLM reports its own errors, such as a missing package or a KeyError in a reply, as connection errors.
            category, retryable = "invalid_reply", "No module named" not in words
            words = words.partition("\nTraceback")[0]
        elif category == "bad_request" and CONTEXT_LENGTH.search(words):
            category = "context_length"
        elif (found := _NOT_A_COMPLETION.search(words)) is not None:
            category, status, words = "invalid_reply", None, found["reply"] or words
            most = 300
        elif words == "Error in response object":
            category, status = "server", None
        headers = getattr(getattr(error, "response", None), "headers", None)
        return ModelCallError(
            category,
            redact(words, *self._endpoint.secrets)[:most],
            model_path=self._endpoint.model_path,
            status=status if isinstance(status, int) and category != "connection" else None,
            retryable=retryable,
            retry_after_s=retry_after_s(headers or {}),
        )


def import_litellm() -> Any:
    """Import LiteLLM without warnings and without network requests."""
    # Read at import: otherwise LiteLLM downloads its price table.
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    import litellm

    # A warning of pydantic about LiteLLM's types, which users cannot act on.
    warnings.filterwarnings("ignore", message=r"Item '.*' on TypedDict class", category=UserWarning)
    # A warning about replies that are not completions; these are reported as failures.
    warnings.filterwarnings("ignore", message="Pydantic serializer warnings", category=UserWarning)
    litellm.suppress_debug_info = True
    litellm.telemetry = False
    for name in ("LiteLLM", "LiteLLM Router", "LiteLLM Proxy"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    return litellm


def _is_network_trouble(error: BaseException) -> bool:
    """Return whether a connection error of LiteLLM has a network cause."""
    import aiohttp
    import httpx

    for cause in with_causes(error):
        if isinstance(cause, aiohttp.ClientError | httpx.TransportError | OSError):
            return not isinstance(cause, ImportError)
    return False
