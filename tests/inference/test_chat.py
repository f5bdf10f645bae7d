"""The built-in chat format: what is written to the model and read from it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from osmosis_ai.inference.batching import SampledToken
from osmosis_ai.inference.chat import AssistantReply
from osmosis_ai.inference.template import ChatTemplate, TemplateError
from osmosis_ai.inference.tokenizer import Tokenizer
from osmosis_ai.inference.tool_call_formats import FORMATS
from osmosis_ai.inference.tool_calls import ParsedToolCall, Piece, ToolCallReader
from tests.inference.conftest import END, multiply_tool, question

CALL = '<tool_call>\n{"name": "multiply", "arguments": {"a": 12, "b": 34}}\n</tool_call>'
SECOND = '<tool_call>\n{"name": "add", "arguments": {}}\n</tool_call>'


def hermes(*, tools: bool = True) -> ToolCallReader | None:
    return ToolCallReader(FORMATS["hermes"]) if tools else None


def read(
    tokenizer: Tokenizer, text: str, *, stop: tuple[str, ...] = (), tools: bool = True
) -> tuple[AssistantReply, list[Piece]]:
    """Feed ``text`` and the end of the turn, token by token."""
    reply, pieces = AssistantReply(tokenizer, frozenset({END}), stop, hermes(tools=tools)), []
    for token in [*tokenizer.encode(text), END]:
        pieces += reply.feed([SampledToken(token, -0.5)], "stop" if token == END else None)
        if reply.finish_reason:
            break
    return reply, pieces


@pytest.mark.parametrize(
    "text",
    [
        "#### 408",
        f"Let me see.\n{CALL}\n{SECOND}\n",
        f"{CALL}\n and more \n",
        f"{CALL} first \n{SECOND} \n then \n\n",
        "<tool_call>\n{not json}\n</tool_call>\n",
        f"{CALL}\n<tool_call>",
        "naïve → 東京 🙂",
    ],
)
@pytest.mark.parametrize("tools", [True, False])
def test_what_a_reply_says_does_not_depend_on_how_many_tokens_come_at_once(
    tokenizer: Tokenizer, text: str, tools: bool
) -> None:
    tokens = [SampledToken(token, -0.5) for token in (*tokenizer.encode(text), END)]
    messages = []
    for at_once in (1, 2, 5, len(tokens)):
        reply = AssistantReply(tokenizer, frozenset({END}), reader=hermes(tools=tools))
        for start in range(0, len(tokens), at_once):
            some = tokens[start : start + at_once]
            reply.feed(some, "stop" if some[-1].id == END else None)
        called = [(call.name, call.arguments) for call in reply.tool_calls]
        messages.append((reply.message()["content"], called, reply.finish_reason, reply.tokens))
    assert all(message == messages[0] for message in messages)


def test_a_tool_call_has_no_content_and_the_arguments_as_written(tokenizer: Tokenizer) -> None:
    reply, pieces = read(tokenizer, CALL)
    message = reply.message()
    assert message["content"] is None
    (call,) = message["tool_calls"]
    assert call["function"] == {"name": "multiply", "arguments": '{"a": 12, "b": 34}'}
    assert call["type"] == "function" and call["id"].startswith("call_")
    assert reply.finish_reason == "tool_calls"
    assert [type(piece) for piece in pieces] == [ParsedToolCall]


def test_several_calls_and_the_text_before_them(tokenizer: Tokenizer) -> None:
    reply, _ = read(tokenizer, f"Let me see.\n{CALL}\n{SECOND}\n")
    assert reply.message()["content"] == "Let me see.\n"
    assert [(call.name, json.loads(call.arguments)) for call in reply.tool_calls] == [
        ("multiply", {"a": 12, "b": 34}),
        ("add", {}),
    ]
    assert len({call.id for call in reply.tool_calls}) == 2


@pytest.mark.parametrize(
    "text",
    [
        "<tool_call>\n{not json}\n</tool_call>",
        '<tool_call>\n{"name": "multiply"}\n</tool_call>',
        '<tool_call>\n{"name": 7, "arguments": {}}\n</tool_call>',
        '<tool_call>\n{"name": "f", "arguments": [1]}\n</tool_call>',
        '<tool_call>\n{"name": "f", "arguments": {"x": NaN}}\n</tool_call>',
        "<tool_call>" + "[" * 1500 + "</tool_call>",
        '<tool_call>\n{"name": "multiply", "arguments": {"a": 1',
        "<tool_call>",
        "a < b and <tool",
        "</tool_call>",
    ],
)
def test_malformed_calls_stay_in_the_content_unchanged(tokenizer: Tokenizer, text: str) -> None:
    reply, pieces = read(tokenizer, text)
    assert reply.message() == {"role": "assistant", "content": text, "refusal": None}
    assert "".join(map(str, pieces)) == text
    assert reply.finish_reason == "stop"


def test_text_is_cut_before_the_first_stop_string(tokenizer: Tokenizer) -> None:
    reply, pieces = read(tokenizer, "one two three four", stop=("four", "thre", "two three f"))
    assert reply.message()["content"] == "one two "
    assert "".join(map(str, pieces)) == "one two "
    assert reply.finish_reason == "stop"
    assert len(reply.tokens) < len(tokenizer.encode("one two three four"))


def test_characters_of_several_tokens_appear_whole(tokenizer: Tokenizer) -> None:
    text = "naïve → 東京 🙂"
    _, pieces = read(tokenizer, text)
    assert "".join(map(str, pieces)) == text
    assert all("\N{REPLACEMENT CHARACTER}" not in str(piece) for piece in pieces)


def test_a_reply_cut_inside_a_character_ends_in_a_replacement_character(tokenizer: Tokenizer) -> None:
    reply = AssistantReply(tokenizer, frozenset({END}))
    tokens = tokenizer.encode("é")
    assert len(tokens) == 2
    reply.feed([SampledToken(tokens[0], 0.0)], "length")
    assert reply.message()["content"] == "\N{REPLACEMENT CHARACTER}"
    assert reply.finish_reason == "length"


def test_a_reply_cut_after_a_call_is_marked_as_cut(tokenizer: Tokenizer) -> None:
    reply = AssistantReply(tokenizer, frozenset({END}), reader=hermes())
    tokens = tokenizer.encode(CALL + " and")
    for place, token in enumerate(tokens):
        reply.feed([SampledToken(token, 0.0)], "length" if place == len(tokens) - 1 else None)
    assert (reply.finish_reason, len(reply.tool_calls)) == ("length", 1)


@pytest.mark.parametrize("text", ["#### 408", CALL, f"Hm.{CALL}", f"{CALL}\n{SECOND}", "é <|im_start|> ok"])
def test_sending_a_reply_back_continues_the_sampled_tokens_exactly(
    tokenizer: Tokenizer, template: ChatTemplate, text: str
) -> None:
    question = {"role": "user", "content": "What is 12 * 34?"}
    prompt = tokenizer.encode(template.render([question]))
    reply, _ = read(tokenizer, text)
    sampled = [token.id for token in reply.tokens]
    next_turn = [question, reply.message(), {"role": "tool", "content": "408"}]
    assert tokenizer.encode(template.render(next_turn))[: len(prompt) + len(sampled)] == prompt + sampled


WRITTEN_CALL = {
    "role": "assistant",
    "content": None,
    "tool_calls": [{"type": "function", "function": {"name": "multiply", "arguments": '{"a": 12, "b": 34}'}}],
}
CONVERSATION = [
    {"role": "system", "content": "Be exact."},
    *question(),
    WRITTEN_CALL,
    {"role": "tool", "content": "408"},
    {"role": "assistant", "content": "#### 408"},
]
EXPECTED = """\
<|im_start|>system
Be exact.
Tools: multiply(a, b)<|im_end|>
<|im_start|>user
What is 12 * 34?<|im_end|>
<|im_start|>assistant
<tool_call>
{"name": "multiply", "arguments": {"a": 12, "b": 34}}
</tool_call><|im_end|>
<|im_start|>user
<tool_response>
408
</tool_response><|im_end|>
<|im_start|>assistant
#### 408<|im_end|>
<|im_start|>assistant
"""


def test_a_conversation_with_tools_renders_to_the_last_newline(template: ChatTemplate) -> None:
    assert template.render(CONVERSATION, [multiply_tool()]) == EXPECTED


def test_every_turn_continues_the_text_of_the_turns_before_it(template: ChatTemplate) -> None:
    tools = [multiply_tool()]
    for length in range(2, len(CONVERSATION)):
        before = template.render(CONVERSATION[:length], tools, add_generation_prompt=False)
        assert template.render(CONVERSATION[: length + 1], tools, add_generation_prompt=False).startswith(
            before
        )


def test_arguments_may_be_an_object_or_its_json(template: ChatTemplate) -> None:
    as_object = json.loads(json.dumps(CONVERSATION))
    as_object[2]["tool_calls"][0]["function"]["arguments"] = {"a": 12, "b": 34}
    assert template.render(as_object, [multiply_tool()]) == EXPECTED


def test_templates_can_not_reach_outside_their_sandbox() -> None:
    with pytest.raises(TemplateError, match="cannot render"):
        ChatTemplate("{{ messages.__class__.__mro__[1].__subclasses__() }}").render([])


def test_a_template_can_refuse_and_its_words_are_kept() -> None:
    with pytest.raises(TemplateError, match="roles must alternate"):
        ChatTemplate("{{ raise_exception('roles must alternate') }}").render([])


def test_a_broken_template_is_named_as_such() -> None:
    with pytest.raises(TemplateError, match="not valid"):
        ChatTemplate("{% for %}")


@pytest.mark.imports_much
def test_transformers_renders_the_same(template: ChatTemplate, model_dir: Path) -> None:
    transformers = pytest.importorskip("transformers")
    tokenizer = transformers.AutoTokenizer.from_pretrained(model_dir)
    for length in range(2, len(CONVERSATION) + 1):
        for tools in (None, [multiply_tool()]):
            expected = tokenizer.apply_chat_template(
                CONVERSATION[:length], tools=tools, tokenize=False, add_generation_prompt=True
            )
            assert template.render(CONVERSATION[:length], tools) == expected
