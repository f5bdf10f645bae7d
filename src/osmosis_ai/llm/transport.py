"""Open HTTP sessions for many concurrent requests, without a limit in the connection pool.

Callers limit the number of concurrent requests themselves (``llm.limiter``, a semaphore): the more requests wait in a
client's pool, the more each one costs. Every session has timeouts, and none reads proxies or passwords from the
environment implicitly.
"""

from __future__ import annotations

import os
import socket
import urllib.request
from collections.abc import Mapping
from typing import TYPE_CHECKING
from urllib.parse import urlsplit, urlunsplit

from osmosis_ai._version import __version__

if TYPE_CHECKING:
    import aiohttp
    from aiohttp.abc import AbstractResolver

USER_AGENT = f"osmosis/{__version__}"
CONNECT_TIMEOUT_S = 15.0
ONLY_ADDRESS_ENV = "_OSMOSIS_ONLY_ADDRESS"
"""The host and port of the run's model, for a rollout without a network, which can reach only this address."""
# uvicorn closes idle connections after 5 s; a request at that moment would fail.
KEEP_ALIVE_S = 4.0
KEEP_ALIVE = {"Keep-Alive": f"timeout={KEEP_ALIVE_S:.0f}"}
"""Asks the controller to keep a connection of :func:`open_session`, whose pool is fast with thousands of them."""


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
        timeout=aiohttp.ClientTimeout(total=timeout_s, sock_connect=min(timeout_s, CONNECT_TIMEOUT_S)),
        headers={"User-Agent": USER_AGENT, **(headers or {})},
        cookie_jar=aiohttp.DummyCookieJar(),
        proxy=proxy,
    )


def connection_failure(error: Exception) -> str:
    """Return in plain words why a server could not be reached; aiohttp's messages are for developers."""
    import aiohttp

    if not isinstance(error, aiohttp.ClientConnectorError):
        return str(error) or type(error).__name__
    where, cause = f"{error.host}:{error.port}", error.os_error
    if isinstance(cause, socket.gaierror):
        return f"the host `{error.host}` was not found ({cause.strerror})"
    # asyncio replaces the system's message with its own.
    reason = os.strerror(cause.errno) if cause.errno else str(cause)
    return f"cannot connect to {where} ({reason[:1].lower()}{reason[1:]})"


def environment_proxy(url: str) -> str | None:
    """Return the proxy that the environment sets for ``url`` (``HTTPS_PROXY``, ``NO_PROXY`` ...), or None."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    if is_loopback(host) or urllib.request.proxy_bypass(host):
        return None
    return urllib.request.getproxies().get(parts.scheme)


def join_url(base: str, path: str) -> str:
    """Append ``path`` to the path of ``base``; the query stays at the end."""
    parts = urlsplit(base)
    return urlunsplit(parts._replace(path=parts.path.rstrip("/") + path, fragment=""))


def openai_base_url(address: str, path: str = "") -> str:
    """Return the base URL of an address: without ``/chat/completions``, with ``path`` if missing; the query is kept."""
    parts = urlsplit(address.strip())
    base = parts.path.rstrip("/").removesuffix("/chat/completions").rstrip("/")
    return urlunsplit(parts._replace(path=base if base.endswith(path) else base + path, fragment=""))


def is_loopback(host: str) -> bool:
    """Tell whether ``host`` is this machine."""
    return host == "localhost" or host.endswith(".localhost") or host.startswith("127.") or host == "::1"
