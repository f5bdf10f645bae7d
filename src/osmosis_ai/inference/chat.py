"""A model's conversation format: chat template, tokens and tool calls, for serving and training alike.

Templates render exactly as in `transformers` (block trimming, JSON filter): an extra or missing newline between two turns
cost the tiny model 48 points of pass rate.

Templates differ in tool calls: some take a call's arguments as JSON text and some as a mapping, some require empty
content next to a call and some none, and each writes the format of its model. None of this is declared. A turn with a
call is therefore rendered in each variant until the call appears in the output. The format is the one whose reader finds
the call.
"""

from __future__ import annotations

import codecs
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from osmosis_ai.inference.catalog import FORMAT_NAMES, FormatName
from osmosis_ai.inference.tool_calls import FORMATS, CallFormat, ParsedToolCall, ToolCallReader, ToolCallStyle

if TYPE_CHECKING:
    from tokenizers import Tokenizer as RawTokenizer

Messages = Sequence[Mapping[str, Any]]

# For detection: a call, with a spelling that no template chooses itself.
_FUNCTION, _PARAMETER, _OFFERED = "probe_function", "probe_parameter", "offered_function"
_ARGUMENTS = f'{{"{_PARAMETER}":  7}}'
_QUESTION = {"role": "user", "content": "Please call it."}
_CONTENTS: tuple[dict[str, Any], ...] = ({}, {"content": ""}, {"content": None})
# Marks that reveal the format of a template that writes no calls itself; the first one found counts.
MARKS: tuple[tuple[str, FormatName], ...] = (
    ("<function=", "qwen3_coder"),
    ("<tool_call>", "hermes"),
    ("[TOOL_CALLS]", "mistral"),
    ("<｜tool▁call▁begin｜>", "deepseek"),
    ("<|tool_call_start|>", "pythonic"),
    ("<|python_tag|>", "llama3_json"),
)


class TemplateError(ValueError):
    """The template refuses these messages."""


class ChatFormat(ABC):
    """Messages to text, text to tokens, tokens to text.

    In byte-level vocabularies (GPT-2's kind: Qwen, Llama 3 and most newer ones), every token stands for fixed bytes, and
    a reply is those bytes as UTF-8: a character split over two tokens appears with its last byte, and invalid UTF-8
    becomes U+FFFD. Others use the library's incremental decoder.
    """

    tool_calls: ToolCallStyle

    def __init__(self, raw: RawTokenizer) -> None:
        self._raw = raw
        self._bytes = _byte_level_vocabulary(raw)
        added = raw.get_added_tokens_decoder().values()
        self.special_tokens = sorted(token.content for token in added if token.special)
        # In bytes.
        self.longest_token = max(map(len, self._bytes or (token.encode() for token in raw.get_vocab())))

    @abstractmethod
    def render(self, messages: Messages, tools: Messages = (), *, add_generation_prompt: bool = True) -> str:
        """Return the text of a conversation; raises TemplateError."""

    def encode(self, text: str) -> list[int]:
        """Return the tokens of ``text``, in which the model's special tokens are recognised."""
        ids: list[int] = self._raw.encode(text, add_special_tokens=False).ids
        return ids

    def token_id(self, token: str) -> int | None:
        found: int | None = self._raw.token_to_id(token)
        return found

    def token_bytes(self, token: int) -> bytes:
        """Return the bytes of ``token``."""
        if self._bytes:
            return self._bytes[token]
        text: str = self._raw.decode([token], skip_special_tokens=False)
        return text.encode()

    def decoder(self) -> Callable[[Iterable[int], bool], str]:
        """Return a function that decodes one reply piece by piece: it takes the next tokens and whether the reply ends.

        The bytes of an incomplete character are kept until the next call.
        """
        from tokenizers.decoders import DecodeStream

        stream, vocabulary = DecodeStream(skip_special_tokens=False), self._bytes

        def bytes_of(token: int) -> bytes:
            return vocabulary[token] if vocabulary else (stream.step(self._raw, token) or "").encode()

        utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")
        return lambda tokens, ended: utf8.decode(b"".join(map(bytes_of, tokens)), ended)


def _byte_level_vocabulary(raw: RawTokenizer) -> list[bytes] | None:
    """Return the bytes of each token; None if the tokens are not written in the byte-level alphabet."""
    # Printable Latin-1 characters represent themselves.
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    byte_of = {chr(byte): byte for byte in printable}
    byte_of |= {chr(256 + i): byte for i, byte in enumerate(b for b in range(256) if b not in printable)}
    added = raw.get_added_tokens_decoder()
    try:
        return [
            added[token].content.encode()
            if token in added
            else bytes(byte_of[character] for character in raw.id_to_token(token) or "")
            for token in range(raw.get_vocab_size(with_added_tokens=True))
        ]
    except KeyError:
        return None


class BuiltInChat(ChatFormat):
    """The format of a built-in model; needs neither torch nor transformers."""

    def __init__(self, model_dir: Path, *, tool_call_format: FormatName | None = None) -> None:
        from tokenizers import Tokenizer as RawTokenizer

        super().__init__(RawTokenizer.from_file(str(model_dir / "tokenizer.json")))
        self.tool_calls = ToolCallStyle(FORMATS[tool_call_format or "hermes"])
        self._template = ChatTemplate.load(model_dir)

    def render(self, messages: Messages, tools: Messages = (), *, add_generation_prompt: bool = True) -> str:
        return self._template.render(messages, tools, add_generation_prompt=add_generation_prompt)


class _GenerationBlocks(Extension):
    """Accept ``{% generation %}``, which marks the assistant's own text for trainers, as plain text."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class ChatTemplate:
    """A template in jinja, rendered in a sandbox."""

    def __init__(self, source: str) -> None:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationBlocks, "jinja2.ext.loopcontrols"]
        )
        # jinja2's own filter escapes for HTML, which would change what the model reads.
        environment.filters["tojson"] = partial(json.dumps, ensure_ascii=False)
        environment.globals["raise_exception"] = _refuse
        self._template = environment.from_string(source)

    @classmethod
    def load(cls, model_dir: Path) -> ChatTemplate:
        return cls((model_dir / "chat_template.jinja").read_text(encoding="utf-8"))

    def render(self, messages: Messages, tools: Messages = (), *, add_generation_prompt: bool = True) -> str:
        try:
            prompt = {"messages": messages, "tools": tools or None}
            return self._template.render(prompt, add_generation_prompt=add_generation_prompt)
        except (jinja2.TemplateError, TypeError, ValueError) as error:
            raise TemplateError(f"the chat template cannot render these messages: {error}") from error


def _refuse(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


Render = Callable[..., str]


def detect_tool_calls(
    render: Render,
    *,
    source: str,
    has_token: Callable[[str], bool],
    chosen: FormatName | None = None,
    note: Callable[[str], None] | None = None,
) -> ToolCallStyle:
    """Find out how a template accepts and writes calls.

    ``has_token`` tells whether the vocabulary has a token. A ``chosen`` format is not detected. ``note`` is called with a
    problem when tools are used; the default logs a warning.
    """
    prompt = _try(render, [_QUESTION], add_generation_prompt=True)
    forms = [(as_written, content) for as_written in (True, False) for content in _CONTENTS]
    turns = [(form, _try(render, [_QUESTION, _turn(*form, calls=1)])) for form in forms]
    writing = [form for form, text in turns if (_ARGUMENTS if form[0] else _PARAMETER) in text]
    # A template that writes no call still has to accept the turn.
    accepting = [form for form, text in turns if text and not form[0]]
    as_written, content = [*writing, *accepting, (False, {})][0]

    def reply(calls: int) -> str | None:
        """Return what the template writes for so many calls; None if they are missing."""
        text = _try(render, [_QUESTION, _turn(as_written, content, calls=calls)])
        same = takewhile(lambda pair: pair[0] == pair[1], zip(prompt, text, strict=False))
        return text[sum(1 for _ in same) :] if text.count(_PARAMETER) >= calls else None

    written = reply(1)
    format = FORMATS[chosen] if chosen else _format_of(written, source, has_token)
    several = written is None or reply(2) is not None
    problems = [] if _OFFERED in prompt else ["it does not show offered tools to the model"]
    if format is None:
        problems.append(
            f"it writes calls in no format that is known ({', '.join(FORMAT_NAMES)}), so that a call which the model "
            "writes stays text; `tool_call_format` chooses one"
        )
    problem = f"the model's chat template is not made for tools: {'; '.join(problems)}." if problems else None
    return ToolCallStyle(format, several, problem, note or ToolCallStyle.note, as_written, content)


def _format_of(written: str | None, source: str, has_token: Callable[[str], bool]) -> CallFormat | None:
    if written is not None:
        return next((format for format in FORMATS.values() if _reads(format, written)), None)
    known = (FORMATS[name] for has in (source.__contains__, has_token) for mark, name in MARKS if has(mark))
    return next(known, None)


def _reads(format: CallFormat, written: str) -> bool:
    """Return whether a format's reader finds the call in the template's text."""
    parameters = {"properties": {_PARAMETER: {"type": "integer"}}}
    reader = ToolCallReader(format, [{"function": {"name": _FUNCTION, "parameters": parameters}}])
    pieces = list(reader.feed(written, ended=True))
    calls = [piece for piece in pieces if isinstance(piece, ParsedToolCall)]
    if [call.name for call in calls] != [_FUNCTION] or json.loads(calls[0].arguments) != {_PARAMETER: 7}:
        return False
    # A call without marks is the whole reply; otherwise another format's marks would be left over.
    return not format.bare or pieces[0] is calls[0]


def _turn(as_written: bool, content: Mapping[str, Any], *, calls: int) -> dict[str, Any]:
    arguments = _ARGUMENTS if as_written else json.loads(_ARGUMENTS)
    call = {"type": "function", "function": {"name": _FUNCTION, "arguments": arguments}}
    numbered = [{"id": f"probe{number:04}", **call} for number in range(calls)]
    return {"role": "assistant", **content, "tool_calls": numbered}


def _try(render: Render, messages: Messages, *, add_generation_prompt: bool = False) -> str:
    """Return the rendered text; empty if the template refuses."""
    parameters = {"type": "object", "properties": {"x": {"type": "integer", "description": "Any number."}}}
    function = {"name": _OFFERED, "description": "Does something.", "parameters": parameters}
    tools = [{"type": "function", "function": function}]
    try:
        return render(messages, tools, add_generation_prompt=add_generation_prompt)
    except TemplateError:
        return ""
