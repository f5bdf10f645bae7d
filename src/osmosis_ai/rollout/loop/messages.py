"""Reading messages: what a model or a user wrote may lack any key."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..types.sample import MessageDict


def parse_tool_calls(message: MessageDict) -> list[dict[str, Any]]:
    """Return the tool calls of an assistant's message; empty when there are none."""
    calls = message.get("tool_calls")
    return calls if isinstance(calls, list) else []


def normalize_stop(stop: object) -> list[str] | None:
    """Return stop words as a list; None where there are none, or where it is something else."""
    if isinstance(stop, str):
        return [stop]
    return [str(word) for word in stop] if isinstance(stop, list) else None


def get_message_content(message: MessageDict) -> str:
    """Return the text of a message; empty when it has none."""
    content = message.get("content")
    return content if isinstance(content, str) else ""


def get_message_role(message: MessageDict) -> str:
    """Return who wrote a message; ``unknown`` when it does not say."""
    role = message.get("role")
    return role if isinstance(role, str) else "unknown"


def is_assistant_message(message: MessageDict) -> bool:
    """Tell whether the model wrote it."""
    return get_message_role(message) == "assistant"


def is_tool_message(message: MessageDict) -> bool:
    """Tell whether it is a tool's result."""
    return get_message_role(message) == "tool"


def is_user_message(message: MessageDict) -> bool:
    """Tell whether the user wrote it."""
    return get_message_role(message) == "user"


def count_messages_by_role(messages: Sequence[MessageDict]) -> dict[str, int]:
    """Return role -> number of messages."""
    return dict(Counter(get_message_role(message) for message in messages))
