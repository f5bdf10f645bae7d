"""Requests to a blob store. The URL itself grants access, so it is never shown or logged."""

from __future__ import annotations

import contextlib
import contextvars
import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from types import TracebackType
from urllib.parse import urlsplit

import httpx

from osmosis_ai._version import __version__
from osmosis_ai.api.connections import CONNECT_TIMEOUT_S, open_http, reason
from osmosis_ai.api.http_errors import PlatformError
from osmosis_ai.api.platform_url import is_loopback
from osmosis_ai.api.retrying import Transient
from osmosis_ai.retry_after import retry_after_s

TRANSIENT_STATUSES = frozenset({429, 500, 502, 503, 504})
_MOST_HOPS = 20
_SILENCE_S = 60.0
_unlogged: contextvars.ContextVar[bool] = contextvars.ContextVar("unlogged", default=False)


class TransferError(PlatformError):
    """A transfer failed; ``status`` is the store's, if it answered."""

    is_passing = False


def _is_loggable(_: logging.LogRecord) -> bool:
    return not _unlogged.get()


# httpx logs every URL it requests, and these URLs grant access.
for _name in ("httpx", "httpcore.http11"):
    logging.getLogger(_name).addFilter(_is_loggable)


class BlobClient:
    """Connections to blob stores; thread-safe."""

    def __init__(self, *, transport: httpx.BaseTransport | None = None) -> None:
        self._transport = transport
        self._clients: dict[tuple[str, bool], httpx.Client] = {}
        self._opening = threading.Lock()

    def __enter__(self) -> BlobClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        for client in self._clients.values():
            client.close()
        self._clients.clear()

    def put(
        self,
        url: str,
        content: Callable[[], Iterator[bytes]],
        *,
        size: int,
        headers: Mapping[str, str],
        timeout_s: float,
    ) -> httpx.Headers:
        """Send ``size`` bytes and return the headers of the reply."""
        client = self._client_for(url)
        own = {name: value for name, value in headers.items() if name.lower() not in _FRAMING}
        timeout = httpx.Timeout(timeout_s, connect=CONNECT_TIMEOUT_S)
        with self._speaking(url):
            request = client.build_request(
                "PUT", url, content=content(), headers={**own, "Content-Length": str(size)}, timeout=timeout
            )
            response = client.send(request)
            if response.is_redirect:
                raise TransferError(
                    f"{shown(url)} redirects, which an upload does not follow.", status=response.status_code
                )
            if not response.is_success:
                raise refusal(url, response)
            return response.headers

    @contextlib.contextmanager
    def get(self, url: str, *, headers: Mapping[str, str]) -> Iterator[httpx.Response]:
        """Open a download and yield the unread reply, whatever its status."""
        with self._speaking(url), contextlib.ExitStack() as stack:
            for _ in range(_MOST_HOPS + 1):
                client = self._client_for(url)
                timeout = httpx.Timeout(_SILENCE_S, connect=CONNECT_TIMEOUT_S)
                response = stack.enter_context(
                    client.stream("GET", url, headers=dict(headers), timeout=timeout)
                )
                if response.next_request is None:
                    yield response
                    return
                url = str(response.next_request.url)
                response.close()
            raise TransferError(f"{shown(url)} redirects without end.")

    def _client_for(self, url: str) -> httpx.Client:
        check_url(url)
        parts = urlsplit(url)
        # `open_http` depends on this: the verification of the host, and whether a proxy is used.
        kind = (parts.scheme, is_loopback(parts.hostname))
        with self._opening:
            if kind not in self._clients:
                self._clients[kind] = open_http(
                    url,
                    headers={"User-Agent": f"osmosis-cli/{__version__}"},
                    timeout_s=_SILENCE_S,
                    transport=self._transport,
                )
            return self._clients[kind]

    @contextlib.contextmanager
    def _speaking(self, url: str) -> Iterator[None]:
        """Keep the exchange out of the log, and mark a broken one as retryable."""
        token = _unlogged.set(True)
        try:
            yield
        except (httpx.HTTPError, httpx.StreamError) as error:
            broken = TransferError(f"the connection to {shown(url)} failed: {reason(error)}.")
            broken.is_passing = True
            raise Transient(broken) from None
        except httpx.InvalidURL:
            raise TransferError("the platform gave a URL that is none.") from None
        finally:
            _unlogged.reset(token)


_FRAMING = frozenset({"content-length", "transfer-encoding", "host", "connection"})


def check_url(url: str) -> None:
    """Refuse a URL that would send the bytes unencrypted."""
    try:
        parts = urlsplit(url)
        host = parts.hostname
    except ValueError:
        raise TransferError("the platform gave a URL that is none.") from None
    if not host or not (parts.scheme == "https" or (parts.scheme == "http" and is_loopback(host))):
        raise TransferError(
            f"{shown(url)} is neither HTTPS nor on this machine, and data does not travel in the clear.",
            hint="a self-hosted platform needs TLS in front of it to be used from other machines",
        )


def shown(url: str) -> str:
    """Return the part of a signed URL that may be shown: its host."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        return "<redacted URL>"
    where = f"{parts.scheme}://{host}" + (f":{port}" if port else "")
    return f"{where}/<redacted URL>" if host else "<redacted URL>"


def may_pass(status: int | None) -> bool:
    """Tell whether a failed request may succeed later: signed URLs can be renewed, and full disks can be cleared."""
    return status is not None and (status == 403 or status >= 500)


def refusal(url: str, response: httpx.Response) -> Exception:
    """Return the exception for a status that is not a success."""
    status = response.status_code
    hint = None
    if status in (401, 403, 404, 410):
        hint = "the permission to transfer may have run out; run the command again for a new one"
    elif status == 413:
        hint = "the store takes no file of this size"
    elif status == 507:
        hint = "the platform's disk is full: nothing was stored, and its administrator has to make room"
    error = TransferError(
        f"{shown(url)} answered HTTP {status}.", status=status, details={"status_code": status}, hint=hint
    )
    if status in TRANSIENT_STATUSES:
        error.is_passing = True
        return Transient(error, retry_after_s=retry_after_s(response.headers))
    return error
