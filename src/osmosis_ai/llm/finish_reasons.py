"""Finish reasons of replies, in OpenAI's terms."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal, get_args

FlaggedFinish = Literal["length", "content_filter", "refusal"]
FLAGGED: tuple[FlaggedFinish, ...] = get_args(FlaggedFinish)
"""Finish reasons that are counted and warned about: the reply was truncated, filtered or refused."""

FLAGGED_NAMES: dict[str, str] = {"length": "truncated", "content_filter": "filtered", "refusal": "refused"}
"""The word for each of these finish reasons in output."""

_WORD = re.compile(r"[a-z][a-z_]{0,39}")
_SAME = {"max_tokens": "length", "max_output_tokens": "length", "safety": "content_filter"}


def canonical(stated: object) -> str | None:
    """Return a provider's finish reason in OpenAI's terms; None if it has none."""
    if not isinstance(stated, str) or not stated:
        return None
    word = stated.lower()
    return _SAME.get(word, word) if _WORD.fullmatch(word) else "other"


class FinishReason:
    """The finish reason of one reply, read from a completion or from its chunks."""

    def __init__(self) -> None:
        self._stated: str | None = None
        self._refused = self._answered = False

    def read(self, response: Mapping[str, Any]) -> None:
        """Read a completion, or the next chunk of one."""
        for choice in response.get("choices") or ():
            if isinstance(choice, dict) and not choice.get("index"):
                self._stated = canonical(choice.get("finish_reason")) or self._stated
                message = choice.get("message") or choice.get("delta")
                if isinstance(message, dict):
                    self._refused |= bool(message.get("refusal"))
                    self._answered |= bool(message.get("content") or message.get("tool_calls"))

    @property
    def value(self) -> str | None:
        """The finish reason; None if the provider sent none."""
        return "refusal" if self._refused and not self._answered else self._stated
