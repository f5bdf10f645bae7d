"""API key that a served agent requires from its callers."""

from __future__ import annotations

import secrets

API_KEY_PREFIX = "osm_rollout_"
_RANDOM_BYTES = 32


def generate_api_key() -> str:
    """Return a new key: a prefix that is recognizable in logs, and 256 random bits."""
    return f"{API_KEY_PREFIX}{secrets.token_urlsafe(_RANDOM_BYTES)}"


def validate_api_key(provided: str | None, expected: str) -> bool:
    """Compare a caller's key with the server's in constant time.

    Args:
        provided: The caller's key, with any characters; None if none was sent.
        expected: The server's key. An empty key never matches.
    """
    if not provided or not expected:
        return False
    # compare_digest refuses non-ASCII text, and a header may hold any characters.
    return secrets.compare_digest(_bytes(provided), _bytes(expected))


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")
