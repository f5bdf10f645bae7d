"""Errors of model calls: one category each, whether a retry can help, and the provider's message without keys."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Literal

from osmosis_ai.errors import ErrorCode, OsmosisError
from osmosis_ai.llm.providers import ModelEndpoint
from osmosis_ai.retry_after import retry_after_s

Category = Literal[
    "rate_limit",
    "auth",
    "not_found",
    "bad_request",
    "context_length",
    "timeout",
    "connection",
    "server",
    "invalid_reply",
]
_CATEGORIES: dict[Category, tuple[ErrorCode, str]] = {
    "rate_limit": ("RATE_LIMITED", "the provider limits the rate of calls"),
    "auth": ("VALIDATION", "the provider rejected the API key or the account"),
    "not_found": ("NOT_FOUND", "the provider does not know this model or address"),
    "bad_request": ("VALIDATION", "the provider refused the request"),
    "context_length": ("VALIDATION", "the conversation is longer than the model's context"),
    "timeout": ("NETWORK", "the provider did not answer in time"),
    "connection": ("NETWORK", "the provider could not be reached"),
    "server": ("NETWORK", "the provider failed"),
    "invalid_reply": ("NETWORK", "the provider's reply is not a chat completion"),
}
# 409 is a temporary lock; 425 is "too early".
_STATUSES: dict[int, Category] = {
    **dict.fromkeys((401, 402, 403), "auth"),
    **dict.fromkeys((408, 504, 524), "timeout"),
    **dict.fromkeys((409, 425), "server"),
    404: "not_found",
    413: "context_length",
    429: "rate_limit",
}
# A 429 for lack of credit is not retried.
_OUT_OF_CREDIT = re.compile(
    r"insufficient[_ ](quota|credits?|balance|funds)|exceeded your current quota|billing", re.I
)
CONTEXT_LENGTH = re.compile(
    r"context[_ ]length|context window|maximum context|too many tokens"
    r"|prompt is too long|input is too long|exceeds? the (model's )?max(imum)?[_ ](model[_ ])?len",
    re.I,
)
"""Found in messages about a conversation that is too long."""
_LONGEST_MESSAGE = 2_000
_LONGEST_EXAMINED = 65_536
_REDACTED = "[redacted]"
# JSON escapes with backslashes, and JSON inside JSON doubles them.
_BACKSLASHES = r"\\*(?:%5[Cc]\\*)*"
_KEY_SHAPED = re.compile(
    r"(?i:(?<=bearer )|(?<=bearer\s))[\w.~+/=*-]{8,}"
    r"|\b(?:sk|gsk|xai|pk|rk|csk|pplx|hf|nvapi|fw|key)[-_][\w*.-]{6,}"
    r"|\bAIza[\w-]{20,}"
)


class ModelCallError(OsmosisError):
    """A model call that failed permanently, or after all its attempts."""

    def __init__(
        self,
        category: Category,
        provider_message: str,
        *,
        model_path: str,
        status: int | None = None,
        retryable: bool | None = None,
        retry_after_s: float | None = None,
        body: Mapping[str, Any] | None = None,
    ) -> None:
        # A lone surrogate cannot be printed.
        self.provider_message = provider_message.strip().encode("utf-8", "replace").decode()
        code, sentence = _CATEGORIES[category]
        self.summary = sentence + (f": {self.provider_message}" if self.provider_message else "")
        super().__init__(
            f"`{model_path}`" + (f" (HTTP {status})" if status else "") + f": {self.summary}",
            code=code,
            details={"category": category, "status": status, "model_path": model_path},
        )
        self.category: Category = category
        self.status = status
        self.retryable = code in ("RATE_LIMITED", "NETWORK") if retryable is None else retryable
        self.retry_after_s = retry_after_s
        self.body: dict[str, Any] | None = dict(body) if body else None


def call_error(
    endpoint: ModelEndpoint, category: Category, message: str, *, retryable: bool | None = None
) -> ModelCallError:
    """Return the error of a call; the endpoint's keys in ``message`` are redacted."""
    words = redact(message, *endpoint.secrets)
    return ModelCallError(category, words, model_path=endpoint.model_path, retryable=retryable)


def error_from_reply(
    endpoint: ModelEndpoint, status: int, payload: Any, headers: Mapping[str, str]
) -> ModelCallError:
    """Convert a provider's error reply."""
    secrets = endpoint.secrets
    error = _error_object(payload)
    stated: dict[str, Any] = {key: error[key] for key in ("message", "type", "param", "code") if key in error}
    body = {
        key: redact(value, *secrets) if isinstance(value, str) else value
        for key, value in stated.items()
        if value is None or isinstance(value, str | int | float)
    }
    try:
        message = redact(message_in(payload)[:_LONGEST_EXAMINED], *secrets)[:_LONGEST_MESSAGE]
    except RecursionError:
        message = "the error in the reply is nested too deeply"
    category = _STATUSES.get(status) or ("server" if status >= 500 else "bad_request")
    facts = f"{body.get('code')} {message}"
    if category == "bad_request" and CONTEXT_LENGTH.search(f"{body.get('type')} {facts}"):
        category = "context_length"
    retryable: bool | None = None
    if status == 501 or (category == "rate_limit" and _OUT_OF_CREDIT.search(facts)):
        retryable = False
    elif (advice := headers.get("x-should-retry")) in ("true", "false"):
        retryable = advice == "true"
    return ModelCallError(
        category,
        message,
        model_path=endpoint.model_path,
        status=status,
        retryable=retryable,
        retry_after_s=retry_after_s(headers),
        body=body,
    )


def message_in(payload: Any) -> str:
    """Return the provider's message from its reply: JSON, text or bytes."""
    error = _error_object(payload)
    for source in (error, payload if isinstance(payload, dict) else {}):
        for key in ("message", "error", "detail"):
            value = source.get(key)
            if isinstance(value, str) and value:
                # OpenRouter puts the message behind "Provider returned error" there.
                metadata = error.get("metadata")
                raw = metadata.get("raw") if isinstance(metadata, dict) else None
                return f"{value}: {raw}" if isinstance(raw, str) and raw else value
            if isinstance(value, list) and value:
                return "; ".join(map(_validation_line, value))
    cut = (payload if isinstance(payload, bytes | str) else str(payload or ""))[:_LONGEST_EXAMINED]
    text = cut.decode("utf-8", "replace") if isinstance(cut, bytes) else cut
    return " ".join(re.sub(r"<[^<>]*>", " ", text).split())


def _error_object(payload: Any) -> dict[str, Any]:
    """Find the error object in the formats that providers use."""
    if isinstance(payload, list) and payload:
        payload = payload[0]
    if not isinstance(payload, dict):
        return {}
    error = payload.get("error")
    return error if isinstance(error, dict) else payload


def _validation_line(entry: Any) -> str:
    """Format an entry of a FastAPI 422: where and what."""
    if not isinstance(entry, dict):
        return str(entry)
    loc = entry.get("loc")
    where = ".".join(map(str, loc)) if isinstance(loc, list) else ""
    return f"{where}: {entry.get('msg', '')}" if where else str(entry.get("msg", entry))


def redact(text: str, *secrets: str | None) -> str:
    """Return ``text`` without the given secrets and without anything that looks like a provider's key."""
    return _KEY_SHAPED.sub(_REDACTED, _redact_secrets(text, secrets))


def beginning(content: bytes, *secrets: str | None) -> str:
    """Return the first few thousand characters of a reply on one line; redacted before they are cut."""
    text = _redact_secrets(content[:_LONGEST_EXAMINED].decode("utf-8", "replace"), secrets)[:_LONGEST_MESSAGE]
    return redact(" ".join(text.split()))


def _redact_secrets(text: str, secrets: Iterable[str | None]) -> str:
    # The pattern allows backslashes anywhere, so those of the secrets themselves are dropped.
    for secret in sorted(
        {(secret or "").replace("\\", "") for secret in secrets} - {""}, key=len, reverse=True
    ):
        text = re.sub(_BACKSLASHES.join(map(_pattern, secret)), _REDACTED, text)
    return text


def _pattern(character: str) -> str:
    """Return a pattern for one character as text, JSON, URLs and HTML write it."""
    number = ord(character)
    utf8 = "%".join(f"{byte:02x}" for byte in character.encode("utf-8", "surrogatepass"))
    units = re.findall("....", character.encode("utf-16-be", "surrogatepass").hex())
    escape = _BACKSLASHES.join(f"u(?i:{unit})" for unit in units)
    entity = f"&(?:amp;)*#(?:0*{number}|(?i:x0*{number:x}));?"
    return f"(?:{re.escape(character)}|{escape}|%(?i:{utf8})|{entity})"
