"""Convert chat messages for frameworks whose contents are lists of blocks, under the public import path."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["map_initial_messages_to_content_blocks"]


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
