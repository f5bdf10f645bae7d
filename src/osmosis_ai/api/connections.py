"""Open HTTP connections with time limits, without redirects, and without credentials from the environment."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from osmosis_ai.api.active_platform import describe_platform
from osmosis_ai.api.platform_url import is_loopback
from osmosis_ai.errors import NetworkError, with_causes

if TYPE_CHECKING:
    import httpx

CONNECT_TIMEOUT_S = 30.0


def open_http(
    url: str,
    *,
    headers: Mapping[str, str],
    timeout_s: float,
    transport: httpx.BaseTransport | None = None,
) -> httpx.Client:
    """Open an HTTP client for the host of ``url``; the caller closes it."""
    import httpx

    parts = urlsplit(url)
    try:
        client = httpx.Client(
            # Loading the certificates takes longer than a request to this machine.
            verify=parts.scheme == "https",
            trust_env=not is_loopback(parts.hostname),
            timeout=httpx.Timeout(timeout_s, connect=min(timeout_s, CONNECT_TIMEOUT_S)),
            follow_redirects=False,
            transport=transport,
        )
    except (ValueError, ImportError):
        raise NetworkError(
            "the proxy settings of the environment cannot be used.",
            hint="check HTTP_PROXY, HTTPS_PROXY and ALL_PROXY: only http and https proxies are supported",
        ) from None
    except OSError as error:
        raise NetworkError(
            f"the trusted certificates cannot be loaded: {error.strerror or error}.",
            hint="check SSL_CERT_FILE and SSL_CERT_DIR",
        ) from None
    client.headers.update({"Accept-Encoding": "identity", **headers})
    del client.headers["Accept"]
    return client


def reason(error: Exception) -> str:
    """Return a short reason for a failed connection, without the URL."""
    import re

    import httpx

    if isinstance(error, httpx.TimeoutException):
        return "timed out"
    if isinstance(error, httpx.InvalidURL | httpx.UnsupportedProtocol):
        return "invalid URL"
    text = re.sub(r"^\[(Errno )?[^\]]*\]:? *", "", str(error)).strip().rstrip(".")
    text = re.sub(r"https?://\S+", "<redacted URL>", text)
    return text or type(error).__name__


def connection_hint(url: str, error: Exception) -> str:
    """Return a hint for a host that could not be reached."""
    import socket
    import ssl

    import httpx

    text, url_used = str(error).lower(), f"the platform's URL: {describe_platform(url)}"
    here = is_loopback(urlsplit(url).hostname)
    if "certificate" in text:
        return "if its certificate comes from a private authority, name that in SSL_CERT_FILE"
    if _is_caused_by(error, ssl.SSLError):
        return f"its port does not speak HTTPS; check {url_used}"
    if isinstance(error, httpx.TimeoutException) and (here or not isinstance(error, httpx.ConnectTimeout)):
        where = "its log" if here else "the network and any proxy in between"
        return f"it was reached and is slow to answer: try again, and if it stays so look at {where}"
    if _is_caused_by(error, ConnectionRefusedError) or "refused" in text:
        if here:
            return "is the platform running? start it with `osmosis platform start`"
        return f"no server listens on that port; check {url_used}"
    if _is_caused_by(error, socket.gaierror):
        return f"the host name is unknown; check {url_used}"
    if here:
        return f"check the platform's log and {url_used}"
    return f"check the network, the proxy settings and {url_used}"


def _is_caused_by(error: BaseException, kind: type[BaseException]) -> bool:
    return any(isinstance(cause, kind) for cause in with_causes(error))
