"""Tool calls in every format, read whole and in pieces; text that looks like them; which format a template writes."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from osmosis_ai.inference.catalog import FORMAT_NAMES, FormatName
from osmosis_ai.inference.chat import BuiltInChat, ChatTemplate, detect_tool_calls
from osmosis_ai.inference.tool_calls import FORMATS, ParsedToolCall, Piece, ToolCallReader, ToolCallStyle
from tests.inference.call_templates import TEMPLATES, UNKNOWN_CALLS, template
from tests.inference.conftest import multiply_tool, question

DS_ONE, DS_SEP, DS_ONE_END = "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"
DS_ALL, DS_ALL_END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
STRINGS = {
    kind: {"type": kind} for kind in ("string", "integer", "number", "boolean", "array", "object", "null")
}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "f",
            "parameters": {
                "properties": {
                    **STRINGS,
                    "a": {"type": "integer"},
                    "s": {"type": "string"},
                    "maybe": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
                    "either": {"type": ["string", "boolean"]},
                    "odd": {"type": [7, None], "anyOf": 3},
                }
            },
        },
    }
]


def qwen(name: str, **parameters: str) -> str:
    inside = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in parameters.items())
    return f"<tool_call>\n<function={name}>\n{inside}</function>\n</tool_call>"


def fenced(name: str, arguments: str) -> str:
    return f"{DS_ONE}function{DS_SEP}{name}\n```json\n{arguments}\n```{DS_ONE_END}"


def read(
    format: FormatName, text: str, *, at_most_one: bool = False, chunk: int | None = None
) -> tuple[str, list[tuple[str, Any]]]:
    """The content and the calls, with their arguments read."""
    pieces = feed(format, text, at_most_one=at_most_one, chunk=chunk)
    calls = [(call.name, json.loads(call.arguments)) for call in pieces if isinstance(call, ParsedToolCall)]
    return "".join(piece for piece in pieces if isinstance(piece, str)), calls


def feed(
    format: FormatName,
    text: str,
    *,
    at_most_one: bool = False,
    chunk: int | None = None,
    cuts: Sequence[int] = (),
) -> list[Piece]:
    """Read ``text`` in pieces of ``chunk`` characters, or with the sizes ``cuts`` and then the rest."""
    reader = ToolCallReader(FORMATS[format], TOOLS, at_most_one=at_most_one)
    places = [*itertools.accumulate(cuts, initial=0)]
    if chunk:
        places = [*range(0, len(text), chunk)]
    pieces: list[Piece] = []
    for start, end in itertools.pairwise([*places, max(len(text), places[-1])]):
        pieces += reader.feed(text[start:end])
    return [*pieces, *reader.feed("", ended=True)]


# A call of f(a=1) or f(a=1, s="x") in every spelling that a format has.
A1: dict[str, Any] = {"a": 1}
ONE_CALL: list[tuple[FormatName, str]] = [
    ("hermes", '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'),
    ("hermes", '<tool_call>{"arguments":{"a":1},"name":"f"}</tool_call>'),
    ("qwen3_coder", qwen("f", a="1")),
    ("qwen3_coder", "<tool_call><function=f><parameter=a>1</parameter></function></tool_call>"),
    ("qwen3_coder", "<function=f>\n<parameter=a>\n1\n</parameter>\n</function>"),
    ("qwen3_coder", "<function=f>\n<parameter=a>\n1\n</parameter>\n</function>\n</tool_call>"),
    ("mistral", '[TOOL_CALLS][{"name": "f", "arguments": {"a": 1}}]'),
    ("mistral", '[TOOL_CALLS] [{"name": "f", "arguments": {"a": 1}, "id": "abcdefgh1"}]'),
    ("mistral", '[TOOL_CALLS]{"name": "f", "arguments": {"a": 1}}'),
    ("mistral", '[TOOL_CALLS]f[ARGS]{"a": 1}'),
    ("mistral", '[TOOL_CALLS]f[CALL_ID]abcdefgh1[ARGS] {"a": 1}'),
    ("deepseek", f'{DS_ALL}{DS_ONE}f{DS_SEP}{{"a": 1}}{DS_ONE_END}{DS_ALL_END}'),
    ("deepseek", f"{DS_ALL}{fenced('f', chr(123) + chr(34) + 'a' + chr(34) + ': 1}')}{DS_ALL_END}"),
    ("deepseek", f'{DS_ONE}f{DS_SEP}{{"a": 1}}{DS_ONE_END}'),
    ("llama3_json", '{"name": "f", "parameters": {"a": 1}}'),
    ("llama3_json", '<|python_tag|>{"name": "f", "parameters": {"a": 1}}'),
    ("llama3_json", '{"type": "function", "name": "f", "arguments": {"a": 1}}'),
    ("llama3_json", '<|python_start|>{"name": "f", "parameters": {"a": 1}}<|python_end|>'),
    ("pythonic", "[f(a=1)]"),
    ("pythonic", "[\n  f(\n a = 1,\n)]"),
    ("pythonic", "<|python_start|>[f(a=1)]<|python_end|>"),
    ("pythonic", "<|tool_call_start|>[f(a=1)]<|tool_call_end|>"),
]
SEVERAL: list[tuple[FormatName, str]] = [
    ("hermes", "\n".join(['<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>'] * 3)),
    ("qwen3_coder", "\n".join([qwen("f", a="1")] * 3)),
    (
        "mistral",
        "[TOOL_CALLS][" + ", ".join(['{"name": "f", "arguments": {"a": 1}, "id": "abcdefgh1"}'] * 3) + "]",
    ),
    ("mistral", '[TOOL_CALLS]f[ARGS]{"a": 1}' * 3),
    ("deepseek", DS_ALL + "\n".join([f'{DS_ONE}f{DS_SEP}{{"a": 1}}{DS_ONE_END}'] * 3) + DS_ALL_END),
    ("llama3_json", "; ".join(['{"name": "f", "parameters": {"a": 1}}'] * 3)),
    ("llama3_json", "\n".join(['{"name": "f", "parameters": {"a": 1}}'] * 3)),
    ("llama3_json", '{"name": "f", "parameters": {"a": 1}}' * 3),
    ("pythonic", "[f(a=1), f(a=1), f(a=1)]"),
    ("pythonic", "[f(a=1)]\n[f(a=1), f(a=1)]"),
]


@pytest.mark.parametrize(("format", "text"), ONE_CALL)
def test_spellings_of_a_call(format: FormatName, text: str) -> None:
    assert read(format, text + " \n") == ("", [("f", A1)])
    assert read(format, f"Let me see.\n{text}\nDone.") == ("Let me see.\n\nDone.", [("f", A1)])
    reader = ToolCallReader(FORMATS[format], TOOLS)
    assert "".join(map(str, reader.feed("Let me see.\n"))) == "Let me see.\n"
    pieces = [piece for part in [*text, ""] for piece in reader.feed(part, ended=not part)]
    assert [type(piece) for piece in pieces] == [ParsedToolCall]


@pytest.mark.parametrize(("format", "text"), SEVERAL)
def test_several_calls(format: FormatName, text: str) -> None:
    assert read(format, text) == ("", [("f", A1)] * 3)
    ids = [call.id for call in feed(format, text) if isinstance(call, ParsedToolCall)]
    assert len(set(ids)) == 3
    assert all(ids)


@pytest.mark.parametrize(("format", "text"), ONE_CALL)
def test_truncated_calls_are_content(format: FormatName, text: str) -> None:
    for length in range(len(text)):
        content, calls = read(format, text[:length])
        assert calls in ([], [("f", A1)])
        if not calls:
            assert content == text[:length]


def test_mistral_ids() -> None:
    def ids(text: str) -> list[str]:
        return [piece.id for piece in feed("mistral", text) if isinstance(piece, ParsedToolCall)]

    assert ids('[TOOL_CALLS][{"name": "f", "arguments": {}, "id": "abcdefgh1"}]') == ["abcdefgh1"]
    assert ids("[TOOL_CALLS]f[CALL_ID]abcdefgh1[ARGS]{}") == ["abcdefgh1"]
    for text in ('[TOOL_CALLS][{"name": "f", "arguments": {}, "id": "x"}]', "[TOOL_CALLS]f[ARGS]{}"):
        [made] = ids(text)
        assert len(made) == 9
        assert made.isalnum()


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("12", 12),
        ("-1.5", -1.5),
        ("+1", None),
        ("'x'", "x"),
        ('"a ] ) \\" [b"', 'a ] ) " [b'),
        ("'it\\'s'", "it's"),
        ('"""two\n"lines" ]"""', 'two\n"lines" ]'),
        ("True", True),
        ("false", False),
        ("null", None),
        ("[1, (2, 3), {'k': [None]}]", [1, [2, 3], {"k": [None]}]),
        ("'é 東京'", "é 東京"),
        ("'\\d'", "\\d"),
    ],
)
def test_python_literals(written: str, value: Any) -> None:
    text = f"[g.h(x={written}, y={{}})]"
    if written == "+1":
        assert read("pythonic", text) == (text, [])
        return
    for chunk in (1, 2, None):
        assert read("pythonic", text, chunk=chunk) == ("", [("g.h", {"x": value, "y": {}})])


@pytest.mark.parametrize(
    ("key", "written", "value"),
    [
        ("string", "12", "12"),
        ("string", "two\nlines\n", "two\nlines\n"),
        ("string", '"quoted"', '"quoted"'),
        ("string", "", ""),
        ("string", "a </parameter> b </function>", "a </parameter> b </function>"),
        ("integer", "12", 12),
        ("integer", "twelve", "twelve"),
        ("integer", "1.5", "1.5"),
        ("number", "1.5", 1.5),
        ("number", "2", 2),
        ("number", "NaN", "NaN"),
        ("boolean", "true", True),
        ("boolean", "False", False),
        ("boolean", "1", "1"),
        ("null", "None", None),
        ("array", "[1, [2]]", [1, [2]]),
        ("object", '{"x": {"y": "</parameter>"}}', {"x": {"y": "</parameter>"}}),
        ("maybe", "null", None),
        ("maybe", "3", 3),
        ("either", "true", True),
        ("either", "12", "12"),
        ("odd", "12", "12"),
        ("unknown", "12", "12"),
        ("unknown", '{"x": 1}', {"x": 1}),
        ("unknown", '"q"', '"q"'),
        ("unknown", "9" * 5000, "9" * 5000),
    ],
)
def test_parameters_follow_their_schema(key: str, written: str, value: Any) -> None:
    for chunk in (1, None):
        assert read("qwen3_coder", qwen("f", **{key: written}), chunk=chunk) == ("", [("f", {key: value})])


NO_CALLS: dict[FormatName, Sequence[str]] = {
    "hermes": (
        "<tool_call>\n{not json}\n</tool_call>",
        '<tool_call>{"name": "f", "parameters": {}}</tool_call>',
        '<tool_call>{"name": "f", "arguments": {}} no</tool_call>',
        '<tool_call>{"name": "f", "arguments": {"a": 1}',
        '<tool_call>{"name": "f", "arguments": {"a": "' + "x" * 600,
        '<tool_call>{"name": "", "arguments": {}}</tool_call>',
        '<tool_call>{"name": 7, "arguments": {}}</tool_call>',
        '<tool_call>{"name": "f"}</tool_call>',
        '<tool_call>{"name": "f", "arguments": [1]}</tool_call>',
        '<tool_call>{"name": "f", "arguments": {"x": NaN}}</tool_call>',
        "<tool_call>" + "[" * 1500 + "</tool_call>",
        "a < b and </tool_call>",
        '<tool_call>{"name": "\\ud800", "arguments": {}}</tool_call>',
        "<tool_call>" + '{"a":' * 3000,
    ),
    "qwen3_coder": (
        "<tool_call>\n<function=f>\n<parameter=a>\n1\n</function>\n</tool_call>",
        "<tool_call>\n<function=f>\nwhat\n</function>\n</tool_call>",
        "<tool_call>\n<function=>\n</function>",
        "<function= >\n</function>",
        "<tool_call>\nf()\n</tool_call>",
        "<function=" + "f" * 200 + "></function>",
        "<function=f><parameter=a>1</parameter><parameter=a>2</parameter></function>",
        "</tool_call>",
    ),
    "mistral": (
        "[TOOL_CALLS][]",
        "[TOOL_CALLS] I would rather not.",
        '[TOOL_CALLS][{"name": "f", "arguments": {}}, {"name": "g"}]',
        '[TOOL_CALLS][{"name": "f", "arguments": {}},]',
        '[TOOL_CALLS][{"name": "f", "arguments": {}} {}]',
        "[TOOL_CALLS]f[ARGS]1",
        "[TOOL_CALLS]f[ARGS]{'a': 1}",
        "[TOOL_CALLS]" + "f" * 300 + "[ARGS]{}",
        '[{"name": "f", "arguments": {}}]',
    ),
    "deepseek": (
        f"{DS_ALL}{DS_ALL_END}",
        f"{DS_ONE}f{DS_SEP}1{DS_ONE_END}",
        f"{DS_ONE}f{DS_SEP}{{}} {DS_ALL_END}",
        f"{DS_ONE}function{DS_SEP}f\n{{}}{DS_ONE_END}" + "." * 100,
        f"{DS_ONE}" + "f" * 200,
    ),
    "llama3_json": (
        '{"name": "Alice", "age": 3}',
        '{"name": "Alice", "parameters": {}, "age": 3}',
        '{"answer": 12}',
        '{"name": "f"}',
        "{}",
        'so {"name": "f", "parameters": {}}',
        "<|python_tag|>brave_search.call(query='x')",
        "; and then",
    ),
    "pythonic": (
        "[1, 2, 3]",
        "[]",
        "[link](http://x)",
        "[f(1)]",
        "[f(**{'a': 1})]",
        "[f(a=g())]",
        "[f(a=__import__('os').getcwd())]",
        "[f(a=b)]",
        "[f(a=1, a=2)]",
        "[f(a=1e999)]",
        "[f(a=b'x')]",
        "[f(a=1j)]",
        "[f(a={1, 2})]",
        "[f(a={1: 2})]",
        "[f(a={**x})]",
        "[f(a=...)]",
        "[f(a=-True)]",
        "[f(a=f'{x}')]",
        "[f(a=1), 2]",
        "[f(a=1) for x in y]",
        "[f()(a=1)]",
        "[f(a='it)]",
        "[f(a='two\nlines')]",
        "[f(x) = 3] holds",
        "[f(a=" + "[" * 150 + "]" * 150 + ")]",
        "[f(a=" + "-" * 100_000 + "1)]",
        "[a" + ".a" * 100_000 + "(b=1)]",
        "[f(a=" + "1+" * 50_000 + "1)]",
        "[f(a=" + "9" * 10_000 + ")]",
        "[f(a='\0')]",
        "see [f(a=1)]",
    ),
}


@pytest.mark.parametrize(("format", "text"), [(f, text) for f, texts in NO_CALLS.items() for text in texts])
def test_text_like_a_call_is_content(format: FormatName, text: str) -> None:
    assert read(format, text) == (text, [])
    assert read(format, text, chunk=1 if len(text) < 5000 else 1000) == (text, [])


@pytest.mark.parametrize(("format", "text"), ONE_CALL)
def test_a_call_after_a_malformed_one_is_read(format: FormatName, text: str) -> None:
    for broken in NO_CALLS[format]:
        if len(broken) > 400 or broken.count('"') % 2 or "'it" in broken:  # they never end, whatever follows
            continue
        content, calls = read(format, f"{broken}\n\n{text}")
        assert calls == [("f", A1)]
        assert content == f"{broken}\n\n"


def test_an_unterminated_string() -> None:
    broken = '<tool_call>{"name": "f", "arguments": {"s": "'
    text = broken + "</tool_call>" + ONE_CALL[0][1]
    assert read("hermes", text, chunk=1) == (broken + "</tool_call>", [("f", A1)])


def test_a_malformed_call_is_streamed() -> None:
    reader = ToolCallReader(FORMATS["hermes"], TOOLS)
    text = "<tool_call>{name: 'f', arguments: {}}</tool_call>"
    assert "".join(map(str, reader.feed(text))) == text


def test_llama_json_answers_are_streamed() -> None:
    reader = ToolCallReader(FORMATS["llama3_json"], TOOLS)
    assert "".join(map(str, reader.feed('{"answer"'))) == '{"answer"'


@pytest.mark.parametrize(("format", "text"), SEVERAL)
def test_at_most_one_call(format: FormatName, text: str) -> None:
    content, calls = read(format, text, at_most_one=True)
    assert len(calls) <= 1
    assert calls or content == text  # several in one piece of markup are none
    assert read(format, text, at_most_one=True, chunk=1) == (content, calls)


SNIPPETS = st.sampled_from(
    [
        *(text for _, text in ONE_CALL),
        *(mark for format in FORMATS.values() for mark in (*format.openings, *format.closings)),
        *"{}[]()\"'\\\n ;,:=é🙂f1\x00\ud7ff\u2028\x1c\r",
        *('"""', "</parameter>", "</function>", "<parameter=a>", "[ARGS]", "[CALL_ID]", "```json\n", "```"),
        *('{"name": "f", "parameters": {', "[f(a=", '"name"', '"arguments"', "true", "NaN"),
    ]
)
TEXTS = st.lists(SNIPPETS | st.text(max_size=3), max_size=14).map("".join)


@pytest.mark.parametrize("format", FORMAT_NAMES)
@given(text=TEXTS, cuts=st.lists(st.integers(1, 9), max_size=40), at_most_one=st.booleans())
def test_any_text_in_any_pieces(format: FormatName, text: str, cuts: list[int], at_most_one: bool) -> None:
    pieces = feed(format, text, at_most_one=at_most_one)
    streamed = feed(format, text, at_most_one=at_most_one, cuts=cuts)
    assert said(streamed) == said(pieces)
    for call in pieces:
        if isinstance(call, ParsedToolCall):
            assert call.name
            assert isinstance(json.loads(call.arguments), dict)
            call.arguments.encode()


def said(pieces: Sequence[Piece]) -> tuple[str, list[tuple[str, str]]]:
    calls = [(piece.name, piece.arguments) for piece in pieces if isinstance(piece, ParsedToolCall)]
    return "".join(piece for piece in pieces if isinstance(piece, str)), calls


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


NESTED = {"s": 'a } ] </tool_call> </parameter> " \\ é 東京 🙂 \n', "o": {"x": [1, {"y": "{["}]}, "z": None}


@example(arguments=NESTED, before="", chunk=1, ascii=True)
@example(arguments=NESTED, before="", chunk=3, ascii=False)
@given(
    arguments=st.dictionaries(st.from_regex("[a-z_]{1,8}", fullmatch=True), JSON_VALUES, max_size=4),
    before=st.text(alphabet='ab {["\n.', max_size=12),
    chunk=st.integers(1, 1000),
    ascii=st.booleans(),
)
def test_json_arguments_are_unchanged(
    arguments: dict[str, Any], before: str, chunk: int, ascii: bool
) -> None:
    written = json.dumps(arguments, ensure_ascii=ascii)
    texts: list[tuple[FormatName, str]] = [
        ("hermes", f'<tool_call>\n{{"name": "f", "arguments": {written}}}\n</tool_call>'),
        ("mistral", f'[TOOL_CALLS][{{"name": "f", "arguments": {written}}}]'),
        ("mistral", f"[TOOL_CALLS]f[ARGS]{written}"),
        ("deepseek", f"{DS_ONE}f{DS_SEP}{written}{DS_ONE_END}"),
        ("deepseek", fenced("f", written)),
        ("llama3_json", f'<|python_tag|>{{"name": "f", "parameters": {written}}}'),
    ]
    for format, text in texts:
        assert said(feed(format, before + text, chunk=chunk)) == (before, [("f", written)])


@given(arguments=st.dictionaries(st.from_regex("[a-z]{2,8}_", fullmatch=True), JSON_VALUES, max_size=4))
def test_pythonic_arguments(arguments: dict[str, Any]) -> None:
    written = ", ".join(f"{key}={value!r}" for key, value in arguments.items())
    assert read("pythonic", f"[f({written})]", chunk=3) == ("", [("f", arguments)])


CALL = {
    "id": "abcdefgh1",
    "type": "function",
    "function": {"name": "multiply", "arguments": '{"a":12,  "b": 34}'},
}
TURN = {"role": "assistant", "content": "", "tool_calls": [CALL]}
NO_CALL_TEMPLATES = template("{{ m.content or '' }}")
NO_TOOLS = NO_CALL_TEMPLATES.replace("{% if tools %}", "{% if false %}")


def habits(source: str, *, vocabulary: Sequence[str] = (), **options: Any) -> ToolCallStyle:
    render = ChatTemplate(source).render
    return detect_tool_calls(render, source=source, has_token=lambda mark: mark in vocabulary, **options)


def format_of(found: ToolCallStyle) -> FormatName | None:
    return found.format.name if found.format else None


@pytest.mark.parametrize("style", TEMPLATES)
def test_detected_format_of_a_template(style: str) -> None:
    format, source = TEMPLATES[style]
    found = habits(source, note=pytest.fail)
    assert format_of(found) == format
    assert found.reader([multiply_tool()]) is not None
    # Whether the template writes arguments out, and so takes them as text.
    assert found.arguments_as_written is (style in ("mistral_args", "deepseek_v3", "deepseek_v31"))
    without_content = {key: value for key, value in TURN.items() if key != "content"}
    for turn in (TURN, {**TURN, "content": None}, without_content):
        text = ChatTemplate(source).render([*question(), found.fitted(turn)], [multiply_tool()])
        assert "multiply" in text.split("<|im_start|>assistant")[-2]
        assert ('{"a":12,  "b": 34}' if found.arguments_as_written else "12") in text


def test_detected_format_of_the_built_in_template(chat: BuiltInChat) -> None:
    found = detect_tool_calls(chat.render, source="", has_token=lambda _: False, note=pytest.fail)
    assert (format_of(found), found.arguments_as_written) == ("hermes", True)
    assert found.reader([multiply_tool()]) is not None


def test_other_arguments_and_content_stay() -> None:
    found = habits(TEMPLATES["hermes"][1])
    broken = {**CALL, "function": {"name": "multiply", "arguments": "{12"}}
    fitted = found.fitted({"role": "assistant", "content": "So:", "tool_calls": [broken, CALL]})
    assert fitted["content"] == "So:"
    assert [call["function"]["arguments"] for call in fitted["tool_calls"]] == ["{12", {"a": 12, "b": 34}]
    assert found.fitted(question()[0]) == question()[0]


def test_templates_with_one_call() -> None:
    one = '{"name": "multiply", "parameters": {}}'
    for style, expected in (("llama3_json", 1), ("pythonic", 2)):
        reader = habits(TEMPLATES[style][1]).reader([multiply_tool()])
        assert reader is not None
        text = f"{one}\n{one}" if style == "llama3_json" else "[multiply()]\n[multiply()]"
        pieces = [*reader.feed(text), *reader.feed("", ended=True)]
        assert sum(not isinstance(piece, str) for piece in pieces) == expected


def test_marks_reveal_the_format() -> None:
    for mark, expected in (
        ("<function=", "qwen3_coder"),
        ("<tool_call>", "hermes"),
        ("[TOOL_CALLS]", "mistral"),
    ):
        source = NO_CALL_TEMPLATES.replace("Tools:", f"Write {mark} to call one of")
        assert format_of(habits(source, note=pytest.fail)) == expected


def problems(source: str, **options: Any) -> list[str]:
    notes: list[str] = []
    found = habits(source, note=notes.append, **options)
    assert notes == []
    found.reader([])
    assert notes == []
    for _ in range(2):
        assert (found.reader([multiply_tool()]) is None) == (found.format is None)
    return notes


def test_an_unknown_format_is_reported_once() -> None:
    [note] = problems(template(UNKNOWN_CALLS))
    assert note.startswith("the model's chat template is not made for tools: it writes calls in no format")
    assert all(name in note for name in FORMAT_NAMES)
    assert "`tool_call_format`" in note
    assert "show" not in note


def test_a_template_that_hides_tools_is_reported() -> None:
    [note] = problems(NO_TOOLS, vocabulary=["[TOOL_CALLS]"])
    assert note == (
        "the model's chat template is not made for tools: it does not show offered tools to the model."
    )
    [both] = problems(NO_TOOLS)
    assert "it does not show offered tools to the model; it writes calls in no format" in both


def test_a_template_that_only_accepts_turns_with_calls() -> None:
    """As DeepSeek V3's, which transformers gives no null content; what was sampled stands for the call then."""
    source = template(
        "{{ m.content + 'x' if m.content is defined and m.content is none else m.content + '' }}"
    )
    found = habits(source + "{# <｜tool▁call▁begin｜> #}")
    assert (format_of(found), found.empty_content) == ("deepseek", {"content": ""})
    assert ChatTemplate(source).render([*question(), found.fitted(TURN)], [])
