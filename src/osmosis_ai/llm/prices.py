"""Prices of model calls; an unknown price is None, never zero.

Prices come from LiteLLM's table, which is read as a file because importing LiteLLM takes seconds. The table may be out
of date, so a cost in the provider's reply (OpenRouter) takes precedence.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from osmosis_ai.llm.providers import OPENAI_COMPATIBLE, ModelEndpoint, litellm_folder
from osmosis_ai.llm.transport import is_loopback

if TYPE_CHECKING:
    from osmosis_ai.llm.completion import TokenUsage

_TIER = re.compile(r"input_cost_per_token_above_(\d+)k_tokens")


@dataclass(frozen=True)
class Price:
    """USD per token."""

    prompt: float
    completion: float
    cached: float | None = None
    cache_write: float | None = None
    above: tuple[tuple[int, Price], ...] = ()

    def cost(self, usage: TokenUsage) -> float:
        """Return the cost of a call with this usage, in USD."""
        for limit, price in self.above:
            if usage.prompt_tokens > limit:
                return price.cost(usage)
        cached = usage.cached_tokens or 0
        written = usage.cache_write_tokens or 0
        fresh = max(0, usage.prompt_tokens - cached - written)
        return (
            fresh * self.prompt
            + cached * (self.prompt if self.cached is None else self.cached)
            + written * (self.prompt if self.cache_write is None else self.cache_write)
            + usage.completion_tokens * self.completion
        )


FREE = Price(0.0, 0.0)


def price_of(endpoint: ModelEndpoint) -> Price | None:
    """Return the price of a model: zero for the user's own servers, None if unknown."""
    if endpoint.provider == "osmosis":
        return FREE
    known = OPENAI_COMPATIBLE.get(endpoint.provider)
    local = known is not None and known.local
    if endpoint.base_url is not None and (
        # LiteLLM's other providers have addresses of the user's own, such as Azure's.
        endpoint.transport == "openai" if known is None else endpoint.base_url != known.base_url
    ):
        host = urlsplit(endpoint.base_url or "").hostname or ""
        return FREE if local or is_loopback(host) else None
    if local:
        return FREE
    entry = table_entry(endpoint)
    return _price(entry) if entry is not None else None


def table_entry(endpoint: ModelEndpoint) -> Mapping[str, Any] | None:
    """Return the entry of a model in LiteLLM's table, or None."""
    table = _table()
    for name in (f"{endpoint.provider}/{endpoint.model}", endpoint.model_path, endpoint.model):
        entry = table.get(name)
        if entry is not None and _same_provider(entry, endpoint.provider):
            return entry
    return None


@lru_cache(maxsize=1)
def _table() -> Mapping[str, Mapping[str, Any]]:
    """Return LiteLLM's price table: about 3 MB of JSON, read once in 11 ms."""
    import orjson

    folder = litellm_folder()
    if folder is None:
        return {}
    try:
        table = orjson.loads((folder / "model_prices_and_context_window_backup.json").read_bytes())
    except (OSError, ValueError):
        return {}
    return table if isinstance(table, dict) else {}


def _same_provider(entry: Mapping[str, Any], provider: str) -> bool:
    listed = str(entry.get("litellm_provider", ""))
    return listed == provider or listed.startswith((f"{provider}-", f"{provider}_"))


def _price(entry: Mapping[str, Any], suffix: str = "") -> Price | None:
    prompt = _amount(entry, f"input_cost_per_token{suffix}")
    completion = _amount(entry, f"output_cost_per_token{suffix}")
    if prompt is None or completion is None:
        return None
    tiers = []
    if not suffix:
        limits = sorted((int(m[1]) for key in entry if (m := _TIER.fullmatch(key))), reverse=True)
        for limit in limits:
            if (price := _price(entry, f"_above_{limit}k_tokens")) is not None:
                tiers.append((limit * 1000, price))
    return Price(
        prompt,
        completion,
        cached=_amount(entry, f"cache_read_input_token_cost{suffix}"),
        cache_write=_amount(entry, f"cache_creation_input_token_cost{suffix}"),
        above=tuple(tiers),
    )


def _amount(entry: Mapping[str, Any], key: str) -> float | None:
    value = entry.get(key)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
