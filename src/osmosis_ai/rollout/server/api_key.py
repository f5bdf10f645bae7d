"""API key that a served agent requires from its callers."""

from __future__ import annotations

import secrets

API_KEY_PREFIX = "osm_rollout_"


def generate_api_key() -> str:
    """Return a new key: a prefix that is recognizable in logs, and 256 random bits."""
    return f"{API_KEY_PREFIX}{secrets.token_urlsafe(32)}"


def validate_api_key(provided: str | None, expected: str) -> bool:
    """Compare a caller's key with the server's in constant time. An empty or missing key never matches."""
    if not provided or not expected:
        return False
    # compare_digest refuses non-ASCII text, and a header may hold any characters.
    return secrets.compare_digest(
        provided.encode("utf-8", "surrogatepass"), expected.encode("utf-8", "surrogatepass")
    )
