"""Reading messages, calling tools."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from osmosis_ai.rollout.loop import messages as m
from osmosis_ai.rollout.loop import tools as t
from osmosis_ai.rollout.loop.exceptions import ToolArgumentError, ToolExecutionError


def test_messages_are_read_whatever_they_lack() -> None:
    calls = [{"id": "1"}]
    assert m.parse_tool_calls({"tool_calls": calls}) == calls
    assert m.parse_tool_calls({}) == m.parse_tool_calls({"tool_calls": None}) == []
    assert m.get_message_content({"content": "x"}) == "x"
    assert m.get_message_content({"content": None}) == m.get_message_content({}) == ""
    assert (m.get_message_role({"role": "user"}), m.get_message_role({})) == ("user", "unknown")
    assert m.is_user_message({"role": "user"}) and not m.is_user_message({"role": "tool"})
    assert m.is_tool_message({"role": "tool"}) and m.is_assistant_message({"role": "assistant"})
    assert m.count_messages_by_role([{"role": "user"}, {"role": "user"}, {}]) == {"user": 2, "unknown": 1}


@pytest.mark.parametrize(
    ("stop", "read"), [(None, None), ("END", ["END"]), (["a", "b"], ["a", "b"]), ([], []), (3, None)]
)
def test_stop_words_become_a_list(stop: Any, read: Any) -> None:
    assert m.normalize_stop(stop) == read


@pytest.mark.parametrize(
    ("result", "text"),
    [
        ("a", "a"),
        (8, "8"),
        (0.5, "0.5"),
        (True, "true"),
        (None, "null"),
        ({"a": 1}, '{"a": 1}'),
        ([1], "[1]"),
    ],
)
def test_a_tools_result_becomes_text(result: Any, text: str) -> None:
    assert t.serialize_tool_result(result) == text


def test_results_are_messages_of_their_calls() -> None:
    assert t.create_tool_result("c1", "8") == {"role": "tool", "content": "8", "tool_call_id": "c1"}
    assert t.create_tool_error_result("c1", "no")["content"] == "Error: no"


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ("{", "Invalid JSON"),
        ("[" * 200_000, "Invalid JSON"),
        ("[1]", "Expected dict"),
        (3, "Expected str or dict"),
    ],
)
def test_arguments_that_cannot_be_read_name_the_call(arguments: Any, told: str) -> None:
    with pytest.raises(ToolArgumentError, match=told):
        t.parse_tool_arguments(arguments)
    with pytest.raises(ToolExecutionError, match=told) as raised:
        t.get_tool_call_info({"id": "c1", "function": {"name": "add", "arguments": arguments}})
    assert (raised.value.tool_call_id, raised.value.tool_name) == ("c1", "add")


def test_a_call_is_read_whole() -> None:
    call = {"id": "c1", "function": {"name": "add", "arguments": '{"a": 1}'}}
    assert t.get_tool_call_info(call) == ("c1", "add", {"a": 1})
    assert t.get_tool_call_info({"function": {"name": "add", "arguments": {"a": 1}}})[0] == "unknown"


@pytest.mark.parametrize("arguments", ["", " ", None])
def test_a_call_without_arguments_has_none(arguments: Any) -> None:
    assert t.get_tool_call_info({"id": "c1", "function": {"name": "add", "arguments": arguments}})[2] == {}


async def test_calls_run_side_by_side_and_keep_their_order() -> None:
    second_is_done = asyncio.Event()

    async def executor(call: dict[str, Any]) -> dict[str, Any]:
        if call["id"] == "1":
            await second_is_done.wait()
        second_is_done.set()
        return t.create_tool_result(call["id"], "done")

    results = await t.execute_tool_calls([{"id": "1"}, {"id": "2"}], executor)

    assert [result["tool_call_id"] for result in results] == ["1", "2"]
    assert await t.execute_tool_calls([], executor) == []
