"""Validating agent loops."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from osmosis_ai.rollout.loop.schemas import OpenAIFunctionSchema, OpenAIFunctionToolSchema
from osmosis_ai.rollout.loop.tool_schemas import InvalidToolError, check_tools, normalize_tools
from osmosis_ai.rollout.loop.validation import (
    AgentLoopValidationError,
    ValidationError,
    ValidationResult,
    validate_agent_loop,
)

from .agents import Echo


def agent(**attributes: Any) -> Any:
    """Return an agent loop some of whose attributes are something else."""
    made = type("Agent", (), {"name": "a", "run": Echo.run, "get_tools": Echo.get_tools, **attributes})
    return made()


def codes(result: ValidationResult) -> tuple[list[str], list[str]]:
    return [error.code for error in result.errors], [warning.code for warning in result.warnings]


def validate_tool(tool: Any) -> tuple[list[str], list[str]]:
    return codes(validate_agent_loop(agent(get_tools=lambda self, request: [tool])))


def function(**given: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "f", "description": "d", **given}}


def test_a_good_agent_is_valid_in_either_form_of_tools() -> None:
    as_schema = OpenAIFunctionToolSchema(
        type="function", function=OpenAIFunctionSchema(name="f", description="")
    )

    result = validate_agent_loop(
        agent(get_tools=lambda self, request: [as_schema, function(name="get-time")])
    )

    assert result and (result.agent_name, result.tool_count) == ("a", 2)
    assert codes(result) == ([], [])
    result.raise_if_invalid()


def test_get_tools_sees_a_request_that_says_it_is_a_validation() -> None:
    seen: list[Any] = []

    validate_agent_loop(agent(get_tools=lambda self, request: seen.append(request) or []))

    assert (seen[0].rollout_id, seen[0].server_url) == ("validation-test-rollout", "http://localhost:8080")
    assert seen[0].metadata == {"_validation": True}


@pytest.mark.parametrize(
    ("attributes", "code"),
    [
        ({"name": None}, "MISSING_NAME"),
        ({"name": 3}, "INVALID_NAME_TYPE"),
        ({"name": " "}, "EMPTY_NAME"),
        ({"get_tools": lambda self, request: 1 / 0}, "GET_TOOLS_EXCEPTION"),
        ({"get_tools": lambda self, request: sys.exit(3)}, "GET_TOOLS_EXCEPTION"),
        ({"get_tools": lambda self, request: None}, "GET_TOOLS_RETURNS_NONE"),
        ({"get_tools": lambda self, request: ()}, "GET_TOOLS_INVALID_TYPE"),
        ({"get_tools": Echo.run}, "GET_TOOLS_INVALID_TYPE"),
        ({"run": None}, "MISSING_RUN_METHOD"),
        ({"run": "text"}, "RUN_NOT_CALLABLE"),
        ({"run": lambda self, ctx: None}, "RUN_NOT_ASYNC"),
    ],
)
def test_what_an_agent_lacks_has_a_code(attributes: dict[str, Any], code: str) -> None:
    result = validate_agent_loop(agent(**attributes))

    assert not result and codes(result) == ([code], [])


@pytest.mark.parametrize(
    ("tool", "code"),
    [
        ("text", "INVALID_TOOL_TYPE"),
        ({"function": {"name": "f", "description": "d"}}, "MISSING_TOOL_TYPE"),
        ({"type": "function"}, "MISSING_FUNCTION"),
        ({"type": "function", "function": "f"}, "INVALID_FUNCTION_TYPE"),
        ({"type": "function", "function": {"description": "d"}}, "MISSING_FUNCTION_NAME"),
        (function(name=""), "INVALID_FUNCTION_NAME"),
        (function(name=3), "INVALID_FUNCTION_NAME"),
        (function(name="1st"), "INVALID_FUNCTION_NAME"),
        (function(name="with space"), "INVALID_FUNCTION_NAME"),
        (function(parameters="p"), "INVALID_PARAMETERS_TYPE"),
        (function(parameters={"properties": 3}), "INVALID_PARAMETERS_TYPE"),
        (function(parameters={"properties": {"a": "number"}}), "INVALID_PARAMETERS_TYPE"),
        (function(parameters={"required": "a"}), "INVALID_PARAMETERS_TYPE"),
        (function(strict=[]), "INVALID_FUNCTION_TYPE"),
    ],
)
def test_weakness_13_what_validate_refuses_nobody_can_use_and_only_that(tool: Any, code: str) -> None:
    assert validate_tool(tool) == ([code], [])
    with pytest.raises(InvalidToolError, match=r"tools\[0\]"):
        check_tools([tool])
    with pytest.raises(InvalidToolError, match=r"tools\[0\]"):
        normalize_tools([tool])
    assert check_tools([function(name="get-time")]) == [function(name="get-time")]


@pytest.mark.parametrize(
    ("tool", "code"),
    [
        ({**function(), "type": "custom"}, "UNKNOWN_TOOL_TYPE"),
        (function(description=""), "MISSING_FUNCTION_DESCRIPTION"),
        (function(parameters={"type": "array"}), "PARAMETERS_TYPE_NOT_OBJECT"),
    ],
)
def test_what_is_suspicious_warns_and_does_not_stop_anybody(tool: Any, code: str) -> None:
    assert validate_tool(tool) == ([], [code])
    assert check_tools([tool]) == [tool]
    assert normalize_tools([tool])[0].function.name == "f"


@pytest.mark.parametrize("tools", [None, (), "tools"])
def test_tools_that_are_no_list_are_refused_with_the_agents_name(tools: Any) -> None:
    with pytest.raises(InvalidToolError, match=r"get_tools of 'calc' returned .*must return a list"):
        check_tools(tools, "calc")


def test_all_errors_are_told_at_once() -> None:
    result = validate_agent_loop(agent(name="", get_tools=lambda self, request: ["x"], run=None))

    with pytest.raises(AgentLoopValidationError, match=r"3 error\(s\)") as raised:
        result.raise_if_invalid()
    assert raised.value.errors == result.errors
    assert str(ValidationError("CODE", "broken")) == "[CODE] broken"
    assert str(ValidationError("CODE", "broken", "name")) == "[CODE] name: broken"
