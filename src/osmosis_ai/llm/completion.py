"""A model's reply, unchanged, and the facts that we read from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class TokenUsage:
    """Tokens of one call, as counted by the provider."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    cached_tokens: int | None = None
    reasoning_tokens: int | None = None
    cache_write_tokens: int | None = None
    stated_cost_usd: float | None = None


@dataclass
class Completion:
    """A successful call."""

    response: dict[str, Any]
    usage: TokenUsage | None
    cost_usd: float | None
    latency_s: float
    attempts: int


def read_usage(usage: object) -> TokenUsage | None:
    """Read a provider's ``usage`` object; None if it lacks either kind of tokens."""
    if not isinstance(usage, dict):
        return None
    prompt, completion = _count(usage.get("prompt_tokens")), _count(usage.get("completion_tokens"))
    total = _count(usage.get("total_tokens"))
    if total is not None and total < (prompt or 0) + (completion or 0):
        total = None
    if total is not None:
        prompt = total - completion if prompt is None and completion is not None else prompt
        completion = total - prompt if completion is None and prompt is not None else completion
    # A prompt is never empty: LiteLLM and some servers report zeros if they did not count the tokens.
    if prompt is None or completion is None or not (prompt or completion):
        return None
    prompt_details = _mapping(usage.get("prompt_tokens_details"))
    cached = _count(prompt_details.get("cached_tokens"))
    if cached is None:
        cached = _count(usage.get("prompt_cache_hit_tokens"))  # DeepSeek
    return TokenUsage(
        prompt_tokens=prompt,
        completion_tokens=completion,
        total_tokens=prompt + completion if total is None else total,
        cached_tokens=cached,
        reasoning_tokens=_count(_mapping(usage.get("completion_tokens_details")).get("reasoning_tokens")),
        cache_write_tokens=_count(usage.get("cache_creation_input_tokens")),
        stated_cost_usd=_number(usage.get("cost")),
    )


_MOST = 10**12
"""The maximum tokens or cost of a call. Sums of invented values must still fit into number types."""


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if 0 <= value <= _MOST else None


def _count(value: object) -> int | None:
    number = _number(value)
    return None if number is None else int(number)


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}
