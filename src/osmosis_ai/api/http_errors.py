"""Turn a platform's HTTP errors into a message, a code and a hint."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from osmosis_ai._version import __version__
from osmosis_ai.api.capabilities import Capability
from osmosis_ai.errors import ErrorCode, OsmosisError
from osmosis_ai.redaction import REDACTED, Redactor
from osmosis_ai.retry_after import retry_after_s

TokenOrigin = Literal["environment", "saved", "given"]
_EXCERPT, _READ_OF_A_PAGE = 200, 20_000
_MARKUP = re.compile(r"<(!doctype\s+html|html|head|body)\b", re.I)
_UNSEEN = re.compile(r"<!--.*?-->|<(script|style|svg)\b.*?</\1\s*>", re.I | re.S)
_TAG = re.compile(r"<[^>]*>?")
_CODES: Mapping[int, ErrorCode] = {
    400: "VALIDATION",
    401: "AUTH_REQUIRED",
    404: "NOT_FOUND",
    409: "CONFLICT",
    426: "UPGRADE_REQUIRED",
    429: "RATE_LIMITED",
}
_WORKER_RELEASE = ("WORKER_RELEASE", "WORKER_PROTOCOL")
"""Refusals that name the release to install, which may be an older one."""
_VERSION_STATUSES = ("current", "upgrade_available", "deprecated", "unsupported")


_ALWAYS_SECRET_KEYS = frozenset({"value", "secret", "secret_value"})


class ReplyRedactor(Redactor):
    """Redacts the secrets of one conversation, even short ones, because the user has just typed them."""

    def __init__(self, values: Iterable[str] = ()) -> None:
        super().__init__(values, shortest=1)

    def tree(self, value: Any) -> Any:
        """Return a JSON value with secrets redacted in texts, in keys, and under keys with secret names."""
        if not isinstance(value, Mapping):
            return super().tree(value)
        return {
            self.text(str(key)): REDACTED
            if str(key).lower() in _ALWAYS_SECRET_KEYS and item is not None
            else self.tree(item)
            for key, item in value.items()
        }


class PlatformError(OsmosisError):
    """A platform refused a request, sent an invalid response, or could not be reached."""

    default_code = "PLATFORM_ERROR"

    def __init__(
        self,
        message: str,
        *,
        status: int | None = None,
        platform_code: str | None = None,
        body: Mapping[str, Any] | None = None,
        code: ErrorCode | None = None,
        details: Mapping[str, Any] | None = None,
        hint: str | None = None,
    ) -> None:
        super().__init__(message, code=code, details=details, hint=hint)
        self.status = status
        self.platform_code = platform_code
        self.body: dict[str, Any] = dict(body or {})
        self.path: str | None = None

    @property
    def refuses_git_scope(self) -> bool:
        """Whether the platform refused the repository rather than the request."""
        return self.platform_code in _GIT_SCOPE


class UnreadableReply(PlatformError):
    """The response did not come from a platform; it may be a proxy's page."""


@dataclass(frozen=True)
class RequestInfo:
    """The facts about a request that error messages need."""

    platform_url: str
    token_origin: TokenOrigin | None = None
    git_identity: str | None = None


@dataclass(frozen=True)
class Reply:
    """A reply: status, headers by lower-case name, the whole body."""

    status: int
    headers: Mapping[str, str]
    content: bytes


def unsupported(platform_url: str, capability: Capability, status: int | None = None) -> PlatformError:
    return PlatformError(
        f"This platform does not support {capability.what}: {platform_url}.",
        status=status,
        platform_code="NOT_OFFERED",
        details={"platform_code": "NOT_OFFERED", "capability": capability.value},
        hint="the hosted platform supports it"
        if capability.of_the_contract
        else "use a self-hosted platform (`osmosis platform start`) of this version or newer",
    )


def http_error(reply: Reply, request: RequestInfo, redactor: ReplyRedactor) -> PlatformError:
    received = json_object(reply.content) or {}
    status, body = reply.status, dict(redactor.tree(received))
    # Read before redaction: a secret that happens to be part of a code must not change its meaning.
    platform_code = received.get("code") if isinstance(received.get("code"), str) else None
    hint: str | None
    if status == 401:
        message, hint = _unauthorized(platform_code, request)
    elif status == 426 and platform_code not in _WORKER_RELEASE:
        message, hint = _outdated(body, request)
    elif platform_code in _GIT_SCOPE:
        words = {"identity": request.git_identity or "this repository", "platform": request.platform_url}
        message, hint = (text.format(**words) for text in _GIT_SCOPE[platform_code])
    else:
        said = _sentence(body)
        issues = body.get("issues")
        listed = [f"\n  - {line}" for line in map(_issue, issues) if line] if isinstance(issues, list) else []
        message = _excerpt(reply, redactor) if said is None else "".join([said, *listed])
        hint = _next_step(reply)
    return PlatformError(
        message,
        status=status,
        platform_code=None if platform_code is None else redactor.text(platform_code),
        body=body,
        code=_code(status, platform_code, body),
        details={} if status == 401 else _details(status, body),
        hint=hint,
    )


def _code(status: int, platform_code: str | None, body: Mapping[str, Any]) -> ErrorCode:
    if status == 403:
        if platform_code == "BILLING_REQUIRED":
            return "BILLING_REQUIRED"
        text = body.get("error")
        if platform_code == "SUBSCRIPTION_REQUIRED" or (
            isinstance(text, str) and "subscription" in text.lower() and platform_code not in _GIT_SCOPE
        ):
            return "SUBSCRIPTION_REQUIRED"
    return _CODES.get(status, "PLATFORM_ERROR")


def _details(status: int, body: Mapping[str, Any]) -> dict[str, Any]:
    code = body.get("code")
    return {**({"platform_code": code} if isinstance(code, str) else {}), **body, "status_code": status}


def _excerpt(reply: Reply, redactor: ReplyRedactor) -> str:
    whole = redactor.text(reply.content.decode("utf-8", "replace"))
    # Redacted again: HTML entities are only decoded now.
    text = redactor.text(_printable(_one_line(whole[:_READ_OF_A_PAGE])))[:_EXCERPT]
    return f"API error: HTTP {reply.status}." + (f" Response: {text}" if text else "")


def _one_line(text: str) -> str:
    """Return the visible text of a page or a traceback in one line."""
    if _MARKUP.search(text):
        from html import unescape

        text = unescape(_TAG.sub(" ", _UNSEEN.sub(" ", text)))
    return " ".join(text.split())


_TOKENS: Mapping[TokenOrigin, tuple[str, str]] = {
    "environment": (
        "OSMOSIS_TOKEN",
        "set OSMOSIS_TOKEN to a valid token, or unset it and run `osmosis login`",
    ),
    "given": ("This token", "check that it was copied whole and created on this platform"),
    "saved": ("Your session on {url}", "log in again with `osmosis login`"),
}


def _unauthorized(platform_code: str | None, request: RequestInfo) -> tuple[str, str]:
    origin, url = request.token_origin, request.platform_url
    if platform_code in ("AUTH_HEADER_MISSING", "TOKEN_MISSING"):
        if origin is None:
            return "Not logged in. Run 'osmosis auth login' first.", "log in with `osmosis login`"
        return f"The token did not reach {url}.", "a proxy may remove the Authorization header"
    what, fix = _TOKENS[origin or "saved"]
    if platform_code in ("TOKEN_REVOKED", "TOKEN_EXPIRED"):
        # The given token is well-formed and of this platform.
        fix = "use another token of this platform" if origin == "given" else fix
        problem = "has been revoked" if platform_code == "TOKEN_REVOKED" else "has expired"
    elif origin in ("environment", "given"):
        problem = f"is not valid on {url}"
    else:
        problem = "has expired or is no longer valid"
    if origin == "environment" and "not valid" in problem:
        fix += "; for another platform, also set OSMOSIS_PLATFORM_URL and OSMOSIS_TOKEN_PLATFORM_URL"
    return f"{what.format(url=url)} {problem}.", fix


def _outdated(body: Mapping[str, Any], request: RequestInfo) -> tuple[str, str]:
    message = body.get("message")
    if body.get("status") not in _VERSION_STATUSES or not isinstance(message, str) or not message.strip():
        message = f"{request.platform_url} no longer supports this version of Osmosis ({__version__})."
    return _printable(message).strip(), "upgrade Osmosis and run the command again"


_CONNECT_HINT = (
    "connect it on the workspace's Git page, or with `osmosis platform connect` where you host the platform; "
    "if the repository was renamed: `git remote set-url origin NEW-URL`"
)
_NO_SCOPE = (
    "Repository of this command is unknown.",
    "run the command in a workspace directory whose `origin` is connected to {platform}",
)
_NO_VALID_SCOPE = (
    "Repository name is not accepted by {platform}: '{identity}'.",
    "check the origin with `git remote get-url origin`",
)
_GIT_SCOPE: Mapping[str | None, tuple[str, str]] = {
    "GIT_SCOPE_REQUIRED": _NO_SCOPE,
    "GIT_SCOPE_HEADER_REQUIRED": _NO_SCOPE,
    "GIT_SCOPE_INVALID": _NO_VALID_SCOPE,
    "GIT_SCOPE_HEADER_INVALID": _NO_VALID_SCOPE,
    "GIT_REPOSITORY_NOT_CONNECTED": (
        "The repository {identity} is not connected to a workspace on {platform}.",
        _CONNECT_HINT,
    ),
    "GIT_REPOSITORY_ACCESS_DENIED": (
        "You are not a member of the workspace that {identity} is connected to on {platform}.",
        "ask one of its owners to add you; `osmosis whoami` shows who you are",
    ),
    "GIT_SCOPE_HEADER_ACCESS_DENIED": (
        "{identity} is connected to no workspace on {platform} that you are a member of.",
        _CONNECT_HINT,
    ),
}


def missing_git_scope(request: RequestInfo) -> PlatformError:
    message, hint = _NO_SCOPE
    code = "GIT_SCOPE_HEADER_REQUIRED"
    return PlatformError(
        message,
        platform_code=code,
        code="VALIDATION",
        details={"platform_code": code},
        hint=hint.format(platform=request.platform_url),
    )


def _next_step(reply: Reply) -> str | None:
    if reply.status == 429:
        wait = retry_after_s(reply.headers)
        return f"try again in {wait:.0f} s" if wait else "try again later"
    if reply.status >= 500:
        return "try again; if the error repeats, see the platform's log"
    return None


def _sentence(body: Mapping[str, Any]) -> str | None:
    for key in ("error", "message"):
        text = body.get(key)
        if isinstance(text, str) and text.strip():
            return _printable(text).strip()
    return None


def _issue(issue: Any) -> str:
    if isinstance(issue, str):
        return _printable(issue)
    if not isinstance(issue, dict):
        return ""
    named = {key: _printable(text) for key, text in issue.items() if isinstance(text, str)}
    line = ": ".join(text for text in (named.get("key"), named.get("message")) if text)
    correction = named.get("key_correction")
    return f"{line} (did you mean '{correction}'?)" if correction and line else line


def json_object(content: bytes | str) -> dict[str, Any] | None:
    """Parse a JSON object; None if it is something else."""
    try:
        body = json.loads(content, parse_constant=lambda _: None)
    except (ValueError, RecursionError):
        return None
    return body if isinstance(body, dict) else None


def _printable(text: str) -> str:
    # A reply must not move the cursor or change colours in the terminal.
    return "".join(character for character in text if character.isprintable() or character in "\n\t")
