"""Redact secrets in a platform's replies: messages, bodies, excerpts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from osmosis_ai.redaction import REDACTED, Redactor

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
