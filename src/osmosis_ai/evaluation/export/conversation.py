"""The conversation of an archived rollout (ATIF), as messages of OpenAI's chat format.

A file may come from a platform, or from an agent's own process: what is not of the expected shape is passed over.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

Message = dict[str, Any]


def chat_messages(trajectory: Mapping[str, Any] | None) -> list[Message]:
    """Return the messages of a trajectory, tool calls and their results included, in order."""
    steps = (trajectory or {}).get("steps")
    return [
        message
        for step in (steps if isinstance(steps, list) else [])
        if isinstance(step, dict)
        for message in _messages(step)
    ]


def _messages(step: Mapping[str, Any]) -> Iterator[Message]:
    source = step.get("source")
    content = _content(step.get("message"))
    if source in ("system", "user"):
        yield {"role": source, "content": content}
    elif source == "agent":
        yield _assistant(step, content)
        yield from _tool_results(step)


def _assistant(step: Mapping[str, Any], content: Any) -> Message:
    message: Message = {"role": "assistant", "content": content}
    if isinstance(reasoning := step.get("reasoning_content"), str):
        message["reasoning_content"] = reasoning
    calls = [_tool_call(call) for call in _objects(step.get("tool_calls"))]
    return {**message, "tool_calls": calls} if calls else message


def _tool_call(call: Mapping[str, Any]) -> Message:
    arguments = call.get("arguments")
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    function = {"name": str(call.get("function_name", "")), "arguments": text}
    return {"id": str(call.get("tool_call_id", "")), "type": "function", "function": function}


def _tool_results(step: Mapping[str, Any]) -> Iterator[Message]:
    observation = step.get("observation")
    for result in _objects(observation.get("results") if isinstance(observation, dict) else None):
        call_id = result.get("source_call_id")
        message: Message = {"role": "tool", "content": _content(result.get("content"))}
        yield {**message, "tool_call_id": call_id} if isinstance(call_id, str) else message


def _objects(value: object) -> list[dict[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _content(value: object) -> Any:
    """Return text as it is, and parts as OpenAI writes them; an image is named, its file is the run's."""
    if not isinstance(value, list):
        return value if isinstance(value, str) else ""
    return [_part(part) for part in _objects(value)]


def _part(part: Mapping[str, Any]) -> Message:
    if part.get("type") == "image":
        source = part.get("source")
        path = source.get("path") if isinstance(source, dict) else None
        return {"type": "text", "text": f"[image {path}]"}
    return {"type": "text", "text": str(part.get("text", ""))}


def text_of(content: object) -> str:
    """Return a message's content as text."""
    if isinstance(content, list):
        return "\n".join(str(part.get("text", "")) for part in _objects(content))
    return content if isinstance(content, str) else ""


def prompt_of(messages: list[Message]) -> list[Message]:
    """Return the messages before the agent's first."""
    first = next((i for i, message in enumerate(messages) if message["role"] == "assistant"), len(messages))
    return messages[:first]


def answer_of(messages: list[Message]) -> str | None:
    """Return the text of the agent's last message."""
    spoken = [message for message in messages if message["role"] == "assistant"]
    return text_of(spoken[-1]["content"]) if spoken else None
