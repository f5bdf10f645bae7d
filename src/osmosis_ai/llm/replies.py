"""Replies of model providers: their JSON, finish reasons, failures and tool calls."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from osmosis_ai.llm.errors import ModelCallError, beginning, call_error, error_from_reply
from osmosis_ai.llm.providers import ModelEndpoint

Part = Literal["message", "delta"]
"""The key of the text in a choice: ``message`` in a whole reply, ``delta`` in a chunk of a stream."""

FlaggedFinish = Literal["length", "content_filter", "refusal"]
FLAGGED: tuple[FlaggedFinish, ...] = get_args(FlaggedFinish)
"""Finish reasons that are counted and warned about: the reply was truncated, filtered or refused."""
FLAGGED_NAMES: dict[str, str] = {"length": "truncated", "content_filter": "filtered", "refusal": "refused"}

_FINISH_REASON = re.compile(r"[a-z][a-z_]{0,39}")
_SAME_REASON = {"max_tokens": "length", "max_output_tokens": "length", "safety": "content_filter"}
# OpenRouter and Mistral ("error"), vLLM and SGLang ("abort"), Z.ai ("network_error"), DeepSeek (the last).
_FAILED = ("error", "failed", "server_error", "abort", "network_error", "insufficient_system_resource")
# Every message has one of these; proxies omit null values.
_MESSAGE_KEYS = frozenset(
    {
        *("role", "content", "tool_calls", "function_call", "refusal", "audio"),
        *("reasoning", "reasoning_content", "reasoning_details"),
    }
)


def loads(content: bytes) -> Any:
    """Read JSON. Models can produce a lone surrogate, which orjson rejects and the standard library does not."""
    import orjson

    try:
        return orjson.loads(content)
    except orjson.JSONDecodeError:
        try:
            return json.loads(content)
        except RecursionError:
            raise ValueError("it is nested too deeply") from None


def dumps(value: Any) -> bytes:
    import orjson

    try:
        return orjson.dumps(value)
    except TypeError:
        try:
            return json.dumps(value, separators=(",", ":"), allow_nan=False).encode()
        except RecursionError:
            raise ValueError("it is nested too deeply") from None


def canonical(stated: object) -> str | None:
    """Return a provider's finish reason in OpenAI's terms; None if it has none."""
    if not isinstance(stated, str) or not stated:
        return None
    reason = stated.lower()
    return _SAME_REASON.get(reason, reason) if _FINISH_REASON.fullmatch(reason) else "other"


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


def reported_failure(payload: Any) -> dict[str, Any] | None:
    """Return the ``{"error": ...}`` that a reply contains, wherever the provider put it; None if there is none."""
    if not isinstance(payload, dict):
        return None
    choices = [choice for choice in _list(payload.get("choices")) if isinstance(choice, dict)]
    # LiteLLM moves unknown fields of a choice into this field.
    extra = [choice.get("provider_specific_fields") for choice in choices]
    sources = [payload, *choices, *(fields for fields in extra if isinstance(fields, dict))]
    for source in sources:
        error = source.get("error")
        # Some servers send the object with every reply, with empty fields or code 0 for success.
        code = error.get("code") if isinstance(error, dict) and choices else None
        success = code == "0" or (type(code) is int and code == 0)
        if not success and (any(error.values()) if isinstance(error, dict) else error):
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
    choices = payload.get("choices") if isinstance(payload, dict) else ()
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
        and _is_message(_delta(choice) if part == "delta" else choice.get(part), part)
        for choice in choices
    )


def check_reply(
    endpoint: ModelEndpoint,
    payload: Any,
    part: Part,
    *,
    headers: Mapping[str, str] | None = None,
    content: bytes | None = None,
) -> None:
    """Raise if a reply with HTTP 200 is a failure or is not a completion."""
    if (failure := reported_failure(payload)) is not None:
        error = failure["error"]
        code = error.get("code") if isinstance(error, dict) else None
        if isinstance(code, str) and code.isdecimal() and len(code) == 3:
            code = int(code)
        status = code if isinstance(code, int) and 400 <= code < 600 else 502
        raise error_from_reply(endpoint, status, failure, headers or {})
    try:
        written = dumps(payload)
    except ValueError as error:
        raise ModelCallError("invalid_reply", str(error), model_path=endpoint.model_path) from None
    if not is_completion(payload, part):
        raise call_error(
            endpoint, "invalid_reply", excerpt(endpoint, written if content is None else content)
        )


def excerpt(endpoint: ModelEndpoint, content: bytes) -> str:
    """Return the beginning of a reply, quoted and redacted."""
    text = beginning(content, *endpoint.secrets)[:300]
    return repr(text) if text else "an empty body"


@dataclass
class _StreamedCall:
    """A tool call of a stream: how it began, and whether any arguments have arrived."""

    id: Any
    name: Any
    chunk: int
    has_arguments: bool = False


class ToolCalls:
    """Completes the tool calls of one reply, whole or streamed.

    Agents parse arguments as JSON and send the id back, so both must exist.
    """

    def __init__(self, request: Mapping[str, Any]) -> None:
        self._request = request
        self._digest: bytes | None = None
        self._streamed: dict[int, dict[int, _StreamedCall]] = {}  # choice -> position -> call
        self._chunks = 0
        self._begun: set[int] = set()  # choices with content

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
                choice["delta"] = (None if place in self._begun else _delta(choice)) or {}
                choice.pop("message", None)
            if any(value for name, value in choice["delta"].items() if name != "role"):
                self._begun.add(place)
            for call in _list(choice["delta"].get("tool_calls")):
                self._complete_fragment(place, call)
            if choice.get("finish_reason"):
                for position, streamed in self._streamed.get(place, {}).items():
                    if not streamed.has_arguments:
                        streamed.has_arguments = True
                        rest = {"index": position, "function": {"arguments": "{}"}}
                        choice["delta"]["tool_calls"] = [*_list(choice["delta"].get("tool_calls")), rest]

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
        import hashlib

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


def _delta(choice: dict[str, Any]) -> Any:
    """Return the delta of a choice; a server that does not stream sends one chunk with a whole message."""
    delta, message = choice.get("delta"), choice.get("message")
    return message if delta is None or (delta == {} and isinstance(message, dict)) else delta


def _is_message(message: Any, part: Part) -> bool:
    if message is None:
        return part == "delta"
    return (
        isinstance(message, dict)
        and (part == "delta" or not _MESSAGE_KEYS.isdisjoint(message))
        and isinstance(message.get("content"), str | list | None)
        and all(isinstance(call, dict) for call in _list(message.get("tool_calls")))
    )


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
