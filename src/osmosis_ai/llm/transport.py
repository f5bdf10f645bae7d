"""One way to open an HTTP session for fan-out: nothing ever waits inside the connection pool.

Whoever sends many requests decides beforehand how many run at once (``llm.limiter``, a
semaphore); the pool itself is unlimited, because queueing inside a client's pool costs more per
request the more are waiting. Every session has timeouts, and none reads proxies or passwords
from the environment behind the caller's back.
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
"""The host and port of the run's model, in a process that reaches nothing else: a rollout without a network."""
# uvicorn closes an idle connection after 5 s; reusing one at that very moment fails the request.
KEEP_ALIVE_S = 4.0


def open_session(
    *,
    timeout_s: float,
    headers: Mapping[str, str] | None = None,
    keep_alive_s: float = KEEP_ALIVE_S,
    proxy: str | None = None,
    resolver: AbstractResolver | None = None,
) -> aiohttp.ClientSession:
    """Open a session for many requests at once; call it inside a running event loop and close it."""
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
    """Say in plain words why a server could not be reached; aiohttp's own words are for its authors."""
    import aiohttp

    if not isinstance(error, aiohttp.ClientConnectorError):
        return str(error) or type(error).__name__
    where, cause = f"{error.host}:{error.port}", error.os_error
    if isinstance(cause, socket.gaierror):
        return f"the host `{error.host}` was not found ({cause.strerror})"
    # asyncio puts its own sentence where the system's should be.
    reason = os.strerror(cause.errno) if cause.errno else str(cause)
    return f"cannot connect to {where} ({reason[:1].lower()}{reason[1:]})"


def environment_proxy(url: str) -> str | None:
    """Return the proxy the environment names for ``url`` (``HTTPS_PROXY``, ``NO_PROXY`` ...), if any."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    if is_loopback(host) or urllib.request.proxy_bypass(host):
        return None
    return urllib.request.getproxies().get(parts.scheme)


def join_url(base: str, path: str) -> str:
    """Return ``base`` with ``path`` after its own path; the query stays at the end."""
    parts = urlsplit(base)
    return urlunsplit(parts._replace(path=parts.path.rstrip("/") + path, fragment=""))


def openai_base_url(address: str, path: str = "") -> str:
    """Return the base URL in an address that may end in ``/chat/completions`` or lack its ``path``; the query is kept."""
    parts = urlsplit(address.strip())
    base = parts.path.rstrip("/").removesuffix("/chat/completions").rstrip("/")
    return urlunsplit(parts._replace(path=base if base.endswith(path) else base + path, fragment=""))


def is_loopback(host: str) -> bool:
    """Tell whether ``host`` names this machine."""
    return host == "localhost" or host.endswith(".localhost") or host.startswith("127.") or host == "::1"
