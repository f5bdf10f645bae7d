"""Tools of agent loops: parse and run calls, and check and convert tool schemas.

A tool is a schema or a dict of the same shape. Both are checked as the dict sent to the model.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ValidationError

from .core.exceptions import OsmosisRolloutError, ToolArgumentError
from .core.schemas import OpenAIFunctionToolSchema

if TYPE_CHECKING:
    from .types import MessageDict

# OpenAI and compatible providers allow hyphens.
_FUNCTION_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")


def create_tool_result(tool_call_id: str, content: str) -> MessageDict:
    """Return the message with a tool's result."""
    return {"role": "tool", "content": content, "tool_call_id": tool_call_id}


def create_tool_error_result(tool_call_id: str, error_message: str) -> MessageDict:
    """Return the message that reports a tool's failure to the model."""
    return create_tool_result(tool_call_id, f"Error: {error_message}")


def serialize_tool_result(result: Any) -> str:
    """Convert a tool's result to text: strings and numbers unchanged, everything else as JSON."""
    if isinstance(result, str):
        return result
    if isinstance(result, int | float) and not isinstance(result, bool):
        return str(result)
    return json.dumps(result, ensure_ascii=False, default=str)


def parse_tool_arguments(arguments: Any) -> dict[str, Any]:
    """Parse the arguments of a call: a dict, or a JSON object in a string, which may be empty.

    Raises ToolArgumentError for anything else.
    """
    if isinstance(arguments, dict):
        return arguments
    if isinstance(arguments, str) and not arguments.strip():
        return {}
    if not isinstance(arguments, str):
        raise ToolArgumentError(f"Expected str or dict as tool arguments, got {type(arguments).__name__}")
    try:
        read = json.loads(arguments)
    except (ValueError, RecursionError) as error:
        raise ToolArgumentError(f"Invalid JSON in tool arguments: {error}") from error
    if not isinstance(read, dict):
        raise ToolArgumentError(f"Expected dict as tool arguments, got {type(read).__name__}")
    return read


def get_tool_call_info(tool_call: dict[str, Any]) -> tuple[str, str, dict[str, Any]]:
    """Return a call's id, tool name and arguments. Raises ToolArgumentError with id and name."""
    call_id = tool_call.get("id") or "unknown"
    function = tool_call.get("function") or {}
    name = function.get("name") or ""
    try:
        return call_id, name, parse_tool_arguments(function.get("arguments") or "{}")
    except ToolArgumentError as error:
        raise ToolArgumentError(str(error), tool_call_id=call_id, tool_name=name) from error


async def execute_tool_calls(
    tool_calls: Sequence[dict[str, Any]], executor: Callable[[dict[str, Any]], Awaitable[MessageDict]]
) -> list[MessageDict]:
    """Run calls concurrently with ``executor`` and return their messages in order. Exceptions propagate."""
    return list(await asyncio.gather(*(executor(call) for call in tool_calls)))


class InvalidToolError(OsmosisRolloutError):
    """A tool that cannot be offered to a model."""


@dataclass(frozen=True)
class ToolProblem:
    """A problem of a tool, with a code of ``osmosis validate`` and its location, such as ``tools[0].function.name``."""

    code: str
    message: str
    field: str
    is_error: bool = True


def tool_problems(tool: object, field: str = "tool") -> list[ToolProblem]:
    """Return the errors and warnings of a tool, called ``field`` in messages."""
    is_model = isinstance(tool, BaseModel)
    if not is_model and not isinstance(tool, Mapping):
        message = f"a tool is an OpenAIFunctionToolSchema or a dict, not {type(tool).__name__}"
        return [ToolProblem("INVALID_TOOL_TYPE", message, field)]
    payload = tool_payload(tool)
    found = list(_problems(payload, field, is_model))
    if isinstance(tool, OpenAIFunctionToolSchema) or any(problem.is_error for problem in found):
        return found
    try:
        # The reply to `init` holds the tool as a schema.
        _as_schema(payload)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in (field, *first["loc"]))
        code = "INVALID_PARAMETERS_TYPE" if "parameters" in first["loc"] else "INVALID_FUNCTION_TYPE"
        found.append(ToolProblem(code, f"{first['msg'][0].lower()}{first['msg'][1:]}", where))
    return found


def check_tools(tools: object, agent_name: str = "the agent") -> list[Any]:
    """Return the result of ``get_tools`` after checking that it can be offered to a model."""
    if not isinstance(tools, list):
        given = "None" if tools is None else type(tools).__name__
        raise InvalidToolError(f"get_tools of '{agent_name}' returned {given}; it must return a list")
    for index, tool in enumerate(tools):
        for problem in tool_problems(tool, f"tools[{index}]"):
            if problem.is_error:
                raise InvalidToolError(f"{problem.field}: {problem.message}")
    return tools


def normalize_tools(tools: object, agent_name: str = "the agent") -> list[OpenAIFunctionToolSchema]:
    """Check tools and convert them to schemas. A dict keeps its keys, and a missing description becomes empty."""
    return [
        tool if isinstance(tool, OpenAIFunctionToolSchema) else _as_schema(tool_payload(tool))
        for tool in check_tools(tools, agent_name)
    ]


def tool_payloads(tools: Sequence[object]) -> list[dict[str, Any]]:
    """Check tools and convert them to the JSON sent to a model, without unset fields."""
    return [tool_payload(tool) for tool in check_tools(list(tools))]


def tool_payload(tool: Any) -> Any:
    """Convert a tool, or a part of one, to the JSON sent to a model, without checking it.

    Declared fields that are None are left out. Other nulls are part of the user's JSON Schema.
    """
    if isinstance(tool, BaseModel):
        declared = type(tool).model_fields
        return {name: tool_payload(item) for name, item in tool if item is not None or name not in declared}
    if isinstance(tool, Mapping):
        return {key: tool_payload(item) for key, item in tool.items()}
    if isinstance(tool, (list, tuple)):
        return [tool_payload(item) for item in tool]
    return tool


def _as_schema(payload: dict[str, Any]) -> OpenAIFunctionToolSchema:
    """Parse a tool's dict. Raises pydantic's ValidationError."""
    function = {key: value for key, value in payload["function"].items() if value is not None}
    function.setdefault("description", "")
    return OpenAIFunctionToolSchema.model_validate({**payload, "function": function})


def _problems(tool: dict[str, Any], field: str, is_model: bool) -> Iterator[ToolProblem]:
    if not tool.get("type"):
        yield ToolProblem("MISSING_TOOL_TYPE", "missing 'type' (usually \"function\")", field)
    elif tool["type"] != "function":
        message = f'type {tool["type"]!r} is not "function"; most models know no other'
        yield ToolProblem("UNKNOWN_TOOL_TYPE", message, f"{field}.type", is_error=False)
    if tool.get("function") is None:
        yield ToolProblem("MISSING_FUNCTION", "missing 'function'", field)
    elif not isinstance(tool["function"], Mapping):
        message = f"'function' is a dict, not {type(tool['function']).__name__}"
        yield ToolProblem("INVALID_FUNCTION_TYPE", message, f"{field}.function")
    else:
        yield from _function_problems(tool["function"], f"{field}.function", is_model)


def _function_problems(function: Mapping[str, Any], field: str, is_model: bool) -> Iterator[ToolProblem]:
    name = function.get("name")
    if name is None:
        yield ToolProblem("MISSING_FUNCTION_NAME", "missing 'name'", field)
    elif not isinstance(name, str) or not name.strip():
        yield ToolProblem("INVALID_FUNCTION_NAME", "the name is a text that is not empty", f"{field}.name")
    elif not _FUNCTION_NAME.fullmatch(name):
        message = f"name {name!r} must start with letter/underscore, and hold these, digits and hyphens alone"
        yield ToolProblem("INVALID_FUNCTION_NAME", message, f"{field}.name")
    if not function.get("description") and not is_model:
        message = "missing 'description'; it is how the model knows what the tool is for"
        yield ToolProblem("MISSING_FUNCTION_DESCRIPTION", message, f"{field}.description", is_error=False)
    parameters = function.get("parameters")
    if parameters is None:
        return
    where = f"{field}.parameters"
    if not isinstance(parameters, Mapping):
        message = f"'parameters' is a dict, not {type(parameters).__name__}"
        yield ToolProblem("INVALID_PARAMETERS_TYPE", message, where)
    elif parameters.get("type", "object") != "object":
        # A dict is sent unchanged, to a provider that may accept more than OpenAI's shape. A schema must have that shape.
        message = f"parameters.type must be 'object', not {parameters['type']!r}"
        yield ToolProblem("PARAMETERS_TYPE_NOT_OBJECT", message, f"{where}.type", is_error=is_model)
