"""Tokens and prices of model calls; an unknown price is None, never zero.

Prices come from LiteLLM's table, which may be out of date, so a cost in the provider's reply takes precedence.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from osmosis_ai.api.platform_url import is_loopback
from osmosis_ai.llm.providers import OPENAI_COMPATIBLE, ModelEndpoint, litellm_table

_TIER = re.compile(r"input_cost_per_token_above_(\d+)k_tokens")
# The maximum tokens or cost of a call. Sums of invented values must still fit into number types.
_MOST = 10**12


@dataclass(frozen=True)
class TokenUsage:
    """Tokens of one call, as counted by the provider."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    cached_tokens: int | None = None
    cache_write_tokens: int | None = None
    stated_cost_usd: float | None = None


def read_usage(usage: object) -> TokenUsage | None:
    """Read a provider's ``usage`` object; None if it lacks either kind of tokens."""
    if not isinstance(usage, dict):
        return None
    prompt, completion = _count(usage.get("prompt_tokens")), _count(usage.get("completion_tokens"))
    total = _count(usage.get("total_tokens"))
    if total is not None and total < (prompt or 0) + (completion or 0):
        total = None
    elif total is not None and prompt is None and completion is not None:
        prompt = total - completion
    elif total is not None and completion is None and prompt is not None:
        completion = total - prompt
    # A prompt is never empty: LiteLLM and some servers report zeros if they did not count the tokens.
    if prompt is None or completion is None or not (prompt or completion):
        return None
    details = usage.get("prompt_tokens_details")
    cached = _count(details.get("cached_tokens")) if isinstance(details, dict) else None
    if cached is None:
        cached = _count(usage.get("prompt_cache_hit_tokens"))  # DeepSeek
    return TokenUsage(
        prompt_tokens=prompt,
        completion_tokens=completion,
        total_tokens=prompt + completion if total is None else total,
        cached_tokens=cached,
        cache_write_tokens=_count(usage.get("cache_creation_input_tokens")),
        stated_cost_usd=_number(usage.get("cost")),
    )


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if 0 <= value <= _MOST else None


def _count(value: object) -> int | None:
    number = _number(value)
    return None if number is None else int(number)


@dataclass(frozen=True)
class Price:
    """USD per token."""

    prompt: float
    completion: float
    cached: float | None = None
    cache_write: float | None = None
    above: tuple[tuple[int, Price], ...] = ()

    def cost(self, usage: TokenUsage) -> float:
        for limit, price in self.above:
            if usage.prompt_tokens > limit:
                return price.cost(usage)
        cached, written = usage.cached_tokens or 0, usage.cache_write_tokens or 0
        return (
            max(0, usage.prompt_tokens - cached - written) * self.prompt
            + cached * (self.prompt if self.cached is None else self.cached)
            + written * (self.prompt if self.cache_write is None else self.cache_write)
            + usage.completion_tokens * self.completion
        )


FREE = Price(0.0, 0.0)


def price_of(endpoint: ModelEndpoint) -> Price | None:
    """Return the price of a model: zero for the user's own servers, None if unknown."""
    known = OPENAI_COMPATIBLE.get(endpoint.provider)
    if endpoint.provider == "osmosis" or (known is not None and known.is_local):
        return FREE
    if endpoint.base_url is not None and (
        # LiteLLM's other providers have addresses of the user's own, such as Azure's.
        endpoint.transport == "openai" if known is None else endpoint.base_url != known.base_url
    ):
        return FREE if is_loopback(urlsplit(endpoint.base_url).hostname) else None
    entry = table_entry(endpoint)
    return _price(entry) if entry is not None else None


def table_entry(endpoint: ModelEndpoint) -> Mapping[str, Any] | None:
    """Return the entry of a model in LiteLLM's table, or None."""
    provider, table = endpoint.provider, litellm_table("model_prices_and_context_window_backup")
    for name in (f"{provider}/{endpoint.model}", endpoint.model_path, endpoint.model):
        if (entry := table.get(name)) is not None:
            listed = str(entry.get("litellm_provider", ""))
            if listed == provider or listed.startswith((f"{provider}-", f"{provider}_")):
                return entry
    return None


def _price(entry: Mapping[str, Any], suffix: str = "") -> Price | None:
    def amount(name: str) -> float | None:
        value = entry.get(name + suffix)
        return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None

    prompt, completion = amount("input_cost_per_token"), amount("output_cost_per_token")
    if prompt is None or completion is None:
        return None
    limits = (
        [] if suffix else sorted((int(m[1]) for key in entry if (m := _TIER.fullmatch(key))), reverse=True)
    )
    tiers = ((limit * 1000, _price(entry, f"_above_{limit}k_tokens")) for limit in limits)
    return Price(
        prompt,
        completion,
        cached=amount("cache_read_input_token_cost"),
        cache_write=amount("cache_creation_input_token_cost"),
        above=tuple((limit, price) for limit, price in tiers if price is not None),
    )
