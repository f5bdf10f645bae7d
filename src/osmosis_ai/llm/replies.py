"""Checks of replies with HTTP 200 from a model provider: a chat completion, a reported failure, or neither.

Tool calls are also completed here: agents parse arguments as JSON and send the id back, so both must exist.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from osmosis_ai.llm.errors import ModelCallError, beginning, error_from_reply
from osmosis_ai.llm.wire_json import dumps

Part = Literal["message", "delta"]
"""The key of the text in a choice: ``message`` in a whole reply, ``delta`` in a chunk of a stream."""

# OpenRouter and Mistral ("error"), vLLM and SGLang ("abort"), Z.ai ("network_error"), DeepSeek (the last).
_FAILED = frozenset(
    {"error", "failed", "server_error", "abort", "network_error", "insufficient_system_resource"}
)
# Every message has one of these; proxies omit null values.
_MESSAGE_KEYS = frozenset(
    {
        *("role", "content", "tool_calls", "function_call", "refusal", "audio"),
        *("reasoning", "reasoning_content", "reasoning_details"),
    }
)
_EXCERPT_CHARACTERS = 300


def reported_failure(payload: Any) -> dict[str, Any] | None:
    """Return the ``{"error": ...}`` that a reply contains, wherever the provider put it; None if there is none."""
    if not isinstance(payload, dict):
        return None
    choices = [choice for choice in _list(payload.get("choices")) if isinstance(choice, dict)]
    # LiteLLM moves unknown fields of a choice into this field.
    extra = [choice.get("provider_specific_fields") for choice in choices]
    sources = [payload, *choices, *(fields for fields in extra if isinstance(fields, dict))]
    for source in sources:
        if _is_error(error := source.get("error"), beside_choices=bool(choices)):
            return {"error": error}
    if payload.get("object") == "error":  # vLLM
        return {"error": payload}
    for source in sources[1:]:
        for name in ("finish_reason", "native_finish_reason"):
            reason = source.get(name)
            if isinstance(reason, str) and reason.lower() in _FAILED:
                return {"error": {"message": f"the reply ended with finish reason '{reason}'"}}
    return None


def is_completion(payload: Any, part: Part) -> bool:
    """Return whether a reply has the shape of a chat completion, or of a chunk of one."""
    if not isinstance(payload, dict):
        return False
    choices = payload.get("choices")
    if part == "delta" and choices is None:
        return (
            isinstance(payload.get("usage"), dict)
            or payload.get("object") == "chat.completion.chunk"
            or "prompt_filter_results" in payload  # Azure
        )
    if not isinstance(choices, list) or (part == "message" and not choices):
        return False
    return all(
        isinstance(choice, dict)
        and isinstance(choice.get("index"), int | None)
        and _is_said(_said(choice) if part == "delta" else choice.get(part), part)
        for choice in choices
    )


def check_reply(
    payload: Any,
    part: Part,
    *,
    model_path: str,
    secrets: Sequence[str],
    headers: Mapping[str, str] | None = None,
    content: bytes | None = None,
) -> None:
    """Raise if a reply with HTTP 200 is a failure or is not a completion."""
    if (failure := reported_failure(payload)) is not None:
        raise error_from_reply(
            _status(failure["error"]), failure, headers or {}, model_path=model_path, secrets=secrets
        )
    try:
        written = dumps(payload)
    except ValueError as error:
        raise ModelCallError("invalid_reply", str(error), model_path=model_path) from None
    if not is_completion(payload, part):
        words = excerpt(written if content is None else content, *secrets)
        raise ModelCallError("invalid_reply", words, model_path=model_path)


def excerpt(content: bytes, *secrets: str | None) -> str:
    """Return the beginning of a reply, quoted and redacted."""
    text = beginning(content, *secrets)[:_EXCERPT_CHARACTERS]
    return repr(text) if text else "an empty body"


@dataclass
class _StreamedCall:
    """A tool call of a stream: how it began, and whether any arguments have arrived."""

    id: Any
    name: Any
    chunk: int
    has_arguments: bool = False


class ToolCalls:
    """Completes the tool calls of one reply, whole or streamed, so that arguments are JSON and ids are
    present."""

    def __init__(self, request: Mapping[str, Any]) -> None:
        self._request = request
        self._digest: bytes | None = None
        self._streamed: dict[int, dict[int, _StreamedCall]] = {}  # choice -> position -> call
        self._chunks = 0
        self._begun: set[int] = set()  # choices that have said something

    def complete(self, response: dict[str, Any]) -> None:
        """Complete the tool calls of a whole reply in place."""
        for place, choice in enumerate(_list(response.get("choices"))):
            for position, call in enumerate(_list(choice["message"].get("tool_calls"))):
                call["id"] = call.get("id") or self._new_id(place, position)
                function = _function(call)
                if function is not None and _is_blank(function["arguments"]):
                    function["arguments"] = "{}"

    def complete_chunk(self, chunk: dict[str, Any]) -> None:
        """Complete the tool calls in a chunk in place."""
        self._chunks += 1
        for choice in _list(chunk.get("choices")):
            place = choice.get("index") or 0
            if not choice.get("delta"):
                choice["delta"] = (None if place in self._begun else _said(choice)) or {}
                choice.pop("message", None)
            if any(value for name, value in choice["delta"].items() if name != "role"):
                self._begun.add(place)
            for call in _list(choice["delta"].get("tool_calls")):
                self._complete_fragment(place, call)
            if choice.get("finish_reason"):
                streamed = self._streamed.get(place, {})
                empty = [position for position, call in streamed.items() if not call.has_arguments]
                if empty:
                    rest = [{"index": position, "function": {"arguments": "{}"}} for position in empty]
                    choice["delta"]["tool_calls"] = [*_list(choice["delta"].get("tool_calls")), *rest]
                    for position in empty:
                        streamed[position].has_arguments = True

    def _complete_fragment(self, place: int, call: dict[str, Any]) -> None:
        function = _function(call)
        name = function.get("name") if function is not None else None
        known = self._streamed.setdefault(place, {})
        position = call.get("index")
        if not isinstance(position, int):
            continued = [
                position
                for position, begun in known.items()
                if begun.chunk < self._chunks
                and call.get("id") == begun.id
                and name in (None, "", begun.name)
            ]
            if call.get("id") and continued:
                position = continued[-1]
                # Clients append repeated values.
                del call["id"]
                if function is not None:
                    function.pop("name", None)
            elif known and not call.get("id") and not name:
                position = list(known)[-1]
            else:
                position = max(known, default=-1) + 1
            call["index"] = position
        if position not in known:
            known[position] = _StreamedCall(call.get("id"), name, self._chunks)
            call["id"] = call.get("id") or self._new_id(place, position)
        streamed = known[position]
        if function is not None and not streamed.has_arguments and _is_blank(function["arguments"]):
            function["arguments"] = ""
        streamed.has_arguments |= function is None or bool(function["arguments"])

    def _new_id(self, place: int, position: int) -> str:
        if self._digest is None:
            self._digest = hashlib.sha256(dumps(self._request)).digest()
        return f"call_{hashlib.sha256(self._digest + f'{place}.{position}'.encode()).hexdigest()[:24]}"


def _function(call: dict[str, Any]) -> dict[str, Any] | None:
    """Return the function of a tool call, its arguments as text; None for other kinds of tools."""
    function = call.get("function")
    if not isinstance(function, dict):
        return None
    arguments = function.get("arguments")
    if not isinstance(arguments, str):
        function["arguments"] = "" if arguments is None else dumps(arguments).decode()
    return function


def _is_blank(arguments: str) -> bool:
    return arguments.strip() in ("", "null")


def _said(choice: dict[str, Any]) -> Any:
    """Return the message or delta of a choice; a server that does not stream sends one chunk with a whole message."""
    delta, message = choice.get("delta"), choice.get("message")
    return message if delta is None or (delta == {} and isinstance(message, dict)) else delta


def _is_said(said: Any, part: Part) -> bool:
    if said is None:
        return part == "delta"
    return (
        isinstance(said, dict)
        and (part == "delta" or not _MESSAGE_KEYS.isdisjoint(said))
        and isinstance(said.get("content"), str | list | None)
        and all(isinstance(call, dict) for call in _list(said.get("tool_calls")))
    )


def _is_error(error: Any, *, beside_choices: bool) -> bool:
    if not isinstance(error, dict):
        return bool(error)
    # Some servers send the object with every reply, with empty fields or code 0 for success.
    code = error.get("code")
    success = beside_choices and (code == "0" or (type(code) is int and code == 0))
    return any(error.values()) and not success


def _status(error: Any) -> int:
    """Return the HTTP status in an error object; 502 if it has none."""
    code = error.get("code") if isinstance(error, dict) else None
    if isinstance(code, str) and code.isdecimal() and len(code) == 3:
        code = int(code)
    return code if isinstance(code, int) and 400 <= code < 600 else 502


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
