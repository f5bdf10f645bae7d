"""A rollout's model through the clients people know, over connections that all rollouts share.

Many rollouts of one process call at once, each at an address and with a key of its own. A client
costs little; what is dear is below it: connections, a TLS context (40 ms each), and a connection
pool that searches itself at every event. So every rollout has its own client, and all of them send
over one aiohttp session of the running event loop, which no client can close. The key goes to the
rollout's own address and nowhere else, whatever URL the client is used for.
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

from osmosis_ai.llm.transport import connection_failure, environment_proxy, open_session

if TYPE_CHECKING:
    from openai import AsyncOpenAI

CALL_TIMEOUT_S = 900.0
"""How long a model may be silent, in seconds; the agent's own timeout usually is shorter."""

CONNECT_TIMEOUT_S = 60.0
"""How long connecting may take, in seconds: a busy machine is slow, not gone."""

OPENAI_RETRIES = 2
"""How often the OpenAI client sends a call again whose connection broke; the bridge answers it from
the record of the first, and tells the client to try nothing else again."""

MAX_REPLY_BYTES = 256 * 1024 * 1024
"""How large a reply may be, in bytes; with the log-probabilities of many candidates, the longest have tens of millions."""


class ReplyTooLargeError(aiohttp.ClientError):
    """A reply without end, as far as this machine's memory is concerned."""


_shared: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str | None, AiohttpTransport]] = (
    weakref.WeakKeyDictionary()
)


def open_http(base_url: str, api_key: str | None) -> httpx.AsyncClient:
    """Return a client whose relative URLs are the model's: ``await client.post("/chat/completions", ...)``.

    It may be made anywhere and used in any event loop. Closing it is allowed and not needed.

    Args:
        base_url: an OpenAI base URL.
        api_key: its bearer token, sent to that address alone.
    """
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

    # From 3 on the package has types of httpx2 alone, and takes httpx's as before; 2 knows no others.
    over: Any = http
    return AsyncOpenAI(
        base_url=base_url,
        # The package insists on a key, and would look for one of another service in the environment.
        api_key=api_key or "none",
        http_client=over,
        timeout=over.timeout,
        max_retries=OPENAI_RETRIES,
    )


def shared_session(url: str) -> aiohttp.ClientSession:
    """Return the session over which this event loop's clients reach ``url``; it is nobody's to close.

    For who needs no client of a known make: a call costs a millisecond less.
    """
    parts = urlsplit(url)
    transport = _transport(_proxy_for(parts.scheme, parts.netloc))
    if not isinstance(transport.client, aiohttp.ClientSession):
        transport.client = transport.get_client()
    return transport.client


async def post_shared(
    url: str,
    content: bytes,
    headers: Mapping[str, str],
    *,
    timeout: aiohttp.ClientTimeout,
    most_bytes: int = MAX_REPLY_BYTES,
) -> tuple[int, bytes]:
    """Post JSON over the shared connections; return the answer's status and its body, unpacked.

    A redirection is an answer, too: the key stays with the address it is meant for.

    Raises:
        aiohttp.ClientError, OSError: nobody answered, or what came cannot be unpacked.
        ReplyTooLargeError: the body has more than ``most_bytes``.
        asyncio.TimeoutError: the answer took too long.
    """
    async with shared_session(url).post(
        url,
        data=content,
        headers={"Content-Type": "application/json", **headers},
        timeout=timeout,
        allow_redirects=False,
    ) as reply:
        body = bytearray()
        async for piece in reply.content.iter_any():
            body += piece
            if len(body) > most_bytes:
                reply.close()
                raise ReplyTooLargeError(f"the reply is larger than {most_bytes} bytes")
        return reply.status, bytes(body)


async def close_shared_connections() -> None:
    """Close the connections of the running event loop; a later call opens new ones."""
    for transport in _shared.pop(asyncio.get_running_loop(), {}).values():
        await transport.aclose()


class SharedConnections(httpx.AsyncBaseTransport):
    """Sends over the running event loop's connections; closing it leaves them to the others."""

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        proxy = _proxy_for(request.url.scheme, request.url.netloc.decode("ascii"))
        try:
            return await _transport(proxy).handle_async_request(request)
        except httpx.ConnectTimeout as error:
            # The library calls every failed connection a timeout, which would hide what happened.
            cause = error.__cause__
            if not isinstance(cause, aiohttp.ClientError) or isinstance(cause, aiohttp.ServerTimeoutError):
                raise
            kind = httpx.ConnectError if isinstance(cause, aiohttp.ClientConnectorError) else httpx.ReadError
            raise kind(connection_failure(cause)) from cause


class _KeyOfOneAddress(httpx.Auth):
    """Adds the rollout's key to requests for the rollout's own address."""

    def __init__(self, base_url: httpx.URL, api_key: str) -> None:
        self._origin = (base_url.scheme, base_url.host, base_url.port)
        self._path = base_url.path.rstrip("/") + "/"
        self._header = f"Bearer {api_key}"

    def auth_flow(self, request: httpx.Request) -> Generator[httpx.Request, httpx.Response, None]:
        url = request.url
        if (url.scheme, url.host, url.port) == self._origin and f"{url.path}/".startswith(self._path):
            request.headers["Authorization"] = self._header
        yield request


def _transport(proxy: str | None) -> AiohttpTransport:
    transports = _shared.setdefault(asyncio.get_running_loop(), {})
    transport = transports.get(proxy)
    if transport is None:
        transport = transports[proxy] = AiohttpTransport(
            # Whoever calls says how long it may take; the session sets no limit of its own.
            client=lambda: open_session(timeout_s=CALL_TIMEOUT_S, proxy=proxy),
            # Nothing uses it, as the session verifies with aiohttp's own; one that trusts nobody costs no 40 ms.
            verify=ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT),
        )
    return transport


@lru_cache(maxsize=64)
def _proxy_for(scheme: str, netloc: str) -> str | None:
    return environment_proxy(f"{scheme}://{netloc}")
