"""How a model's calls are read: not at all without tools or without a format, of which it is told once."""

from __future__ import annotations

import pytest

from osmosis_ai.inference.tool_call_formats import FORMATS
from osmosis_ai.inference.tool_calls import ToolCallStyle
from tests.inference.conftest import multiply_tool

TOOL = multiply_tool()


def test_without_tools_nothing_is_read_and_nothing_is_told() -> None:
    told: list[str] = []
    style = ToolCallStyle(FORMATS["hermes"], problem="it is no good.", note=told.append)
    assert style.reader([]) is None
    assert told == []


def test_a_problem_is_told_once_when_tools_are_first_offered() -> None:
    told: list[str] = []
    style = ToolCallStyle(None, problem="it is no good.", note=told.append)
    assert style.reader([TOOL]) is None
    assert style.reader([TOOL]) is None
    assert told == ["it is no good."]


def test_a_problem_is_logged_where_nobody_is_told(caplog: pytest.LogCaptureFixture) -> None:
    ToolCallStyle(None, problem="it is no good.").reader([TOOL])
    assert caplog.messages == ["it is no good."]


def test_the_token_behind_a_call_is_looked_up_where_the_format_has_one() -> None:
    vocabulary = {"</tool_call>": 4}
    assert ToolCallStyle(FORMATS["hermes"]).end_token(vocabulary.get) == 4
    assert ToolCallStyle(FORMATS["deepseek"]).end_token(vocabulary.get) is None
    assert ToolCallStyle(FORMATS["mistral"]).end_token(vocabulary.get) is None
    assert ToolCallStyle(None).end_token(vocabulary.get) is None
