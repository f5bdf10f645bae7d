"""Parse tool calls in a model's output, while it is generated.

The reader takes text in pieces of any size and returns it in order, split into content and calls. No text is lost or
repeated, and the result does not depend on the pieces. Text that may become a call is buffered. An invalid call stays
content as written. The formats are from the chat templates and model cards of their models:

| format | a call |
|---|---|
| hermes | ``<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>`` |
| qwen3_coder | ``<tool_call><function=f><parameter=a>1</parameter></function></tool_call>`` |
| mistral | ``[TOOL_CALLS][{"name": "f", "arguments": {"a": 1}}]``, newer ``[TOOL_CALLS]f[ARGS]{"a": 1}`` |
| deepseek | ``<｜tool▁call▁begin｜>f<｜tool▁sep｜>{"a": 1}<｜tool▁call▁end｜>``, in V3 and R1 with a code fence |
| llama3_json | ``{"name": "f", "parameters": {"a": 1}}``, alone or after ``<|python_tag|>`` |
| pythonic | ``[f(a=1), g(b="x")]``, alone or after a mark |
"""

from __future__ import annotations

import ast
import json
import logging
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import chain
from secrets import token_hex
from typing import Any

from osmosis_ai.inference.catalog import FormatName

logger = logging.getLogger(__name__)

# Buffered text is parsed with every piece while it is short, then only when it may be complete.
_SHORT = 256
# Longest word at the end of a cut JSON text (`-Infinity`, `\uD83D\uDE`).
_MAX_JSON_WORD = 12
_MAX_BRACKET_DEPTH = 50
_ARGUMENTS_KEY = re.compile(r'"(?:arguments|parameters)"\s*:\s*')
_BLANKS = re.compile(r"\s*")
_NAME = r"[A-Za-z0-9_.-]{1,64}"

_HERMES_START, _HERMES_END = "<tool_call>", "</tool_call>"
_FUNCTION, _FUNCTION_END, _PARAMETER = "<function=", "</function>", "<parameter="
_TAG_VALUE = re.compile(r"([^>\n]{1,128})>")
# Inside a value: the end of the value is missing, and the next call must not become a part of it.
_CALL_OVER = re.compile(r"</function>\s*</tool_call>")
_PARAMETER_END = re.compile(r"</parameter>(?=\s*(?:<parameter=|</function>))")
_MISTRAL, _NINE = "[TOOL_CALLS]", re.compile("[A-Za-z0-9]{9}")
_MISTRAL_HEAD = re.compile(rf"({_NAME})(?:\[CALL_ID\]([A-Za-z0-9]{{1,64}}))?\[ARGS\]")
_CALLS_BEGIN, _CALLS_END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
_CALL_BEGIN, _CALL_END = "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>"
_DEEPSEEK_HEAD = re.compile(rf"({_NAME})<｜tool▁sep｜>")
_DEEPSEEK_FENCED = re.compile(rf"({_NAME})\n```json\n")
_PYTHON_TAG, _PY_START, _PY_END = "<|python_tag|>", "<|python_start|>", "<|python_end|>"
_LLAMA_KEYS = ("name", "parameters", "arguments", "type", "id")
_LIST_START, _LIST_END = "<|tool_call_start|>", "<|tool_call_end|>"
_PYTHONIC_HEAD = re.compile(r"\[\s*(?:\Z|[^\W\d][\w.]*\s*(?:\Z|\())")
_PYTHONIC_TOKEN = re.compile(
    r"""(?s)(\"\"\"|''')(?:[^\\]|\\.)*?(?:\1|\\?\Z)"""
    r"""|"[^"\\\n]*(?:\\.[^"\\\n]*)*(?:"|\n|\\?\Z)|'[^'\\\n]*(?:\\.[^'\\\n]*)*(?:'|\n|\\?\Z)|[()\[\]{}]"""
)
_JSON_NAMES = {"true": True, "false": False, "null": None}
_PYTHON_NAMES = {"True": True, "False": False, "None": None}
# The JSON types of each Python type. A string has none: text needs no reading.
_KINDS = {bool: "boolean", int: "integer number", float: "number", dict: "object", list: "array", str: ""}
# NaN and Infinity are not JSON: `int` refuses them.
_JSON = json.JSONDecoder(parse_constant=int)
# JSON escapes can encode one, which is not valid Unicode.
_SURROGATE = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True)
class ParsedToolCall:
    id: str
    name: str
    arguments: str

    def to_dict(self) -> dict[str, Any]:
        function = {"name": self.name, "arguments": self.arguments}
        return {"id": self.id, "type": "function", "function": function}


Piece = str | ParsedToolCall
ToolList = Sequence[Mapping[str, Any]]
# The JSON schemas of the parameters of each offered function, by their names.
ToolSchemas = Mapping[str, Mapping[str, Any]]


class NotACallError(Exception):
    """The text does not begin with a call, whatever follows."""


class MoreToComeError(Exception):
    """The text may be the beginning of a call."""


@dataclass(frozen=True)
class CallFormat:
    """How a family of models writes calls.

    Attributes:
        openings: Marks that begin a call.
        read: Returns the length and the calls of the markup at the beginning of a text.
        enders: Characters that can end a call.
        closings: Marks that may follow the calls.
        call_end: Token after a single call.
        bare: Text at the beginning of a line that begins a call without a mark.
        own_id: Call ids of the model that are passed on.
    """

    name: FormatName
    openings: tuple[str, ...]
    read: Callable[[str, ToolSchemas], tuple[int, list[ParsedToolCall]]]
    enders: str
    closings: tuple[str, ...] = ()
    call_end: str | None = None
    bare: str = ""
    own_id: re.Pattern[str] | None = None
    new_id: Callable[[], str] = lambda: f"call_{token_hex(12)}"


class ToolCallReader:
    """Reads one reply; with ``at_most_one``, text after the first call is content."""

    def __init__(self, format: CallFormat, tools: ToolList = (), *, at_most_one: bool = False) -> None:
        self._format = format
        self._schemas = {tool["function"]["name"]: _properties(tool["function"]) for tool in tools}
        self._at_most_one = at_most_one
        self._bare = re.compile(rf"(?m)^[^\S\n]*{re.escape(format.bare)}") if format.bare else None
        self._buffer = ""
        self._waiting = False
        self._after_call = False
        self._at_line_start = True
        self._ids: set[str] = set()

    def feed(self, text: str, *, ended: bool = False) -> Iterator[Piece]:
        """Yield content and calls as soon as they are certain."""
        self._buffer += text
        undecided = self._waiting and len(self._buffer) > _SHORT and not set(text) & set(self._format.enders)
        if undecided and not ended:
            return
        self._waiting = False
        while self._buffer:
            start = self._opening_in(self._buffer)
            # Blanks after a call may separate it from the next: wait for what follows.
            blanks = start if self._after_call and not self._buffer[:start].strip() else 0
            if start > blanks:
                yield self._content(start)
                continue
            if start == len(self._buffer):
                if ended:
                    self._cut(start)
                return
            found = self._read(self._buffer[blanks:], ended)
            if found is None:
                self._waiting = True
                return
            length, calls = found
            if length:
                self._after_call = self._at_line_start = True
                self._cut(blanks + length)
                yield from calls
            else:
                yield self._content(blanks + 1)

    def _opening_in(self, text: str) -> int:
        """Return the first position of a call, a closing or the beginning of one; otherwise the length."""
        if self._after_call:
            rest = text.lstrip()
            if any(rest.startswith(mark) or mark.startswith(rest) for mark in self._format.closings):
                return len(text) - len(rest)
        if self._at_most_one and self._ids:
            return len(text)
        openings = self._format.openings
        places = [place for mark in openings if (place := text.find(mark)) >= 0]
        for match in self._bare.finditer(text) if self._bare else ():
            if self._at_line_start or "\n" in text[: match.end()]:
                places.append(match.end() - 1)
                break
        return min(places, default=len(text) - beginning_of_any(openings, text))

    def _read(self, text: str, ended: bool) -> tuple[int, list[ParsedToolCall]] | None:
        """Return the length of the markup that ``text`` begins with, 0 for none; None if more text decides it."""
        try:
            if self._after_call:
                with suppress(NotACallError):
                    return _past(text, 0, *self._format.closings), []
            length, calls = self._format.read(text, self._schemas)
            if self._at_most_one and len(calls) > 1:
                raise NotACallError
        except NotACallError:
            return 0, []
        except MoreToComeError:
            return (0, []) if ended else None
        return length, [self._with_id(call) for call in calls]

    def _with_id(self, call: ParsedToolCall) -> ParsedToolCall:
        own_id = self._format.own_id
        if own_id is None or not own_id.fullmatch(call.id) or call.id in self._ids:
            call = replace(call, id=self._format.new_id())
        self._ids.add(call.id)
        return call

    def _content(self, length: int) -> str:
        text = self._cut(length)
        _, newline, last_line = text.rpartition("\n")
        self._at_line_start = (bool(newline) or self._at_line_start) and not last_line.strip()
        self._after_call = False
        return text

    def _cut(self, length: int) -> str:
        text, self._buffer = self._buffer[:length], self._buffer[length:]
        return text


@dataclass
class ToolCallStyle:
    """How one model writes calls, and the form in which its chat template accepts turns with calls.

    Without a format, calls stay text. The template accepts ``empty_content`` in a turn that has only calls, of which
    ``several`` may be in a turn. ``problem`` is passed to ``note`` when tools are offered for the first time.
    """

    format: CallFormat | None
    several: bool = True
    problem: str | None = None
    note: Callable[[str], None] = logger.warning
    arguments_as_written: bool = True
    empty_content: Mapping[str, Any] = field(default_factory=dict)

    def reader(self, tools: ToolList, *, at_most_one: bool = False) -> ToolCallReader | None:
        """Return a reader for a reply to a request with ``tools``, or None if no calls are possible."""
        if tools and self.problem:
            self.note(self.problem)
            self.problem = None
        if not tools or self.format is None:
            return None
        return ToolCallReader(self.format, tools, at_most_one=at_most_one or not self.several)

    def end_token(self, token_id: Callable[[str], int | None]) -> int | None:
        """Return the token after a single call, if the format and the vocabulary have one."""
        return token_id(self.format.call_end) if self.format and self.format.call_end else None

    def fitted(self, message: Mapping[str, Any]) -> Mapping[str, Any]:
        calls = message.get("tool_calls")
        if not calls:
            return message
        rest = {key: value for key, value in message.items() if key != "content" or value}
        content = {} if "content" in rest else self.empty_content
        if not self.arguments_as_written:
            calls = [_with_parsed_arguments(call) for call in calls]
        return {**rest, **content, "tool_calls": calls}


def _with_parsed_arguments(call: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a call with its arguments as a mapping, if they are a JSON object."""
    function = call["function"]
    try:
        arguments = json.loads(function["arguments"])
    except (ValueError, RecursionError):
        return call
    return {**call, "function": {**function, "arguments": arguments}} if isinstance(arguments, dict) else call


def _properties(function: Mapping[str, Any]) -> Mapping[str, Any]:
    properties = (function.get("parameters") or {}).get("properties")
    return properties if isinstance(properties, dict) else {}


def beginning_of_any(markers: Sequence[str], text: str) -> int:
    """Return how many characters at the end of ``text`` may be the beginning of a marker."""
    longest = max(map(len, markers), default=1) - 1
    if not any(marker[0] in text[-longest:] for marker in markers if longest):
        return 0  # the usual case
    for length in range(min(longest, len(text)), 0, -1):
        if any(marker.startswith(text[-length:]) for marker in markers):
            return length
    return 0


# Each of these functions is a `CallFormat.read`.
def _read_hermes(text: str, _tools: ToolSchemas) -> tuple[int, list[ParsedToolCall]]:
    call, end = _named_call(text, _past(text, 0, _HERMES_START), ("arguments",))
    return _past(text, end, _HERMES_END), [call]


def _read_qwen3(text: str, tools: ToolSchemas) -> tuple[int, list[ParsedToolCall]]:
    place = _past_either(text, _HERMES_START, _FUNCTION)
    name, place = _tag_value(text, place)
    schemas = tools.get(_checked_name(name), {})
    arguments: dict[str, Any] = {}
    while True:
        place = _skip_blanks(text, place)
        if text.startswith(_FUNCTION_END, place):
            return place + len(_FUNCTION_END), [ParsedToolCall("", name, _to_json(arguments))]
        if _FUNCTION_END.startswith(text[place:]):
            raise MoreToComeError
        key, place = _tag_value(text, _past(text, place, _PARAMETER))
        found = _PARAMETER_END.search(text, place)
        if key in arguments or _CALL_OVER.search(text, place, found.start() if found else len(text)):
            raise NotACallError
        if found is None:
            raise MoreToComeError
        value = text[place : found.start()].removeprefix("\n").removesuffix("\n")
        arguments[key] = _typed(value, schemas.get(key))
        place = found.end()


def _read_mistral(text: str, _tools: ToolSchemas) -> tuple[int, list[ParsedToolCall]]:
    place = _skip_blanks(text, _past(text, 0, _MISTRAL))
    if text.startswith("{", place):
        call, end = _named_call(text, place, ("arguments",))
        return end, [call]
    if not text.startswith("[", place):
        head = _match(_MISTRAL_HEAD, text, place, longest=144)
        _value, start, end = _object_at(text, head.end())
        return end, [ParsedToolCall(head[2] or "", head[1], text[start:end])]
    calls: list[ParsedToolCall] = []
    while True:
        call, end = _named_call(text, place + 1, ("arguments",))
        calls.append(call)
        place = _skip_blanks(text, end)
        if text.startswith("]", place):
            return place + 1, calls
        _past(text, place, ",")


def _read_deepseek(text: str, _tools: ToolSchemas) -> tuple[int, list[ParsedToolCall]]:
    head = _match(_DEEPSEEK_HEAD, text, _past_either(text, _CALLS_BEGIN, _CALL_BEGIN), longest=80)
    fenced = head[1] == "function" and not text.startswith("{", head.end())
    if fenced:
        head = _match(_DEEPSEEK_FENCED, text, head.end(), longest=80)
    _value, start, end = _object_at(text, head.end())
    place = _past(text, end, "```") if fenced else end
    return _past(text, place, _CALL_END), [ParsedToolCall("", head[1], text[start:end])]


def _read_llama3(text: str, _tools: ToolSchemas) -> tuple[int, list[ParsedToolCall]]:
    place = 0 if text[0] == "{" else _past(text, 0, _PYTHON_TAG, _PY_START)
    if not place:
        first = text[_skip_blanks(text, 1) :]
        if not any((mark := f'"{key}"').startswith(first[: len(mark)]) for key in _LLAMA_KEYS):
            raise NotACallError  # an answer in JSON is not buffered until its end
    call, end = _named_call(text, place, ("parameters", "arguments"), allowed=_LLAMA_KEYS)
    return end, [call]


def _read_pythonic(text: str, _tools: ToolSchemas) -> tuple[int, list[ParsedToolCall]]:
    start = 0 if text[0] == "[" else _skip_blanks(text, _past(text, 0, _LIST_START, _PY_START))
    if start == len(text):
        raise MoreToComeError
    if not _PYTHONIC_HEAD.match(text, start):
        raise NotACallError
    end = _bracket_end(text, start)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about invalid escapes
            written = ast.parse(text[start:end], mode="eval").body
        if not isinstance(written, ast.List):
            raise NotACallError
        return end, [_python_call(node) for node in written.elts]
    except (SyntaxError, ValueError, TypeError, MemoryError, RecursionError):
        raise NotACallError from None


# Detection takes the first format that fits, so formats with marks come first.
_ROWS = (
    CallFormat("hermes", (_HERMES_START,), _read_hermes, ">", (), _HERMES_END),
    CallFormat("qwen3_coder", (_HERMES_START, _FUNCTION), _read_qwen3, ">", (_HERMES_END,), _HERMES_END),
    # Templates of these models refuse ids that are not nine letters and digits.
    CallFormat("mistral", (_MISTRAL,), _read_mistral, "}]", own_id=_NINE, new_id=lambda: token_hex(5)[:9]),
    CallFormat("deepseek", (_CALLS_BEGIN, _CALL_BEGIN), _read_deepseek, ">", (_CALLS_END,), _CALL_END),
    CallFormat("llama3_json", (_PYTHON_TAG, _PY_START), _read_llama3, "}", (";", _PY_END), bare="{"),
    CallFormat("pythonic", (_LIST_START, _PY_START), _read_pythonic, "]", (_LIST_END, _PY_END), bare="["),
)
FORMATS: Mapping[FormatName, CallFormat] = {format.name: format for format in _ROWS}


def _past(text: str, place: int, *marks: str) -> int:
    """Return the position after one of ``marks``, which must follow blanks at ``place``."""
    place = _skip_blanks(text, place)
    for mark in marks:
        if text.startswith(mark, place):
            return place + len(mark)
    raise MoreToComeError if any(mark.startswith(text[place:]) for mark in marks) else NotACallError


def _past_either(text: str, outer: str, inner: str) -> int:
    """Return the position after ``inner``, with which the text begins, alone or after ``outer``."""
    place = _past(text, 0, outer, inner)
    return _past(text, place, inner) if text.startswith(outer) else place


def _skip_blanks(text: str, place: int) -> int:
    return _BLANKS.match(text, place).end()  # type: ignore[union-attr]  # it matches the empty string


def _match(pattern: re.Pattern[str], text: str, place: int, *, longest: int) -> re.Match[str]:
    """Match a pattern of at most ``longest`` characters."""
    if found := pattern.match(text, place):
        return found
    raise MoreToComeError if len(text) - place <= longest else NotACallError


def _tag_value(text: str, place: int) -> tuple[str, int]:
    """Return the text before the next ``>``, and the position after it."""
    found = _match(_TAG_VALUE, text, place, longest=129)
    return found[1].strip(), found.end()


def _object_at(text: str, place: int) -> tuple[dict[str, Any], int, int]:
    """Return the JSON object after blanks, its start and its end."""
    start = _skip_blanks(text, place)
    if start == len(text):
        raise MoreToComeError
    if text[start] != "{":
        raise NotACallError
    try:
        value, end = _JSON.raw_decode(text, start)
    except json.JSONDecodeError as error:
        # An error far from the end of the text remains, whatever follows.
        cut = error.msg.startswith("Unterminated") or len(text) - error.pos <= _MAX_JSON_WORD
        raise (MoreToComeError if cut else NotACallError) from None
    except (ValueError, RecursionError):  # NaN, or a number or a nesting beyond Python's limits
        raise NotACallError from None
    return value, start, end


def _named_call(
    text: str, place: int, keys: tuple[str, ...], *, allowed: Sequence[str] | None = None
) -> tuple[ParsedToolCall, int]:
    """Read ``{"name": ..., key: {...}}``, where ``key`` is one of ``keys``; return the call and its end."""
    value, start, end = _object_at(text, place)
    arguments = next((value[key] for key in keys if key in value), None)
    if not isinstance(arguments, dict) or (allowed is not None and not value.keys() <= set(allowed)):
        raise NotACallError
    written = _as_written(text[start:end], arguments)
    own_id = value.get("id")
    name = _checked_name(value.get("name"))
    return ParsedToolCall(own_id if isinstance(own_id, str) else "", name, written), end


def _checked_name(name: Any) -> str:
    if not isinstance(name, str) or not name or _SURROGATE.search(name):
        raise NotACallError
    return name


def _as_written(written: str, arguments: dict[str, Any]) -> str:
    """Return the model's own spelling, so that a later prompt continues the recorded tokens exactly."""
    for key in _ARGUMENTS_KEY.finditer(written):
        try:
            value, end = _JSON.raw_decode(written, key.end())
        except ValueError:
            continue
        if value == arguments:
            return written[key.end() : end]
    return _to_json(arguments)


def _to_json(arguments: dict[str, Any]) -> str:
    written = json.dumps(arguments, ensure_ascii=False, allow_nan=False)
    return json.dumps(arguments, allow_nan=False) if _SURROGATE.search(written) else written


def _typed(value: str, schema: Any) -> Any:
    """Read a parameter by its schema; without one, as text unless it is a JSON object or list."""
    kinds = _kinds(schema) or {"string", "object", "array"}
    read: Any = value
    if kinds != {"string"}:
        word = value.strip()
        try:
            read = _PYTHON_NAMES[word] if word in _PYTHON_NAMES else _JSON.decode(word)
        except (ValueError, RecursionError):
            return value
    found = _KINDS.get(type(read), "null").split()
    return read if kinds.intersection(found) else value  # a quoted string keeps its quotes


def _kinds(schema: Any) -> set[str]:
    """Return the JSON types that a schema allows; empty if unspecified."""
    if not isinstance(schema, dict):
        return set()
    given = schema.get("type")
    kinds = {kind for kind in (given if isinstance(given, list) else [given]) if isinstance(kind, str)}
    branches = [schema[key] for key in ("anyOf", "oneOf") if isinstance(schema.get(key), list)]
    return kinds.union(*map(_kinds, chain.from_iterable(branches)))


def _bracket_end(text: str, start: int) -> int:
    """Return the position after the bracket that closes the one at ``start``; strings are skipped."""
    depth = 0
    for token in _PYTHONIC_TOKEN.finditer(text, start):
        if token[0] in "([{":
            depth += 1
        elif token[0] in ")]}":
            depth -= 1
        if depth == 0:
            return token.end()
        broken_string = token[0][-1] == "\n" and not token[1]
        if broken_string or depth > _MAX_BRACKET_DEPTH:
            raise NotACallError
    raise MoreToComeError


def _python_call(node: ast.expr) -> ParsedToolCall:
    if not isinstance(node, ast.Call) or node.args:
        raise NotACallError
    arguments: dict[str, Any] = {}
    for keyword in node.keywords:
        if keyword.arg is None or keyword.arg in arguments:
            raise NotACallError
        arguments[keyword.arg] = _python_value(keyword.value)
    return ParsedToolCall("", _checked_name(_dotted_name(node.func)), _to_json(arguments))


def _dotted_name(node: ast.expr) -> str | None:
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and (before := _dotted_name(node.value)):
        return f"{before}.{node.attr}"
    return None


def _python_value(node: ast.expr) -> Any:
    """Return the value of a literal; nothing is evaluated."""
    for part in ast.walk(node):
        keys = part.keys if isinstance(part, ast.Dict) else []
        if isinstance(part, ast.UAdd) or not all(
            isinstance(getattr(key, "value", None), str) for key in keys
        ):
            raise NotACallError
    return ast.literal_eval(_JSONNames().visit(node))


class _JSONNames(ast.NodeTransformer):
    def visit_Name(self, node: ast.Name) -> ast.expr:
        return ast.Constant(_JSON_NAMES[node.id]) if node.id in _JSON_NAMES else node
