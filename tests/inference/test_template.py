from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from osmosis_ai.inference.template import ChatTemplate, TemplateError
from tests.inference.conftest import multiply_tool, question

CALL = {
    "role": "assistant",
    "content": None,
    "tool_calls": [{"type": "function", "function": {"name": "multiply", "arguments": '{"a": 12, "b": 34}'}}],
}
CONVERSATION = [
    {"role": "system", "content": "Be exact."},
    *question(),
    CALL,
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


def test_without_system_prompt_and_tools_there_is_no_system_turn(template: ChatTemplate) -> None:
    assert template.render(question()).startswith("<|im_start|>user\n")


def test_arguments_may_be_an_object_or_its_json(template: ChatTemplate) -> None:
    as_object = json.loads(json.dumps(CONVERSATION))
    as_object[2]["tool_calls"][0]["function"]["arguments"] = {"a": 12, "b": 34}
    assert template.render(as_object, [multiply_tool()]) == EXPECTED


def test_tools_without_parameters_are_listed(template: ChatTemplate) -> None:
    tools: list[dict[str, Any]] = [{"type": "function", "function": {"name": "now"}}, multiply_tool("times")]
    assert "Tools: now() times(a, b)<|im_end|>" in template.render(question(), tools)


def test_templates_can_not_reach_outside_their_sandbox() -> None:
    with pytest.raises(TemplateError, match="can not render"):
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
