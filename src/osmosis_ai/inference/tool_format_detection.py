"""Detect a chat template's tool call format by rendering a call.

Templates differ: some take a call's arguments as JSON text and some as a mapping, some require empty content next to a
call and some none, and each writes the format of its model. None of this is declared. A turn with a call is therefore
rendered in each variant until the call appears in the output. The format is the one whose reader finds the call.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from osmosis_ai.inference.template import TemplateError
from osmosis_ai.inference.tool_call_formats import FORMATS
from osmosis_ai.inference.tool_calls import (
    FORMAT_NAMES,
    CallFormat,
    FormatName,
    ParsedToolCall,
    ToolCallReader,
    ToolCallStyle,
)

_FUNCTION, _PARAMETER, _OFFERED = "probe_function", "probe_parameter", "offered_function"
# A spelling that no template would choose itself.
_ARGUMENTS = f'{{"{_PARAMETER}":  7}}'
_QUESTION = {"role": "user", "content": "Please call it."}
_CONTENTS: tuple[dict[str, Any], ...] = ({}, {"content": ""}, {"content": None})
# The marks that give a format away where the template writes no calls itself; the first that is found counts.
MARKS: tuple[tuple[str, FormatName], ...] = (
    ("<function=", "qwen3_coder"),
    ("<tool_call>", "hermes"),
    ("[TOOL_CALLS]", "mistral"),
    ("<｜tool▁call▁begin｜>", "deepseek"),
    ("<|tool_call_start|>", "pythonic"),
    ("<|python_tag|>", "llama3_json"),
)


class Render(Protocol):
    """A chat template."""

    def __call__(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool,
    ) -> str:
        """Return the text of a conversation; raises TemplateError."""


@dataclass(frozen=True)
class ToolTemplate:
    """How a template wants turns with calls."""

    arguments_as_written: bool
    empty_content: Mapping[str, Any]
    calls: ToolCallStyle

    def fitted(self, message: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return a message as the template wants it."""
        calls = message.get("tool_calls")
        if not calls:
            return message
        rest = {key: value for key, value in message.items() if key != "content" or value}
        content = {} if "content" in rest else self.empty_content
        if not self.arguments_as_written:
            calls = [_with_mapping(call) for call in calls]
        return {**rest, **content, "tool_calls": calls}


def detect_tool_template(
    render: Render,
    *,
    source: str,
    has_token: Callable[[str], bool],
    chosen: FormatName | None = None,
    note: Callable[[str], None] | None = None,
) -> ToolTemplate:
    """Find out what a template does with calls."""
    prompt = _try(render, [_QUESTION], add_generation_prompt=True)
    as_written, content = _accepted_form(render)
    written = _reply(render, as_written, content, prompt, calls=1)
    format = FORMATS[chosen] if chosen else _format_of(written, source, has_token)
    several = written is None or _reply(render, as_written, content, prompt, calls=2) is not None
    problems = []
    if _OFFERED not in prompt:
        problems.append("it does not show offered tools to the model")
    if format is None:
        problems.append(
            f"it writes calls in no format that is known ({', '.join(FORMAT_NAMES)}), so that a call which the model "
            "writes stays text; `tool_call_format` chooses one"
        )
    problem = f"the model's chat template is not made for tools: {'; '.join(problems)}." if problems else None
    return ToolTemplate(
        as_written, content, ToolCallStyle(format, several=several, problem=problem, note=note)
    )


def _accepted_form(render: Render) -> tuple[bool, Mapping[str, Any]]:
    """Return the first manner, arguments as written and empty content, in which the template writes a call."""
    accepted = []
    for as_written in (True, False):
        for content in _CONTENTS:
            text = _try(render, [_QUESTION, _turn(as_written, content, calls=1)])
            if (_ARGUMENTS if as_written else _PARAMETER) in text:
                return as_written, content
            if text and not as_written:
                accepted.append(content)
    return False, accepted[0] if accepted else {}


def _reply(
    render: Render, as_written: bool, content: Mapping[str, Any], prompt: str, *, calls: int
) -> str | None:
    """Return what the template has the model write for so many calls; None when it does not."""
    text = _try(render, [_QUESTION, _turn(as_written, content, calls=calls)])
    if text.count(_PARAMETER) < calls:
        return None
    shorter = min(len(prompt), len(text))
    return text[next((place for place in range(shorter) if prompt[place] != text[place]), shorter) :]


def _format_of(written: str | None, source: str, has_token: Callable[[str], bool]) -> CallFormat | None:
    if written is not None:
        return next((format for format in FORMATS.values() if _reads(format, written)), None)
    for is_known in (source.__contains__, has_token):
        for mark, name in MARKS:
            if is_known(mark):
                return FORMATS[name]
    return None


def _reads(format: CallFormat, written: str) -> bool:
    """Whether the reader of a format finds the call in what the template wrote."""
    parameters = {"properties": {_PARAMETER: {"type": "integer"}}}
    reader = ToolCallReader(format, [{"function": {"name": _FUNCTION, "parameters": parameters}}])
    pieces = [*reader.feed(written), *reader.finish()]
    calls = [piece for piece in pieces if isinstance(piece, ParsedToolCall)]
    if [call.name for call in calls] != [_FUNCTION] or json.loads(calls[0].arguments) != {_PARAMETER: 7}:
        return False
    # Without marks a call is the whole reply; in others' marks it would be read and its marks left over.
    return not format.bare or pieces[0] is calls[0]


def _turn(as_written: bool, content: Mapping[str, Any], *, calls: int) -> dict[str, Any]:
    arguments = _ARGUMENTS if as_written else json.loads(_ARGUMENTS)
    call = {"type": "function", "function": {"name": _FUNCTION, "arguments": arguments}}
    return {
        "role": "assistant",
        **content,
        "tool_calls": [{"id": f"probe{number:04}", **call} for number in range(calls)],
    }


def _try(
    render: Render, messages: Sequence[Mapping[str, Any]], *, add_generation_prompt: bool = False
) -> str:
    """Return what the template writes; nothing when it refuses."""
    parameters = {"type": "object", "properties": {"x": {"type": "integer", "description": "Any number."}}}
    function = {"name": _OFFERED, "description": "Does something.", "parameters": parameters}
    try:
        return render(
            messages,
            [{"type": "function", "function": function}],
            add_generation_prompt=add_generation_prompt,
        )
    except TemplateError:
        return ""


def _with_mapping(call: Mapping[str, Any]) -> dict[str, Any]:
    """The call with its arguments as a mapping where they are a JSON object."""
    function = call["function"]
    try:
        arguments = json.loads(function["arguments"])
    except ValueError:
        return dict(call)
    if not isinstance(arguments, dict):
        return dict(call)
    return {**call, "function": {**function, "arguments": arguments}}
