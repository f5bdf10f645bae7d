"""A rollout's conversation as its last model call had it: what was sent, and what was answered.

For agents that keep no record of their own: they call below ``/recorded``, and whoever runs them asks for it there. And
for agents that break: what they said until then is known from their calls alone. Kept are the bytes of one request and
its answer; they are read only when somebody asks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from osmosis_ai.llm.wire_json import loads

RECORDED = "recorded"
"""The path below a rollout's address where calls are kept."""

MOST_KEPT_BYTES = 8 << 20
"""Of an open rollout: a longer request, which nobody asked to be recorded, is not kept."""
MOST_KEPT_OF_ALL_BYTES = 256 << 20
"""Of all open rollouts: where they are many, what is kept of each is less."""

_EVENT = b"data: "


@dataclass(frozen=True, slots=True)
class LastCall:
    """The latest model call of a rollout, as it was sent and as far as it was answered."""

    request: bytes
    pieces: Sequence[bytes]

    def messages(self) -> list[dict[str, Any]]:
        """Return what was said, the model's answer last where it gave one."""
        return conversation(self.request, self.pieces)


def conversation(request: bytes, pieces: Iterable[bytes]) -> list[dict[str, Any]]:
    """Return the messages of a call, its answer last."""
    body = loads(request)
    sent = body.get("messages")
    messages = [message for message in sent if isinstance(message, dict)] if isinstance(sent, list) else []
    pieces = list(pieces)
    if not pieces:
        return messages
    answer = _merged(pieces) if body.get("stream") else _message(loads(b"".join(pieces)))
    return [*messages, {name: value for name, value in answer.items() if value is not None}]


def _message(completion: Mapping[str, Any]) -> dict[str, Any]:
    message = next((choice.get("message") for choice in _first_choices(completion)), None)
    return dict(message) if isinstance(message, dict) else {}


def _first_choices(answer: Mapping[str, Any]) -> Iterable[dict[str, Any]]:
    """Yield what is said of the choice that the conversation goes on with."""
    choices = answer.get("choices")
    return (each for each in choices or () if isinstance(each, dict) and not each.get("index"))


def _merged(pieces: Iterable[bytes]) -> dict[str, Any]:
    """Put the message of a stream together; of several choices, the first."""
    message: dict[str, Any] = {"role": "assistant"}
    calls: dict[int, dict[str, Any]] = {}
    for delta in _deltas(pieces):
        for call in delta.pop("tool_calls", None) or ():
            _add_call(calls.setdefault(call.get("index") or 0, {}), call)
        for name, value in delta.items():
            grows = isinstance(value, str) and name != "role" and isinstance(message.get(name), str)
            if value is not None:
                message[name] = message[name] + value if grows else value
    if calls:
        message["tool_calls"] = [calls[index] for index in sorted(calls)]
    return message


def _deltas(pieces: Iterable[bytes]) -> Iterable[dict[str, Any]]:
    for line in b"".join(pieces).splitlines():
        if not line.startswith(_EVENT + b"{"):
            continue
        for choice in _first_choices(loads(line.removeprefix(_EVENT))):
            if isinstance(choice.get("delta"), dict):
                yield choice["delta"]


def _add_call(call: dict[str, Any], delta: Mapping[str, Any]) -> None:
    """Add what a chunk says of a tool call: names and ids come whole, arguments in pieces."""
    function = call.setdefault("function", {"name": "", "arguments": ""})
    said = delta.get("function") or {}
    function["name"] = said.get("name") or function["name"]
    function["arguments"] += said.get("arguments") or ""
    call["id"] = delta.get("id") or call.get("id")
    call["type"] = delta.get("type") or call.get("type") or "function"
