"""Conversations in datasets: OpenAI's ``[{"role", "content"}, …]`` and the older ``[{"from", "value"}, …]``.

A row contains one prompt. A conversation counts as one prompt if it has instructions, one user turn, and at most one
assistant turn after it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

Turn = dict[str, Any]

_ROLES = {
    "human": "user",
    "gpt": "assistant",
    "model": "assistant",
    "bot": "assistant",
    "developer": "system",
}


class SingleTurn(NamedTuple):
    """A conversation with one prompt: system text, user text, assistant answer."""

    system: str | None
    prompt: str
    answer: str | None


def conversation_of(value: object) -> list[Turn] | None:
    """Return a column's value as turns of ``role`` and ``content``, or None if it is not a conversation."""
    if isinstance(value, str) and value.lstrip().startswith("["):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return None
    if not isinstance(value, list) or not value:
        return None
    turns = [_turn(item) for item in value]
    return None if None in turns else [turn for turn in turns if turn is not None]


def _turn(item: object) -> Turn | None:
    if not isinstance(item, dict):
        return None
    role, content = item.get("role", item.get("from")), item.get("content", item.get("value"))
    if not isinstance(role, str):
        return None
    return {"role": _ROLES.get(role.lower(), role.lower()), "content": content}


def read_conversation(turns: Sequence[Turn], *, wants_answer: bool) -> SingleTurn:
    """Split a conversation with one prompt into its parts."""
    system = [_text(turn) for turn in turns if turn["role"] == "system"]
    spoken = [turn for turn in turns if turn["role"] != "system"]
    answer = _text(spoken.pop()) if spoken and spoken[-1]["role"] == "assistant" else None
    roles = [turn["role"] for turn in spoken]
    if roles != ["user"]:
        raise ValueError(
            f"the conversation has {_count(roles)} before its end; a row is one prompt of the user "
            "(to give an agent whole conversations, map the column to `metadata`)"
        )
    if wants_answer and not answer:
        raise ValueError("the conversation does not end with an answer of the assistant; map `ground_truth`")
    prompt = _text(spoken[0])
    if not prompt:
        raise ValueError("the user's turn of the conversation is empty")
    return SingleTurn("\n\n".join(filter(None, system)) or None, prompt, answer)


def _count(roles: Sequence[str]) -> str:
    if not roles:
        return "no turn of the user"
    return f"{len(roles)} turn{'s' if len(roles) > 1 else ''} ({', '.join(roles[:6])}{' …' if len(roles) > 6 else ''})"


def _text(turn: Turn) -> str | None:
    content = turn["content"]
    if content is None or isinstance(content, str):
        return content or None
    if isinstance(content, list):
        parts = [part.get("text") if isinstance(part, dict) else part for part in content]
        texts = [part for part in parts if isinstance(part, str)]
        if len(texts) == len(parts):
            return "\n".join(texts) or None
    raise ValueError(f"the {turn['role']}'s turn holds more than text, which a prompt cannot")
