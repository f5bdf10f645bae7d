"""OpenAI's protocol over aiohttp: one request, one reply, without retries or waiting."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing, asynccontextmanager
from typing import TYPE_CHECKING, Any, Protocol, cast
from urllib.parse import urlsplit

from osmosis_ai.llm.errors import ModelCallError, error_from_reply, redact
from osmosis_ai.llm.providers import ModelEndpoint
from osmosis_ai.llm.replies import Part, check_reply, excerpt, is_completion, reported_failure
from osmosis_ai.llm.sse import EventParser
from osmosis_ai.llm.transport import connection_failure, environment_proxy, join_url, open_session
from osmosis_ai.llm.wire_json import dumps, loads

if TYPE_CHECKING:
    import aiohttp

# Providers keep connections open longer than our own servers, and a new TLS handshake is expensive.
_PROVIDER_KEEP_ALIVE_S = 30.0
_DONE = b"[DONE]"
# Headers cannot contain these characters; the HTTP library would raise an error of its own.
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")


class ModelTransport(Protocol):
    """Sends requests to a model; retries, limits and corrections are the client's."""

    async def complete(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Send one request and return the ``chat.completion`` object; raises :class:`ModelCallError`."""
        ...

    def stream(self, body: Mapping[str, Any]) -> AsyncGenerator[dict[str, Any], None]:
        """Send one request and yield its chunks; raises :class:`ModelCallError`."""
        ...

    async def aclose(self) -> None: ...


MAX_REPLY_BYTES = 256 * 1024 * 1024
"""The maximum size of a reply or a whole stream. With the log-probabilities of many candidates, the longest have tens
of millions of bytes.
"""


class DirectTransport:
    """Calls an OpenAI-compatible endpoint."""

    def __init__(self, endpoint: ModelEndpoint, *, timeout_s: float) -> None:
        self._endpoint = endpoint
        self._timeout_s = timeout_s
        self._url = join_url(endpoint.base_url or "", "/chat/completions")
        self._headers = {"Content-Type": "application/json"}
        if endpoint.api_key:
            self._headers["Authorization"] = f"Bearer {endpoint.api_key}"
        self._session: aiohttp.ClientSession | None = None

    async def complete(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Send one request and return the ``chat.completion`` object."""
        async with self._post(body) as response:
            content = await self._read(response)
            payload = _decoded(content)
            if response.status != 200:
                raise self._refusal(response, payload, content)
        self._check(payload, "message", response, content)
        return cast("dict[str, Any]", payload)

    async def stream(self, body: Mapping[str, Any]) -> AsyncGenerator[dict[str, Any], None]:
        """Send one streaming request and yield its chunks until the provider is done."""
        async with self._post(body, streaming=True) as response:
            if response.status != 200:
                content = await self._read(response)
                raise self._refusal(response, _decoded(content), content)
            stopped: dict[int, bool] = {}  # choice -> whether it has a finish reason
            done = False
            async with aclosing(self._events(response)) as events:
                async for event, data in events:
                    if data.strip() == _DONE:
                        done = True
                        break
                    payload = _decoded(data)
                    if _is_keep_alive(event, data, payload):
                        continue
                    chunk = self._chunk(response, event, data, payload)
                    for choice in chunk.get("choices") or ():
                        index = choice.get("index") or 0
                        stopped[index] = stopped.get(index, False) or bool(choice.get("finish_reason"))
                    yield chunk
            if not all(stopped.values()) or not (stopped or done):
                raise self._error("connection", "the stream ended in the middle of the reply")

    async def _events(self, response: aiohttp.ClientResponse) -> AsyncGenerator[tuple[str, bytes], None]:
        """Yield the name and data of each event; raise if there is none."""
        parser = EventParser()
        size = 0
        unread: bytearray | None = bytearray()  # until the first event
        async for piece in response.content.iter_any():
            size += len(piece)
            if size > MAX_REPLY_BYTES:
                raise self._too_large(response)
            if unread is not None:
                unread += piece
            for event in parser.feed(piece):
                unread = None
                yield event
        for event in parser.end():
            unread = None
            yield event
        if unread is not None:
            content = bytes(unread)
            self._check(_decoded(content), "message", response, content)
            words = f"the reply is not a stream: {excerpt(content, *self._endpoint.secrets)}"
            raise self._error("invalid_reply", words)

    async def _read(self, response: aiohttp.ClientResponse) -> bytes:
        """Return a reply's bytes, decompressed and limited in size."""
        content = bytearray()
        async for piece in response.content.iter_any():
            content += piece
            if len(content) > MAX_REPLY_BYTES:
                raise self._too_large(response)
        return bytes(content)

    def _too_large(self, response: aiohttp.ClientResponse) -> ModelCallError:
        response.close()
        return self._error("invalid_reply", f"it is larger than {MAX_REPLY_BYTES} bytes", retryable=False)

    async def aclose(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    @asynccontextmanager
    async def _post(
        self, body: Mapping[str, Any], *, streaming: bool = False
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        import aiohttp

        if _CONTROL.search(self._endpoint.api_key or ""):
            raise self._error("auth", "the key holds a line break or another control character")
        if self._session is None:
            self._session = open_session(
                timeout_s=self._timeout_s,
                keep_alive_s=_PROVIDER_KEEP_ALIVE_S,
                proxy=environment_proxy(self._url),
            )
        options: dict[str, Any] = {}
        if streaming:
            # A long reply is allowed as long as data keeps arriving.
            options["timeout"] = aiohttp.ClientTimeout(
                total=None, sock_connect=min(15.0, self._timeout_s), sock_read=self._timeout_s
            )
        try:
            async with self._session.post(
                self._url, data=self._encoded(body), headers=self._headers, allow_redirects=False, **options
            ) as response:
                if 300 <= response.status < 400:
                    raise self._redirected(response)
                yield response
        except asyncio.TimeoutError:
            raise self._error("timeout", f"no answer within {self._timeout_s:g} s") from None
        except (aiohttp.InvalidURL, aiohttp.ClientSSLError) as error:
            # A query may contain a key.
            words = str(error).replace(self._url, self._url.partition("?")[0])
            raise self._error("connection", words, retryable=False) from None
        except (aiohttp.ClientError, OSError) as error:
            raise self._error("connection", connection_failure(error)) from None

    def _redirected(self, response: aiohttp.ClientResponse) -> ModelCallError:
        """Refuse a redirect, which would send the key and the conversation to an address from the reply."""
        target = _host_of(response.headers.get("Location", ""))
        where = f" to {target}" if target else ""
        return self._error(
            "not_found",
            f"it redirects{where} (HTTP {response.status}), which is not followed; "
            "set the address to the one that answers by itself",
        )

    def _encoded(self, body: Mapping[str, Any]) -> bytes:
        try:
            return dumps(body)
        except (TypeError, ValueError) as error:
            raise self._error("bad_request", f"the request cannot be written as JSON: {error}") from None

    def _chunk(
        self, response: aiohttp.ClientResponse, event: str, data: bytes, payload: Any
    ) -> dict[str, Any]:
        if event == "error" and reported_failure(payload) is None:
            payload = {"error": payload or data.decode("utf-8", "replace")}
        self._check(payload, "delta", response, data)
        return cast("dict[str, Any]", payload)

    def _check(self, payload: Any, part: Part, response: aiohttp.ClientResponse, content: bytes) -> None:
        check_reply(
            payload,
            part,
            model_path=self._endpoint.model_path,
            secrets=self._endpoint.secrets,
            headers=response.headers,
            content=content,
        )

    def _refusal(self, response: aiohttp.ClientResponse, payload: Any, content: bytes) -> ModelCallError:
        return error_from_reply(
            response.status,
            content if payload is None else payload,
            response.headers,
            model_path=self._endpoint.model_path,
            secrets=self._endpoint.secrets,
        )

    def _error(self, category: Any, words: str, *, retryable: bool | None = None) -> ModelCallError:
        return ModelCallError(
            category,
            redact(words, *self._endpoint.secrets),
            model_path=self._endpoint.model_path,
            retryable=retryable,
        )


def _decoded(content: bytes) -> Any:
    """Decode the JSON in ``content``; None if it is invalid."""
    try:
        return loads(content)
    except ValueError:
        return None


def _is_keep_alive(event: str, data: bytes, payload: Any) -> bool:
    """Tell whether an event is not part of the reply: it is empty, or has another name and no choices."""
    if event == "error":
        return False
    if not data.strip():
        return True
    if event in ("", "message") or (isinstance(payload, dict) and "choices" in payload):
        return False
    return reported_failure(payload) is None and not is_completion(payload, "delta")


def _host_of(location: str) -> str:
    """Return the host of a redirect, without a path or query, which may contain secrets."""
    try:
        parts = urlsplit(location)
        return f"{parts.scheme}://{parts.hostname}" if parts.hostname else ""
    except ValueError:
        return ""
