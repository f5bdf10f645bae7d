"""Values that must not be shown are taken out of whatever is: messages, bodies, excerpts.

The longest goes first, because one value may contain another.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any
from urllib.parse import quote

REDACTED = "[REDACTED]"
_ALWAYS_SECRET_KEYS = frozenset({"value", "secret", "secret_value"})


class Redactor:
    """Knows the values that are secret in one conversation.

    Args:
        values: the secrets known from the start; empty ones are ignored.
    """

    def __init__(self, values: Iterable[str] = ()) -> None:
        self._spellings: tuple[str, ...] = ()
        self.add(values)

    def __repr__(self) -> str:
        return f"Redactor({len(self._spellings)} spellings)"

    def add(self, values: Iterable[str]) -> None:
        """Hide ``values`` too, as they are and as JSON or a URL would spell them."""
        spellings = set(self._spellings)
        for value in values:
            if value:
                spellings |= {
                    value,
                    quote(value, safe=""),
                    *(_in_json(value, ascii) for ascii in (True, False)),
                }
        self._spellings = tuple(sorted(spellings, key=len, reverse=True))

    def text(self, text: str) -> str:
        """Return ``text`` without any secret value."""
        for spelling in self._spellings:
            text = text.replace(spelling, REDACTED)
        return text

    def tree(self, value: Any) -> Any:
        """Return a JSON value without any secret: in texts, in keys, and under keys that name one."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, dict):
            return {
                self.text(str(key)): REDACTED
                if str(key).lower() in _ALWAYS_SECRET_KEYS and item is not None
                else self.tree(item)
                for key, item in value.items()
            }
        if isinstance(value, list):
            return [self.tree(item) for item in value]
        return value


def _in_json(value: str, ascii_only: bool) -> str:
    return json.dumps(value, ensure_ascii=ascii_only)[1:-1]
