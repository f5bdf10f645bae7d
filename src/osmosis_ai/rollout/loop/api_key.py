"""The key that a served agent asks of those who start rollouts on it."""

from __future__ import annotations

import secrets

API_KEY_PREFIX = "osm_rollout_"
_RANDOM_BYTES = 32


def generate_api_key() -> str:
    """Return a new key: a prefix by which it is recognised in logs, and 256 random bits."""
    return f"{API_KEY_PREFIX}{secrets.token_urlsafe(_RANDOM_BYTES)}"


def validate_api_key(provided: str | None, expected: str) -> bool:
    """Tell whether a caller's key is the right one, in a time that does not depend on how much of it is right.

    Args:
        provided: what the caller sent, any characters; None when nothing was sent.
        expected: the server's key; nothing matches an empty one.
    """
    if not provided or not expected:
        return False
    # As bytes: compare_digest refuses text that is not ASCII, and a header may be anything.
    return secrets.compare_digest(_bytes(provided), _bytes(expected))


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")
