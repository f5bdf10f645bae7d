"""The built-in chat format: what is written to the model and read from it."""

from __future__ import annotations

import json

import pytest

from osmosis_ai.inference.chat import BuiltInChat, ChatTemplate, TemplateError
from osmosis_ai.inference.engine import SampledToken
from osmosis_ai.inference.openai_api import AssistantReply
from osmosis_ai.inference.tool_calls import FORMATS, ParsedToolCall, Piece, ToolCallReader
from tests.inference.conftest import END, multiply_tool, question

CALL = '<tool_call>\n{"name": "multiply", "arguments": {"a": 12, "b": 34}}\n</tool_call>'
SECOND = '<tool_call>\n{"name": "add", "arguments": {}}\n</tool_call>'


def hermes(*, tools: bool = True) -> ToolCallReader | None:
    return ToolCallReader(FORMATS["hermes"]) if tools else None


def read(
    chat: BuiltInChat, text: str, *, stop: tuple[str, ...] = (), tools: bool = True
) -> tuple[AssistantReply, list[Piece]]:
    """Feed ``text`` and the end of the turn, token by token."""
    reply, pieces = AssistantReply(chat, frozenset({END}), stop, hermes(tools=tools)), []
    for token in [*chat.encode(text), END]:
        pieces += reply.feed([SampledToken(token, -0.5)], "stop" if token == END else None)
        if reply.finish_reason:
            break
    return reply, pieces


FIRST_CALL = ("multiply", '{"a": 12, "b": 34}')


@pytest.mark.parametrize(
    ("text", "content", "calls"),
    [
        ("#### 408", "#### 408", []),
        (CALL, None, [FIRST_CALL]),
        (f"Let me see.\n{CALL}\n{SECOND}\n", "Let me see.\n", [FIRST_CALL, ("add", "{}")]),
        (f"{CALL}\n and more \n", "\n and more \n", [FIRST_CALL]),
        (f"{CALL} first \n{SECOND} \n then \n\n", " first \n \n then \n\n", [FIRST_CALL, ("add", "{}")]),
        (f"{CALL}\n<tool_call>", "\n<tool_call>", [FIRST_CALL]),
        *(
            (text, text, [])
            for text in (
                "<tool_call>\n{not json}\n</tool_call>\n",
                '<tool_call>\n{"name": "multiply", "arguments": {"a": 1',
                "<tool_call>",
                "a < b and <tool",
                "naïve → 東京 🙂",
            )
        ),
    ],
)
@pytest.mark.parametrize("tools", [True, False])
def test_a_reply_does_not_depend_on_the_size_of_its_parts(
    chat: BuiltInChat, text: str, content: str | None, calls: list[tuple[str, str]], tools: bool
) -> None:
    tokens = [SampledToken(token, -0.5) for token in (*chat.encode(text), END)]
    for at_once in (1, 2, 5, len(tokens)):
        reply, pieces = AssistantReply(chat, frozenset({END}), reader=hermes(tools=tools)), []
        for start in range(0, len(tokens), at_once):
            some = tokens[start : start + at_once]
            pieces += reply.feed(some, "stop" if some[-1].id == END else None)
        message = reply.message()
        assert "".join(piece for piece in pieces if isinstance(piece, str)) == (message["content"] or "")
        assert [piece for piece in pieces if isinstance(piece, ParsedToolCall)] == reply.tool_calls
        assert (message["role"], message["refusal"], reply.tokens) == ("assistant", None, tokens)
        if tools and calls:
            assert (message["content"], reply.finish_reason) == (content, "tool_calls")
            read = [
                (call["function"]["name"], call["function"]["arguments"]) for call in message["tool_calls"]
            ]
            assert read == calls
            assert all(call["type"] == "function" for call in message["tool_calls"])
            assert len({call["id"] for call in message["tool_calls"]}) == len(calls)
        else:
            assert (message["content"], "tool_calls" in message, reply.finish_reason) == (text, False, "stop")


def test_stop_strings(chat: BuiltInChat) -> None:
    reply, pieces = read(chat, "one two three four", stop=("four", "thre", "two three f"))
    assert reply.message()["content"] == "one two "
    assert "".join(map(str, pieces)) == "one two "
    assert reply.finish_reason == "stop"
    assert len(reply.tokens) < len(chat.encode("one two three four"))


def test_a_reply_cut_inside_a_character(chat: BuiltInChat) -> None:
    reply = AssistantReply(chat, frozenset({END}))
    tokens = chat.encode("é")
    assert len(tokens) == 2
    reply.feed([SampledToken(tokens[0], 0.0)], "length")
    assert reply.message()["content"] == "\N{REPLACEMENT CHARACTER}"
    assert reply.finish_reason == "length"


def test_a_reply_cut_after_a_call_is_marked_as_cut(chat: BuiltInChat) -> None:
    reply = AssistantReply(chat, frozenset({END}), reader=hermes())
    tokens = chat.encode(CALL + " and")
    for place, token in enumerate(tokens):
        reply.feed([SampledToken(token, 0.0)], "length" if place == len(tokens) - 1 else None)
    assert (reply.finish_reason, len(reply.tool_calls)) == ("length", 1)


@pytest.mark.parametrize("text", ["#### 408", CALL, f"Hm.{CALL}", f"{CALL}\n{SECOND}", "é <|im_start|> ok"])
def test_sending_a_reply_back_continues_the_sampled_tokens_exactly(chat: BuiltInChat, text: str) -> None:
    question = {"role": "user", "content": "What is 12 * 34?"}
    prompt = chat.encode(chat.render([question]))
    reply, _ = read(chat, text)
    sampled = [token.id for token in reply.tokens]
    next_turn = [question, reply.message(), {"role": "tool", "content": "408"}]
    assert chat.encode(chat.render(next_turn))[: len(prompt) + len(sampled)] == prompt + sampled


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


def test_rendering_of_a_conversation_with_tools(chat: BuiltInChat) -> None:
    assert chat.render(CONVERSATION, [multiply_tool()]) == EXPECTED


def test_arguments_as_object_or_json(chat: BuiltInChat) -> None:
    as_object = json.loads(json.dumps(CONVERSATION))
    as_object[2]["tool_calls"][0]["function"]["arguments"] = {"a": 12, "b": 34}
    assert chat.render(as_object, [multiply_tool()]) == EXPECTED


def test_templates_are_sandboxed() -> None:
    with pytest.raises(TemplateError, match="cannot render"):
        ChatTemplate("{{ messages.__class__.__mro__[1].__subclasses__() }}").render([])
