"""HTTP to model servers and controllers: sessions for many concurrent requests, and OpenAI's protocol over them.

Callers limit the number of concurrent requests themselves (``llm.limiter``, a semaphore): the more requests wait in a
client's pool, the more each one costs. Every session has timeouts, and none reads proxies or passwords from the
environment implicitly.
"""

from __future__ import annotations

import asyncio
import codecs
import os
import re
import socket
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping
from contextlib import aclosing, asynccontextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit, urlunsplit

from osmosis_ai._version import __version__
from osmosis_ai.api.platform_url import is_loopback
from osmosis_ai.llm.errors import call_error, error_from_reply
from osmosis_ai.llm.providers import ModelEndpoint
from osmosis_ai.llm.replies import check_reply, dumps, is_completion, loads, reported_failure

if TYPE_CHECKING:
    import aiohttp
    from aiohttp.abc import AbstractResolver

# uvicorn closes idle connections after 5 s; a request at that moment would fail.
KEEP_ALIVE_S = 4.0
KEEP_ALIVE = {"Keep-Alive": f"timeout={KEEP_ALIVE_S:.0f}"}
"""Asks the controller to keep a connection of :func:`open_session`, whose pool is fast with thousands of them."""
# Providers keep connections open longer than our own servers, and a new TLS handshake is expensive.
_PROVIDER_KEEP_ALIVE_S = 30.0
_CONNECT_TIMEOUT_S = 15.0
MAX_REPLY_BYTES = 256 * 1024 * 1024
"""The maximum size of a reply or a whole stream. With the log-probabilities of many candidates, the longest have tens
of millions of bytes.
"""
# Headers cannot contain these characters; the HTTP library would raise an error of its own.
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")


def open_session(
    *,
    timeout_s: float,
    headers: Mapping[str, str] | None = None,
    keep_alive_s: float = KEEP_ALIVE_S,
    proxy: str | None = None,
    resolver: AbstractResolver | None = None,
) -> aiohttp.ClientSession:
    """Open a session for many concurrent requests inside a running event loop; the caller closes it."""
    import aiohttp

    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(
            limit=0, keepalive_timeout=keep_alive_s, ttl_dns_cache=300, resolver=resolver
        ),
        timeout=aiohttp.ClientTimeout(total=timeout_s, sock_connect=min(timeout_s, _CONNECT_TIMEOUT_S)),
        headers={"User-Agent": f"osmosis/{__version__}", **(headers or {})},
        cookie_jar=aiohttp.DummyCookieJar(),
        proxy=proxy,
    )


def connection_failure(error: Exception) -> str:
    """Return in plain words why a server could not be reached; aiohttp's messages are for developers."""
    import aiohttp

    if not isinstance(error, aiohttp.ClientConnectorError):
        return str(error) or type(error).__name__
    cause = error.os_error
    if isinstance(cause, socket.gaierror):
        return f"the host `{error.host}` was not found ({cause.strerror})"
    # asyncio replaces the system's message with its own.
    reason = os.strerror(cause.errno) if cause.errno else str(cause)
    return f"cannot connect to {error.host}:{error.port} ({reason[:1].lower()}{reason[1:]})"


def environment_proxy(url: str) -> str | None:
    """Return the proxy that the environment sets for ``url`` (``HTTPS_PROXY``, ``NO_PROXY`` ...), or None."""
    from urllib.request import getproxies, proxy_bypass

    parts = urlsplit(url)
    host = parts.hostname or ""
    return None if is_loopback(host) or proxy_bypass(host) else getproxies().get(parts.scheme)


def join_url(base: str, path: str) -> str:
    """Append ``path`` to the path of ``base``; the query stays at the end."""
    parts = urlsplit(base)
    return urlunsplit(parts._replace(path=parts.path.rstrip("/") + path, fragment=""))


class DirectTransport:
    """Calls an OpenAI-compatible endpoint: one request, one reply, without retries or waiting."""

    def __init__(self, endpoint: ModelEndpoint, *, timeout_s: float) -> None:
        self._endpoint = endpoint
        self._timeout_s = timeout_s
        self._url = join_url(endpoint.base_url or "", "/chat/completions")
        self._headers = {"Content-Type": "application/json"}
        if endpoint.api_key:
            self._headers["Authorization"] = f"Bearer {endpoint.api_key}"
        self._session: aiohttp.ClientSession | None = None

    async def complete(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Send one request and return the ``chat.completion`` object; raises :class:`ModelCallError`."""
        async with self._post(body) as response:
            content = await self._read(response)
        payload: dict[str, Any] = _decoded(content)
        check_reply(self._endpoint, payload, "message", headers=response.headers, content=content)
        return payload

    async def stream(self, body: Mapping[str, Any]) -> AsyncGenerator[dict[str, Any], None]:
        """Send one streaming request and yield its chunks; raises :class:`ModelCallError`."""
        async with self._post(body, streaming=True) as response:
            stopped: dict[int, bool] = {}  # choice -> whether it has a finish reason
            done = False
            async with aclosing(self._events(response)) as events:
                async for event, data in events:
                    if data.strip() == b"[DONE]":
                        done = True
                        break
                    payload = _decoded(data)
                    if _is_keep_alive(event, data, payload):
                        continue
                    if event == "error" and reported_failure(payload) is None:
                        payload = {"error": payload or data.decode("utf-8", "replace")}
                    check_reply(self._endpoint, payload, "delta", headers=response.headers, content=data)
                    for choice in payload.get("choices") or ():
                        index = choice.get("index") or 0
                        stopped[index] = stopped.get(index, False) or bool(choice.get("finish_reason"))
                    yield payload
            if not all(stopped.values()) or not (stopped or done):
                raise call_error(self._endpoint, "connection", "the stream ended in the middle of the reply")

    async def aclose(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def _events(self, response: aiohttp.ClientResponse) -> AsyncGenerator[tuple[str, bytes], None]:
        """Yield the name and data of each event. A whole reply, of a server that does not stream, is one event."""
        parser = EventParser()
        unread: bytearray | None = bytearray()  # until the first event
        async with aclosing(self._pieces(response, end=b"\n\n")) as pieces:
            async for piece in pieces:
                if unread is not None:
                    unread += piece
                for event in parser.feed(piece):
                    unread = None
                    yield event
        if unread is not None:
            content, headers = bytes(unread).strip(), response.headers
            check_reply(self._endpoint, _decoded(content), "message", headers=headers, content=content)
            yield "", content
            yield "", b"[DONE]"

    async def _pieces(
        self, response: aiohttp.ClientResponse, *, end: bytes = b""
    ) -> AsyncGenerator[bytes, None]:
        """Yield the reply in pieces, limited in size, and then ``end``."""
        size = 0
        async for piece in response.content.iter_any():
            size += len(piece)
            if size > MAX_REPLY_BYTES:
                response.close()
                words = f"it is larger than {MAX_REPLY_BYTES} bytes"
                raise call_error(self._endpoint, "invalid_reply", words, retryable=False)
            yield piece
        yield end

    async def _read(self, response: aiohttp.ClientResponse) -> bytes:
        return b"".join([piece async for piece in self._pieces(response)])

    @asynccontextmanager
    async def _post(
        self, body: Mapping[str, Any], *, streaming: bool = False
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Send one request and yield its response, which has status 200."""
        import aiohttp

        endpoint = self._endpoint
        if _CONTROL.search(endpoint.api_key or ""):
            raise call_error(endpoint, "auth", "the key contains a line break or another control character")
        try:
            data = dumps(body)
        except (TypeError, ValueError) as error:
            words = f"the request cannot be written as JSON: {error}"
            raise call_error(endpoint, "bad_request", words) from None
        if self._session is None:
            proxy = environment_proxy(self._url)
            self._session = open_session(
                timeout_s=self._timeout_s, keep_alive_s=_PROVIDER_KEEP_ALIVE_S, proxy=proxy
            )
        timeout = self._session.timeout
        if streaming:  # a long reply is allowed as long as data keeps arriving
            timeout = aiohttp.ClientTimeout(sock_connect=timeout.sock_connect, sock_read=self._timeout_s)
        try:
            async with self._session.post(
                self._url, data=data, headers=self._headers, allow_redirects=False, timeout=timeout
            ) as response:
                if 300 <= response.status < 400:
                    # Following it would send the key and the conversation to an address from the reply.
                    target = _host_of(response.headers.get("Location", ""))
                    words = (
                        f"it redirects{target and f' to {target}'} (HTTP {response.status}), which is not followed; "
                        "set the address to the one that answers by itself"
                    )
                    raise call_error(endpoint, "not_found", words)
                if response.status != 200:
                    content = await self._read(response)
                    payload = _decoded(content)
                    reply = content if payload is None else payload
                    raise error_from_reply(endpoint, response.status, reply, response.headers)
                yield response
        except asyncio.TimeoutError:
            raise call_error(endpoint, "timeout", f"no answer within {self._timeout_s:g} s") from None
        except (aiohttp.InvalidURL, aiohttp.ClientSSLError) as error:
            # A query may contain a key.
            words = str(error).replace(self._url, self._url.partition("?")[0])
            raise call_error(endpoint, "connection", words, retryable=False) from None
        except (aiohttp.ClientError, OSError) as error:
            raise call_error(endpoint, "connection", connection_failure(error)) from None


class EventParser:
    """Parses the bytes of a stream of server-sent events into (event name, data) pairs.

    Pieces may have any size and lines any length: a chunk with logprobs or token ids can be long. WHATWG HTML, 9.2.6.
    """

    def __init__(self) -> None:
        self._rest = bytearray()  # of a line, which can have megabytes: appending must not copy it
        self._event = ""
        self._data: list[bytes] = []
        self._byte_order_mark = codecs.BOM_UTF8  # until the first line

    def feed(self, piece: bytes) -> Iterator[tuple[str, bytes]]:
        """Yield every event that ``piece`` completes."""
        *lines, rest = piece.split(b"\n")
        if lines:
            lines[0] = bytes(self._rest) + lines[0]
            self._rest.clear()
        self._rest += rest
        for line in lines:
            line = line.rstrip(b"\r").removeprefix(self._byte_order_mark)
            self._byte_order_mark = b""
            if not line:
                event, data = self._event, self._data
                self._event, self._data = "", []
                if data:
                    yield event, b"\n".join(data)
                continue
            name, _, value = line.partition(b":")
            value = value.removeprefix(b" ")
            if name == b"data":
                self._data.append(value)
            elif name == b"event":
                self._event = value.decode("utf-8", "replace")


def _decoded(content: bytes) -> Any:
    """Decode the JSON in ``content``; None if it is invalid."""
    try:
        return loads(content)
    except ValueError:
        return None


def _is_keep_alive(event: str, data: bytes, payload: Any) -> bool:
    """Return whether an event is not part of the reply: it is empty, or has another name and no choices."""
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
