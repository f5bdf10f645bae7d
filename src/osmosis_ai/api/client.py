"""The HTTP client of the REST API."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from typing import Any, Literal, TypedDict, TypeVar
from urllib.parse import quote, urlsplit

import httpx
from pydantic import ValidationError
from typing_extensions import Unpack

from osmosis_ai._version import __version__
from osmosis_ai.api.capabilities import HOSTED, Capability, capability_of_route, read_capabilities
from osmosis_ai.api.connections import NEVER, READING, Retry, Transient, connection_hint, open_http, reason
from osmosis_ai.api.http_errors import (
    PlatformError,
    Reply,
    ReplyRedactor,
    RequestInfo,
    TokenOrigin,
    UnreadableReply,
    http_error,
    json_object,
    missing_git_scope,
    unsupported,
)
from osmosis_ai.api.models.auth import Verification
from osmosis_ai.api.models.base import LogPage, Page, WireModel
from osmosis_ai.api.platform_url import describe_platform, ensure_secure, normalize_platform_url
from osmosis_ai.errors import OsmosisError
from osmosis_ai.retry_after import retry_after_s

M = TypeVar("M", bound=WireModel)
P = TypeVar("P", bound=Page[Any])
GitScope = Literal["required", "optional", "never"]
Query = Mapping[str, str | int | None]

DEFAULT_TIMEOUT_S = 30.0
_MOST_REDIRECTS = 5
_LARGEST_REPLY_BYTES = 64 * 1024 * 1024
_LARGEST_EVENT_BYTES = 1024 * 1024
# Platforms send a comment at least every 60 s.
_LONGEST_SILENCE_S = 65.0
_NO_ROUTE = frozenset({404, 405, 501})
_LOGIN_PATHS = ("/api/cli/verify", "/api/cli/device/authorize", "/api/cli/device/token")
_VERSION_WARNINGS = {"upgrade_available": "UPGRADE_AVAILABLE", "deprecated": "DEPRECATED"}
_announced: set[str] = set()
_announcing = threading.Lock()


def segment(value: str) -> str:
    """Return ``value`` as exactly one path segment."""
    if not value:
        raise OsmosisError("Name or ID is empty.")
    if set(value) == {"."}:
        return value.replace(".", "%2E")
    try:
        return quote(value, safe="")
    except UnicodeEncodeError:
        raise OsmosisError("Name or ID is not valid Unicode text.") from None


def encode(body: WireModel | Mapping[str, Any]) -> bytes:
    value = body.to_wire() if isinstance(body, WireModel) else body
    try:
        return json.dumps(value, allow_nan=False).encode("ascii")
    except ValueError:
        raise OsmosisError("Value is not finite: nan and inf cannot be sent to a platform.") from None


def decode(content: bytes, model: type[M], call: str) -> M:
    """Decode the success reply to ``call``; an empty reply has no fields."""
    value = json_object(content) if content.strip() else {}
    if value is None:
        page = (
            "the reply is a web page, perhaps from a proxy or a login page; "
            if content.lstrip()[:1] == b"<"
            else ""
        )
        raise UnreadableReply("Invalid JSON response from platform", hint=f"{page}check the platform's URL")
    try:
        return model.model_validate(value)
    except ValidationError as error:
        problems = [
            f"`{'.'.join(map(str, problem['loc']))}`: {problem['msg'].lower()}"
            for problem in error.errors(include_url=False, include_context=False, include_input=False)[:3]
        ]
        raise UnreadableReply(f"Response to {call} is invalid: {', '.join(problems)}.") from None


class RequestOptions(TypedDict, total=False):
    git: GitScope
    anonymous: bool
    timeout_s: float | None
    retry: Retry
    headers: Mapping[str, str] | None


class StreamCut(PlatformError):
    """A stream ended before the platform closed it."""


class PlatformClient:
    """A client for one platform, user and repository; thread-safe.

    ``on_warning`` receives the platform's warnings about this version, each with its code, once per process.
    """

    def __init__(
        self,
        platform_url: str,
        token: str | None = None,
        git_identity: str | None = None,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        *,
        connect_timeout_s: float | None = None,
        token_origin: TokenOrigin = "given",
        on_warning: Callable[[str, str], None] | None = None,
    ) -> None:
        self.platform_url = normalize_platform_url(platform_url)
        ensure_secure(self.platform_url)
        if token is not None and not (token and token.isascii() and token.isprintable() and " " not in token):
            raise OsmosisError(
                "Token is invalid: it contains spaces or non-ASCII characters.", hint="copy the whole token"
            )
        self.git_identity = git_identity
        self.timeout_s = timeout_s
        self._connect_timeout_s = connect_timeout_s
        self.offers: frozenset[Capability] | None = None
        self._token = token
        self._request_info = RequestInfo(self.platform_url, token_origin if token else None, git_identity)
        self._redactor = ReplyRedactor([token] if token else [])
        self._on_warning = on_warning
        self._http = open_http(
            self.platform_url,
            headers={
                "Content-Type": "application/json",
                "User-Agent": f"osmosis-cli/{__version__}",
                "X-Osmosis-CLI-Version": __version__,
            },
            timeout_s=timeout_s,
        )
        self._http.event_hooks = {"response": [self._on_response]}

    def __enter__(self) -> PlatformClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"PlatformClient({self.platform_url!r}, git_identity={self.git_identity!r})"

    def close(self) -> None:
        self._http.close()

    def hide(self, values: Iterable[str]) -> None:
        """Redact ``values`` in every error from now on."""
        self._redactor.add(values)

    def verify(self) -> Verification:
        """Return the owner of the token, and the repository's workspace if there is one."""
        return self.get("/api/cli/verify", model=Verification, git="optional")

    def get(self, path: str, *, model: type[M], params: Query | None = None, git: GitScope = "required") -> M:
        """Read ``path``, with retries."""
        return self.request("GET", path, model=model, params=params, git=git, retry=READING)

    def pages(
        self, path: str, model: type[P], *, git: GitScope = "required", **filters: str | None
    ) -> Callable[[int, int], P]:
        """Return a function that gets one page of a list, given the page size and the offset."""
        return lambda limit, offset: self.get(
            path, model=model, params={"limit": limit, "offset": offset, **filters}, git=git
        )

    def log_pages(self, path: str) -> Callable[[int, str | None], LogPage]:
        """Return a function that gets one page of a log's older lines, given the page size and the cursor."""
        return lambda limit, cursor: self.get(
            path, model=LogPage, params={"limit": limit, "direction": "older", "cursor": cursor}
        )

    def post(
        self,
        path: str,
        body: WireModel | Mapping[str, Any] | None = None,
        *,
        model: type[M],
        **options: Unpack[RequestOptions],
    ) -> M:
        """Send ``body`` (``{}`` if None) to ``path``; once, unless ``retry`` allows more."""
        return self.request("POST", path, model=model, body=body or {}, **options)

    def delete(
        self, path: str, body: WireModel | Mapping[str, Any] | None = None, *, git: GitScope = "required"
    ) -> None:
        """Delete what ``path`` and ``body`` name; without ``body``, none is sent."""
        self.request("DELETE", path, model=WireModel, body=body, git=git)

    def request(
        self,
        method: str,
        path: str,
        *,
        model: type[M],
        params: Query | None = None,
        body: WireModel | Mapping[str, Any] | None = None,
        git: GitScope = "required",
        anonymous: bool = False,
        timeout_s: float | None = None,
        retry: Retry = NEVER,
        headers: Mapping[str, str] | None = None,
    ) -> M:
        limit_s = self.timeout_s if timeout_s is None else timeout_s
        content = None if body is None else encode(body)
        request = self._http.build_request(
            method,
            f"{self.platform_url}{path}",
            params={key: value for key, value in (params or {}).items() if value is not None} or None,
            content=content,
            headers={**(headers or {}), **self._own_headers(git, anonymous=anonymous)},
            timeout=httpx.Timeout(limit_s, connect=self._connect_timeout_s or limit_s),
        )
        try:
            return retry.waits.run(lambda: self._attempt(request, model, limit_s, retry))
        except PlatformError as error:
            error.path = path
            raise

    def events(self, path: str, *, params: Query | None = None) -> Generator[dict[str, Any]]:
        """Yield the JSON objects of a stream of server-sent events until the platform ends it; skip anything else.

        Raises StreamCut if the stream ends before that.
        """
        from httpx_sse import EventSource, SSEError

        with self._event_stream(path, params) as response:
            content = _LimitedEvents(response)
            try:
                for event in EventSource(content.as_response()).iter_sse():
                    content.read_bytes = 0
                    if (found := json_object(event.data)) is not None:
                        yield found
            except SSEError:
                raise PlatformError(
                    "Invalid JSON response from platform: the reply is not a stream of events.",
                    hint="check the platform's URL",
                ) from None
            except httpx.TransportError as error:
                raise StreamCut(self._unreachable(error).message) from None

    @contextmanager
    def _event_stream(self, path: str, params: Query | None) -> Iterator[httpx.Response]:
        request = self._http.build_request(
            "GET",
            f"{self.platform_url}{path}",
            params=params,
            headers={"Accept": "text/event-stream", **self._own_headers("required")},
            timeout=httpx.Timeout(self.timeout_s, read=_LONGEST_SILENCE_S),
        )
        try:
            response = self._open(request)
            if not response.is_success:
                content = self._read(response, time.monotonic() + self.timeout_s)
                reply = Reply(response.status_code, response.headers, content)
                raise http_error(reply, self._request_info, self._redactor)
        except httpx.HTTPError as error:
            raise self._unreachable(error) from None
        with closing(response):
            yield response

    def _own_headers(self, git: GitScope, *, anonymous: bool = False) -> dict[str, str]:
        if git == "required" and self.git_identity is None:
            raise missing_git_scope(self._request_info)
        sent = {}
        if self._token is not None and not anonymous:
            sent["Authorization"] = f"Bearer {self._token}"
        if git != "never" and self.git_identity is not None:
            sent["X-Osmosis-Git"] = self.git_identity
        return sent

    def _attempt(self, request: httpx.Request, model: type[M], limit_s: float, retry: Retry) -> M:
        deadline = time.monotonic() + limit_s
        try:
            with closing(self._open(request)) as response:
                reply = Reply(response.status_code, response.headers, self._read(response, deadline))
        except httpx.HTTPError as error:
            failure = self._unreachable(error)
            if isinstance(error, httpx.TimeoutException) and not retry.after_timeouts:
                raise failure from None
            raise Transient(failure) from None
        if not 200 <= reply.status < 300:
            refused = self._refusal(reply, request)
            if reply.status in retry.statuses:
                raise Transient(refused, retry_after_s=retry_after_s(reply.headers))
            raise refused
        try:
            return decode(reply.content, model, f"{request.method} {request.url.path}")
        except PlatformError as error:
            error.hint = error.hint and f"{error.hint}: {describe_platform(self.platform_url)}"
            if retry.after_nonsense:
                raise Transient(error) from None
            raise

    def _refusal(self, reply: Reply, request: httpx.Request) -> PlatformError:
        refused = http_error(reply, self._request_info, self._redactor)
        foreign = read_capabilities(reply.headers) is None and self.offers in (None, HOSTED)
        if reply.status not in _NO_ROUTE or refused.refuses_git_scope:
            return refused
        is_missing_route = refused.platform_code == "ROUTE_NOT_FOUND"
        if request.url.path.endswith(_LOGIN_PATHS) and (is_missing_route or not refused.body):
            return PlatformError(
                f"{self.platform_url} is not an Osmosis platform.",
                status=reply.status,
                details={"status_code": reply.status},
                hint=f"check the platform's URL: {describe_platform(self.platform_url)}",
            )
        if not foreign and not is_missing_route:
            return refused
        capability = capability_of_route(request.url.raw_path.decode("ascii").partition("?")[0])
        return refused if capability is None else unsupported(self.platform_url, capability, reply.status)

    def _open(self, request: httpx.Request) -> httpx.Response:
        """Send a request and return the unread reply; only a GET follows redirects, and only within its origin."""
        for _ in range(_MOST_REDIRECTS):
            try:
                response = self._http.send(request, stream=True)
            except httpx.InvalidURL:
                raise PlatformError(
                    f"{self.platform_url} redirects to an invalid URL.", hint="check the platform's URL"
                ) from None
            following = response.next_request
            if following is None:
                return response
            response.close()
            if request.method != "GET" or _origin(following.url) != _origin(request.url):
                raise self._redirected(response.status_code, following.url)
            request = following
        raise PlatformError(f"{self.platform_url} redirects endlessly.", hint="check the platform's URL")

    def _on_response(self, response: httpx.Response) -> None:
        """Note the platform's capabilities and its warning about this version."""
        said = read_capabilities(response.headers)
        # An error without the header may be a proxy's and says nothing about the platform.
        if said is not None or (self.offers is None and response.is_success):
            self.offers = HOSTED if said is None else said
        if response.is_success:
            self._note_version(response.headers)

    def _read(self, response: httpx.Response, deadline: float) -> bytes:
        content = bytearray()
        for chunk in response.iter_bytes():
            content += chunk
            if len(content) > _LARGEST_REPLY_BYTES:
                raise PlatformError(f"Response of {self.platform_url} is too large.")
            if time.monotonic() > deadline:
                raise httpx.ReadTimeout("the reply did not end in time", request=response.request)
        return bytes(content)

    def _redirected(self, status: int, target: httpx.URL) -> PlatformError:
        elsewhere = _origin(target)
        same = elsewhere == _origin(httpx.URL(self.platform_url))
        return PlatformError(
            f"{self.platform_url} redirects to {'itself' if same else elsewhere} (HTTP {status}, not followed).",
            details={"status_code": status},
            hint="check the proxy and the platform's URL"
            if same
            else f"if that is your platform: osmosis --platform {elsewhere} login",
        )

    def _unreachable(self, error: Exception) -> PlatformError:
        return PlatformError(
            self._redactor.text(f"Connection error: {reason(error)} ({self.platform_url})"),
            details={"platform_url": self.platform_url},
            hint=connection_hint(self.platform_url, error),
        )

    def _note_version(self, headers: Mapping[str, str]) -> None:
        code = _VERSION_WARNINGS.get(headers.get("x-osmosis-version-status", ""))
        message = headers.get("x-osmosis-version-message", "").strip()
        if code is None or not message:
            return
        with _announcing:
            if code in _announced:
                return
            _announced.add(code)
        if self._on_warning is not None:
            self._on_warning(self._redactor.text(message), code)


class _LimitedEvents:
    """The bytes of a stream, with the size of each event limited to that of a log line."""

    def __init__(self, response: httpx.Response) -> None:
        self._response = response
        self.read_bytes = 0

    def as_response(self) -> httpx.Response:
        kind = {"Content-Type": self._response.headers.get("Content-Type", "")}
        return httpx.Response(self._response.status_code, headers=kind, content=self._chunks())

    def _chunks(self) -> Iterator[bytes]:
        for chunk in self._response.iter_bytes():
            self.read_bytes += len(chunk)
            if self.read_bytes > _LARGEST_EVENT_BYTES:
                raise PlatformError("Event stream of the platform has an endless line.")
            yield chunk


def _origin(url: httpx.URL) -> str:
    parts = urlsplit(str(url))
    return normalize_platform_url(f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}")
