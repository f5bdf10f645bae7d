"""httpx and OpenAI clients for a rollout's model, over connections shared by all rollouts.

A client is cheap; connections, a TLS context (40 ms each) and httpx's connection pool, which scans its list on every
event, are expensive. So every rollout has its own client, and all clients send over one aiohttp session per event loop.
The key is sent only to the rollout's own address, whatever URL the client calls.
"""

from __future__ import annotations

import asyncio
import ssl
import weakref
from collections.abc import Generator, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import aiohttp
import httpx
from httpx_aiohttp import AiohttpTransport

from osmosis_ai.llm.transport import KEEP_ALIVE, connection_failure, environment_proxy, open_session

if TYPE_CHECKING:
    from openai import AsyncOpenAI

CALL_TIMEOUT_S = 900.0  # the agent's own timeout is usually shorter
CONNECT_TIMEOUT_S = 60.0  # long enough for a busy machine
# The bridge answers a retry from the record of the first call, and marks other errors as not retryable.
OPENAI_RETRIES = 2
MAX_REPLY_BYTES = 256 * 1024 * 1024  # the longest replies, with log-probabilities, have tens of millions

_shared: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str | None, AiohttpTransport]] = (
    weakref.WeakKeyDictionary()
)


def open_http(base_url: str, api_key: str | None) -> httpx.AsyncClient:
    """Return a client with the model's address as base URL. It works in any event loop and need not be closed."""
    return httpx.AsyncClient(
        base_url=base_url,
        auth=_KeyOfOneAddress(httpx.URL(base_url), api_key) if api_key else None,
        timeout=httpx.Timeout(CALL_TIMEOUT_S, connect=CONNECT_TIMEOUT_S, pool=None),
        transport=SharedConnections(),
        trust_env=False,
    )


def open_openai(base_url: str, api_key: str | None, http: httpx.AsyncClient) -> AsyncOpenAI:
    """Return an OpenAI client that sends over ``http``."""
    from openai import AsyncOpenAI

    # The package's types name only httpx2 from version 3 on, but it still accepts httpx, which version 2 requires.
    over: Any = http
    return AsyncOpenAI(
        base_url=base_url,
        # Without a key, the package would use OPENAI_API_KEY from the environment.
        api_key=api_key or "none",
        http_client=over,
        timeout=over.timeout,
        max_retries=OPENAI_RETRIES,
    )


async def post_shared(
    url: str,
    content: bytes,
    headers: Mapping[str, str],
    *,
    connect_timeout_s: float = CONNECT_TIMEOUT_S,
    read_timeout_s: float | None = None,
    total_timeout_s: float | None = None,
    most_bytes: int = MAX_REPLY_BYTES,
) -> tuple[int, bytes]:
    """Post JSON over the shared connections and return status and decompressed body. Redirects are not followed.

    Using the session directly saves half the time of a call over httpx, whose errors are raised.
    """
    transport = _transport(_proxy_for(*urlsplit(url)[:2]))
    if not isinstance(transport.client, aiohttp.ClientSession):
        transport.client = transport.get_client()
    try:
        async with transport.client.post(
            url,
            data=content,
            headers={"Content-Type": "application/json", **KEEP_ALIVE, **headers},
            timeout=aiohttp.ClientTimeout(
                total_timeout_s, connect=connect_timeout_s, sock_read=read_timeout_s
            ),
            allow_redirects=False,
        ) as reply:
            body = bytearray()
            async for piece in reply.content.iter_any():
                body += piece
                if len(body) > most_bytes:
                    reply.close()
                    raise httpx.RemoteProtocolError(f"the reply is larger than {most_bytes} bytes")
            return reply.status, bytes(body)
    except asyncio.TimeoutError as error:
        raise httpx.ReadTimeout(str(error)) from error
    except (aiohttp.ClientError, OSError) as error:
        raise _httpx_error(error) from error


async def close_shared_connections() -> None:
    """Close the connections of the running event loop. A later call opens new ones."""
    for transport in _shared.pop(asyncio.get_running_loop(), {}).values():
        await transport.aclose()


class SharedConnections(httpx.AsyncBaseTransport):
    """httpx transport over the event loop's shared connections, which closing it leaves open."""

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        proxy = _proxy_for(request.url.scheme, request.url.netloc.decode("ascii"))
        try:
            return await _transport(proxy).handle_async_request(request)
        except httpx.ConnectTimeout as error:
            # The library reports every failed connection as a timeout, which would hide the cause.
            cause = error.__cause__
            if not isinstance(cause, aiohttp.ClientError) or isinstance(cause, aiohttp.ServerTimeoutError):
                raise
            raise _httpx_error(cause) from cause


class _KeyOfOneAddress(httpx.Auth):
    """Adds the rollout's key to requests for the rollout's own address."""

    def __init__(self, base_url: httpx.URL, api_key: str) -> None:
        self._origin = (base_url.scheme, base_url.host, base_url.port)
        self._path = base_url.path.rstrip("/") + "/"
        self._header = f"Bearer {api_key}"

    def auth_flow(self, request: httpx.Request) -> Generator[httpx.Request, httpx.Response, None]:
        url = request.url
        if (url.scheme, url.host, url.port) == self._origin and f"{url.path}/".startswith(self._path):
            request.headers.update({"Authorization": self._header, **KEEP_ALIVE})
        yield request


def _httpx_error(error: Exception) -> httpx.RequestError:
    cause = error.__cause__
    if isinstance(cause, aiohttp.http_exceptions.ContentEncodingError):
        return httpx.DecodingError(cause.message)
    if isinstance(error, (aiohttp.InvalidURL, aiohttp.NonHttpUrlClientError)):
        return httpx.UnsupportedProtocol(repr(error))
    kind = httpx.ConnectError if isinstance(error, aiohttp.ClientConnectorError) else httpx.ReadError
    return kind(connection_failure(error))


def _transport(proxy: str | None) -> AiohttpTransport:
    transports = _shared.setdefault(asyncio.get_running_loop(), {})
    transport = transports.get(proxy)
    if transport is None:
        transport = transports[proxy] = AiohttpTransport(
            # Each caller sets its own timeout; the session has none.
            client=lambda: open_session(timeout_s=CALL_TIMEOUT_S, proxy=proxy),
            # Unused, since the session verifies with aiohttp's context. An empty context avoids the 40 ms.
            verify=ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT),
        )
    return transport


@lru_cache(maxsize=64)
def _proxy_for(scheme: str, netloc: str) -> str | None:
    return environment_proxy(f"{scheme}://{netloc}")
