"""Open HTTP connections, explain why they fail, and repeat what is safe to repeat.

Connections have time limits, follow no redirects, and take no credentials from the environment. Retries, by stamina,
have fixed waits that the server may extend.
"""

from __future__ import annotations

import logging
import re
import socket
import ssl
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TypeVar
from urllib.parse import urlsplit

import httpx
import stamina

from osmosis_ai.api.platform_url import describe_platform, is_loopback
from osmosis_ai.errors import NetworkError, OsmosisError, with_causes

# stamina logs every scheduled retry; without a handler, Python prints these records to stderr.
logging.getLogger("stamina").addHandler(logging.NullHandler())

T = TypeVar("T")
CONNECT_TIMEOUT_S = 30.0
LONGEST_REQUESTED_WAIT_S = 60.0
AT_LEAST_S = 20.0
"""The minimum time limit for a body that delays other requests, in seconds."""
SLOWEST_BYTES_S = 64 << 10
"""The minimum average rate for large bodies, in bytes per second: 8 MiB may take two and a half minutes in all."""


def open_http(
    url: str, *, headers: Mapping[str, str], timeout_s: float, transport: httpx.BaseTransport | None = None
) -> httpx.Client:
    """Open an HTTP client for the host of ``url``; the caller closes it."""
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
            "Proxy settings of the environment are invalid.",
            hint="check HTTP_PROXY, HTTPS_PROXY and ALL_PROXY: only http and https proxies are supported",
        ) from None
    except OSError as error:
        raise NetworkError(
            f"Trusted certificates cannot be loaded: {error.strerror or error}.",
            hint="check SSL_CERT_FILE and SSL_CERT_DIR",
        ) from None
    client.headers.update({"Accept-Encoding": "identity", **headers})
    del client.headers["Accept"]
    return client


def reason(error: Exception) -> str:
    """Return a short reason for a failed connection, without the URL."""
    if isinstance(error, httpx.TimeoutException):
        return "timed out"
    if isinstance(error, httpx.InvalidURL | httpx.UnsupportedProtocol):
        return "invalid URL"
    text = re.sub(r"^\[(Errno )?[^\]]*\]:? *", "", str(error)).strip().rstrip(".")
    text = re.sub(r"https?://\S+", "<redacted URL>", text)
    return text or type(error).__name__


def connection_hint(url: str, error: Exception) -> str:
    text, check_url = str(error).lower(), f"check the platform's URL: {describe_platform(url)}"
    here = is_loopback(urlsplit(url).hostname)
    if "certificate" in text:
        return "set SSL_CERT_FILE if its certificate is from a private authority"
    if _is_caused_by(error, ssl.SSLError):
        return f"its port does not support HTTPS; {check_url}"
    if isinstance(error, httpx.TimeoutException) and (here or not isinstance(error, httpx.ConnectTimeout)):
        return f"it is slow: try again, then check {'its log' if here else 'the network and any proxy'}"
    if _is_caused_by(error, ConnectionRefusedError) or "refused" in text:
        return "start it with `osmosis platform start`" if here else f"no server is on that port; {check_url}"
    if _is_caused_by(error, socket.gaierror):
        return f"the host name is unknown; {check_url}"
    return f"check {'its log' if here else 'the network and the proxy settings'}; {check_url}"


def _is_caused_by(error: BaseException, kind: type[BaseException]) -> bool:
    return any(isinstance(cause, kind) for cause in with_causes(error))


def longest_transfer_s(size: int) -> float:
    """Return the time limit for ``size`` bytes on a slow line, in seconds. Silence has the connection's own timeout."""
    return AT_LEAST_S + size / SLOWEST_BYTES_S


class Transient(Exception):
    """A failure that a retry may fix; ``error`` is raised if no attempt is left."""

    def __init__(self, error: OsmosisError, *, retry_after_s: float | None = None) -> None:
        super().__init__(error.message)
        self.error = error
        self.retry_after_s = retry_after_s


@dataclass(frozen=True)
class Waits:
    """The seconds between attempts; there is one attempt more than there are waits."""

    seconds: tuple[float, ...] = ()
    lasting_s: float = 0.0

    def lasting(self, seconds: float) -> Waits:
        """Return these waits with the last one repeated until ``seconds`` (monotonic clock) have passed."""
        return replace(self, lasting_s=seconds)

    def run(self, attempt: Callable[[], T]) -> T:
        """Call ``attempt`` until it returns, raises anything but :class:`Transient`, or no attempt is left."""
        left, until = iter(self.seconds), time.monotonic() + self.lasting_s

        def wait_after(failure: Exception) -> float | bool:
            wait_s = next(left, None)
            if wait_s is None and self.seconds and time.monotonic() < until:
                wait_s = self.seconds[-1]
            if not isinstance(failure, Transient) or wait_s is None:
                return False
            requested_s = failure.retry_after_s or 0.0
            return requested_s <= LONGEST_REQUESTED_WAIT_S and max(wait_s, requested_s)

        try:
            for trial in stamina.retry_context(on=wait_after, attempts=None, timeout=None):
                with trial:
                    return attempt()
        except Transient as failure:
            raise failure.error from None
        raise AssertionError("stamina yields at least one attempt")


@dataclass(frozen=True)
class Retry:
    """The failures after which a REST API call may be repeated."""

    waits: Waits
    statuses: frozenset[int] = frozenset()
    after_timeouts: bool = False
    after_nonsense: bool = False


_BUSY_OR_BROKEN = frozenset({429, *range(500, 600)})
NEVER = Retry(Waits())
READING = Retry(Waits((0.2, 0.8)), frozenset({429, 502, 503, 504}))
REPEATING = READING
"""For idempotent calls, which set a state instead of triggering an action."""
COMPLETING = Retry(Waits((1.0, 2.0, 4.0, 8.0)), _BUSY_OR_BROKEN, after_timeouts=True, after_nonsense=True)
SIGNING = Retry(Waits((0.5, 1.0)), _BUSY_OR_BROKEN, after_timeouts=True, after_nonsense=True)
