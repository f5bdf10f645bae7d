"""Accessors for messages of models and users, in which any key may be missing."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..types import MessageDict


def parse_tool_calls(message: MessageDict) -> list[dict[str, Any]]:
    """Return the tool calls of an assistant message."""
    calls = message.get("tool_calls")
    return calls if isinstance(calls, list) else []


def normalize_stop(stop: object) -> list[str] | None:
    """Return stop sequences as a list; None if there are none or the value is invalid."""
    if isinstance(stop, str):
        return [stop]
    return [str(word) for word in stop] if isinstance(stop, list) else None


def get_message_content(message: MessageDict) -> str:
    """Return the text of a message; empty if it has none."""
    content = message.get("content")
    return content if isinstance(content, str) else ""


def get_message_role(message: MessageDict) -> str:
    """Return the role of a message; ``unknown`` if it has none."""
    role = message.get("role")
    return role if isinstance(role, str) else "unknown"


def is_assistant_message(message: MessageDict) -> bool:
    """Return whether the message is from the model."""
    return get_message_role(message) == "assistant"


def is_tool_message(message: MessageDict) -> bool:
    """Return whether the message is a tool result."""
    return get_message_role(message) == "tool"


def is_user_message(message: MessageDict) -> bool:
    """Return whether the message is from the user."""
    return get_message_role(message) == "user"


def count_messages_by_role(messages: Sequence[MessageDict]) -> dict[str, int]:
    """Return the number of messages by role."""
    return dict(Counter(get_message_role(message) for message in messages))


def map_initial_messages_to_content_blocks(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return messages whose contents are lists of blocks: ``"hi"`` becomes ``[{"text": "hi"}]``.

    Contents that are already lists keep their blocks, and OpenAI's text parts become blocks. The input is not modified.
    """
    return [{**message, "content": _blocks(message.get("content"))} for message in messages]


def _blocks(content: Any) -> list[Any]:
    if content is None:
        return []
    if isinstance(content, str):
        return [{"text": content}]
    return [_block(part) for part in content]


def _block(part: Any) -> Any:
    is_text = isinstance(part, Mapping) and part.get("type") == "text" and isinstance(part.get("text"), str)
    return {"text": part["text"]} if is_text else part


# A public import path that is this module.
messages = sys.modules[f"{__name__}.messages"] = sys.modules[__name__]
