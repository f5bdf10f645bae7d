"""Errors of model calls: the provider's message with every key redacted.

Every failure is a :class:`ModelCallError` with one category. Whether a retry can help is decided here, for every
transport.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from osmosis_ai.errors import ErrorCode, OsmosisError
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

_SENTENCES: dict[Category, str] = {
    "rate_limit": "the provider limits the rate of calls",
    "auth": "the provider rejected the API key or the account",
    "not_found": "the provider does not know this model or address",
    "bad_request": "the provider refused the request",
    "context_length": "the conversation is longer than the model's context",
    "timeout": "the provider did not answer in time",
    "connection": "the provider could not be reached",
    "server": "the provider failed",
    "invalid_reply": "the provider's reply is not a chat completion",
}
_CODES: dict[Category, ErrorCode] = {
    "rate_limit": "RATE_LIMITED",
    "auth": "VALIDATION",
    "not_found": "NOT_FOUND",
    "bad_request": "VALIDATION",
    "context_length": "VALIDATION",
    "timeout": "NETWORK",
    "connection": "NETWORK",
    "server": "NETWORK",
    "invalid_reply": "NETWORK",
}
_TRANSIENT: frozenset[Category] = frozenset(
    {"rate_limit", "timeout", "connection", "server", "invalid_reply"}
)
# A 429 or 403 for lack of credit is not retried.
_OUT_OF_CREDIT = re.compile(
    r"insufficient[_ ](quota|credits?|balance|funds)|exceeded your current quota|billing", re.I
)
_CONTEXT_LENGTH = re.compile(
    r"context[_ ]length|context window|maximum context|too many tokens"
    r"|prompt is too long|input is too long|exceeds? the (model's )?max(imum)?[_ ](model[_ ])?len",
    re.I,
)
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
        hint: str | None = None,
    ) -> None:
        # A lone surrogate cannot be printed.
        words = provider_message.strip().encode("utf-8", "replace").decode()
        where = f"`{model_path}`" + (f" (HTTP {status})" if status else "")
        summary = _SENTENCES[category] + (f": {words}" if words else "")
        super().__init__(
            f"{where}: {summary}",
            code=_CODES[category],
            details={"category": category, "status": status, "model_path": model_path},
            hint=hint,
        )
        self.category: Category = category
        self.status = status
        self.retryable = category in _TRANSIENT if retryable is None else retryable
        self.retry_after_s = retry_after_s
        self.provider_message = words
        self.summary = summary
        self.body: dict[str, Any] | None = dict(body) if body else None


def redact(text: str, *secrets: str | None) -> str:
    """Return ``text`` without the given secrets and without anything that looks like a provider's key."""
    return _KEY_SHAPED.sub(_REDACTED, _without(text, secrets))


def beginning(content: bytes, *secrets: str | None) -> str:
    """Return the first few thousand characters of a reply on one line; redacted before they are cut."""
    text = _without(content[:_LONGEST_EXAMINED].decode("utf-8", "replace"), secrets)[:_LONGEST_MESSAGE]
    return redact(" ".join(text.split()))


def _without(text: str, secrets: Iterable[str | None]) -> str:
    for secret in sorted((s for s in secrets if s), key=len, reverse=True):
        # The pattern allows backslashes anywhere, so those of the secret itself are dropped.
        if characters := secret.replace("\\", ""):
            text = re.sub(_BACKSLASHES.join(map(_written, characters)), _REDACTED, text)
    return text


def _written(character: str) -> str:
    """Return a pattern for one character as text, JSON, URLs and HTML write it."""
    number = ord(character)
    utf8 = "%".join(f"{byte:02x}" for byte in character.encode("utf-8", "surrogatepass"))
    units = re.findall("....", character.encode("utf-16-be", "surrogatepass").hex())
    escape = _BACKSLASHES.join(f"u(?i:{unit})" for unit in units)
    entity = f"&(?:amp;)*#(?:0*{number}|(?i:x0*{number:x}));?"
    return f"(?:{re.escape(character)}|{escape}|%(?i:{utf8})|{entity})"


def error_from_reply(
    status: int,
    payload: Any,
    headers: Mapping[str, str],
    *,
    model_path: str,
    secrets: Sequence[str],
) -> ModelCallError:
    """Convert a provider's error reply."""
    error = {
        key: redact(value, *secrets) if isinstance(value, str) else value
        for key, value in _error_object(payload).items()
        if value is None or isinstance(value, str | int | float)
    }
    try:
        words = redact(provider_words(payload)[:_LONGEST_EXAMINED], *secrets)[:_LONGEST_MESSAGE]
    except RecursionError:
        words = "the error in the reply is nested too deeply"
    category = _category(status, f"{error.get('code')} {error.get('type')} {words}")
    out_of_credit = category == "rate_limit" and _OUT_OF_CREDIT.search(f"{error.get('code')} {words}")
    retryable: bool | None = None
    if out_of_credit or status == 501:
        retryable = False
    elif (told := headers.get("x-should-retry")) in ("true", "false"):
        retryable = told == "true"
    return ModelCallError(
        category,
        words,
        model_path=model_path,
        status=status,
        retryable=retryable,
        retry_after_s=retry_after_s(headers),
        body={key: error[key] for key in ("message", "type", "param", "code") if key in error},
    )


def is_about_context_length(words: str) -> bool:
    """Tell whether an error means that the conversation is too long."""
    return _CONTEXT_LENGTH.search(words) is not None


def _category(status: int, words: str) -> Category:
    if status == 429:
        return "rate_limit"
    if status in (401, 402, 403):
        return "auth"
    if status == 404:
        return "not_found"
    if status in (408, 504, 524):
        return "timeout"
    # 409 is a temporary lock; 425 is "too early".
    if status >= 500 or status in (409, 425):
        return "server"
    if status == 413 or is_about_context_length(words):
        return "context_length"
    return "bad_request"


def _error_object(payload: Any) -> dict[str, Any]:
    """Find the error object in the formats that providers use."""
    if isinstance(payload, list) and payload:
        payload = payload[0]
    if not isinstance(payload, dict):
        return {}
    error = payload.get("error")
    if isinstance(error, dict):
        return error
    return payload


def provider_words(payload: Any) -> str:
    """Return the provider's message from its reply (JSON, text, bytes)."""
    error = _error_object(payload)
    for source in (error, payload if isinstance(payload, dict) else {}):
        for key in ("message", "error", "detail"):
            value = source.get(key)
            if isinstance(value, str) and value:
                return _with_raw(value, error)
            if isinstance(value, list) and value:
                return "; ".join(_validation_line(entry) for entry in value)
    cut = (payload if isinstance(payload, bytes | str) else str(payload or ""))[:_LONGEST_EXAMINED]
    text = cut.decode("utf-8", "replace") if isinstance(cut, bytes) else cut
    return " ".join(re.sub(r"<[^<>]*>", " ", text).split())


def _with_raw(message: str, error: Mapping[str, Any]) -> str:
    """Add ``metadata.raw``, in which OpenRouter puts the message behind "Provider returned error"."""
    metadata = error.get("metadata")
    raw = metadata.get("raw") if isinstance(metadata, dict) else None
    return f"{message}: {raw}" if isinstance(raw, str) and raw else message


def _validation_line(entry: Any) -> str:
    """Format an entry of a FastAPI 422: where and what."""
    if not isinstance(entry, dict):
        return str(entry)
    loc = entry.get("loc")
    where = ".".join(map(str, loc)) if isinstance(loc, list) else ""
    return f"{where}: {entry.get('msg', '')}" if where else str(entry.get("msg", entry))
