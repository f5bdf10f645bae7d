"""What is found out about templates, by having them write a call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from osmosis_ai.inference.template import ChatTemplate
from osmosis_ai.inference.tool_calls import FORMAT_NAMES, FormatName
from osmosis_ai.inference.tool_format_detection import ToolTemplate, detect_tool_template
from tests.inference.call_templates import TEMPLATES, UNKNOWN_CALLS, template
from tests.inference.conftest import multiply_tool, question

CALL = {
    "id": "abcdefgh1",
    "type": "function",
    "function": {"name": "multiply", "arguments": '{"a":12,  "b": 34}'},
}
TURN = {"role": "assistant", "content": "", "tool_calls": [CALL]}
NO_CALLS = template("{{ m.content or '' }}")
NO_TOOLS = NO_CALLS.replace("{% if tools %}", "{% if false %}")


def habits(source: str, *, vocabulary: Sequence[str] = (), **options: Any) -> ToolTemplate:
    chat = ChatTemplate(source)

    def render(
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool,
    ) -> str:
        return chat.render(messages, tools, add_generation_prompt=add_generation_prompt)

    return detect_tool_template(render, source=source, has_token=lambda mark: mark in vocabulary, **options)


def format_of(found: ToolTemplate) -> FormatName | None:
    return found.calls.format.name if found.calls.format else None


@pytest.mark.parametrize("style", TEMPLATES)
def test_the_format_is_the_one_that_the_template_writes(style: str) -> None:
    format, source = TEMPLATES[style]
    found = habits(source, note=pytest.fail)
    assert format_of(found) == format
    assert found.calls.reader([multiply_tool()]) is not None


def test_the_built_in_template_is_found_to_be_what_the_built_in_format_says(template: ChatTemplate) -> None:
    found = detect_tool_template(template.render, source="", has_token=lambda _: False, note=pytest.fail)
    assert (format_of(found), found.arguments_as_written) == ("hermes", True)
    assert found.calls.reader([multiply_tool()]) is not None


@pytest.mark.parametrize("style", TEMPLATES)
def test_every_template_writes_a_turn_that_is_fitted_to_it(style: str) -> None:
    _, source = TEMPLATES[style]
    found = habits(source)
    for turn in (
        TURN,
        {**TURN, "content": None},
        {key: value for key, value in TURN.items() if key != "content"},
    ):
        text = ChatTemplate(source).render([*question(), found.fitted(turn)], [multiply_tool()])
        assert (
            "multiply" in text.rpartition("<|im_start|>assistant")[0].rpartition("<|im_start|>assistant")[2]
        )
        spelled = '{"a":12,  "b": 34}' if found.arguments_as_written else "12"
        assert spelled in text


def test_arguments_are_text_where_the_template_writes_them_out_and_a_mapping_where_it_takes_them_apart() -> (
    None
):
    as_written = {style for style, (_, source) in TEMPLATES.items() if habits(source).arguments_as_written}
    assert as_written == {"mistral_args", "deepseek_v3", "deepseek_v31"}


def test_arguments_that_are_no_object_and_content_beside_a_call_stay_as_they_are() -> None:
    found = habits(TEMPLATES["hermes"][1])
    broken = {**CALL, "function": {"name": "multiply", "arguments": "{12"}}
    fitted = found.fitted({"role": "assistant", "content": "So:", "tool_calls": [broken, CALL]})
    assert fitted["content"] == "So:"
    assert [call["function"]["arguments"] for call in fitted["tool_calls"]] == ["{12", {"a": 12, "b": 34}]
    assert found.fitted(question()[0]) == question()[0]


def test_a_template_with_room_for_one_call_is_read_one_call_at_a_time() -> None:
    one = '{"name": "multiply", "parameters": {}}'
    for style, expected in (("llama3_json", 1), ("pythonic", 2)):
        reader = habits(TEMPLATES[style][1]).calls.reader([multiply_tool()])
        assert reader is not None
        text = f"{one}\n{one}" if style == "llama3_json" else "[multiply()]\n[multiply()]"
        pieces = [*reader.feed(text), *reader.finish()]
        assert sum(not isinstance(piece, str) for piece in pieces) == expected


# When the template writes no calls


def test_a_mark_in_the_templates_instructions_gives_the_format_away() -> None:
    for mark, expected in (
        ("<function=", "qwen3_coder"),
        ("<tool_call>", "hermes"),
        ("[TOOL_CALLS]", "mistral"),
    ):
        source = NO_CALLS.replace("Tools:", f"Write {mark} to call one of")
        assert format_of(habits(source, note=pytest.fail)) == expected


def test_a_token_of_the_vocabulary_gives_the_format_away() -> None:
    for mark, expected in (
        ("<|python_tag|>", "llama3_json"),
        ("<|tool_call_start|>", "pythonic"),
        ("<｜tool▁call▁begin｜>", "deepseek"),
    ):
        assert format_of(habits(NO_CALLS, vocabulary=[mark])) == expected


def test_marks_count_for_nothing_when_the_template_writes_calls_in_another_way() -> None:
    source = template(
        "<tool_call>{{ m.tool_calls[0].function.name }}\n{{ m.tool_calls[0].function.arguments | tojson }}"
    )
    assert format_of(habits(source, vocabulary=["<tool_call>"])) is None


def test_a_call_inside_of_marks_that_nobody_knows_is_no_bare_call() -> None:
    source = template("<|plugin|>\n" + '{"name": "{{ m.tool_calls[0].function.name }}", "parameters": '
                      "{{ m.tool_calls[0].function.arguments | tojson }}}")  # fmt: skip
    assert format_of(habits(source)) is None


# Warnings


def problems(source: str, **options: Any) -> list[str]:
    told: list[str] = []
    found = habits(source, note=told.append, **options)
    assert told == []
    found.calls.reader([])
    assert told == []
    found.calls.reader([multiply_tool()])
    found.calls.reader([multiply_tool()])
    return told


def test_a_format_that_is_not_known_is_told_once_when_tools_are_offered() -> None:
    [told] = problems(template(UNKNOWN_CALLS))
    assert told.startswith("the model's chat template is not made for tools: it writes calls in no format")
    assert all(name in told for name in FORMAT_NAMES)
    assert "`tool_call_format`" in told
    assert "show" not in told


def test_a_template_that_does_not_show_tools_is_told_of_even_where_the_format_is_known() -> None:
    [told] = problems(NO_TOOLS, vocabulary=["[TOOL_CALLS]"])
    assert told == (
        "the model's chat template is not made for tools: it does not show offered tools to the model."
    )
    [both] = problems(NO_TOOLS)
    assert "it does not show offered tools to the model; it writes calls in no format" in both


def test_a_template_that_refuses_everything_is_told_of() -> None:
    [told] = problems("{{ raise_exception('no') }}")
    assert "does not show" in told


def test_a_chosen_format_is_taken_as_it_is() -> None:
    assert format_of(habits(template(UNKNOWN_CALLS), chosen="pythonic", note=pytest.fail)) == "pythonic"
    assert problems(template(UNKNOWN_CALLS), chosen="pythonic") == []


def test_where_the_template_can_not_be_made_to_write_a_call_it_is_made_to_write_the_turn() -> None:
    """As DeepSeek V3's, which transformers gives no null content; what was sampled stands for the call then."""
    source = template(
        "{{ m.content + 'x' if m.content is defined and m.content is none else m.content + '' }}"
    )
    found = habits(source + "{# <｜tool▁call▁begin｜> #}")
    assert (format_of(found), found.empty_content) == ("deepseek", {"content": ""})
    assert ChatTemplate(source).render([*question(), found.fitted(TURN)], [])
