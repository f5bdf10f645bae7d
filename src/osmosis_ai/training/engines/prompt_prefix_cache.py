"""What conversations begin with, rendered and tokenised once: all attempts on a row begin alike.

A template is a program, and running it for each attempt of a group costs more than anything else that
is done with a call. What it returns depends on the messages and the tools alone.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

from osmosis_ai.inference.chat_format import ChatFormat

KEPT = 256


class PromptPrefixCache:
    """The latest prompts without a recorded turn, at most :data:`KEPT` of them."""

    def __init__(self, chat: ChatFormat) -> None:
        self._chat = chat
        self._known: OrderedDict[str, tuple[str, tuple[int, ...]]] = OrderedDict()

    def read(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]
    ) -> tuple[str, tuple[int, ...]]:
        """Return the text of a prompt and its tokens."""
        key = repr((messages, tools))  # in the order of their keys, which templates write out
        known = self._known.pop(key, None)
        if known is None:
            text = self._chat.render(messages, tools)
            known = text, tuple(self._chat.encode(text))
            while len(self._known) >= KEPT:
                self._known.popitem(last=False)
        self._known[key] = known
        return known
