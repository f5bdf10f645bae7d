"""Cache of rendered and tokenised prompts, which all attempts on a row share.

Running the template for each attempt of a group would be the most expensive part of a call. Its output depends only on
the messages and tools.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

from osmosis_ai.inference.chat import ChatFormat

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
